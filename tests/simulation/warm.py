"""What a process that forks others loads first: torch, and all that torch loads when it is first used."""

import tempfile

from tests.simulation import worker

with tempfile.TemporaryDirectory() as _place:
    worker.go(f"{_place}/run", rounds=1)
