"""The client: some steps of SGD on its own digits. The mod makes the update small, if the server's strategy asks."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmpdd.flower import fedmpdd_mod

app = ClientApp()


@app.train(mods=[fedmpdd_mod])
def train(message: Message, context: Context) -> Message:
    """Train the model that came."""
    from flower_mnist import task  # torch, which a process that only looks at the app need not wait for

    config = message.content.config_records["config"]
    name = str(context.run_config["model"])
    partition = int(context.node_config["partition-id"])
    digits = task.load_train(name, partition, int(context.node_config["num-partitions"]))
    model = task.make_model(name)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    loss = task.train(
        model,
        digits,
        steps=int(config["local-steps"]),  # type: ignore[arg-type]
        batch=int(config["batch"]),  # type: ignore[arg-type]
        lr=float(config["lr"]),  # type: ignore[arg-type]
        seed=[partition, int(config["server-round"])],  # type: ignore[arg-type]
    )
    metrics = MetricRecord({"num-examples": len(digits.labels), "train-loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
