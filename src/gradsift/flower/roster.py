"""Which client each connected node is: a new node is sent a hello order and replies with its client number."""

import re
from collections.abc import Iterable
from logging import WARNING
from secrets import token_hex

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.supercore import log

from gradsift.errors import GradsiftError
from gradsift.flower.inbox import Refusal
from gradsift.flower.protocol import RECORD, Order, Report, read, write

CLIENT = re.compile("0|[1-9][0-9]{0,19}")  # one spelling per number, as long as a node's id at most


class Roster:
    """The nodes that have identified themselves in this session; each is sent one hello order, when it first appears.

    A node is turned away while another one has its client number, and gets a new hello order when that one is gone.
    """

    def __init__(self) -> None:
        self.session = token_hex(8)
        self.client_of: dict[int, int] = {}  # node -> client
        self.turned_away: dict[int, int] = {}  # node -> the client number that it claims
        self.refused: list[Refusal] = []

    def restart(self) -> None:
        """Start a new session, in which every node must identify itself again."""
        self.session = token_hex(8)
        self.client_of.clear()

    def call(self, grid: Grid, least: int, order: Order, timeout: float) -> tuple[dict[int, int], list[Report]]:
        """The connected clients and their nodes, and the reports of new ones; waits for ``least`` nodes."""
        nodes = sample_nodes(grid, least, 0)[1]
        taken = {self.client_of[node] for node in nodes if node in self.client_of}
        new = [node for node in nodes if node not in self.client_of and self.turned_away.get(node) not in taken]
        reports = []
        if new:
            messages = [Message(RecordDict({RECORD: write(order)}), node, MessageType.TRAIN) for node in new]
            reports = list(self._identified(grid.send_and_receive(messages, timeout=timeout), order, set(nodes)))
        return {self.client_of[node]: node for node in nodes if node in self.client_of}, reports

    def _identified(self, replies: Iterable[Message], order: Order, present: set[int]) -> Iterable[Report]:
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                report = _report(reply, order.session)
            except GradsiftError as problem:
                log(WARNING, "gradsift: node %s did not identify itself: %s", node, problem)
                self.refused.append(Refusal(order.number, None, node, str(problem)))
                continue
            client = int(report.client)
            owner = next((other for other, number in self.client_of.items() if number == client), None)
            if owner in present:
                log(WARNING, "gradsift: node %s is turned away: client %s is node %s already", node, client, owner)
                self.turned_away[node] = client
                continue
            if owner is not None:
                del self.client_of[owner]  # that node is gone, and the client is back on this one
            self.client_of[node] = client
            self.turned_away.pop(node, None)
            yield report


def _report(reply: Message, session: str) -> Report:
    if reply.has_error():
        raise GradsiftError(f"it failed: {reply.error.reason}")
    report = read(Report, reply.content.get(RECORD))
    if report.session != session or CLIENT.fullmatch(report.client) is None:
        raise GradsiftError(
            f"it answers as client {report.client!r:.80} of session {report.session!r:.80}:"
            " a client is a decimal number of at most 20 digits"
        )
    return report
