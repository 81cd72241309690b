"""The compiled kernels' settings and the checks of what goes into them."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd.directions import _native
from fedmpdd.errors import BackendError, GradientError

ISA_VARIABLE = "FEDMPDD_ISA"
THREADS_VARIABLE = "FEDMPDD_THREADS"
ISA_NAMES = ("avx512", "avx2", "neon", "plain")
MOMENT_LANES = 32  # sixteen sums side by side for each of two moments


class Backend(NamedTuple):
    """How the kernels run. It changes how long they take and nothing else."""

    threads: int
    isa: str


_current: Backend | None = None


def backend() -> Backend:
    """Return what is in use: FEDMPDD_THREADS and FEDMPDD_ISA, read once, or else all cores and the best kernels."""
    global _current
    if _current is None:
        threads, isa = (os.environ.get(name) or None for name in (THREADS_VARIABLE, ISA_VARIABLE))
        _current = Backend(_check_threads(threads), _check_isa(isa))
    return _current


@contextmanager
def using(*, threads: int | None = None, isa: str | None = None) -> Iterator[Backend]:
    """Within a `with` block, run on so many threads and with the kernels of that name. For tests and benchmarks."""
    global _current
    before = backend()
    _current = Backend(
        before.threads if threads is None else _check_threads(str(threads)),
        before.isa if isa is None else _check_isa(isa),
    )
    try:
        yield _current
    finally:
        _current = before


def available_isas() -> list[str]:
    """Return the names of all kernels that run on this machine, best first."""
    available = []
    for name in ISA_NAMES:
        try:
            available.append(_native.isa_name(name))
        except ValueError:
            continue
    return available


def _check_isa(wanted: str | None) -> str:
    if wanted not in (None, "auto", *ISA_NAMES):
        raise BackendError(
            f"{ISA_VARIABLE}={wanted!r} is not a set of kernels: expected auto, {', '.join(ISA_NAMES)}; "
            "unset it for auto"
        )
    try:
        return _native.isa_name(wanted or "auto")
    except ValueError:
        raise BackendError(
            f"{ISA_VARIABLE}={wanted} asks for kernels that this machine cannot run: "
            f"it has {', '.join(available_isas())}; unset it to use the best"
        ) from None


def _check_threads(wanted: str | None) -> int:
    if wanted is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wanted.isdecimal() or not 1 <= int(wanted) <= 1024:
        raise BackendError(f"{THREADS_VARIABLE}={wanted!r} is not a number of threads: expected 1 to 1024")
    return int(wanted)


def check_gradients(gradients: NDArray[np.float32]) -> None:
    """Raise GradientError unless `gradients` is a C-contiguous float32 array [clients, d], neither of them 0."""
    check_array(gradients, "gradients")
    if gradients.ndim != 2:
        raise GradientError(
            f"gradients have shape [clients, d], got {list(gradients.shape)}; "
            "one gradient goes in as gradient[np.newaxis]"
        )
    if 0 in gradients.shape:
        raise GradientError(
            f"gradients of shape {list(gradients.shape)} are empty; at least one client and one coordinate are needed"
        )


def check_array(array: NDArray[np.float32], name: str) -> None:
    """Raise GradientError unless `array` is a C-contiguous float32 array, of any shape."""
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise GradientError(
            f"{name}: expected a NumPy array of float32, got {type(array).__name__}; "
            "a torch tensor goes in as tensor.detach().cpu().numpy()"
        )
    if array.dtype != np.float32:
        raise GradientError(f"{name}: expected float32, got {array.dtype}; convert with .astype(np.float32)")
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise GradientError(f"{name}: not contiguous and aligned in memory; make a copy with {name}.copy()")


def add_moments(slices: NDArray[np.float32], lanes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add the next coordinates, [clients, coordinates], and return [‖g‖², Σ g⁴] of all so far.

    `lanes`, zeros of shape [clients, MOMENT_LANES] at first, keeps the sums. Every slice but the last is a multiple
    of 16 coordinates long; the moments of the whole then do not depend on where it was cut.
    """
    out = np.empty((len(slices), 2))
    _native.moments(slices, lanes, out, *backend())
    return out


def moments(gradients: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return [‖g‖², Σ g⁴] per gradient, or raise GradientError if a coordinate is not finite."""
    out = add_moments(gradients, np.zeros((gradients.shape[0], MOMENT_LANES)))
    # The squares of finite float32 fit a double, so this sum is finite exactly when every coordinate is.
    if not math.isfinite(out[:, 0].sum()):
        client, coordinate = np.argwhere(~np.isfinite(gradients))[0]
        raise GradientError(
            f"gradients[{client}, {coordinate}] is {gradients[client, coordinate]}; all must be finite: "
            "lower the learning rate or clip before encoding"
        )
    return out


def add_scaled(values: NDArray[Any], factor: float, total: NDArray[np.float64]) -> None:
    """Add factor times each of these values to `total`, in float64: one product and one sum each, both rounded."""
    lies_in_a_row = values.shape == total.shape and values.flags.c_contiguous and values.flags.aligned
    if lies_in_a_row and values.dtype == np.float32:
        _native.add_scaled(values, factor, total)
    else:
        total += factor * values.astype(np.float64, copy=False)


def check_finite(gradients: NDArray[np.float32]) -> None:
    """Raise GradientError if a coordinate is not finite."""
    moments(gradients)  # the fastest way to look at them all
