"""How alike clients' gradients are, which decides what shared directions cost: `python tools/alignment.py`.

Prints n·‖mean gradient‖² / mean ‖gradient‖² for n = 50 clients: the error of shared directions divided by that of
independent ones. 1: gradients are unrelated, and sharing is free; 50: they are all the same.
"""

from fedmpdd.simulation import federation_of, parse_config
from fedmpdd.tasks.data import load

CLIENTS = 50


def main() -> None:
    """Print a table for MNIST."""
    dataset = load("mnist")
    print("| model | after rounds of FedSGD | batch 1 | batch 8 | batch 64 |\n| --- | --- | --- | --- | --- |")
    for model, init, lr in (("logistic", "default", 0.03), ("lenet", "uniform", 0.1), ("cnn-lin2022", "default", 0.1)):
        values = {"dataset": "mnist", "model": model, "init": init, "clients": 100, "clients_per_round": CLIENTS}
        trained = federation_of(
            parse_config({**values, "batch": 16, "lr": lr, "codec": {"name": "fedsgd"}, "device": "cpu"}), dataset
        )
        for rounds in (0, 20, 200):
            while trained.next_round < rounds:
                trained.run_round()
            cells = []
            for batch in (1, 8, 64):
                own = federation_of(parse_config({**values, "batch": batch, "device": "cpu"}), dataset)
                plan = own._plan_of(0)
                gradients, _ = own._client_step(trained.flat, plan.batches)
                mean = gradients.mean(dim=0)
                cells.append(float(CLIENTS * mean.dot(mean) / gradients.square().sum(dim=1).mean()))
            print(f"| {model} | {rounds} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
