"""Directions: vectors of ±1 that are pure functions of (seed, index, d), never stored and never sent.

The stream is a published standard, docs/directions.md, so that any two machines agree on every sign.
"""

from fedmpdd.directions.coordinates import distinct_coordinates
from fedmpdd.directions.families import (
    FAMILIES,
    Family,
    Hadamard,
    Rademacher,
    check_d,
    direction,
    family_named,
    family_numbered,
)
from fedmpdd.directions.gpu import why_no_gpu
from fedmpdd.directions.keys import Key, check_key, derive_seed, partitioned_keys, round_seed, rounding_words
from fedmpdd.directions.native import (
    MOMENT_LANES,
    THREADS_VARIABLE,
    add_moments,
    add_scaled,
    available_isas,
    backend,
    check_array,
    check_finite,
    check_gradients,
    moments,
    using,
)
from fedmpdd.directions.spec import MAX_D, MAX_DIRECTIONS, MAX_M, MAX_SEED, MAX_SLOT, RUN, TILE, hadamard_size

__all__ = [
    "FAMILIES",
    "MAX_D",
    "MAX_DIRECTIONS",
    "MAX_M",
    "MAX_SEED",
    "MAX_SLOT",
    "MOMENT_LANES",
    "RUN",
    "THREADS_VARIABLE",
    "TILE",
    "Family",
    "Hadamard",
    "Key",
    "Rademacher",
    "add_moments",
    "add_scaled",
    "available_isas",
    "backend",
    "check_array",
    "check_d",
    "check_finite",
    "check_gradients",
    "check_key",
    "derive_seed",
    "direction",
    "distinct_coordinates",
    "family_named",
    "family_numbered",
    "hadamard_size",
    "moments",
    "partitioned_keys",
    "round_seed",
    "rounding_words",
    "using",
    "why_no_gpu",
]
