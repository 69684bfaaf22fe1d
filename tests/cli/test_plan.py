"""``gradsift plan`` prints what ``gradsift.plan`` predicts, and a command that trains with it."""

import json
import shlex
from pathlib import Path

import pytest

import gradsift
from gradsift.cli.main import main
from tests.cli.test_commands import ok, refused


def test_a_number_of_weights_and_a_link_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    ok("plan", "--weights", "11000000", "--up", "10", "--down", "50")
    said = capsys.readouterr().out
    plan = gradsift.plan(11_000_000, up_mbit=10, down_mbit=50, latency=0.03, compute=0.2, clients=20)
    assert said.startswith(f"{plan}\n")
    assert "--controller planned --encoded-bytes" in said
    assert "--set cost.up_bandwidth=1250000.0" in said


def test_every_flag_reaches_the_plan() -> None:
    ok(
        *("plan", "--weights", "1e6", "--up", "2", "--down", "3", "--latency", "0.1", "--compute", "0.5"),
        *("--clients", "7", "--rounds", "400", "--fedavg-steps", "5", "--local-steps", "3"),
        *("--k-min", "10", "--k-max", "20000"),
        *("--plain-bytes", "--json", "plan.json", "--plot", "plan.svg"),
    )
    plan = gradsift.plan(
        1_000_000,
        up_mbit=2,
        down_mbit=3,
        latency=0.1,
        compute=0.5,
        clients=7,
        encoded_bytes=False,
        rounds=400,
        local_steps=3,
        fedavg_steps=5,
        k_min=10,
        k_max=20_000,
    )
    written = json.loads(Path("plan.json").read_text())
    assert (written["k"], written["k_min"], written["k_max"], written["clients"]) == (plan.k, 10, 20_000, 7)
    assert written["fedavg"]["gradients"] == 5
    assert written["planned"]["gradients"] == 3
    assert written["planned"]["total"] == plan.planned.total
    assert Path("plan.svg").read_text().startswith("<?xml")


def test_local_steps_and_bits_are_in_the_printed_command(capsys: pytest.CaptureFixture[str]) -> None:
    ok("plan", "--weights", "1e6", "--local-steps", "4", "--bits", "2,4", "--json", "plan.json")
    assert "--local-steps 4 --bits 2,4 --encoded-bytes" in capsys.readouterr().out
    assert json.loads(Path("plan.json").read_text())["bits"] == [2, 4]


@pytest.mark.parametrize("more", [(), ("--local-steps", "4", "--bits", "2,4")], ids=["plain", "local steps, few bits"])
@pytest.mark.parametrize("up", ["0.1", "100000"])
def test_the_printed_command_trains_at_that_cost(
    up: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", "mlp", "--set", "model.hidden=4"]
    ok("plan", *model, "--up", up, "--down", up, "--latency", "0", "--json", "plan.json", *more)
    written = json.loads(Path("plan.json").read_text())
    command = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  gradsift run"))
    ok(*shlex.split(command)[1:], "--rounds", "5", "--out", "a", "--quiet")
    first = json.loads(Path("a/records.jsonl").read_text().splitlines()[0])
    assert first["up_elements"] == pytest.approx(written["k"], abs=1)  # the controller rounds at random
    assert first["round_cost"] == pytest.approx(written["planned"]["seconds"], rel=0.1)


def test_a_model_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("planmodel.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(99, 10)\n")
    ok("plan", "--model", "planmodel:net")
    said = capsys.readouterr().out
    assert "D = 1,000 weights" in said
    assert "gradsift run --model planmodel:net --cost" in said


def test_buffers_are_counted_and_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    code = "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), {})\n"
    Path("normed.py").write_text(code.format("nn.BatchNorm1d(10)"))
    ok("plan", "--model", "normed:net", "--data", "digits", "--json", "plan.json", "--plot", "PLAN.SVG")
    said = capsys.readouterr().out
    assert "averaged buffers, which travel whole besides: 21." in said
    assert "--buffers average" in said
    assert Path("PLAN.SVG").read_text().startswith("<?xml")
    written = json.loads(Path("plan.json").read_text())
    command = next(line for line in said.splitlines() if line.startswith("  gradsift run"))
    ok(*shlex.split(command)[1:], "--rounds", "3", "--out", "b", "--quiet")
    first = json.loads(Path("b/records.jsonl").read_text().splitlines()[0])
    assert first["round_cost"] == pytest.approx(written["planned"]["seconds"], rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "0"], "must be at least 1, got 0"),
        (["--weights", "9", "--model", "mlp"], "--model has no meaning with --weights 9"),
        (["--weights", "9", "--up", "-1"], "up_mbit must be above 0, got -1.0"),
        (["--weights", "9", "--plot", "plan.gif"], "must be a .svg, .png or .pdf file, got 'plan.gif'"),
        (["--weights", "9", "--plot", "a.svg", "--json", "./a.svg"], "--plot and --json name the same file, a.svg"),
        (["--weights", "1e30"], "must be at most 1,000,000,000,000,000, got 1000000000000000019884624838656"),
        (["--weights", "9", "--plot", "gone/plan.svg"], "cannot write gone/plan.svg: No such file"),
        (["--weights", "9", "--json", "gone/plan.json"], "cannot write gone/plan.json: No such file"),
        (["--model", "mlpp"], "unknown model 'mlpp'; did you mean 'mlp'"),
    ],
)
def test_wrong_flags_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, "plan", *arguments)


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    assert "gradsift plan --weights 11e6 --up 10 --down 50" in capsys.readouterr().out
