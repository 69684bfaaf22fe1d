"""The ClientApp of ``on_flower``: a module of its own, which Flower's actors import."""

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from benchmarks.peers.workload import BATCH, LR, torch_client, torch_net

app = ClientApp()
# An actor keeps its network and the data it has seen: set-up is no part of a round.
net = functools.cache(torch_net)
data = functools.cache(torch_client)


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)  # one actor a core
    net().load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(net().parameters(), lr=LR)
    optimizer.zero_grad()
    cross_entropy(net()(x), y).backward()
    optimizer.step()
    content = {"arrays": ArrayRecord(net().state_dict()), "metrics": MetricRecord({"num-examples": BATCH})}
    return Message(RecordDict(content), reply_to=message)
