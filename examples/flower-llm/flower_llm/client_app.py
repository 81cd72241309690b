"""The client: the gradient of its adapters on a few of its sentences. The mod makes some bytes of it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmpdd.flower import fedmpdd_mod

app = ClientApp()


@app.train(mods=[fedmpdd_mod])
def train(message: Message, context: Context) -> Message:
    """Return the gradient at the adapters that came, or, for FedAvg, the adapters after some steps."""
    from flower_llm import task  # PyTorch and transformers, which a process that only looks at the app need not load

    config, node = context.run_config, context.node_config
    order = message.content.config_records["config"]
    classifier = task.Classifier(config, str(node.get("model", config["model"])))
    task.check_base(str(order["base"]), classifier)
    classifier.load(message.content.array_records["arrays"].to_torch_state_dict())
    share = task.Share(node, classifier.classes)
    seed, server_round = int(config["seed"]), int(order["server-round"])  # type: ignore[arg-type]
    task.seed_dropout(seed, server_round, share.number)
    steps, losses = int(order["local-steps"]), []  # type: ignore[arg-type]
    for texts in share.minibatches(int(config["batch"]), max(1, steps), server_round, seed):
        gradient, loss = classifier.gradient(texts)
        losses.append(loss)
        if steps:
            classifier.step(gradient, float(config["local-lr"]))
    arrays = ArrayRecord(classifier.adapters() if steps else gradient)
    metrics = MetricRecord({"num-examples": len(share), "train-loss": sum(losses) / len(losses)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
