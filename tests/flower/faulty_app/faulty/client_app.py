"""Clients that pull a model towards one; the second does wrong what the round's config says, after it did it right."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmpdd.codecs import MPDD, Update
from fedmpdd.directions import Key
from fedmpdd.flower import fedmpdd_mod
from fedmpdd.wire.frames import Session

CODEC, D = MPDD(40, bits=1), 60
app = ClientApp()


def faults_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Let the others do their work, and spoil it."""
    config = message.content.config_records["config"]
    number, faults = int(str(config["server-round"])), str(config["faults"]).split(",")
    fault = faults[number - 1] if number <= len(faults) and context.node_config["partition-id"] == 1 else ""
    if fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "late":
        time.sleep(30)  # the round is over by then
    reply = call_next(message, context)
    if fault and fault != "late":
        record = dict(reply.content.config_records["fedmpdd"])
        reply.content = RecordDict({"fedmpdd": ConfigRecord(record | changes(fault, record))})
    return reply


def changes(fault: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return what a liar would put into the reply instead."""
    frame: bytes = record["update"]
    if fault == "another-round":
        return {"round": record["round"] + 1}
    if fault == "another-d":
        other = Session(CODEC, D + 1, sends_seed=True)
        return {"update": other.pack(CODEC.encode(np.ones((1, D + 1), np.float32), [Key(1)])[0])}
    if fault == "damaged":
        return {"update": frame[:-9] + bytes([frame[-9] ^ 1]) + frame[-8:]}
    if fault == "version":
        return {"update": bytes([frame[0] ^ 8]) + frame[1:]}
    if fault in ("nan", "huge"):
        session = Session(CODEC, D, sends_seed=True)
        update = session.unpack(frame)
        scale = np.array([np.nan if fault == "nan" else 1e30], "<f4")
        return {"update": session.pack(Update(CODEC, D, update.key, (scale, update.arrays[1])))}
    raise ValueError(fault)


@app.train(mods=[faults_mod, fedmpdd_mod])
def train(message: Message, context: Context) -> Message:
    """Go half of the way."""
    weight = message.content.array_records["arrays"]["weight"].numpy()
    record = ArrayRecord({"weight": Array(weight + 0.5 * (1 - weight))})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
