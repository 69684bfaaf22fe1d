"""Train the digits with adaptive k on a real deployment, and show what it saved: ``make deploy-demo``."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from scripts.deploy.demo import demo
from scripts.deploy.deployment import DeploymentError


def main() -> int:
    """The command; 0 if the run came to its end, and then, as after Ctrl-C or a failure, nothing of it runs on."""
    parser = argparse.ArgumentParser(prog="python -m scripts.deploy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how long to train (default %(default)s)")
    parser.add_argument("--nodes", type=int, default=4, help="how many SuperNodes, from 2 (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="keep certificates, keys, logs and records in this new folder")
    options = parser.parse_args()
    if options.rounds < 1 or options.nodes < 2:
        parser.error(f"at least 1 round and 2 nodes are needed, not {options.rounds} and {options.nodes}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        if options.folder is not None:
            options.folder.mkdir(parents=True)
            demo(options.folder.resolve(), options.nodes, options.rounds)
        else:
            with tempfile.TemporaryDirectory(prefix="gradsift-deploy-") as folder:
                demo(Path(folder).resolve(), options.nodes, options.rounds)
    except KeyboardInterrupt:
        print("\ninterrupted: everything is stopped", file=sys.stderr)
        return 130
    except (DeploymentError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
