import pytest
import torch

from benchmarks import forward as bench
from fedmpdd.codecs import MPDD
from fedmpdd.errors import InputError


def test_every_way_is_measured_once_per_m() -> None:
    rows = list(bench.run(["mlp-2"], [1, 4], batch=2, seconds=0.01))
    assert [(row.m, row.client, row.at_once) for row in rows] == [
        (1, "backward", 0),
        (1, "forward", 1),
        (4, "backward", 0),
        (4, "forward", 1),
        (4, "forward", 4),
    ]
    assert all(row.median_ms > 0 for row in rows)
    assert [row.time_ratio for row in rows if row.client == "backward"] == [1.0, 1.0]
    peaks = {(row.m, row.at_once): row.peak_bytes or 0 for row in rows}
    # A flat gradient, or that many directions, is the least that either holds.
    for (_, at_once), peak in peaks.items():
        assert 4 * rows[0].d * max(1, at_once) <= peak <= 4 * rows[0].d * (max(1, at_once) + 2)
    assert peaks[4, 1] < peaks[4, 4]


@pytest.mark.parametrize("network", ["lenet", "cnn-lin2022", "mlp-8", "transformer-2"])
def test_both_ways_give_the_same_scalars(network: str) -> None:
    with bench.one_thread():
        client, codec = bench.Client(network, 2), MPDD(3)
        updates = client.backward(codec), client.forward(codec, 2)
    backward, forward = (torch.from_numpy(update.arrays[0]) for update in updates)
    assert (forward - backward).norm() < 1e-4 * backward.norm()


def test_a_gradient_that_is_computed_again_is_the_same() -> None:
    with bench.one_thread():
        client, codec = bench.Client("transformer-2", 2), MPDD(3)
        assert client.checkpointed(codec) == client.backward(codec) == client.checkpointed(codec)


def test_memory_is_the_most_that_was_held_at_a_time() -> None:
    def call() -> float:
        first = torch.zeros(1000, 1000)  # 4 MB
        second = first + 1
        del first
        return float((second * 2).sum())  # two matrices at a time, never three

    assert 8_000_000 <= bench.peak_of(call) < 8_100_000


def test_forward_mode_is_more_exact_than_differences() -> None:
    rows = {row.method: row.error for row in bench.errors(m=4, batch=2)}
    assert rows["forward"] < 1e-5
    differences = [error for method, error in rows.items() if method.startswith("differences")]
    assert min(differences) > rows["forward"]
    assert min(differences) < min(differences[0], differences[-1])  # too long a step is as bad as too short a one


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(InputError, match="'resnet' is unknown: expected some of lenet"):
        bench.Client("resnet", 1)
