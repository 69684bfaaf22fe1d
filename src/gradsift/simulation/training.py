"""The training loop of a simulated run: rounds, evaluations and checkpoints, until there is a reason to stop."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gradsift.errors import GradsiftError, RunError
from gradsift.records.folder import RunFolder
from gradsift.records.record import Record
from gradsift.records.stop import StopWhen
from gradsift.simulation.engine import Engine
from gradsift.simulation.interrupt import StopRequest

T = TypeVar("T")
OnRound = Callable[[Record], bool | None]


@dataclass(frozen=True)
class Training:
    """The rounds of a run, from the present state of its engine."""

    engine: Engine
    stop: StopWhen
    folder: RunFolder | None
    records: list[Record]  # of all rounds; those of a resumed run are in it from the start
    checkpoint_every: int
    on_round: OnRound | None
    request: StopRequest

    def run(self) -> str:
        """Run rounds until there is a reason to stop, and return it."""
        engine, folder = self.engine, self.folder
        stopped = self.stop.finished(self.records[-1]) if self.records else None
        while stopped is None:
            self._begin()
            number = engine.state.server.number
            stopped = self.stop.due(number, engine.state.server.spent)
            # The first round has an evaluation because readers infer the types of columns from the first records.
            evaluates = stopped is not None or number == 1 or number % engine.settings.eval_every == 0
            saves = folder is not None and (stopped is not None or number % self.checkpoint_every == 0)
            if not (evaluates or saves or self.request.made):
                continue  # the next round finishes this one while its gradients run
            record = self._guarded(engine.finish)
            if evaluates:
                record["global_loss"], record["accuracy"] = global_loss, accuracy = self._evaluate()
                stopped = self.stop.reached(global_loss, accuracy) or stopped
            self._keep(record)
            if stopped is None and self.request.made:
                stopped = "interrupted"
            if folder is not None and (stopped is not None or saves):
                folder.save(number, engine.state.arrays(), engine.state.facts())
        return stopped

    def _keep(self, record: Record) -> None:
        self.records.append(record)
        if self.folder is not None:
            self.folder.append(record)
        if self.on_round is not None and self.on_round(record) is True:
            self.request.made = True

    def _begin(self) -> None:
        """Begin a round, and keep the record of the round before, which ``begin`` finishes, also after an error."""
        before: Record | None = None
        try:
            before = self._guarded(self.engine.begin)
        except BaseException as problem:
            try:
                before = self.engine.salvage()
            except RunError:
                if isinstance(problem, Exception):
                    raise
            raise  # Ctrl-C takes precedence over an error of the round before
        finally:
            if before is not None:
                self._keep(before)

    def _guarded(self, work: Callable[[], T]) -> T:
        """Errors of the user's module, loss, controller or cost become a ``RunError`` that names the round."""
        try:
            return work()
        except (RunError, GradsiftError):
            raise
        except Exception as problem:
            raise RunError(f"round {self.engine.working_on} failed: {type(problem).__name__}: {problem}") from problem

    def _evaluate(self) -> tuple[float, float | None]:
        engine = self.engine
        loss, accuracy = engine.evaluate()
        if math.isfinite(loss):
            return loss, accuracy
        clients = range(engine.data.num_clients)
        first = next((client for client in clients if not math.isfinite(engine.client_loss(client))), None)
        where = "the clients together have" if first is None else f"client {engine.data.label(first)} has"
        raise RunError(
            f"round {engine.state.server.number}: {where} loss {loss} over all training data; try a smaller step size"
        )
