"""Checkpoints: vectors of d numbers and a few notes in one safetensors file, sealed by a SHA-256 over all of it.

The local engine and Flower's server write the same kind of file. The seal is a note of its own. It covers the names,
the lengths and the bytes of all vectors, and all other notes: the round, the config, the layout. So a file that was
damaged, or put together from two, is refused. It is no signature: who means to forge a file can compute the seal anew.

Files of earlier versions have no seal. They are read if they hold exactly the notes that those versions wrote, so that
a damaged name of the seal does not pass for its absence.

NumPy and safetensors only.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedmpdd.documents import write_atomically
from fedmpdd.errors import RunError

Float32 = NDArray[np.float32]

SEAL = "sha256"
_KIND = b"fedmpdd checkpoint 1"  # what is hashed first: another way of hashing has another number here
_COUNT = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds.

    vectors: float32, finite, by name; most are [d]. notes: texts by name, without the seal. sealed: whether the file
    had one; without it damage can go unnoticed.
    """

    vectors: dict[str, Float32]
    notes: dict[str, str]
    sealed: bool = True


def write_checkpoint(path: Path, vectors: Mapping[str, Float32], notes: Mapping[str, str]) -> None:
    """Write a sealed file; a crash leaves the old one or the new one.

    path: the file. vectors: float32 [d] each, finite. notes: texts by any name but "sha256".
    """
    for name, vector in vectors.items():
        if not np.isfinite(vector).all():
            raise RunError(f"{path} is not written: {name} holds NaN or infinity; lower the step size")
    arrays = {name: np.ascontiguousarray(vector, np.float32) for name, vector in vectors.items()}
    sealed = {**notes, SEAL: _seal(arrays, notes)}
    try:
        write_atomically(path, lambda partial: save_file(arrays, partial, metadata=sealed))
    except SafetensorError as error:  # the disk is full, say
        raise OSError(f"{path} cannot be written: {error}") from None


def read_checkpoint(
    path: Path,
    d: int,
    remedy: str,
    unsealed_notes: Collection[str],
    lengths: Mapping[str, Collection[int]] | None = None,
) -> Checkpoint:
    """Return what a file holds, or raise RunError that ends in `remedy`.

    d: the length that vectors must have; looked at before any is read. lengths: of vectors that may have others.
    unsealed_notes: the names of all notes in files of the versions that did not seal them.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            _check_lengths(path, file, names, d, lengths or {}, remedy)
            vectors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f"{path} is damaged and cannot be read: {error}; {remedy}") from None
    notes = {name: text for name, text in metadata.items() if name != SEAL}
    _check_seal(path, vectors, notes, metadata.get(SEAL), remedy, unsealed_notes)
    for name, vector in vectors.items():
        if not np.isfinite(vector).all():
            raise RunError(f"{path} is damaged: {name} holds NaN or infinity; {remedy}")
    return Checkpoint(vectors, notes, SEAL in metadata)


def read_count(path: Path, notes: Mapping[str, str], name: str, most: int, remedy: str) -> int:
    """Return the whole number from 0 to `most` that a note holds, or raise RunError that ends in `remedy`."""
    text = notes.get(name)
    if text is None:
        raise RunError(f"{path} is damaged: it does not say {name}; {remedy}")
    if not _COUNT.fullmatch(text) or int(text) > most:
        raise RunError(f"{path} is damaged: {name} = {text:.40}, expected a whole number from 0 to {most}; {remedy}")
    return int(text)


def _check_lengths(
    path: Path, file: Any, names: list[str], d: int, lengths: Mapping[str, Collection[int]], remedy: str
) -> None:
    for name in names:
        part = file.get_slice(name)
        allowed = [[length] for length in lengths.get(name, (d,))]
        if part.get_dtype() != "F32" or list(part.get_shape()) not in allowed:
            raise RunError(
                f"{path} is of another model or optimiser: {name} is {part.get_dtype()} {part.get_shape()}, expected "
                f"F32 [{d}]; {remedy}"
            )


def _check_seal(
    path: Path,
    vectors: Mapping[str, Float32],
    notes: Mapping[str, str],
    seal: str | None,
    remedy: str,
    unsealed_notes: Collection[str],
) -> None:
    if seal is None:
        if set(notes) != set(unsealed_notes):
            raise RunError(f"{path} is damaged: it has neither a hash nor the notes of an earlier version; {remedy}")
    elif seal != _seal(vectors, notes):
        raise RunError(f"{path} is damaged: its content does not have the hash that it says; {remedy}")


def _seal(vectors: Mapping[str, Float32], notes: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for part in _parts(vectors, notes):
        digest.update(len(part).to_bytes(8, "little"))  # so that no two contents are the same bytes in a row
        digest.update(part)
    return digest.hexdigest()


def _parts(vectors: Mapping[str, Float32], notes: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    yield _KIND
    yield str(len(notes)).encode()
    for name in sorted(notes):
        yield name.encode()
        yield notes[name].encode()
    for name in sorted(vectors):
        yield name.encode()
        yield vectors[name].astype("<f4", copy=False).data.cast("B")
