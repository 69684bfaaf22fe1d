"""The records of a deployment and its run folder, which has the same files as that of a simulated run.

A record is written when its round is over, including the evaluation. Until then it is part of the checkpoint.
"""

import math
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from secrets import token_hex
from typing import Any

import flwr
import torch
from flwr.supercore import log

from gradsift.control import Observation
from gradsift.describe import text, versions
from gradsift.errors import GradsiftError
from gradsift.flower.layout import Layout, Named, under_prefix, with_prefix
from gradsift.flower.options import Options
from gradsift.flower.rounds import Client, MergedUpload, Pending, Rounds
from gradsift.method import COUNTING, EXACT, PLAIN, Method
from gradsift.records.files import Arrays, Facts
from gradsift.records.folder import CONFIG, RunFolder, check_free, read_config
from gradsift.records.record import Record
from gradsift.server import Server
from gradsift.sparse import Sparse

DRIVER = "flower"  # in config.json
EARLIER = {"down_values": text(EXACT), "server": text(PLAIN)}  # of checkpoints from before there was a choice
COUNTS = ("control", "number", "steps", "offset", "spent")  # fields of the Server in a checkpoint
# Names under which apps report the metrics that records have a column for.
TRAIN_LOSS = ("train-loss", "train_loss", "loss")
LOSS = ("loss", "eval-loss", "eval_loss", "test-loss", "test_loss")
ACCURACY = ("accuracy", "acc", "eval-accuracy", "eval_accuracy", "eval-acc", "eval_acc", "test-accuracy", "test_acc")


class RunLog:
    """The records of a run and, if there is a ``path``, the run folder with its configuration and checkpoints."""

    def __init__(self, path: Path | None, options: Options, fraction_train: float) -> None:
        self.path, self.options, self.fraction_train = path, options, fraction_train
        self.experiment = token_hex(8)  # shared by all servers that continue this run
        self.num_rounds = 0  # the run ends after this many rounds
        self.records: list[Record] = []
        self.open_record: Record | None = None  # the last one, until its round is over
        self.start: dict[str, float | None] = {"global_loss": None, "accuracy": None}
        self._folder: RunFolder | None = None
        if path is not None and not self.exists:
            check_free(path)

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run, which can be continued."""
        return self.path is not None and (self.path / CONFIG).is_file()

    def create(self, rounds: Rounds, clients: int) -> None:
        """Create the folder with its first checkpoint, if there is a path and no folder yet."""
        if self.path is None or self._folder is not None:
            return
        config = {
            "driver": DRIVER,
            "model": {"class": self.options.model, "dim": self.options.layout.dim},
            "data": {"clients": clients},
            **rounds.method.describe(),
            **self._changeable(self.num_rounds),
            "start": self.start,
            "versions": {**versions(), "flwr": flwr.__version__},
        }
        self._folder = RunFolder.create(self.path, config, *self._checkpoint(rounds))

    def resume(self) -> Rounds | None:
        """Open the folder and return the rounds of its newest checkpoint; None if it has no run, or is open already."""
        if self.path is None or self._folder is not None or not self.exists:
            return None
        if read_config(self.path).get("driver") != DRIVER:
            raise GradsiftError(f"{self.path} is a simulated run: Flower cannot continue it, choose another folder")
        self._folder = folder = RunFolder.open(self.path)
        try:
            rounds = folder.restore(self._restored)
            self.records = folder.records() + ([] if self.open_record is None else [self.open_record])
            folder.amend(self._changeable(self.num_rounds or folder.config["stop"]["rounds"]))
        except BaseException:
            self.close()
            raise
        self.options.log_controller(rounds.method)
        return rounds

    def add(self, record: Record) -> None:
        """Add the record of a merged round, which stays open until ``finish_round``."""
        self.records.append(record)
        self.open_record = record

    def add_evaluation(self, metrics: Mapping[str, Any] | None, *, start: bool = False) -> None:
        """Write loss and accuracy into the open record, or into the configuration as those of the start."""
        target: Any = self.start if start else self.open_record
        if target is not None and metrics:
            for column, names in (("global_loss", LOSS), ("accuracy", ACCURACY)):
                value = first_number(metrics, names)
                target[column] = target[column] if value is None else value

    def finish_round(self) -> None:
        """Write the open record."""
        if self._folder is not None and self.open_record is not None:
            self._folder.append(self.open_record)
        self.open_record = None

    def save(self, rounds: Rounds) -> None:
        """Write a checkpoint, if there is a folder."""
        if self._folder is not None:
            self._folder.save(rounds.version, *self._checkpoint(rounds))

    def close(self) -> None:
        """Let other processes open the folder."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _changeable(self, rounds: int) -> dict[str, Any]:
        """The sections of the configuration that may differ in a continued run."""
        options, described = self.options, self.options.method.describe()
        settings = {name: getattr(options.method, name) for name in ("seed", *COUNTING)}
        settings |= {"exchanges": options.exchanges, "buffers": options.buffers, "fraction_train": self.fraction_train}
        stop = {"rounds": rounds, "cost_budget": None, "target_loss": None, "target_accuracy": None}
        return {"cost": described["cost"], "lr": described["lr"], "settings": settings, "stop": stop}

    def _checkpoint(self, rounds: Rounds) -> tuple[Arrays, Facts]:
        """The arrays and facts that ``_restored`` needs to continue these rounds."""
        pending = rounds.pending
        arrays: Named = {"weights": rounds.weights, "changed": rounds.changed}
        arrays |= with_prefix("rest/", rounds.non_trainable) | with_prefix("memory/", rounds.server.memory)
        for place, data in enumerate(rounds.updates):
            arrays[f"update/{place}"] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        for name, part in () if pending is None else (("before", pending.before), ("probe", pending.probe)):
            if part is not None:
                arrays |= {f"{name}/indices": part.indices, f"{name}/values": part.values}
        clients = {}
        for number, client in rounds.clients.items():
            merged = client.merged_upload
            clients[str(number)] = [client.version, merged and merged[:4], client.can_probe]
            if merged is not None:
                arrays[f"kept/{number}"] = merged.kept
        facts = {
            "experiment": self.experiment,
            "layout": self.options.layout.text,
            "unchanging": self.options.unchanging,
            "changeable": self.options.changeable,
            "controller in use": text(rounds.method.controller),
            **{name: getattr(rounds.server, name) for name in COUNTS},
            "moving": sorted(rounds.averaged),
            "last_exchange": rounds.last_exchange,
            "updates": len(rounds.updates),
            "clients": clients,
            "pending": None if pending is None else pending.seen.as_json(),
            "open_record": self.open_record,
        }
        return {name: value.detach().cpu().numpy() for name, value in arrays.items()}, facts

    def _restored(self, arrays: Arrays, facts: Facts) -> Rounds:
        method = _checked_method(facts, self.options)
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}

        def sparse(name: str) -> Sparse:
            return Sparse(tensors[f"{name}/indices"], tensors[f"{name}/values"], self.options.layout.dim)

        pending = None
        if facts["pending"] is not None:
            probe = sparse("probe") if "probe/indices" in tensors else None
            pending = Pending(Observation.from_json(facts["pending"]), sparse("before"), probe)
        clients = {
            int(number): Client(version, merged and MergedUpload._make([*merged, tensors[f"kept/{number}"]]), can_probe)
            for number, (version, merged, can_probe) in facts["clients"].items()
        }
        self.experiment, self.open_record = facts["experiment"], facts["open_record"]
        memory = under_prefix("memory/", tensors)
        server = Server(tensors["weights"], **{name: facts[name] for name in COUNTS}, memory=memory)
        non_trainable, averaged = under_prefix("rest/", tensors), set(facts["moving"])
        rounds = Rounds(method, server, non_trainable, tensors["changed"], pending, clients, averaged)
        rounds.last_exchange = facts.get("last_exchange", server.number)  # earlier versions averaged in every round
        rounds.updates = [arrays[f"update/{place}"].tobytes() for place in range(facts.get("updates", 0))]
        return rounds


def _checked_method(facts: Facts, options: Options) -> Method:
    """The method of a checkpoint, if these options may continue it; a changed step size or cost is logged."""
    layout, saved = options.layout, Layout.read(facts["layout"])
    if (saved.shapes, saved.tied) != (layout.shapes, layout.tied):
        raise GradsiftError(
            f"the checkpoint is of another model: {saved.dim} weights, not {layout.dim}, or other parameter names"
        )
    types = {f"dtype of {name}": (saved.dtypes[name], now) for name, now in layout.dtypes.items()}
    before = EARLIER | facts["unchanging"]
    settings = {name: (before.get(name), now) for name, now in options.unchanging.items()}
    for name, (then, now) in (types | settings).items():
        if then != now:
            raise GradsiftError(f"the checkpoint was made with {name} {then}, not {now}")
    used, methods = facts["controller in use"], (options.method, options.fallback)
    method = next((method for method in methods if text(method.controller) == used), None)
    if method is None:
        raise GradsiftError(f"the checkpoint was made with controller {used}, not {options.fallback.controller!r}")
    for name, now in options.changeable.items():
        then = facts["changeable"][name]
        if then != now:
            log(WARNING, "gradsift: %s is now %s; it was %s up to round %d", name, now, then, facts["number"])
    return method


def first_number(metrics: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The first of these metrics that is a finite number, or None."""
    values = (metrics.get(name) for name in names)
    return next((float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)), None)
