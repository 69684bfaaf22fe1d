"""The paper's figures: their experiments at two scales, their tables and their drawings."""
