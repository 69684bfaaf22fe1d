"""The paper's own round on Flower."""
