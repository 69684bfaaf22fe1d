"""Carry out experiments, one after another or several at a time in processes of their own that share a device.

Every run has a folder, so that the same call again does what is left. A signal or a time limit ends a run after the
current round, with a checkpoint; a run that is killed continues from its last checkpoint.
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

from gradsift.errors import GradsiftError, RunError, TakenError
from gradsift.experiments.build import check_settings, simulate_arguments
from gradsift.experiments.display import Display
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.switching import Switching
from gradsift.experiments.trajectory import from_folder
from gradsift.records.folder import CONFIG, checkpoints, in_use
from gradsift.records.record import Record
from gradsift.simulation.interrupt import SIGNALS, StopRequest
from gradsift.simulation.run import simulate

Job = Sequence[Experiment]  # experiments that share one run, and so are carried out one after another
Watch = Callable[[Record], bool | None]  # called after every round; True ends the run
SHOWN = 10.0  # seconds from one line about a run to the next
AGAIN = 1.0  # seconds between attempts to open the folders that another process has open
EXIT = {"done": 0, "stopped": 3, "failed": 4}  # the exit code of a worker, by the worst outcome of its runs


def as_jobs(experiments: Iterable[Experiment]) -> list[list[Experiment]]:
    """Experiments grouped by the run that they share, in the order of the first of each group."""
    jobs: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        job = jobs.setdefault(experiment.name, [])
        if job and job[0].identity != experiment.identity:
            raise GradsiftError(f"two different experiments are called {experiment.name!r}")
        job.append(experiment)
    return list(jobs.values())


def carry_out(experiment: Experiment, runs: Path, watch: Watch) -> bool:
    """Run one experiment to its end, from where it stands; False if it was interrupted.

    A folder that another process has open is refused, unless the experiment is finished there.
    """
    folder, settings = runs / experiment.name, dict(experiment.settings)
    while True:
        done = from_folder(folder)
        stop = experiment.remaining(done)
        busy = in_use(folder)
        if stop is None:
            if not busy:  # a longer run needs one to continue from; at the paper's scale each takes 280 MB
                for old in checkpoints(folder)[:-1]:
                    old.unlink(missing_ok=True)
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
    """Carry out all runs, ``processes`` at a time. Returns "done", "interrupted", "time limit" or "failed".

    Wrong settings are refused before the first run is started.
    """
    for job in jobs:
        check_settings(job[0].settings)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    request = StopRequest()
    if processes == 1 or len(jobs) < 2:
        outcomes = _here(jobs, runs, deadline, request, quiet)
    else:
        outcomes = _in_workers(jobs, runs, deadline, request, min(processes, len(jobs)), quiet)
    if request.made:
        return "interrupted"
    if "failed" in outcomes:
        return "failed"
    if "stopped" in outcomes:
        return "time limit" if _late(deadline) else "interrupted"
    return "done"


def _here(jobs: Sequence[Job], runs: Path, deadline: float | None, request: StopRequest, quiet: bool) -> set[str]:
    """All runs in this process."""

    def over() -> bool:
        return request.made or _late(deadline)

    with _handling(request, at_once=True):
        return _each(jobs, runs, over, quiet)


def _in_workers(
    jobs: Sequence[Job], runs: Path, deadline: float | None, request: StopRequest, count: int, quiet: bool
) -> set[str]:
    """All runs in processes of their own, each taking the next one."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    stop = context.RawValue("b", 0)  # without a lock, which a killed worker would never release
    counter = context.Value("q", 0)
    shared = (jobs, runs, counter, stop, deadline, os.getpid(), count, quiet)
    workers = [context.Process(target=_worker, args=shared) for _ in range(count)]
    with _handling(request, at_once=False):
        signal.pthread_sigmask(
            signal.SIG_BLOCK, SIGNALS
        )  # in a new worker, until it can handle them: imports take seconds
        try:
            for worker in workers:
                worker.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for worker in workers:
            while worker.is_alive():
                stop.value = request.made
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
    """Carry out the next run, until there is none or it is time to stop."""
    os.setsid()  # Ctrl-C in the terminal reaches the parent only, which then sets ``stop``
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    request = StopRequest()

    def over() -> bool:
        return request.made or bool(stop.value) or _late(deadline) or os.getppid() != parent

    def taken() -> Iterator[Job]:
        while True:
            with counter.get_lock():
                number = counter.value
                counter.value += 1
            if number >= len(jobs):
                return
            yield jobs[number]

    with _handling(request, at_once=False):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        outcomes = _each(taken(), runs, over, quiet)
    sys.exit(max((EXIT[outcome] for outcome in outcomes), default=0))


def _each(jobs: Iterable[Job], runs: Path, over: Callable[[], bool], quiet: bool) -> set[str]:
    """One run after another; runs that another process has open are waited for at the end."""
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
                with suppress(KeyboardInterrupt):  # ``over`` says so
                    time.sleep(AGAIN)
    return outcomes


def _one(job: Job, runs: Path, over: Callable[[], bool], failed: Counter[str], quiet: bool) -> str:
    """One run with all its experiments: "done", "stopped", "failed", or "taken" by another process.

    A failure is printed and does not end the other runs.
    """
    try:
        for experiment in job:
            limits = experiment.settings["rounds"], experiment.settings["cost_budget"]
            with Display(experiment.name, *limits, quiet=quiet, every=SHOWN) as shown:

                def watch(record: Record, shown: Display = shown) -> bool:
                    shown.round(record)
                    return over()

                if not carry_out(experiment, runs, watch):
                    return "stopped"
    except KeyboardInterrupt:
        return "stopped"
    except TakenError:
        return "taken"
    except Exception as problem:  # wrong settings, a full disk, numbers out of range, no memory
        said = str(problem) if isinstance(problem, GradsiftError | RunError) else repr(problem)
        failed[said] += 1
        if failed[said] == 1:
            print(f"{job[0].name}: {said}", file=sys.stderr, flush=True)
        return "failed"
    return "done"


@contextmanager
def _failures() -> Iterator[Counter[str]]:
    """Counts failures by their message, which is printed for the first; at the end, how many more runs had it."""
    failed: Counter[str] = Counter()
    try:
        yield failed
    finally:
        for said, runs in failed.items():
            if runs > 1:
                print(f"{runs - 1} more failed likewise: {said}", file=sys.stderr, flush=True)


@contextmanager
def _handling(request: StopRequest, *, at_once: bool) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM set ``request``, also in a background job, which a shell starts with Ctrl-C ignored.

    A run has handlers of its own while it goes on. ``at_once``: Ctrl-C also raises KeyboardInterrupt, which interrupts
    whatever is done between rounds, and as the second one in a run also the round.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def ask(number: int, frame: FrameType | None) -> None:
        request.made = True
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
