"""A server that should not mind."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fedmpdd.flower import FedMPDD

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say what became of the model."""
    config = context.run_config
    strategy = FedMPDD(
        codec="mpdd:m=40:bits=1",
        fraction_evaluate=0.0,
        min_train_nodes=2,
        min_available_nodes=2,
        checkpoint=str(config["checkpoint"]) or None,
    )
    arrays = ArrayRecord({"weight": Array(np.zeros((6, 10), np.float32))})
    result = strategy.start(
        grid,
        arrays,
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        train_config=ConfigRecord({"faults": config["faults"]}),
    )
    log(20, "largest coordinate %.3f", float(np.abs(result.arrays["weight"].numpy()).max()))
