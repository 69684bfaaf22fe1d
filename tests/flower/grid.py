"""A Grid that calls ClientApps in this process: every message goes through Flower's own serialisation, both ways.

Contexts survive between messages, as on a SuperNode; everything else of a client is made anew. ``faults`` says what
happens to a message.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Literal

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Fault = Literal["lost", "reply lost", "twice", "killed", ""]


def node_of(client: int) -> int:
    return 1000 + client


def no_fault(node: int, message: Message) -> Fault:
    del node, message
    return ""


class LocalGrid(Grid):
    """N clients, client i on node 1000 + i."""

    def __init__(self, make: Callable[[], ClientApp], clients: int) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as the process of a ServerApp has
        self.make = make
        self.contexts = {node_of(i): self.fresh(node_of(i), i) for i in range(clients)}
        self.faults: Callable[[int, Message], Fault] = no_fault
        self.tamper: Callable[[Message], Iterable[Message]] = lambda reply: [reply]
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.asked: list[list[int]] = []  # the nodes of every exchange

    @staticmethod
    def fresh(node: int, client: int) -> Context:
        return Context(1, node, {"partition-id": client}, RecordDict(), {})

    def context(self, client: int) -> Context:
        return self.contexts[node_of(client)]

    def restart(self, client: int) -> None:
        """The node comes back without its state."""
        self.contexts[node_of(client)] = self.fresh(node_of(client), client)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        del timeout
        messages = list(messages)
        self.asked.append([message.metadata.dst_node_id for message in messages])
        answers: list[Message] = []
        for message in messages:
            answers += self._deliver(message)
        return answers

    def _deliver(self, message: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        self.sent.append(message)
        fault = self.faults(node, message)
        failed = Message(Error(code=1, reason=f"fault: {fault}"), reply_to=message)
        if fault == "lost":
            return [failed]
        if fault == "killed":
            self._handle(message, copy.deepcopy(self.contexts[node]))  # whatever it did, nobody kept it
            return [failed]
        reply = self._handle(message, self.contexts[node])
        if fault == "twice":
            self._handle(message, self.contexts[node])  # and only the first answer arrives
        if fault == "reply lost":
            return [failed]
        self.replies.append(reply)
        return list(self.tamper(reply))

    def _handle(self, message: Message, context: Context) -> Message:
        sent = message_from_proto(message_to_proto(message))
        try:
            reply = self.make()(sent, context)
        except Exception as problem:
            return Message(Error(code=2, reason=f"{type(problem).__name__}: {problem}"), reply_to=message)
        return message_from_proto(message_to_proto(reply))

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError
