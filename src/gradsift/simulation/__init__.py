"""The simulator: all clients of a federation in one process."""
