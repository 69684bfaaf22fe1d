"""Who is who: which node is which client, what it holds, and whether it can probe."""

import re
from collections.abc import Iterable
from logging import WARNING

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.supercore import log

from gradsift.errors import GradsiftError
from gradsift.flower.inbox import Refusal
from gradsift.flower.protocol import NEVER, RECORD, Order, Report, checksum, read, write
from gradsift.flower.server_state import Client, State

CLIENT = re.compile("0|[1-9][0-9]{0,19}")  # one way to write each number, as long as a node's id at most


class Roster:
    """The nodes that have said who they are. Each is asked once, when it first appears.

    One that is turned away is asked again when the node that had its number is gone.
    """

    def __init__(self) -> None:
        self.client_of: dict[int, int] = {}  # node -> client
        self.turned_away: dict[int, int] = {}  # node -> the client that it says it is
        self.refused: list[Refusal] = []

    def call(self, grid: Grid, least: int, order: Order, timeout: float) -> tuple[dict[int, int], list[Report]]:
        """The connected clients and their nodes, and the reports of those that are new."""
        nodes = sample_nodes(grid, least, 0)[1]  # waits for so many
        taken = {self.client_of[node] for node in nodes if node in self.client_of}
        new = [node for node in nodes if node not in self.client_of and self.turned_away.get(node) not in taken]
        reports = []
        if new:
            messages = [Message(RecordDict({RECORD: write(order)}), node, MessageType.TRAIN) for node in new]
            reports = list(self._introduced(grid.send_and_receive(messages, timeout=timeout), order, set(nodes)))
        return {self.client_of[node]: node for node in nodes if node in self.client_of}, reports

    def _introduced(self, replies: Iterable[Message], order: Order, present: set[int]) -> Iterable[Report]:
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise GradsiftError(f"it failed: {reply.error.reason}")
                report = read(Report, reply.content.get(RECORD))
                if report.session != order.session or CLIENT.fullmatch(report.client) is None:
                    raise GradsiftError(
                        f"it answers as client {report.client!r:.80} of session {report.session!r:.80}:"
                        " a client is a decimal number of at most 20 digits"
                    )
            except GradsiftError as problem:
                log(WARNING, "gradsift: node %s did not say who it is: %s", node, problem)
                self.refused.append(Refusal(order.number, None, node, str(problem)))
                continue
            client = int(report.client)
            before = next((other for other, owner in self.client_of.items() if owner == client), None)
            if before in present:
                log(WARNING, "gradsift: node %s is turned away: client %s is node %s already", node, client, before)
                self.turned_away[node] = client
                continue
            if before is not None:
                del self.client_of[before]  # gone; the client is back as another node
            self.client_of[node] = client
            self.turned_away.pop(node, None)
            yield report


def enter(state: State, reports: Iterable[Report]) -> None:
    """Believe what new clients say of themselves; what they hold is checked again with every order."""
    for report in sorted(reports, key=lambda each: int(each.client)):
        client = state.clients.setdefault(int(report.client), Client())
        client.can_probe = report.can_probe
        current = report.version == state.version and report.checksum == checksum(state.weights)
        client.version = report.version if current or 0 <= report.version < state.version else NEVER
        if client.settle is not None:
            client.settle = client.settle._replace(done=report.settled == client.settle.checksum)
