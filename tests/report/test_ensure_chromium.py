"""scripts/ensure_chromium.sh, with other programs in the place of apt-get and chromium."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "ensure_chromium.sh"
NEEDED = ("bash", "env", "mktemp", "rm", "cat", "chmod")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A PATH with nothing on it but what the script needs."""
    for name in NEEDED:
        found = next(Path(p) / name for p in os.environ["PATH"].split(":") if (Path(p) / name).exists())
        (tmp_path / name).symlink_to(found)
    return tmp_path


def program(place: Path, name: str, does: str) -> None:
    (place / name).write_text(f"#!/bin/sh\n{does}\n")
    (place / name).chmod(0o755)


def run(place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [place / "bash", SCRIPT], env={"PATH": str(place)}, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def installs(place: Path, status: int = 0) -> None:
    """An apt-get that writes down how it was called, and puts a chromium on the PATH."""
    ends = (
        f'case "$*" in *install*) echo "E: told"; printf "#!/bin/sh\\n" >{place}/chromium; chmod +x {place}/chromium;;'
    )
    program(place, "apt-get", f'echo "$DEBIAN_FRONTEND $*" >>{place}/calls\n{ends} esac\nexit {status}')


def test_nothing_to_do(place: Path) -> None:
    program(place, "chromium", "true")
    installs(place)
    done = run(place)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (place / "calls").exists()


@pytest.mark.parametrize("uid", [0, 1000])
def test_installs_as_root_or_with_sudo(place: Path, uid: int) -> None:
    program(place, "id", f"echo {uid}")
    program(place, "sudo", f'echo "sudo $1" >>{place}/calls\nshift\nexec "$@"')
    installs(place)
    assert run(place).returncode == 0
    calls = (place / "calls").read_text().splitlines()
    apt = [call for call in calls if not call.startswith("sudo")]
    assert [call.split()[-1] for call in apt] == ["update", "chromium"]
    assert all(call.startswith("noninteractive ") for call in apt)
    assert [call for call in calls if call.startswith("sudo")] == (["sudo --non-interactive"] * 2 if uid else [])
    assert run(place).returncode == 0  # and once only
    assert (place / "calls").read_text().splitlines() == calls


def test_says_what_to_do(place: Path) -> None:
    done = run(place)
    assert done.returncode == 1
    assert "no apt-get" in done.stderr
    assert "apt-get install chromium" in done.stderr
    installs(place)
    program(place, "id", "echo 1000")
    done = run(place)
    assert done.returncode == 1
    assert "needs root or sudo" in done.stderr
    assert not (place / "calls").exists()


def test_a_failed_installation_shows_why(place: Path) -> None:
    program(place, "id", "echo 0")
    program(place, "apt-get", 'echo "E: no network" >&2\nexit 100')
    done = run(place)
    assert done.returncode == 1
    assert "E: no network" in done.stderr
    program(place, "apt-get", "true")
    done = run(place)
    assert done.returncode == 1
    assert "none on the PATH" in done.stderr
