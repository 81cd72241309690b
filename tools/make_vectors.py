"""Write docs/vectors.json from the slow reference: run from the repository root when the standard changes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedmpdd import MPDD, Key, Session, derive_seed, pack
from fedmpdd.directions import reference, spec

SEED = 0x0123456789ABCDEF
PATH = Path("docs/vectors.json")


def bits(floats: Any) -> str:
    """float32 values as big-endian hexadecimal words, so that no decimal rounding is in the way."""
    return " ".join(f"{word:08x}" for word in np.asarray(floats, dtype=np.float32).view(np.uint32).reshape(-1))


def sign_text(values: Any) -> str:
    """±1 values as a string of signs."""
    return "".join("+" if value > 0 else "-" for value in values)


def example_gradient(d: int) -> Any:
    """A gradient anyone can rebuild exactly: g[c] = ((37·c + 11) mod 101 − 50) / 64."""
    return ((37 * np.arange(d) + 11) % 101 - 50).astype(np.float32) / np.float32(64)


def vectors() -> dict[str, Any]:
    """Everything the file holds."""
    signs = []
    for index, first_tile, d in [(0, 0, 80), (1, 0, 80), (2**32 - 1, 0, 80), (0, 1, 80), (0, 2**29 - 1, 80)]:
        values = reference.signs(SEED, index, d, first_tile=first_tile)
        signs.append({"index": index, "first_coordinate": first_tile * spec.TILE, "signs": sign_text(values)})
    rows = [
        {"d": d, "order": list(spec.hadamard_order(d)), "rows": [reference.hadamard_row(SEED, d, j) for j in range(8)]}
        for d in (4, 12, 28, 700, 7_850, 13_426, 319_242, 2**33)
    ]
    decode = []
    g = example_gradient(300)
    for family in ("rademacher", "hadamard"):
        encode = getattr(reference, f"{family}_encode")
        scalars = encode(g, SEED, 0, 6).astype(np.float32)
        out = np.zeros(300, dtype=np.float32)
        coefficients = (scalars.astype(np.float64) / 6).astype(np.float32)
        if family == "rademacher":
            reference.rademacher_decode(coefficients, SEED, 0, out)
        else:
            reference.hadamard_decode([coefficients], SEED, [0], out)
        decode.append(
            {"family": family, "d": 300, "m": 6, "scalars": bits(scalars), "first_8_of_estimate": bits(out[:8])}
        )
    frames = []
    for family in ("rademacher", "hadamard"):
        for width in (32, 16, 8, 4, 1):
            codec = MPDD(m=6, bits=width, family=family)
            update = codec.encode(g[np.newaxis], [Key(SEED, 0)])[0]
            frames.append(
                {
                    "family": family,
                    "bits": width,
                    "self_contained": pack(update).hex(),
                    "compact_with_seed": Session(codec, 300, sends_seed=True).pack(update).hex(),
                    "compact": Session(codec, 300, sends_seed=False).pack(update).hex(),
                }
            )
    return {
        "seed": f"{SEED:016x}",
        "signs": signs,
        "diagonal": {"d": 80, "signs": sign_text(reference.signs(SEED, 0, 80, spec.DOMAIN_DIAGONAL))},
        "rounding_words": {"slot": 3, "words": [f"{word:08x}" for word in reference.rounding_words(SEED, 3, 6)]},
        "derived_seed": {"round": 5, "client": 2**33 + 1, "seed": f"{derive_seed(SEED, 5, 2**33 + 1):016x}"},
        "outer_matrices": {
            str(order): [sign_text(row) for row in reference.outer_matrix(order)]
            for order in spec.OUTER_ORDERS
            if order > 1
        },
        "hadamard_rows": rows,
        "gradient": "g[c] = ((37*c + 11) mod 101 - 50) / 64 for c < 300",
        "decode": decode,
        "one_bit_scale": bits([math.sqrt(math.pi / 2 * float((g.astype(np.float64) ** 2).sum())) / _correction(g)]),
        "frames_are_of": {"m": 6, "slot": 0, "d": 300},
        "frames": frames,
        "rounds": [
            weighted_round(family, width) for family in ("rademacher", "hadamard") for width in (32, 16, 8, 4, 1)
        ],
    }


def weighted_round(family: str, width: int) -> dict[str, Any]:
    """Three clients of a partitioned round with full-mantissa scalars and weights that are no integers."""
    codec = MPDD(m=7, bits=width, family=family)
    gradients = np.stack([example_gradient(50) * np.float32(scale) for scale in (1 / 3, 0.7, 1.9)])
    keys, weights = [Key(SEED, slot) for slot in (2, 0, 5)], [0.1, 0.2, 0.7]
    updates = codec.encode(gradients, keys)
    return {
        "weights": weights,
        "frames": [pack(update).hex() for update in updates],
        "estimate": bits(codec.decode_mean(updates, weights)),
    }


def _correction(g: Any) -> float:
    squares = g.astype(np.float64) ** 2
    return 1 + float((squares**2).sum()) / (12 * float(squares.sum()) ** 2)


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {PATH}")
