"""Flower's PyTorch app, with the lines that gradsift takes."""
