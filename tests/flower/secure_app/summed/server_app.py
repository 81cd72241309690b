"""A server of secure sums that writes down each of them."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedmpdd.flower import FedMPDD, SecureRounds

from . import roster

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    strategy = FedMPDD(
        codec=str(config["codec"]),
        secure=SecureRounds(clip=20.0) if config["secure"] else None,
        roster=roster() if config["signed"] else None,
        returns="gradient",
        lr=0.1,
        weighting="equal",
        robust=False,
        seed=1,
        fraction_evaluate=0.0,
        min_train_nodes=3,
        min_available_nodes=3,
    )
    begun = time.monotonic()

    def write(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        document: dict[str, object] = {"seconds": time.monotonic() - begun}
        if strategy.sum is not None and strategy.sum.total is not None:
            document |= {"included": strategy.sum.included, "total": strategy.sum.total.tolist()}
        (folder / "sum").write_text(json.dumps(document))
        (folder / "sum").rename(folder / f"sum-{number}.json")  # whole, whenever somebody looks
        return None

    strategy.start(
        grid,
        ArrayRecord({"weight": Array(np.zeros(int(config["d"]), np.float32))}),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        train_config=ConfigRecord({"folder": str(folder), "waiting": int(config["waiting"])}),
        evaluate_fn=write,
    )
