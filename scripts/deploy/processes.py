"""Starting processes, and stopping all of them with everything that they started."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

GRACE = 5.0  # seconds to end by themselves: a SuperNode signs off at the SuperLink
MARK = "GRADSIFT_DEPLOYMENT"


class Processes:
    """The processes of the deployment in ``folder``, where they also run.

    SuperLink starts a SuperExec in a session of its own, SuperExec starts an app for every message: process groups do
    not hold them all. What does is the environment that they inherit, with a mark in it that only they have.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self.environment = {**environment, MARK: str(folder)}
        self._started: list[subprocess.Popen[bytes]] = []
        self._watch: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start ``command``, its output appended to ``log``; Ctrl-C does not reach it: we stop it, in order."""
        if self._watch is None:
            # Its end of the pipe closes when we end, however that happens: then it does what ``stop`` did not.
            watch = [sys.executable, __file__, str(self._folder)]
            self._watch = subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True)
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self.environment,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def stop(self) -> None:
        """Ask all to end, give them time to sign off, then kill whatever is left; return when nothing is."""
        with _deaf():
            for process in reversed(self._started):
                if process.poll() is None:
                    process.terminate()
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline and any(process.poll() is None for process in self._started):
                time.sleep(0.05)
            for process in self._started:
                process.kill()
                process.wait()
            kill_marked(str(self._folder))
            if self._watch is not None:
                self._watch.communicate()


def kill_marked(mark: str) -> None:
    """Kill every process of this user that inherited the mark, until there is none.

    Where there is no /proc none is found; Flower's processes then end by themselves after the one that started them.
    """
    sought = f"{MARK}={mark}".encode()
    found = True
    while found:
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
                if sought in (folder / "environ").read_bytes().split(b"\0"):
                    found = True
                    os.kill(int(folder.name), signal.SIGKILL)
        time.sleep(0.02)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C and requests to end wait: a second one, out of impatience, would leave processes behind."""
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.stdin.read()
    kill_marked(sys.argv[1])
