"""The commands, in this process, on small set-ups."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradsift
from gradsift.cli.main import main
from gradsift.experiments.settings import DEFAULT_CONTROLLER

QUICK = ["--model", "mlp", "--set", "model.hidden=4", "--clients", "5", "--lr", "0.3"]


def ok(*arguments: str) -> None:
    assert main(list(arguments)) == 0


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a wrong command says; it must exit with 2 and leave nothing behind."""
    before = sorted(Path.cwd().rglob("*"))
    assert main(list(arguments)) == 2
    assert sorted(Path.cwd().rglob("*")) == before
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err


def records(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "records.jsonl").read_text().splitlines()]


def test_run_keeps_a_folder_and_says_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    ok("run", *QUICK, "--rounds", "20", "--out", "a")
    said = capsys.readouterr()
    assert re.search(r"stopped: rounds, after 20 rounds at cost [\d.]+", said.out)
    assert "test accuracy" in said.out
    assert "gradsift report a" in said.out
    assert len(records("a")) == 20
    assert said.err.count("\n") == 3  # plain lines at the evaluations, since this is no terminal
    assert re.search(r"round 10/20  loss [\d.]+  acc [\d.]+  k \d+  cost [\d.]+  sent .+ left", said.err)


def test_quiet_prints_results_only(capsys: pytest.CaptureFixture[str]) -> None:
    ok("run", *QUICK, "--rounds", "5", "--quiet")
    said = capsys.readouterr()
    assert said.err == ""
    assert "stopped: rounds" in said.out


def test_without_out_a_new_folder_is_made_each_time() -> None:
    for _ in range(2):
        ok("run", *QUICK, "--rounds", "2", "--quiet")
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "digits-fab-top-k-planned-seed0",
        "digits-fab-top-k-planned-seed0-2",
    ]


def test_flags_reach_the_run() -> None:
    ok(
        "run",
        *QUICK,
        *("--rounds", "4", "--quiet", "--out", "a", "--sparsifier", "fub-top-k", "--controller", "sign"),
        *("--k-min", "3", "--k-max", "30", "--comm-time", "7", "--batch-size", "8", "--seed", "5", "--delay", "1"),
        *(
            "--clients-per-round",
            "3",
            "--probe-samples",
            "2",
            "--eval-every",
            "2",
            "--charge-probe",
            "--dtype",
            "float64",
        ),
        *("--set", "lr.schedule=cosine", "--set", "lr.rounds=50", "--partition", "iid"),
    )
    config = json.loads(Path("a/config.json").read_text())
    assert config["sparsifier"]["name"] == "fub-top-k"
    assert (config["controller"]["name"], config["controller"]["k_min"], config["controller"]["k_max"]) == (
        "sign",
        3,
        30,
    )
    assert config["cost"]["comm_time"] == 7
    assert config["lr"] == {"class": "Cosine", "lr": 0.3, "rounds": 50, "last": 0.0}
    settings = config["settings"]
    assert (settings["batch_size"], settings["seed"], settings["delay"], settings["clients_per_round"]) == (8, 5, 1, 3)
    assert (settings["probe_samples"], settings["eval_every"], settings["charge_probe"]) == (2, 2, True)
    assert (config["dtype"], config["data"]["clients"]) == ("float64", 5)
    assert all(3 <= record["used_k"] <= 30 for record in records("a"))


def test_k_alone_means_a_fixed_k_and_a_dense_method_needs_none() -> None:
    ok("run", *QUICK, "--rounds", "2", "--k", "9", "--quiet", "--out", "a")
    ok("run", *QUICK, "--rounds", "2", "--sparsifier", "send-all", "--quiet", "--out", "b")
    assert [record["used_k"] for record in records("a")] == [9, 9]
    assert json.loads(Path("b/config.json").read_text())["controller"]["name"] == "fixed"


@pytest.mark.parametrize(
    ("cost", "options"),
    [
        ("link-time", ["cost.up_bandwidth=1000.0", "cost.down_bandwidth=5000.0", "cost.latency=0.1"]),
        ("energy", ["cost.up=1e-6", "cost.down=1e-7", "cost.compute=2.0"]),
        ("money", ["cost.up=1e-9", "cost.down=0.0"]),
    ],
)
def test_other_costs(cost: str, options: list[str]) -> None:
    sets = [word for option in options for word in ("--set", option)]
    ok("run", *QUICK, "--rounds", "3", "--quiet", "--out", "a", "--cost", cost, *sets)
    assert records("a")[-1]["cost"] > 0


def test_a_module_of_ones_own_that_is_broken_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("def net(:\n")
    assert "cannot import 'broken': SyntaxError" in refused(capsys, "run", "--model", "broken:net")


def test_a_seed_given_to_the_model_wins() -> None:
    weights = []
    for seed, out in (("3", "a"), ("4", "b")):
        ok("run", *QUICK, "--seed", seed, "--set", "model.seed=3", "--rounds", "1", "--quiet", "--out", out)
        with np.load(f"{out}/checkpoint-00000000.npz") as kept:
            weights.append(kept["weights"])
    np.testing.assert_array_equal(*weights)


def test_ones_own_model_data_and_loss() -> None:
    Path("mine.py").write_text(
        "import numpy as np, torch, gradsift\n"
        "def net(data, width=3):\n"
        "    return torch.nn.Linear(data.x.shape[1], 1)\n"
        "def data():\n"
        "    x = np.random.default_rng(0).normal(size=(60, 4)).astype('float32')\n"
        "    return gradsift.FederatedData.from_arrays(x, x.sum(1, keepdims=True), np.arange(60) % 3)\n"
        "loss = torch.nn.functional.l1_loss\n"
        "number = 3\n"
    )
    ok(
        "run",
        "--model",
        "mine:net",
        "--data",
        "mine:data",
        "--batch-size",
        "8",
        "--rounds",
        "30",
        "--quiet",
        "--out",
        "a",
    )
    ok("run", "--model", "mine:net", "--data", "mine:data", "--loss", "mine:loss", "--batch-size", "8", "--rounds", "2")
    losses = [record["global_loss"] for record in records("a") if record["global_loss"] is not None]
    assert losses[-1] < losses[0]
    assert records("a")[-1]["accuracy"] is None


def test_a_file_of_arrays() -> None:
    source = np.random.default_rng(0)
    np.savez(
        "mine.npz",
        x=source.integers(0, 255, (80, 6, 6), dtype=np.uint8),
        y=source.integers(0, 3, 80),
        client=np.arange(80) % 4,
        split=(np.arange(80) % 10 == 0).astype(np.uint8),
    )
    ok("run", "--data", "mine.npz", "--batch-size", "8", "--rounds", "3", "--quiet", "--out", "a")
    assert json.loads(Path("a/config.json").read_text())["data"]["clients"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--roundz", "3"], r"unknown option '--roundz'; did you mean '--rounds'\?"),
        (["run", "--rounds", "x"], "--rounds"),
        (["run", "--rounds", "0"], r"rounds must be at least 1, got 0"),
        (["rum"], r"unknown 'rum'; did you mean 'run'\?"),
        (["data", "get", "femnst", "x"], r"unknown 'femnst'; did you mean 'femnist'\?"),
        (["data", "show", "digits", "--partiton", "iid"], r"unknown option '--partiton'; did you mean '--partition'\?"),
        (["compare", "--seed", "3"], "--seed has no meaning in a comparison"),
        (["compare", "--controller", "sign"], "--controller has no meaning in a comparison"),
        (["compare", "--k", "99999"], r"k must be in \[1, 6090\], got 99999"),
        (["compare", "--data", "digitz"], r"did you mean 'digits'\?"),
        (["run", "--sparsifier", "fab-topk"], r"unknown sparsifier 'fab-topk'; did you mean 'fab-top-k'\?"),
        (["run", "--controller", "extended-sing"], r"did you mean 'extended-sign'\?"),
        (["run", "--model", "small-cn"], r"did you mean 'small-cnn'\?"),
        (["run", "--data", "digit"], r"did you mean 'digits'\?"),
        (["run", "--cost", "mony"], r"did you mean 'money'\?"),
        (["run", "--cost", "money"], r"cost 'money' needs --set cost\.up=VALUE --set cost\.down=VALUE$"),
        (["run", "--cost", "link-time"], r"cost 'link-time' needs --set cost\.up_bandwidth=VALUE"),
        (["run", "--cost", "measured-time"], r"cost 'measured-time' needs a driver .* use link-time$"),
        (["run", "--cost", "energy", "--comm-time", "3"], "--comm-time has no meaning with --cost energy"),
        (["compare", "--cost", "money", "--comm-time", "3"], "--comm-time has no meaning with --cost money"),
        (["run", "--set", "controller.gues=2"], r"'planned' has no option 'gues'; did you mean 'guess'\?"),
        (["run", "--set", "controller.alpha=2"], r"'planned' has no option 'alpha'; valid: k_min, k_max, guess"),
        (["run", "--set", "cost.com_time=2"], r"no option 'com_time'; did you mean 'com[mp]_time'\?"),
        (["run", "--set", "lr.schedule=cosin"], r"did you mean 'cosine'\?"),
        (["run", "--set", "model.widht=2"], r"no option 'widht'; did you mean 'width'\?"),
        (["run", "--k", "0"], "k must be at least 1, got 0"),
        (["run", "--k", "1e9"], r"k must be in \[1, 6090\], got 1000000000"),
        (["run", "--k-max", "99999"], r"k_max must be at most D = 6090, got 99999"),
        (["run", "--k-min", "99999"], r"k_min must be at most D = 6090, got 99999"),
        (["run", "--lr", "-1"], "lr must .* got -1"),
        (["run", "--clients-per-round", "1000"], r"clients_per_round is 1000, but there are \d+ clients"),
        (["run", "--sparsifier", "fedavg", "--controller", "sign"], "'fedavg' is dense and accepts only a fixed k"),
        (["run", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["run", "--dtype", "float23"], r"did you mean 'float32'\?"),
        (["run", "--buffers", "keep"], "buffers must be 'refuse' or 'average', got 'keep'"),
        (["run", "--model", "nothing.here:net"], "cannot import 'nothing.here'"),
        (["run", "--model", "json:dump"], "'json:dump' failed: TypeError"),
        (["run", "--model", "json:dumps"], "'json:dumps' failed|json:dumps gave"),
        (["run", "--loss", "json:dumq"], r"has no 'dumq'; did you mean 'dump"),
        (["run", "--data", "mine:data", "--clients", "5"], "--clients 5 has no meaning with --data mine:data"),
        (["data", "show", "mine:data", "--partition", "iid"], "--partition iid has no meaning with --data mine:data"),
        (["run", "none.toml"], r"cannot read none\.toml"),
        (["resume", "nowhere"], "nowhere is not a run folder"),
        (["report", "nowhere"], "nowhere"),
        (["compare", "--methods", "adaptiv"], r"unknown method 'adaptiv'; did you mean 'adaptive'\?"),
        (["compare", "--methods", "foo"], "valid: adaptive, fixed, (?!.*fixed)"),
        (["compare", "--methods", "fixed,fixed"], "must name each method once"),
        (["compare", "--seeds", "0"], "--seeds must be at least 1"),
        (["compare", "--jobs", "0"], "--jobs must be above 0"),
        (["data", "show", "digitz"], r"did you mean 'digits'\?"),
        (["data", "import", "nowhere", "x.npz"], "nowhere"),
        (["data", "import", "nowhere", "x.csv"], r"must end in \.npz"),
        (["data"], "ACTION"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_with_the_nearest(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(message, refused(capsys, *arguments)), capsys.readouterr()


def test_an_existing_folder_is_refused_and_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a").mkdir()
    Path("a/letter").write_text("dear")
    assert "a exists already" in refused(capsys, "run", *QUICK, "--out", "a")
    assert Path("a/letter").read_text() == "dear"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--out", "afile"], "afile exists already and is not a run: choose another folder"),
        (["run", "--out", "afile/x"], "out must be a folder, got 'afile/x': 'afile' is not one"),
        (["compare", "--out", "afile"], "afile exists already and is not a comparison"),
        (["compare", "--out", "afile/x"], "--out must be a folder, got 'afile/x': 'afile' is not one"),
        (["report", "runs", "--out", "afile"], "--out must be a folder, got 'afile': 'afile' is not one"),
        (["paper", "fig6", "--out", "afile"], "--out must be a folder, got 'afile': 'afile' is not one"),
        (["paper", "fig6", "--out", "afile/x", "--report"], "--out must be a folder, got 'afile/x'"),
        (["paper", "fig6", "--results", "afile"], "--results must be a folder, got 'afile': 'afile' is not one"),
        (["regret", "--out", "afile"], "--out must be a folder, got 'afile': 'afile' is not one"),
        (["regret", "--results", "afile/x"], "--results must be a folder, got 'afile/x': 'afile' is not one"),
        (["run", "--data", "afile"], "afile is not an .npz file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_file_where_a_folder_is_to_be_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("afile").write_text("dear")
    said = refused(capsys, *arguments)
    assert message in said
    assert said.count("\n") == 1
    assert Path("afile").read_text() == "dear"


def test_a_failed_run_exits_1_and_says_where_its_checkpoint_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK, "--lr", "1e30", "--rounds", "50", "--out", "a", "--quiet"]) == 1
    said = capsys.readouterr().err
    assert "the run failed: round" in said
    assert "gradsift resume a" in said
    assert list(Path("a").glob("checkpoint-*.npz"))


def test_resume_goes_on_where_it_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    ok("run", *QUICK, "--rounds", "6", "--out", "a", "--quiet")
    ok("resume", "a", "--rounds", "12", "--quiet")
    ok("run", *QUICK, "--rounds", "12", "--out", "b", "--quiet")
    capsys.readouterr()
    kept, whole = records("a"), records("b")
    assert len(kept) == 12
    for mine, theirs in zip(kept, whole, strict=True):
        assert mine["k"] == theirs["k"]
        assert mine["cost"] == theirs["cost"]
        assert mine["contribution"] == theirs["contribution"]
    with np.load("a/checkpoint-00000012.npz") as one, np.load("b/checkpoint-00000012.npz") as other:
        np.testing.assert_array_equal(one["weights"], other["weights"])
        np.testing.assert_array_equal(one["residual"], other["residual"])


def test_resume_of_a_run_made_in_python_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    data = gradsift.FederatedData.from_arrays(x, np.arange(60) % 2, np.arange(60) % 3)
    gradsift.simulate(
        torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy, data, rounds=2, batch_size=8, out="a",
        controller=gradsift.controller("fixed", k=3),
    )  # fmt: skip
    assert "resume=True" in refused(capsys, "resume", "a")


@pytest.mark.slow
def test_compare_runs_everything_and_can_be_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    how = [
        "compare",
        *QUICK,
        "--seeds",
        "2",
        "--cost-budget",
        "25",
        "--target-accuracy",
        "0.99",
        "--out",
        "c",
        "--quiet",
    ]
    ok(*how)
    said = capsys.readouterr().out
    assert "fab-top-k, planned" in said
    assert "fab-top-k, extended-sign" in said
    assert "Least-used client" in said
    assert "Cost to accuracy 99" in said
    assert re.search(r"^fixed: \d k from 2 to 93 of D = 310", said, re.MULTILINE), said
    assert re.search(r"fedavg@(\d+): k = \1 of D = 310; it exchanges every \d+ rounds", said)
    assert re.search(r"k = \d+, best of \d in hindsight", said)
    assert Path("c/report/index.html").exists()
    made = {path.name for path in Path("c").iterdir() if path.is_dir()} - {"report"}
    methods = json.loads(Path("c/comparison.json").read_text())["methods"]
    assert made == {f"{name}-seed{seed}" for name in methods for seed in (0, 1)}
    assert (methods[0], methods[-1]) == (DEFAULT_CONTROLLER, "send-all")
    lost = f"c/{methods[2]}-seed1"
    for name in made:
        assert records(f"c/{name}")[-1]["cost"] >= 25
    before = {path: path.stat().st_mtime_ns for path in Path("c").rglob("records.jsonl")}

    # One run is lost: it alone is run again, with the same result; the finished ones are not touched.
    kept = Path(lost, "records.jsonl").read_bytes()
    shutil.rmtree(lost)
    ok("resume", "c", "--quiet", "--jobs", "1")
    assert Path(lost, "records.jsonl").read_bytes() == kept
    again = {path: path.stat().st_mtime_ns for path in Path("c").rglob("records.jsonl")}
    assert {path for path in again if again[path] != before[path]} == {Path(lost, "records.jsonl")}

    ok(*how)  # the same command goes on with what is there
    capsys.readouterr()
    said = refused(capsys, *how, "--lr", "0.1", "--methods", "fixed")
    assert (
        "c holds a comparison with other settings: lr was 0.3, not 0.1; methods was ['planned', 'extended-sign',"
        in said
    )
    assert "cannot change in a comparison" in refused(capsys, "resume", "c", "--rounds", "5")


@pytest.mark.slow
def test_a_comparison_of_before_fixed_k_were_several_is_resumed_as_it_was() -> None:
    ok("compare", *QUICK, "--seeds", "1", "--rounds", "2", "--methods", "adaptive", "--out", "c", "--quiet")
    plan = json.loads(Path("c/comparison.json").read_text())
    plan["methods"] = ["adaptive", "fixed", "fedavg"]
    Path("c/comparison.json").write_text(json.dumps(plan))
    ok("resume", "c", "--quiet", "--jobs", "1")
    assert [records(f"c/{name}-seed0")[-1]["k"] for name in ("fixed", "fedavg")] == [1, 1]  # the paper's ratio


def test_the_default_of_a_fixed_k_is_the_papers_ratio() -> None:
    from gradsift.experiments.build import paper_ratio_k

    assert paper_ratio_k(444_062) == 1000
    assert paper_ratio_k(6090) == 14
    assert paper_ratio_k(10) == 1


@pytest.mark.slow
def test_methods_of_a_comparison() -> None:
    methods = "fub-top-k,sign,periodic-k+value,fab-top-k"
    ok("compare", *QUICK, "--seeds", "1", "--rounds", "3", "--methods", methods, "--k", "12", "--out", "c", "--quiet")
    configs = {name: json.loads(Path(f"c/{name}-seed0/config.json").read_text()) for name in methods.split(",")}
    used = {name: (c["sparsifier"]["name"], c["controller"]["name"]) for name, c in configs.items()}
    assert used == {
        "fub-top-k": ("fub-top-k", "fixed"),
        "sign": ("fab-top-k", "sign"),
        "periodic-k+value": ("periodic-k", "value"),
        "fab-top-k": ("fab-top-k", "fixed"),
    }
    assert configs["fab-top-k"]["controller"]["k"] == 12


@pytest.mark.slow
def test_report_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    ok("run", *QUICK, "--rounds", "10", "--out", "runs/a", "--quiet")
    ok("report", "runs/a", "--title", "Mine", "--out", "page")
    assert "page/index.html" in capsys.readouterr().out
    assert "<title>Mine" in Path("page/index.html").read_text()
    ok("report", "runs/a")
    assert Path("runs/a/report/index.html").exists()
    ok("report", "runs")  # a report inside a run is no run
    capsys.readouterr()
    for flag, value, why in (
        ("--target-loss", "nan", "target_loss must be a finite number, got nan"),
        ("--target-accuracy", "95", "target_accuracy must be in [0.0, 1.0], got 95.0"),
    ):
        assert why in refused(capsys, "report", "runs/a", "--out", "other", flag, value)


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    ok("list")
    said = capsys.readouterr().out
    for name in [
        *gradsift.sparsifiers(),
        *gradsift.controllers(),
        "digits",
        "paper-cnn",
        *gradsift.cost_models(),
        "cosine",
    ]:
        assert re.search(rf"^  {re.escape(name)} +\S", said, re.MULTILINE), name  # with a word on what it is


def test_data_show(capsys: pytest.CaptureFixture[str]) -> None:
    ok("data", "show", "digits", "--clients", "7", "--partition", "dirichlet:0.2")
    said = capsys.readouterr().out
    assert re.search(r"clients +7\n", said)
    assert "label skew" in said
    rows = re.findall(r"^ +(\d+) +(\d+)  \|(.{10})\|$", said, re.MULTILINE)
    assert len(rows) == 7
    assert sum(int(samples) for _, samples, _ in rows) == 1438


def leaf() -> None:
    """A LEAF folder of two users, whose samples have four numbers."""
    for part, count in (("train", 12), ("test", 3)):
        Path("leaf", part).mkdir(parents=True)
        users = {
            user: {"x": [[0.1 * i] * 4 for i in range(count)], "y": [i % 2 for i in range(count)]} for user in "ab"
        }
        about = {"users": list(users), "num_samples": [count] * 2, "user_data": users}
        Path("leaf", part, "all.json").write_text(json.dumps(about))


def test_data_import(capsys: pytest.CaptureFixture[str]) -> None:
    leaf()
    ok("data", "import", "leaf", "mine.npz")
    assert "gradsift run --data mine.npz" in capsys.readouterr().out
    ok("run", "--data", "mine.npz", "--batch-size", "4", "--rounds", "2", "--quiet")
    capsys.readouterr()
    assert "mine.npz exists already" in refused(capsys, "data", "import", "leaf", "mine.npz")


@pytest.mark.parametrize("shape", ["1,2,2", "[1,2,2]"])
def test_the_shape_of_samples_is_a_list(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    leaf()
    ok("data", "show", "leaf", "--set", f"data.shape={shape}")
    assert re.search(r"input shape +1 x 2 x 2\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("data.shape=(1,2,2)", "shape must be the sizes of a sample, such as 1,28,28, got '(1,2,2)'"),
        ("data.shape=4", "shape must be the sizes of a sample, such as 1,28,28, got 4"),
        ("data.shape=true", "shape must be the sizes of a sample, such as 1,28,28, got True"),
        ('data.shape="a"', "shape must be the sizes of a sample, such as 1,28,28, got 'a'"),
        ("data.new_users=maybe", "new_users must be True or False, got 'maybe'"),
        ("model.width=1", "--set model.width has no meaning here: only --set data.OPTION has"),
    ],
)
def test_wrong_options_of_data_are_refused(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    leaf()
    assert message in refused(capsys, "data", "show", "leaf", "--set", option)


def test_data_get_without_its_library_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "flwr_datasets", None)
    assert "pip install '.[get]'" in refused(capsys, "data", "get", "femnist", "folder")


def test_bare_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    ok()
    assert "examples:" in capsys.readouterr().out
    ok("--version")
    assert capsys.readouterr().out == f"gradsift {gradsift.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    ok("completion", shell)
    said = capsys.readouterr().out
    assert "--comm-time" in said
    assert "compare" in said


def test_tensorboard_logs_beside_the_records() -> None:
    ok("run", *QUICK, "--rounds", "3", "--out", "a", "--quiet", "--tensorboard")
    events = list(Path("a/tensorboard").glob("events.*"))
    assert len(events) == 1
    assert b"global_loss" in events[0].read_bytes()
