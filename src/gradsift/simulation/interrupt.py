"""Stopping a run by Ctrl-C or SIGTERM, at the end of a round."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # that ask a run to stop


@dataclass
class StopRequest:
    """Whether a run was asked to stop.

    No ``threading.Event``: its lock is held while it is set, and a second signal would wait for that lock forever.
    """

    made: bool = False


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """The first signal makes a request, so that the round can end; a second does what it did before the run."""
    request = StopRequest()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in SIGNALS}
    # A job in the background is started to ignore Ctrl-C, and None is a handler that Python cannot put back.
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        request.made = True
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
