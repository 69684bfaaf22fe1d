"""Settings of every test: the same examples in every run, one thread, Ctrl-C as in a terminal."""

import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

# Deadlines would be timings as assertions; derandomized, a failure on one machine is a failure on all.
settings.register_profile(
    "gradsift", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("gradsift"), max_examples=10)  # for `make check`
settings.load_profile("gradsift")

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts a job in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests did not run for want of the real data."""
    reports = terminalreporter.stats.get("skipped", [])
    count = sum("GRADSIFT_DATA is" in str(report.longrepr) for report in reports)
    if count:
        terminalreporter.write_line(f"{count} tests skipped: GRADSIFT_DATA is not set")
