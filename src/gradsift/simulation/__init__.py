"""Drivers that run all clients of a federation in one process."""
