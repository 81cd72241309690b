"""A client of secure sums as a process of its own: python -m tests.mqtt.summand BROKER NAME NUMBER FOLDER.

It computes when the file go-NUMBER is in the folder, and says by the file computes-NUMBER that it is at it.
"""

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmpdd.mqtt import Client
from fedmpdd.secure_sum import FileLedger
from fedmpdd.uplink.policy import ClientPolicy
from tests.conftest import gaussian

D, CLIENTS = 60, 10
MODEL: NDArray[np.float32] = gaussian(D, seed=1)
TARGETS = gaussian(CLIENTS, D, seed=2)


def gradient(flat: NDArray[np.float32], round_number: int, client: int) -> NDArray[np.float32]:
    """Of half the squared distance to a point of the client's own."""
    difference: NDArray[np.float32] = flat - TARGETS[client]
    return difference


def main(broker: str, name: str, number: int, folder: Path) -> None:
    def compute(flat: NDArray[np.float32], round_number: int, client: int) -> NDArray[np.float32]:
        (folder / f"computes-{number}").touch()
        while not (folder / f"go-{number}").exists():
            time.sleep(0.01)
        return gradient(flat, round_number, client)

    policy = ClientPolicy(secure=True, ledger=lambda client: FileLedger(folder / f"ledger-{client}.json"))
    Client(broker, name, [number], gradient=compute, initial=MODEL, policy=policy).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
