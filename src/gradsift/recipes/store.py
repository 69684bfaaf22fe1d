"""Where the runs of the figures are: folders of runs under way or done here, and files of results that travel."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from gradsift import check
from gradsift.errors import GradsiftError
from gradsift.recipes import trajectory
from gradsift.recipes.experiment import Experiment
from gradsift.recipes.trajectory import Trajectory, from_folder, longer
from gradsift.simulation.describe import differences
from gradsift.simulation.folder import CONFIG, RECORDS


class Store:
    """Run folders in ``runs``; one file a figure in ``results``, whose finished runs need not be run again."""

    def __init__(self, runs: Path, results: Path, figures: Iterable[str]) -> None:
        check.folder("--out", runs)
        check.folder("--results", results)
        self.runs, self.results = runs, results
        self._known: dict[str, Trajectory] = {}
        self._read: dict[str, tuple[object, Trajectory | None]] = {}  # long runs take a while to read
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
        """What there is of an experiment: the longer of its folder and its results. A namesake is refused."""
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
        """The run in its folder, read again only if something was written there."""
        folder, state = self.folder(experiment), []
        for name in (RECORDS, CONFIG):
            with contextlib.suppress(FileNotFoundError):
                about = (folder / name).stat()
                state.append((about.st_mtime_ns, about.st_size))
        if self._read.get(experiment.name, (None, None))[0] != state:
            self._read[experiment.name] = (state, from_folder(folder))
        return self._read[experiment.name][1]

    def finished(self, experiment: Experiment) -> bool:
        """Whether there is nothing left to do for it."""
        return experiment.remaining(self.get(experiment)) is None

    def write(self, figure: str, experiments: Iterable[Experiment]) -> Path:
        """Write the file of a figure, from whatever there is; what it has of other seeds and methods stays in it."""
        kept = trajectory.load(self.file(figure))
        kept |= {e.name: there for e in experiments if (there := self.get(e)) is not None}
        trajectory.save(self.file(figure), kept.values())
        return self.file(figure)
