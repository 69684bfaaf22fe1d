"""The clients: Flower's template and a mod. What gradsift takes is marked."""

from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from gradsift.flower import SparseMod  # gradsift
from quickstart.task import Net, load_data
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn


def data(context: Context) -> tuple[Any, Any]:
    """This client's loaders."""
    partition, partitions = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return load_data(partition, partitions, int(context.run_config["batch-size"]))


app = ClientApp(mods=[SparseMod()])  # gradsift


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that came, send back what became of it."""
    model = Net()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    loader, _ = data(context)
    loss = train_fn(model, loader, int(context.run_config["local-epochs"]), float(context.run_config["learning-rate"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model that came."""
    model = Net()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    _, loader = data(context)
    loss, accuracy = test_fn(model, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
