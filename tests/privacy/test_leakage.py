import numpy as np
import pytest

from fedmpdd.codecs import MPDD, QSGD, FedSGD, Peaks, SAFedLora
from fedmpdd.privacy.leakage import entropy_bound, meter


def test_bits_are_counted_exactly() -> None:
    assert MPDD(50, bits=1).revealed_bits(1000) == 50 + 32
    assert MPDD(50, bits=4).revealed_bits(1000) == 200 + 32
    assert MPDD(50).revealed_bits(1000) == 1600
    assert FedSGD().revealed_bits(1000) == 32_000
    assert QSGD(bits=4).revealed_bits(1000) == 8 * QSGD(bits=4).bytes_per_update(1000)


def test_a_bound_on_entropy_is_a_size_that_is_enough() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (100, 1, 28, 28), dtype=np.uint8)
    assert 8 * 784 * 0.99 < entropy_bound(noise) < 8 * 784 * 1.02
    assert entropy_bound(np.zeros((100, 1, 28, 28), np.uint8)) < 100


def test_a_run_is_metered() -> None:
    m = meter(MPDD(400), 13_426, rounds=648, participation=0.5, examples_per_client=600, bits_per_example=1_000)
    assert m.updates_per_client == 324
    assert m.bits_revealed == 324 * 12_800
    assert m.share == pytest.approx(324 * 12_800 / 600_000)
    assert m.paper == pytest.approx(324 * 400 / 13_426)
    assert meter(FedSGD(), 10, rounds=1, participation=1, examples_per_client=1, bits_per_example=1).paper is None


def test_a_codec_that_changes_is_metered_round_by_round() -> None:
    growing = Peaks(7, grows_to=28, grows_after=2)  # 7, 7, 14, 14, 28, 28, 28, 28
    m = meter(growing, 13_426, rounds=8, participation=0.5, examples_per_client=600, bits_per_example=1_000)
    assert m.bits_revealed == 0.5 * sum(9 * own + 8 for own in (7, 7, 14, 14, 28, 28, 28, 28))
    assert m.paper == pytest.approx(0.5 * (7 + 7 + 14 + 14 + 4 * 28) / 13_426)
    lora = SAFedLora(rank=2, warmup=1, cooling=1.0).for_shapes([(10, 15)])
    m = meter(lora, 150, rounds=2, participation=1, examples_per_client=1, bits_per_example=1)
    assert m.bits_revealed == 32 * 150 + 32 * 2 * (10 + 15), "the whole gradient first"
