"""Finds the runs of experiments: in run folders, and in files of results that were made from run folders."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from gradsift import check
from gradsift.describe import differences
from gradsift.errors import GradsiftError
from gradsift.experiments import trajectory
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.trajectory import Trajectory, from_folder, longer
from gradsift.records.folder import CONFIG, RECORDS


class Store:
    """Run folders in ``runs`` and one file of results per figure in ``results``; a run may be in either."""

    def __init__(self, runs: Path, results: Path, figures: Iterable[str]) -> None:
        check.folder("--out", runs)
        check.folder("--results", results)
        self.runs, self.results = runs, results
        self._in_results: dict[str, Trajectory] = {}
        self._in_folders: dict[str, tuple[object, Trajectory | None]] = {}  # by name, with the files' times
        for figure in figures:
            for name, run in trajectory.load(self.file(figure)).items():
                self._in_results[name] = longer(run, self._in_results.get(name)) or run

    def file(self, figure: str) -> Path:
        """Return the file with the results of a figure."""
        return self.results / f"{figure}.npz"

    def get(self, experiment: Experiment) -> Trajectory | None:
        """Return the rounds of an experiment so far; a run of another experiment under its name is refused."""
        run = longer(self._from_folder(experiment), self._in_results.get(experiment.name))
        if run is not None:
            wanted, stored = experiment.identity, run.config.get("experiment") or {}
            differing = differences({name: stored.get(name) for name in wanted}, wanted)
            if differing:
                raise GradsiftError(
                    f"{experiment.name} in {self.runs} or {self.results} is a run of another experiment:"
                    f" {'; '.join(differing)}; choose another --out and --results"
                )
        return run

    def _from_folder(self, experiment: Experiment) -> Trajectory | None:
        """Read the run in its folder, but only if its files have changed since the last time."""
        folder, state = self.runs / experiment.name, []
        for name in (RECORDS, CONFIG):
            with contextlib.suppress(FileNotFoundError):
                status = (folder / name).stat()
                state.append((status.st_mtime_ns, status.st_size))
        if self._in_folders.get(experiment.name, (None, None))[0] != state:
            self._in_folders[experiment.name] = (state, from_folder(folder))
        return self._in_folders[experiment.name][1]

    def finished(self, experiment: Experiment) -> bool:
        """Return whether no round of an experiment is left to do."""
        return experiment.remaining(self.get(experiment)) is None

    def write(self, figure: str, experiments: Iterable[Experiment]) -> Path:
        """Write the results of a figure from the rounds so far; other runs in the file stay in it."""
        runs = trajectory.load(self.file(figure))
        runs |= {e.name: run for e in experiments if (run := self.get(e)) is not None}
        trajectory.save(self.file(figure), runs.values())
        return self.file(figure)
