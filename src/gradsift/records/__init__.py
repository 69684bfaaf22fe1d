"""A run on disk: its configuration, one record a round, its checkpoints. Nothing here needs torch."""
