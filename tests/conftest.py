"""Settings of every test: the same examples in every run, one thread."""

import torch
from hypothesis import HealthCheck, settings

# Deadlines would be timings as assertions; derandomized, a failure on one machine is a failure on all.
settings.register_profile(
    "gradsift", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gradsift")

torch.set_num_threads(1)
