"""What a person meets first must come at once: nothing heavy is imported before there is work to do."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "pandas", "matplotlib", "sklearn"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["compare", "--help"],
        ["plan", "--help"],
        ["--version"],
        ["run", "--roundz"],
        ["completion", "bash"],
    ],
)
def test_nothing_heavy_is_imported_for_help_and_for_mistakes(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from gradsift.cli.main import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "gradsift", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    for command in ("plan", "run", "resume", "compare", "report", "data", "list"):
        assert f"\n    {command} " in done.stdout
    assert "examples:" in done.stdout
