"""The files of a run: configuration, records and checkpoints. This package does not import torch."""
