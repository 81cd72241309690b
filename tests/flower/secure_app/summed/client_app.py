"""Clients whose gradient is a wave of their own frequency."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmpdd.flower import ClientPolicy, make_mod
from fedmpdd.flower.mod import CallNext
from fedmpdd.secure_sum import Identity

from . import roster, signing_key

app = ClientApp()


def mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Sign where the run says so."""
    identity = Identity(signing_key(int(context.node_config["partition-id"])), roster())
    policy = ClientPolicy(identity=lambda _: identity) if context.run_config["signed"] else ClientPolicy()
    return make_mod(policy)(message, context, call_next)


@app.train(mods=[mod])
def train(message: Message, context: Context) -> Message:
    """Return the node's gradient, or wait where the test says so."""
    config = message.content.config_records["config"]
    partition, number = int(context.node_config["partition-id"]), int(str(config["server-round"]))
    (Path(str(config["folder"])) / f"train-{number}-{partition}").write_text(str(context.node_id))
    while config["waiting"] == partition and number == 1:
        time.sleep(1)
    d = message.content.array_records["arrays"]["weight"].numpy().size
    gradient = np.cos((partition + 1) * np.arange(d) / d).astype(np.float32) / 100
    record = ArrayRecord({"weight": Array(gradient)})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"loss": 0.0})}), reply_to=message)
