"""Stopping a run by Ctrl-C or SIGTERM, at the end of a round."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class StopRequest:
    """Whether a run should stop at the end of the round.

    Not a ``threading.Event``, whose ``set`` holds a lock: a second signal during it would wait for the lock forever.
    """

    made: bool = False


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Make the first signal a request to stop after the round; a second one has its usual effect."""
    request = StopRequest()
    on_main_thread = threading.current_thread() is threading.main_thread()
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS if on_main_thread}
    # A background job ignores Ctrl-C and should go on doing so; Python cannot restore a handler that it shows as None.
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

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
