"""Runs experiments, one after another or several at a time in worker processes that share a device.

Every run has a folder, so that the same call again does only what is left. A signal or a time limit ends a run after
the current round with a checkpoint; a run that was killed resumes from its last checkpoint.
"""

import math
import multiprocessing
import multiprocessing.connection
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
from typing import Any, NamedTuple

from gradsift.errors import GradsiftError, RunError, TakenError
from gradsift.experiments.build import check_settings, simulate_arguments
from gradsift.experiments.display import Display, Overall
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.switching import Switching
from gradsift.experiments.tensorboard import tensorboard
from gradsift.experiments.trajectory import from_folder
from gradsift.records.folder import CONFIG, checkpoints, in_use, read_records
from gradsift.records.record import Record
from gradsift.simulation.interrupt import SIGNALS, StopRequest
from gradsift.simulation.run import simulate

Job = Sequence[Experiment]  # experiments that share one run, and so are run one after another
Watch = Callable[[Record], bool | None]  # called after every round; True ends the run
SHOW_EVERY = 10.0  # seconds between two lines about a run
RETRY_EVERY = 1.0  # seconds between attempts to open run folders that another process has open
OUTCOMES = {0: "done", 3: "stopped", 4: "failed"}  # by exit code; a worker exits with that of its worst run


class Manner(NamedTuple):
    """How to make runs."""

    quiet: bool = False
    together: bool = False  # show them as parts of one whole: those of workers in one line
    tensorboard: bool = False  # also write logs for TensorBoard
    threads: int | None = None  # of each run; None: what this process has, or the share of a worker


class Share(NamedTuple):
    """What workers and their parent share, without locks, which a killed worker would never release."""

    stop: Any  # whether to stop
    job: Any  # for each worker, the number of the job that it is at, or -1
    part: Any  # for each worker, how much of that job is done, from 0 to 1


def as_jobs(experiments: Iterable[Experiment]) -> list[list[Experiment]]:
    """Group experiments by the run that they share, in the order of the first of each group."""
    jobs: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        job = jobs.setdefault(experiment.name, [])
        if job and job[0].identity != experiment.identity:
            raise GradsiftError(f"two different experiments are called {experiment.name!r}")
        job.append(experiment)
    return list(jobs.values())


def carry_out(experiment: Experiment, runs: Path, watch: Watch) -> bool:
    """Run or resume one experiment to its end; returns False if it was interrupted.

    A folder that another process has open is refused, unless the experiment is finished there.
    """
    folder, settings = runs / experiment.name, dict(experiment.settings)
    while True:
        done, busy = from_folder(folder), in_use(folder)
        stop = experiment.remaining(done)
        if stop is None:
            if not busy:  # a longer run needs only the newest to resume; at the paper's scale each takes 280 MB
                for old in checkpoints(folder)[:-1]:
                    old.unlink(missing_ok=True)
            return True
        if busy:
            raise TakenError(f"{folder} is in use by another process")
        arguments = simulate_arguments(settings) | asdict(stop)
        extra: dict[str, Any] = {"command": settings, "experiment": experiment.identity}
        if experiment.switch is not None:
            after = None if done is None else experiment.switched_after(done)
            arguments["controller"] = Switching(settings["k"], experiment.switch.k, after)
            extra = {"experiment": experiment.identity, "switched_after": after}
        resume = (folder / CONFIG).is_file()
        result = simulate(**arguments, out=folder, resume=resume, on_round=watch, extra_config=extra)
        if result.stopped == "interrupted":
            return False


def work(
    jobs: Sequence[Job],
    runs: Path,
    *,
    processes: int = 1,
    minutes: float | None = None,
    quiet: bool = False,
    together: bool = False,
    tensorboard: bool = False,
    threads: int | None = None,
) -> str:
    """Run all jobs, ``processes`` at a time. Returns "done", "interrupted", "time limit" or "failed".

    Wrong settings are refused before the first run starts. The other arguments are those of ``Manner``.
    """
    for job in jobs:
        check_settings(job[0].settings)
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    request, manner = StopRequest(), Manner(quiet, together, tensorboard, threads)
    if processes == 1 or len(jobs) < 2:
        with _handling(request, at_once=True), _threads(threads):
            outcomes = _run_all(jobs, runs, lambda: request.made or _late(deadline), manner, len(jobs))
    else:
        outcomes = _in_workers(jobs, runs, deadline, request, min(processes, len(jobs)), manner)
    if request.made:
        return "interrupted"
    if "failed" in outcomes:
        return "failed"
    if "stopped" in outcomes:
        return "time limit" if _late(deadline) else "interrupted"
    return "done"


def _in_workers(
    jobs: Sequence[Job], runs: Path, deadline: float, request: StopRequest, count: int, manner: Manner
) -> set[str]:
    """Run all jobs in worker processes, each of which takes the next job that is left."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    share = Share(context.RawValue("b", 0), context.RawArray("i", [-1] * count), context.RawArray("d", count))
    taken = context.Value("q", 0)
    shared = (jobs, runs, taken, share, deadline, os.getpid(), manner)
    workers = [context.Process(target=_worker, args=(number, *shared)) for number in range(count)]
    overall = Overall(len(jobs), quiet=manner.quiet or not manner.together)
    with _handling(request, at_once=False):
        # Blocked in a new worker until it can handle them, since its imports take seconds.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            for worker in workers:
                worker.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        while any(worker.is_alive() for worker in workers):
            share.stop.value = request.made
            multiprocessing.connection.wait([w.sentinel for w in workers if w.is_alive()], 0.2)
            now = [(jobs[number][0].name, share.part[i]) for i, number in enumerate(share.job) if number >= 0]
            overall.show(max(0, min(taken.value, len(jobs)) - len(now)), now)
        overall.close()
    for worker, number in zip(workers, share.job, strict=True):
        if worker.exitcode not in OUTCOMES:
            name = f"{jobs[number][0].name}: " if number >= 0 else ""
            print(f"{name}its worker process ended with exit code {worker.exitcode}", file=sys.stderr)
    return {OUTCOMES.get(worker.exitcode or 0, "failed") for worker in workers}


def _worker(
    number: int,
    jobs: Sequence[Job],
    runs: Path,
    taken: Any,
    share: Share,
    deadline: float,
    parent: int,
    manner: Manner,
) -> None:
    """Run the next job until none is left, or until it is time to stop; ``taken`` is the number of taken jobs."""
    os.setsid()  # so that Ctrl-C in the terminal reaches only the parent, which then sets ``stop``
    request = StopRequest()

    def over() -> bool:
        return request.made or bool(share.stop.value) or _late(deadline) or os.getppid() != parent

    def take() -> Iterator[Job]:
        while True:
            with taken.get_lock():
                share.job[number], share.part[number] = -1, 0.0
                if taken.value >= len(jobs):
                    return
                share.job[number] = taken.value
                taken.value += 1
            yield jobs[share.job[number]]

    def tell(part: float) -> None:
        share.part[number] = part

    threads = manner.threads or max(1, (os.cpu_count() or 1) // len(share.job))
    with _handling(request, at_once=False), _threads(threads):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        quiet = manner._replace(quiet=manner.quiet or manner.together)
        outcomes = _run_all(take(), runs, over, quiet, len(jobs), tell)
    sys.exit(max((code for code, outcome in OUTCOMES.items() if outcome in outcomes), default=0))


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads; None changes nothing."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_all(
    jobs: Iterable[Job],
    runs: Path,
    over: Callable[[], bool],
    manner: Manner,
    total: int,
    tell: Callable[[float], None] = lambda _: None,
) -> set[str]:
    """Run one job after another until ``over`` returns True; at the end, wait for runs that another process has open.

    Returns the set of outcomes. The error of a failed run is printed, once if several runs have the same.
    """
    outcomes: set[str] = set()
    taken: list[Job] = []
    errors: Counter[str] = Counter()

    def queue() -> Iterator[Job]:
        yield from jobs
        if taken and not manner.quiet and not over():
            names = ", ".join(job[0].name for job in taken)
            print(f"waiting for another process to finish {names}", file=sys.stderr, flush=True)
        while taken:
            for _ in range(len(taken)):
                yield taken.pop(0)
            with suppress(KeyboardInterrupt):  # then ``over`` returns True
                time.sleep(RETRY_EVERY if taken else 0)

    for number, job in enumerate(queue(), start=1):
        try:
            place = f"{number}/{total} " if manner.together else ""
            outcomes.add("stopped" if over() else _run(job, runs, over, manner, place, tell))
        except KeyboardInterrupt:
            outcomes.add("stopped")
        except TakenError:
            taken.append(job)
        except Exception as problem:  # wrong settings, a full disk, numbers out of range, no memory
            outcomes.add("failed")
            error = str(problem) if isinstance(problem, GradsiftError | RunError) else repr(problem)
            errors[error] += 1
            if errors[error] == 1:
                print(f"{job[0].name}: {error}", file=sys.stderr, flush=True)
        if "stopped" in outcomes:
            break
    for error, count in errors.items():
        if count > 1:
            print(f"{count - 1} more failed with the same error: {error}", file=sys.stderr, flush=True)
    return outcomes


def _run(
    job: Job, runs: Path, over: Callable[[], bool], manner: Manner, place: str, tell: Callable[[float], None]
) -> str:
    """Run all experiments of a job and show their progress; returns "done" or "stopped"."""
    for experiment in job:
        rounds, budget = experiment.settings["rounds"], experiment.settings["cost_budget"]
        every = None if manner.together else SHOW_EVERY
        log = tensorboard(runs / experiment.name / "tensorboard") if manner.tensorboard else None
        with Display(place + experiment.name, rounds, budget, quiet=manner.quiet, every=every) as display:
            if (runs / experiment.name / CONFIG).is_file():
                display.resume(read_records(runs / experiment.name))

            def watch(record: Record, display: Display = display, log: Any = log) -> bool:
                display.round(record)
                tell(display.part(record))
                if log is not None:
                    log(record)
                return over()

            if not carry_out(experiment, runs, watch):
                return "stopped"
    return "done"


@contextmanager
def _handling(request: StopRequest, *, at_once: bool) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM set ``request``, also in a background job, which a shell starts with Ctrl-C ignored.

    A run has its own handlers. With ``at_once``, Ctrl-C also raises KeyboardInterrupt, which interrupts whatever is
    done between rounds; a second one during a run interrupts the round too.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        request.made = True
        if at_once and number == signal.SIGINT:
            signal.default_int_handler(number, frame)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _late(deadline: float) -> bool:
    return time.monotonic() >= deadline
