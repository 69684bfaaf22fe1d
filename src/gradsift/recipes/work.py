"""Carrying experiments out: one after another, or several at a time in processes of their own that share a device.

Every run keeps its folder, and doing the same again does what is left. A signal or a limit of time ends a run after the
round under way, with a checkpoint; a run that is killed goes on from its last one.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from gradsift.cli.display import Display
from gradsift.errors import GradsiftError, RunError, TakenError
from gradsift.recipes.experiment import Experiment
from gradsift.recipes.switching import Switching
from gradsift.recipes.trajectory import from_folder
from gradsift.simulation.folder import CONFIG, in_use
from gradsift.simulation.run import SIGNALS, Asked

Job = Sequence[Experiment]  # experiments that share one run, and so are made one after another
Watch = Callable[[dict[str, Any]], bool | None]  # True: end the run after its round
SHOWN = 10.0  # seconds from one line about a run to the next
AGAIN = 1.0  # seconds until looking again at the runs that another process has
EXIT = {"done": 0, "stopped": 3, "failed": 4}  # of a worker, by the worst that became of its runs


def as_jobs(experiments: Iterable[Experiment]) -> list[list[Experiment]]:
    """Experiments grouped by their run, in the order of their first."""
    jobs: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        job = jobs.setdefault(experiment.name, [])
        if job and job[0].identity != experiment.identity:
            raise GradsiftError(f"two different experiments are called {experiment.name!r}")
        job.append(experiment)
    return list(jobs.values())


def carry_out(experiment: Experiment, runs: Path, watch: Watch) -> bool:
    """Run one experiment from wherever it stands to its end; False: it was interrupted.

    What another process is at work on is refused, unless this experiment is already in it.
    """
    from gradsift.cli.build import simulate_arguments
    from gradsift.simulation.run import simulate

    folder, settings = runs / experiment.name, dict(experiment.settings)
    while True:
        done = from_folder(folder)
        stop = experiment.remaining(done)
        busy = in_use(folder)
        if stop is None:
            if not busy:
                _keep_one_checkpoint(folder)
            return True
        if busy:
            raise TakenError(f"{folder} is in use by another process")
        arguments = simulate_arguments(settings) | asdict(stop)
        extra: dict[str, Any] = {"command": settings, "experiment": experiment.identity}
        if experiment.switch is not None:
            controller = Switching(settings["k"], experiment.switch.k)
            after = None if done is None else experiment.switched_after(done)
            if after is not None:
                controller.switch_after(after)
            arguments["controller"] = controller
            extra = {"experiment": experiment.identity, "switched_after": after}
        there = (folder / CONFIG).is_file()
        result = simulate(**arguments, out=folder, resume=there, on_round=watch, extra_config=extra)
        if result.stopped == "interrupted":
            return False


def work(
    jobs: Sequence[Job], runs: Path, *, processes: int = 1, minutes: float | None = None, quiet: bool = False
) -> str:
    """Make all runs, ``processes`` at a time. Returns "done", "interrupted", "time limit" or "failed".

    Settings that no run can be made with are refused before the first.
    """
    from gradsift.cli.build import check_settings

    for job in jobs:
        check_settings(job[0].settings)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    asked = Asked()
    if processes == 1 or len(jobs) < 2:
        outcomes = _here(jobs, runs, deadline, asked, quiet)
    else:
        outcomes = _in_workers(jobs, runs, deadline, asked, min(processes, len(jobs)), quiet)
    if asked.yes:
        return "interrupted"
    if "failed" in outcomes:
        return "failed"
    if "stopped" in outcomes:
        return "time limit" if _late(deadline) else "interrupted"
    return "done"


def _here(jobs: Sequence[Job], runs: Path, deadline: float | None, asked: Asked, quiet: bool) -> set[str]:
    """All runs in this process."""

    def over() -> bool:
        return asked.yes or _late(deadline)

    with _handling(asked, at_once=True):
        return _each(jobs, runs, over, quiet)


def _in_workers(
    jobs: Sequence[Job], runs: Path, deadline: float | None, asked: Asked, count: int, quiet: bool
) -> set[str]:
    """All runs in processes of their own, each taking the next one."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    stop = context.RawValue("b", 0)  # without a lock, which a worker could be killed with
    counter = context.Value("q", 0)
    shared = (jobs, runs, counter, stop, deadline, os.getpid(), count, quiet)
    workers = [context.Process(target=_worker, args=shared) for _ in range(count)]
    with _handling(asked, at_once=False):
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # for a worker, until it can answer: importing takes seconds
        try:
            for worker in workers:
                worker.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for worker in workers:
            while worker.is_alive():
                stop.value = asked.yes
                worker.join(0.2)
    for worker in workers:
        if worker.exitcode not in EXIT.values():
            print(f"a worker ended with exit code {worker.exitcode}", file=sys.stderr)
    return {next((name for name, code in EXIT.items() if code == w.exitcode), "failed") for w in workers}


def _worker(
    jobs: Sequence[Job],
    runs: Path,
    counter: Any,
    stop: Any,
    deadline: float | None,
    parent: int,
    workers: int,
    quiet: bool,
) -> None:
    """Take the next run until there is none, or it is time to stop."""
    os.setsid()  # Ctrl-C in the terminal is for the parent, which says when to stop
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    asked = Asked()

    def over() -> bool:
        return asked.yes or bool(stop.value) or _late(deadline) or os.getppid() != parent

    def taken() -> Iterator[Job]:
        while True:
            with counter.get_lock():
                number = counter.value
                counter.value += 1
            if number >= len(jobs):
                return
            yield jobs[number]

    with _handling(asked, at_once=False):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        outcomes = _each(taken(), runs, over, quiet)
    sys.exit(max((EXIT[outcome] for outcome in outcomes), default=0))


def _each(jobs: Iterable[Job], runs: Path, over: Callable[[], bool], quiet: bool) -> set[str]:
    """One run after another; those that another process has are waited for at the end."""
    outcomes, waiting = set(), []
    with _failures() as failed:
        for job in jobs:
            outcome = "stopped" if over() else _one(job, runs, over, failed, quiet)
            if outcome == "taken":
                waiting.append(job)
                continue
            outcomes.add(outcome)
            if outcome == "stopped":
                return outcomes
        if waiting and not quiet and not over():
            names = ", ".join(job[0].name for job in waiting)
            print(f"another process is at work on {names}: waiting", file=sys.stderr, flush=True)
        while waiting and "stopped" not in outcomes:
            for job in list(waiting):
                outcome = "stopped" if over() else _one(job, runs, over, failed, quiet)
                if outcome != "taken":
                    waiting.remove(job)
                    outcomes.add(outcome)
            if waiting:
                with suppress(KeyboardInterrupt):  # asked, then
                    time.sleep(AGAIN)
    return outcomes


def _one(job: Job, runs: Path, over: Callable[[], bool], failed: Counter[str], quiet: bool) -> str:
    """One run with all its experiments: "done", "stopped", "failed", or "taken" by another process.

    A failure must not end the others.
    """
    try:
        for experiment in job:
            settings = experiment.settings
            with Progress(experiment.name, settings["rounds"], settings["cost_budget"], quiet=quiet) as shown:

                def watch(record: dict[str, Any], shown: Display = shown) -> bool:
                    shown.round(record)
                    return over()

                if not carry_out(experiment, runs, watch):
                    return "stopped"
    except KeyboardInterrupt:
        return "stopped"
    except TakenError:
        return "taken"
    except Exception as problem:  # of the run: its settings, its folder, its numbers, the device's memory
        said = str(problem) if isinstance(problem, GradsiftError | RunError) else repr(problem)
        failed[said] += 1
        if failed[said] == 1:
            print(f"{job[0].name}: {said}", file=sys.stderr, flush=True)
        return "failed"
    return "done"


@contextmanager
def _failures() -> Iterator[Counter[str]]:
    """What runs failed of, said once each; at the end, how many more failed of it."""
    failed: Counter[str] = Counter()
    try:
        yield failed
    finally:
        for said, runs in failed.items():
            if runs > 1:
                print(f"{runs - 1} more failed likewise: {said}", file=sys.stderr, flush=True)


class Progress(Display):
    """A line now and then: several runs go on at once, and a long one has thousands of evaluations."""

    def round(self, record: dict[str, Any]) -> None:
        """One more round."""
        self._take(record)
        now = time.monotonic()
        if not self.quiet and now - max(self._shown, self._began) >= SHOWN:
            self._shown = now
            print(self.line(record), file=self.stream, flush=True)

    def __exit__(self, *problem: object) -> None:
        """There is no line to clear."""


@contextmanager
def _handling(asked: Asked, *, at_once: bool) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask, also in a job of the background, which is started to ignore Ctrl-C.

    A run under way asks after every round, so that asking it again loses nothing. ``at_once``: Ctrl-C also interrupts
    what is no round, and, as the second one in a run, the round.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def ask(number: int, frame: FrameType | None) -> None:
        asked.yes = True
        if at_once and number == signal.SIGINT:
            signal.default_int_handler(number, frame)

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _keep_one_checkpoint(folder: Path) -> None:
    """Of a finished run, from which a longer one can go on; those of the paper's scale take 280 MB each."""
    for old in sorted(folder.glob("checkpoint-*.npz"))[:-1]:
        old.unlink(missing_ok=True)
