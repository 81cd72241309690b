"""Bytes on the socket of a Flower node and round, polls included: what an engine over MQTT is held against.

    python tools/mqtt_flower_bytes.py --out docs/results/mqtt/flower.json

A SuperLink and two SuperNodes run on loopback, each behind the counter of `fedmpdd meter`. The model has LeNet's size.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fedmpdd.flower.socket_counter import POLLS, Request, SocketCounter  # noqa: E402
from tests.flower.deployment import deployment, free_port  # noqa: E402
from tests.flower.test_bytes import ANY_SIZE, metered  # noqa: E402

D = 13_426
NODES = 2
CODECS = {
    "mpdd:m=100:bits=1:family=hadamard:keys=shared": 4,
    "mpdd:m=400:bits=1:family=hadamard": 0,
    "mpdd:m=400:bits=1:family=hadamard:keys=shared": 4,
}


def measure(codec: str, bits: int, rounds: int) -> dict[str, Any]:
    """Run rounds, and return the bytes of a node and round."""
    with tempfile.TemporaryDirectory() as name:
        meter, ports = SocketCounter(), [free_port() for _ in range(NODES)]
        with deployment(Path(name), nodes=0, secure=False) as one, metered(meter, ports, one.port):
            for number, port in enumerate(ports):
                one.add_node(f"partition-id={number} num-partitions={NODES}", through=port)
            config = f'num-server-rounds={rounds} d={D} downlink="replay" downlink-bits={bits} codec="{codec}"'
            run = one.run(ANY_SIZE, config, timeout=240)
            if run.status != "finished:completed":
                raise SystemExit(run.log[-2000:])
            requests = list(meter.requests)
            replies, messages = meter.replies(), meter.messages()
    polls = [one for one in requests if one.name in POLLS]
    share = NODES * rounds
    up, down = after_the_first(requests)
    later = [row["down"] for row in messages if row["message"] > 1]
    return {
        "codec": codec,
        "downlink_bits": bits or None,
        "rounds": rounds,
        "nodes": NODES,
        "up": sum(one.up for one in requests) / share,
        "down": sum(one.down for one in requests) / share,
        "up_after_the_first": up,
        "down_after_the_first": down,
        "of_it_polls": sum(one.up + one.down for one in polls) / share,
        "up_a_reply": sum(row["up"] for row in replies) / max(1, len(replies)),
        "down_a_message_after_the_first": sum(later) / max(1, len(later)),
        "seconds": run.seconds,
    }


def after_the_first(requests: list[Request]) -> tuple[float, float]:
    """Return the bytes of a node and round, up and down, from the first reply to the last: polls, but no model."""
    up, down = [], []
    for client in sorted({one.client for one in requests}):
        of_client = [one for one in requests if one.client == client]
        replies = [place for place, one in enumerate(of_client) if one.name == "push-messages"]
        between = of_client[replies[0] : replies[-1]]
        up.append(sum(one.up for one in between) / (len(replies) - 1))
        down.append(sum(one.down for one in between) / (len(replies) - 1))
    return sum(up) / len(up), sum(down) / len(down)


def main() -> None:
    """Measure all codecs, and write down what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for codec, bits in CODECS.items():
        rows.append(measure(codec, bits, arguments.rounds))
        print(json.dumps(rows[-1]), flush=True)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
