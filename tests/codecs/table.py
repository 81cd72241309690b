"""The codecs under test. A new codec adds its lines here and goes through every test of test_contract.py.

The first line of a codec must do for d = 2 too: the tests of bad gradients use it.
"""

from fedmpdd.codecs import (
    EDEN,
    MPDD,
    QSGD,
    Codec,
    DeComFL,
    FedKSeed,
    FedSGD,
    FeedSign,
    Ferret,
    Gaussian,
    Laplace,
    LpProj,
    Peaks,
    RandK,
    SAFedLora,
    SignSGD,
    TopK,
)

D = 200  # coordinates in the common tests
CODECS_UNDER_TEST: list[Codec] = [
    *(MPDD(m=24, bits=bits, family=family) for family in ("rademacher", "hadamard") for bits in (32, 16, 8, 4, 1)),
    MPDD(m=1),  # FedPDD
    MPDD(m=301, bits=1),  # more directions than coordinates
    FedSGD(),
    QSGD(bits=8),
    QSGD(bits=4),
    TopK(k=1),
    TopK(k=20),
    TopK(k=D),
    RandK(k=2),
    RandK(k=60),
    LpProj(size=1),
    LpProj(size=70),
    Laplace(0.5),
    Gaussian(0.5),
    SignSGD(),
    SignSGD(scaled=False),
    EDEN(bits=1),
    EDEN(bits=3),  # levels that do not fit bytes
    EDEN(bits=4),
    EDEN(bits=1, rows=50),  # a quarter of a bit a coordinate
    EDEN(bits=2, rows=224),  # all rows, and more than coordinates
    Peaks(m=20, group=4, family="rademacher"),
    Peaks(m=12, group=16),
    Peaks(m=9, group=64, family="rademacher"),
    DeComFL(m=12),
    FedKSeed(m=12),
    FedKSeed(m=12, log2_step=7, bits=4),
    FedKSeed(m=21, pool=2**20, bits=1),
    FeedSign(),
    FeedSign(m=21),
    Ferret(m=24, shapes=(200,)),
    Ferret(m=30, shapes=(100, 7, 3, 60, 30)),
    SAFedLora(rank=2, shapes=((10, 15), (50, 0))),
]
# Signs without a scale have one magnitude, whatever the gradient, and no zero.
BARE_SIGNS = [codec for codec in CODECS_UNDER_TEST if codec == SignSGD(scaled=False) or isinstance(codec, FeedSign)]


def label(codec: object) -> str:
    if not isinstance(codec, Codec):
        return str(codec)
    return "-".join([codec.name, *(str(value) for value in vars(codec).values())])
