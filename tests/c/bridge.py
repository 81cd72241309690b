"""The C client compiled for this machine, and called through ctypes."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from fedmpdd import MPDD, BareSession, Codec, Key, Peaks, Session, pack
from fedmpdd.directions import hadamard_size

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c99", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
ROOM = 1 << 17
NOT_FINITE, TOO_LARGE = 8, 9  # of fedmpdd_result
BARE, COMPACT, COMPACT_SEED, SELF_CONTAINED = range(4)

Result = tuple[int, bytes]


def compile_bridge(folder: Path) -> ctypes.CDLL:
    """Compile tests/bridge.c as a shared library and load it."""
    library = folder / "bridge.so"
    source = ROOT / "c" / "tests" / "bridge.c"
    subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", f"-I{ROOT / 'c'}", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def pointer_to(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def scalars_of(codec: Peaks | MPDD) -> int:
    """The number of fedmpdd_scalars."""
    if isinstance(codec, Peaks):
        return 2
    return {32: 0, 1: 1}[codec.bits]


def encode(library: ctypes.CDLL, codec: Peaks | MPDD, gradient: Any, key: Key, frame: int = BARE) -> Result:
    """Call fedmpdd_encode: its result and the frame."""
    family = int(codec.family == "hadamard")
    floats = hadamard_size(gradient.size) if family else gradient.size
    assert library.bridge_floats(family, ctypes.c_uint32(gradient.size)) == floats
    buffer = np.full(floats, np.nan, np.float32)
    buffer[: gradient.size] = gradient
    out, length = np.zeros(ROOM, np.uint8), ctypes.c_size_t(1)
    result = library.bridge_encode(
        scalars_of(codec), family, ctypes.c_uint32(codec.m), ctypes.c_uint32(getattr(codec, "group", 0)),
        ctypes.c_uint32(gradient.size), ctypes.c_uint64(key.seed), ctypes.c_uint32(key.slot), pointer_to(buffer),
        ctypes.c_uint32(floats), frame, pointer_to(out), ctypes.c_size_t(ROOM), ctypes.byref(length),
    )  # fmt: skip
    return int(result), out[: length.value].tobytes()


def stream(library: ctypes.CDLL, codec: MPDD, gradient: Any, key: Key, piece: int, frame: int = BARE) -> Result:
    """Call fedmpdd_begin, fedmpdd_add for each piece, and fedmpdd_end."""
    lanes = np.zeros(codec.m * library.bridge_lane_bytes() // 8, np.float64)
    out, length = np.zeros(ROOM, np.uint8), ctypes.c_size_t(1)
    result = library.bridge_stream(
        scalars_of(codec), ctypes.c_uint32(codec.m), ctypes.c_uint32(gradient.size), ctypes.c_uint64(key.seed),
        ctypes.c_uint32(key.slot), pointer_to(gradient), ctypes.c_uint32(piece), pointer_to(lanes), frame,
        pointer_to(out), ctypes.c_size_t(ROOM), ctypes.byref(length),
    )  # fmt: skip
    return int(result), out[: length.value].tobytes()


def python_frame(codec: Codec, gradient: Any, key: Key, frame: int) -> bytes:
    """The frame that the Python package makes."""
    update = codec.encode(gradient[np.newaxis], [key])[0]
    if frame == SELF_CONTAINED:
        return pack(update)
    if frame in (COMPACT, COMPACT_SEED):
        return Session(codec, gradient.size, sends_seed=frame == COMPACT_SEED).pack(update)
    return b"".join(array.tobytes() for array in update.arrays)


def bare_key(codec: Codec, d: int, seed: int, round_number: int, client: int) -> Key:
    return BareSession(codec, d, seed).key(round_number, client)
