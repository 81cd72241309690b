"""Clients that pull a model towards a line."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmpdd.flower import fedmpdd_mod

app = ClientApp()


@app.train(mods=[fedmpdd_mod])
def train(message: Message, context: Context) -> Message:
    """Go a tenth of the way."""
    weight = message.content.array_records["arrays"]["weight"].numpy()
    goal = np.linspace(-1, 1, weight.size, dtype=np.float32)
    record = ArrayRecord({"weight": Array(weight + np.float32(0.1) * (goal - weight))})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
