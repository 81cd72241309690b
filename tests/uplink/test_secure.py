"""The arithmetic of secure sums of updates: from a gradient to what is masked, and from a sum to one update."""

import math
from typing import Any

import numpy as np
import pytest

from fedmpdd.codecs import MPDD, QSGD, Codec, FedSGD, Peaks, TopK
from fedmpdd.directions import Key
from fedmpdd.errors import ConfigError, InputError
from fedmpdd.secure_sum import MemoryLedger, SecureClient, SecureServer, Terms
from fedmpdd.uplink.protection import SystemNoise
from fedmpdd.uplink.secure import SecureUplink

D, CLIENTS, KEY = 50, 6, Key(7)
CODECS = (MPDD(20, family="hadamard"), MPDD(1), FedSGD())


def gradients(scale: float = 1.0) -> Any:
    return (scale * np.random.default_rng(3).standard_normal((CLIENTS, D))).astype(np.float32)


def signed(elements: Any, bits: int = 32) -> list[list[int]]:
    """Elements of the ring as integers from −2^(b−1) to 2^(b−1) − 1."""
    half = 2 ** (bits - 1)
    return [[(int(value) + half) % 2**bits - half for value in row] for row in elements]


def played(uplink: SecureUplink, gone: int = 0) -> Any:
    """The sum that the protocol gives of all clients but the last so many, which vanish before they mask."""
    server = SecureServer(uplink.terms(bytes(16), 1, threshold=CLIENTS - gone))
    clients = [SecureClient(server.terms, i, MemoryLedger()) for i in range(CLIENTS)]
    openings = dict.fromkeys(range(CLIENTS), server.open())
    for _ in range(2):
        for i, message in openings.items():
            server.receive(i, clients[i].answer(message))
        openings = server.advance()
    for i in range(CLIENTS - gone):
        server.receive(i, uplink.masked(clients[i], openings[i], gradients()[i], KEY))
    for i, message in server.advance().items():
        server.receive(i, clients[i].answer(message))
    return server.finish()


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("gone", [0, 2])
def test_one_call_masks_and_one_gives_the_mean_back(codec: Codec, gone: int) -> None:
    uplink = SecureUplink(codec, D, CLIENTS, clip=100.0)
    total, stay = played(uplink, gone), CLIENTS - gone
    (update,) = uplink.bundle(total, stay, KEY).updates
    whole = codec.encode(gradients()[:stay], [KEY] * stay)
    expected = np.mean([each.arrays[0].astype(np.float64) for each in whole], axis=0)
    assert np.allclose(update.arrays[0], expected, atol=uplink.step / 2 + 1e-6)
    assert update.codec == codec
    assert update.key == whole[0].key


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("bits", [20, 32, 64])
def test_integers_are_the_nearest_steps(codec: Codec, bits: int) -> None:
    uplink = SecureUplink(codec, D, CLIENTS, clip=100.0, ring_bits=bits)
    rows = [update.arrays[0].astype(np.float64) for update in codec.encode(gradients(), [KEY] * CLIENTS)]
    expected = [[round(float(value) / uplink.step) for value in row] for row in rows]
    assert signed(uplink.elements(gradients(), [KEY] * CLIENTS, None), bits) == expected


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_no_vector_is_longer_than_the_bound_whatever_rounding_does(codec: Codec) -> None:
    uplink = SecureUplink(codec, D, CLIENTS, clip=0.01, ring_bits=16)
    lengths = [math.hypot(*row) for row in signed(uplink.elements(gradients(), [KEY] * CLIENTS, None), 16)]
    assert max(lengths) * uplink.step <= uplink.bound
    assert max(lengths) * uplink.step > 0.9 * uplink.bound
    assert uplink.bound == 0.01 * (math.sqrt(uplink.length) if isinstance(codec, MPDD) else 1.0)


def test_noise_of_the_operating_system_is_the_one_that_is_counted() -> None:
    """6,000 numbers: their deviation within 6 %, six deviations of it; by chance this fails once in 10^9 times."""
    quiet = SecureUplink(FedSGD(), 1_000, CLIENTS, clip=1.0, noise_multiplier=0.3)
    zero = np.zeros((1, 1_000), np.float32)
    rows = [signed(quiet.elements(zero, [KEY], [SystemNoise()]))[0] for _ in range(6)]
    assert np.std(rows) == pytest.approx(quiet.noise_deviation, rel=0.06)
    assert quiet.noise_deviation * quiet.step == pytest.approx(0.3 * quiet.bound)
    assert len({tuple(row) for row in rows}) == 6


def test_the_noise_of_several_is_one_draw_only_where_that_is_the_same() -> None:
    sources = [np.random.default_rng(i) for i in range(CLIENTS)]
    zero = np.zeros((CLIENTS, D), np.float32)
    wide = SecureUplink(FedSGD(), D, CLIENTS, clip=1.0, noise_multiplier=0.1)
    rows = signed(wide.elements(zero, [KEY] * CLIENTS, sources))
    assert any(rows[0])
    assert not any(any(row) for row in rows[1:])
    narrow = SecureUplink(FedSGD(), D, CLIENTS, clip=1.0, noise_multiplier=1e-9)
    assert narrow.noise_deviation < 1
    rows = signed(narrow.elements(zero, [KEY] * CLIENTS, [np.random.default_rng(i) for i in range(CLIENTS)]))
    assert sum(any(row) for row in rows) > 1


@pytest.mark.parametrize("noise", [1e-6, 0.1, 10.0])
def test_the_widest_ring_has_steps_that_noise_can_be_drawn_on(noise: float) -> None:
    """Fifty numbers: their deviation within 60 %, six deviations of it."""
    uplink = SecureUplink(FedSGD(), D, CLIENTS, clip=1.0, noise_multiplier=noise, ring_bits=64)
    (row,) = signed(uplink.elements(np.zeros((1, D), np.float32), [KEY], [SystemNoise()]), 64)
    assert np.std(row) * uplink.step == pytest.approx(noise * uplink.bound, rel=0.6)
    sources = [np.random.default_rng(i) for i in range(CLIENTS)]
    assert any(uplink.elements(gradients(), [KEY] * CLIENTS, sources)[0])


def test_noise_without_sources_is_refused() -> None:
    uplink = SecureUplink(FedSGD(), D, CLIENTS, clip=1.0, noise_multiplier=0.1)
    with pytest.raises(ConfigError, match="a source for each client"):
        uplink.elements(gradients(), [KEY] * CLIENTS, None)


def test_a_mean_can_have_fewer_bits() -> None:
    uplink = SecureUplink(MPDD(20), D, CLIENTS, clip=100.0)
    (update,) = uplink.bundle(played(uplink), CLIENTS, KEY, mean_bits=4).updates
    assert update.codec == MPDD(20, bits=4)


@pytest.mark.parametrize("codec", [MPDD(20, bits=8), MPDD(20, bits=1), Peaks(4), TopK(3), QSGD(4)], ids=str)
def test_codecs_whose_numbers_do_not_add_up_are_refused(codec: Codec) -> None:
    with pytest.raises(ConfigError, match="keys=shared and 32 bits, or fedsgd"):
        SecureUplink(codec, D, CLIENTS, clip=1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip": 0.0}, "expected finite numbers"),
        ({"clip": math.inf}, "expected finite numbers"),
        ({"noise_multiplier": math.nan}, "expected finite numbers"),
        ({"noise_multiplier": 50.0, "ring_bits": 16}, "too coarse"),
        ({"ring_bits": 65}, "ring_bits = 65"),
        ({"ring_bits": 15}, "ring_bits = 15"),
    ],
)
def test_arithmetic_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SecureUplink(**{"codec": FedSGD(), "d": 10_000, "clients": CLIENTS, "clip": 1.0, **changes})


def test_a_client_of_another_sum_is_refused() -> None:
    uplink = SecureUplink(MPDD(20), D, CLIENTS, clip=1.0)
    client = SecureClient(Terms(bytes(16), 0, CLIENTS, 21), 0, MemoryLedger())
    with pytest.raises(ConfigError, match="adds up 21 numbers of 6 clients, and the round has 20 of 6"):
        uplink.masked(client, b"", gradients()[0], KEY)
