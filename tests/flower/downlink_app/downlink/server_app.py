"""A server that sends models, or what rounds added to them."""

import hashlib

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fedmpdd.flower import FedMPDD

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say which model they led to."""
    config = context.run_config
    strategy = FedMPDD(
        codec=str(config["codec"]),
        downlink=str(config["downlink"]),  # type: ignore[arg-type]
        downlink_bits=int(config["downlink-bits"]) or None,
        fraction_evaluate=0.0,
        min_train_nodes=2,
        min_available_nodes=2,
        seed=1,
    )
    arrays = ArrayRecord({"weight": Array(np.zeros(int(config["d"]), np.float32))})
    result = strategy.start(grid, arrays, num_rounds=int(config["num-server-rounds"]), timeout=60.0)
    log(20, "model %s", hashlib.sha256(result.arrays["weight"].numpy().tobytes()).hexdigest())
