"""Making runs: in this process and in others, stopped and taken up again, without doing anything twice."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradsift.experiments import work
from gradsift.experiments.display import Display
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.paper.figures import fig4, fig5
from gradsift.experiments.store import Store
from gradsift.experiments.trajectory import from_folder
from gradsift.experiments.work import as_jobs, carry_out
from gradsift.records.folder import RunFolder, checkpoints
from gradsift.records.record import Record
from tests.experiments.tiny import TINY, one, quiet, records

pytestmark = pytest.mark.slow  # starts processes


def some(count: int = 3, **stop: Any) -> list[Experiment]:
    return [one(seed, k=20.0, **({"rounds": 6} | stop)) for seed in range(count)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever it is read, so that no limit depends on how fast the machine is."""
    seconds = itertools.count()
    monkeypatch.setattr(work, "time", SimpleNamespace(monotonic=lambda: float(next(seconds)), sleep=lambda _: None))


def rounds(place: Path, experiments: list[Experiment]) -> list[int]:
    folders = [place / e.name for e in experiments]
    return [len(records(folder)) if folder.exists() else 0 for folder in folders]


@pytest.mark.parametrize("processes", [1, 2])
def test_all_runs_are_made(tmp_path: Path, processes: int) -> None:
    experiments = some()
    assert work.work(as_jobs(experiments), tmp_path, processes=processes, quiet=True) == "done"
    assert rounds(tmp_path, experiments) == [6, 6, 6]
    for e in experiments:
        assert [file.name for file in checkpoints(tmp_path / e.name)] == ["checkpoint-00000006.npz"]
    alone = tmp_path / "alone"
    assert carry_out(experiments[1], alone, quiet)
    name = experiments[1].name
    assert records(alone / name) == records(tmp_path / name)


def test_of_a_finished_run_the_newest_checkpoint_stays_and_so_does_what_is_not_a_checkpoint(tmp_path: Path) -> None:
    wanted = some(1, rounds=12)[0]
    assert carry_out(wanted, tmp_path, quiet)
    folder = tmp_path / wanted.name
    (newest,) = checkpoints(folder)
    others = [folder / name for name in ("checkpoint-best.npz", "checkpoint-00000003 copy.npz")]
    for path in (*others, folder / "checkpoint-00000009.npz"):
        path.write_bytes(newest.read_bytes())
    assert carry_out(wanted, tmp_path, quiet)
    assert sorted(folder.glob("*.npz")) == sorted([*others, newest])


def test_a_longer_experiment_goes_on_from_the_shorter_one(tmp_path: Path) -> None:
    short, long = some(1)[0], some(1, rounds=11)[0]
    assert short.name == long.name
    assert work.work(as_jobs([short, long]), tmp_path, quiet=True) == "done"
    assert rounds(tmp_path, [long]) == [11]
    (tmp_path / "alone").mkdir()
    assert carry_out(long, tmp_path / "alone", quiet)
    numbers = [
        [json.loads(line)["train_loss"] for line in records(p / long.name)] for p in (tmp_path, tmp_path / "alone")
    ]
    assert numbers[0] == numbers[1]
    store = Store(tmp_path, tmp_path / "results", ["fig4"])
    assert store.finished(short)
    assert store.finished(long)
    found = store.get(short)
    assert found is not None
    assert found.within(short.stop).rounds == 6


def test_a_run_that_fails_does_not_end_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    experiments = some()
    bad = replace(experiments[0], name="bad-seed0", settings={**experiments[0].settings, "lr": 1e30})
    unknown = replace(experiments[0], name="unknown-seed0", settings={**experiments[0].settings, "model": "mlpp"})
    assert work.work(as_jobs([bad, unknown, *experiments]), tmp_path, quiet=True) == "failed"
    assert rounds(tmp_path, experiments) == [6, 6, 6]
    said = capfd.readouterr().err
    assert "bad-seed0: " in said
    assert "did you mean 'mlp'" in said


@pytest.mark.parametrize("processes", [1, 2])
def test_what_many_runs_fail_of_is_said_once(processes: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = [replace(e, settings={**e.settings, "clients_per_round": 5000}) for e in some(6)]
    assert work.work(as_jobs(bad), tmp_path, processes=processes, quiet=True) == "failed"
    said = capfd.readouterr().err.splitlines()
    first = [line for line in said if ": clients_per_round is 5000" in line and "more failed" not in line]
    more = [
        int(line.split()[0]) for line in said if "more failed with the same error: clients_per_round is 5000" in line
    ]
    assert 1 <= len(first) <= processes  # each process says it for itself
    assert len(first) + sum(more) == 6
    assert len(said) == len(first) + len(more)


@pytest.mark.usefixtures("clock")
def test_a_run_that_another_process_has_is_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    experiments = some(2, rounds=40)
    both = [script(tmp_path, 1, rounds=40, stderr=subprocess.PIPE) for _ in range(2)]
    try:
        said = [run.communicate(timeout=600) for run in both]
    finally:
        for run in both:
            run.kill()
    assert [out.strip() for out, _ in said] == ["done", "done"]
    assert not any("failed" in err or "exists" in err for _, err in said)
    assert rounds(tmp_path / "runs", experiments) == [40, 40]
    with RunFolder.open(tmp_path / "runs" / experiments[0].name)._lock:
        longer = as_jobs(some(2, rounds=41))
        assert work.work(longer, tmp_path / "runs", minutes=1) == "time limit"
        assert rounds(tmp_path / "runs", experiments) == [40, 41], "the others are made meanwhile"
        assert f"waiting for another process to finish {experiments[0].name}" in capfd.readouterr().err
        assert work.work(as_jobs(experiments), tmp_path / "runs", minutes=1) == "done", "these rounds are there"
        assert capfd.readouterr().err == ""
    assert work.work(longer, tmp_path / "runs", quiet=True) == "done"
    assert rounds(tmp_path / "runs", experiments) == [41, 41]


def test_a_folder_that_another_process_makes_first_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, place, wanted = os.rename, tmp_path / "runs", some(1)[0]

    def late(*paths: Any) -> None:
        monkeypatch.setattr(os, "rename", rename)
        assert carry_out(wanted, place, quiet)  # as another process would
        rename(*paths)

    monkeypatch.setattr(os, "rename", late)  # by which a run folder appears under its name
    assert work.work(as_jobs([wanted]), place, quiet=True) == "done"
    assert rounds(place, [wanted]) == [6]


@pytest.mark.usefixtures("clock")
def test_a_limit_of_time_stops_with_a_checkpoint_and_the_same_again_goes_on(tmp_path: Path) -> None:
    experiments = some(2, rounds=100_000)
    assert work.work(as_jobs(experiments), tmp_path, minutes=1e-9, quiet=True) == "time limit"
    assert rounds(tmp_path, experiments) == [0, 0]
    for _ in range(2):
        before = rounds(tmp_path, experiments)[0]
        assert work.work(as_jobs(experiments), tmp_path, minutes=0.1, quiet=True) == "time limit"
        made = rounds(tmp_path, experiments)
        assert made[0] > before
        assert made[1] == 0
        assert (tmp_path / experiments[0].name / f"checkpoint-{made[0]:08d}.npz").exists()
    shorter = some(1, rounds=made[0] + 2)
    assert work.work(as_jobs(shorter), tmp_path, quiet=True) == "done"


SCRIPT = """
import sys
from pathlib import Path
from gradsift.experiments import work
from tests.experiments.test_work import some
if __name__ == "__main__":
    jobs = work.as_jobs(some(2, rounds=int(sys.argv[3])))
    print(work.work(jobs, Path(sys.argv[1]), processes=int(sys.argv[2]), quiet=True))
"""


def script(place: Path, processes: int, *, rounds: int = 100_000, **options: Any) -> subprocess.Popen[str]:
    (place / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(place / "script.py"), str(place / "runs"), str(processes), str(rounds)]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])  # the package that is tested
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, **options)


@pytest.mark.parametrize(("number", "processes"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_signal_stops_with_checkpoints(tmp_path: Path, number: signal.Signals, processes: int) -> None:
    experiments = some(2)[:processes]

    def ignore() -> None:  # as a shell starts a job in the background
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    run = script(tmp_path, processes, stderr=subprocess.PIPE, preexec_fn=ignore)
    try:
        deadline = time.monotonic() + 600
        while min(rounds(tmp_path / "runs", experiments)) < 3:
            assert time.monotonic() < deadline, "no rounds were made"
            time.sleep(0.05)
        run.send_signal(number)
        out, err = run.communicate(timeout=600)
    finally:
        run.kill()
    assert (out.strip(), err) == ("interrupted", "")  # nor was a worker killed
    for e, made in zip(experiments, rounds(tmp_path / "runs", experiments), strict=True):
        assert (tmp_path / "runs" / e.name / f"checkpoint-{made:08d}.npz").exists()


def test_ctrl_c_while_workers_start_is_clean(tmp_path: Path) -> None:
    run = script(tmp_path, 2, stderr=subprocess.PIPE, start_new_session=True)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    try:
        deadline = time.monotonic() + 600
        while len(children.read_text().split()) < 3:  # two workers, and the tracker of what they share
            assert time.monotonic() < deadline, "no workers were started"
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        out, err = run.communicate(timeout=600)
    finally:
        run.kill()
    assert (out.strip(), err) == ("interrupted", "")


@pytest.mark.parametrize(
    "asked",
    [
        [(6, signal.SIGTERM), (6, signal.SIGTERM)],
        [(6, signal.SIGTERM), (7, signal.SIGINT)],
        [(6, signal.SIGINT), (7, signal.SIGTERM)],
        [(6, None), (7, signal.SIGINT)],
        [(6, None), (7, signal.SIGTERM)],
    ],
)
def test_asked_twice_a_run_keeps_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[int, signal.Signals | None]]
) -> None:
    """By a signal, or by the clock (None), and by a signal again before the run has ended."""

    def ask(self: Display, record: Record) -> None:
        del self
        for number, how in asked:
            if number == record["round"] and how is None:
                monkeypatch.setattr(work, "_late", lambda _: True)
            elif number == record["round"] and how is not None:
                signal.raise_signal(how)

    monkeypatch.setattr(Display, "round", ask)
    experiments = some(1, rounds=50)
    assert work.work(as_jobs(experiments), tmp_path, quiet=True) in ("interrupted", "time limit")
    made = rounds(tmp_path, experiments)[0]
    assert 6 < made < 10
    assert (tmp_path / experiments[0].name / f"checkpoint-{made:08d}.npz").exists()


def test_results_stand_in_for_folders(tmp_path: Path) -> None:
    experiments = fig4(TINY, 0)[:2]
    assert work.work(as_jobs(experiments), tmp_path / "a", quiet=True) == "done"
    Store(tmp_path / "a", tmp_path / "results", []).write("fig4", experiments)
    elsewhere = Store(tmp_path / "b", tmp_path / "results", ["fig4"])
    assert all(elsewhere.finished(e) for e in experiments)
    assert not elsewhere.finished(fig5(TINY, 0)[0])
    dearer = fig4(replace(TINY, cost_budget=20.0), 0)[0]
    assert not elsewhere.finished(dearer)
    # What is there is kept when the file is written again, also what is not asked for.
    elsewhere.write("fig4", experiments[:1])
    again = Store(tmp_path / "b", tmp_path / "results", ["fig4"]).get(experiments[1])
    there = from_folder(tmp_path / "a" / experiments[1].name)
    assert again is not None
    assert there is not None
    assert again.loss.tolist() == there.loss.tolist()
