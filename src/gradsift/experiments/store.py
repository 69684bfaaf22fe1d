"""Where the runs of experiments are: in run folders, and in files of results made from them, here or elsewhere."""

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
    """Run folders in ``runs``, and one file of results for each figure in ``results``; either will do to find a run."""

    def __init__(self, runs: Path, results: Path, figures: Iterable[str]) -> None:
        check.folder("--out", runs)
        check.folder("--results", results)
        self.runs, self.results = runs, results
        self._known: dict[str, Trajectory] = {}
        self._read: dict[str, tuple[object, Trajectory | None]] = {}  # by name, with the state of its files
        for figure in figures:
            for name, read in trajectory.load(self.file(figure)).items():
                best = longer(read, self._known.get(name))
                assert best is not None
                self._known[name] = best

    def file(self, figure: str) -> Path:
        """The file with the results of a figure."""
        return self.results / f"{figure}.npz"

    def folder(self, experiment: Experiment) -> Path:
        """Where an experiment is run."""
        return self.runs / experiment.name

    def get(self, experiment: Experiment) -> Trajectory | None:
        """The run of an experiment so far, from its folder or its results; another run of the same name is refused."""
        there = longer(self._from_folder(experiment), self._known.get(experiment.name))
        if there is not None:
            wanted, kept = experiment.identity, there.config.get("experiment") or {}
            said = differences({name: kept.get(name) for name in wanted}, wanted)
            if said:
                where = f"{self.runs} or {self.results}"
                raise GradsiftError(
                    f"{experiment.name} in {where} is of another experiment: {'; '.join(said)}; another --out and"
                    " --results keep them apart"
                )
        return there

    def _from_folder(self, experiment: Experiment) -> Trajectory | None:
        """The run in its folder; it is read again only if its files have changed."""
        folder, state = self.folder(experiment), []
        for name in (RECORDS, CONFIG):
            with contextlib.suppress(FileNotFoundError):
                about = (folder / name).stat()
                state.append((about.st_mtime_ns, about.st_size))
        if self._read.get(experiment.name, (None, None))[0] != state:
            self._read[experiment.name] = (state, from_folder(folder))
        return self._read[experiment.name][1]

    def finished(self, experiment: Experiment) -> bool:
        """Whether nothing of its run is left to do."""
        return experiment.remaining(self.get(experiment)) is None

    def write(self, figure: str, experiments: Iterable[Experiment]) -> Path:
        """Write the results of a figure, from the runs so far; other runs that are in the file stay in it."""
        kept = trajectory.load(self.file(figure))
        kept |= {e.name: there for e in experiments if (there := self.get(e)) is not None}
        trajectory.save(self.file(figure), kept.values())
        return self.file(figure)
