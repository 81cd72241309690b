"""The codecs under test. A new codec adds its lines here and goes through every test of test_contract.py."""

from fedmpdd.codecs import MPDD, Codec

D = 200  # coordinates in the common tests
CODECS_UNDER_TEST: list[Codec] = [
    *(MPDD(m=24, bits=bits, family=family) for family in ("rademacher", "hadamard") for bits in (32, 16, 8, 4, 1)),
    MPDD(m=1),  # FedPDD
    MPDD(m=301, bits=1),  # more directions than coordinates
]


def label(codec: object) -> str:
    return "-".join(str(value) for value in vars(codec).values()) if isinstance(codec, Codec) else str(codec)
