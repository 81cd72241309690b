"""Pickles that claim more than they hold, or ask for what no batch needs."""

import functools
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmpdd.errors import DataError
from fedmpdd.tasks.data import cifar10
from fedmpdd.tasks.data.pickles import PickledArray, read_pickle

TERABYTE = 2**40
PIXELS = np.random.default_rng(1).integers(0, 256, (10_000, 3_072), dtype=np.uint8)
LABELS = (np.arange(10_000) % 10).tolist()


def refusal_of(path: Path, content: bytes) -> str:
    """What is said of a batch with this content; reading it must cost no more than a few times its size."""
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(DataError) as caught:
        cifar10._read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**23 + 8 * len(content)
    return str(caught.value)


@pytest.mark.parametrize("protocol", [2, 4])
def test_batches_are_read(tmp_path: Path, protocol: int) -> None:
    batch = {b"data": PIXELS, b"labels": LABELS, b"filenames": [b"a.png"] * 10_000, b"batch_label": b"1 of 5"}
    (tmp_path / "batch").write_bytes(pickle.dumps(batch, protocol))
    data, labels = cifar10._read(tmp_path / "batch")
    assert np.array_equal(data, PIXELS)
    assert data.flags.writeable
    assert labels.tolist() == LABELS


def test_arrays_of_labels_are_read_in_either_byte_order() -> None:
    for dtype in ("<i4", ">i4", "<i8", "|u1"):
        array = read_pickle(pickle.dumps(np.arange(5, dtype=dtype), 2))
        assert isinstance(array, PickledArray)
        assert array.read((5,), ("i4", "i8", "u1")).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "claim",
    [
        b"B" + struct.pack("<I", 2**32 - 1),  # bytes
        b"\x8e" + struct.pack("<Q", TERABYTE),  # bytes with a length of 64 bits
        b"\x96" + struct.pack("<Q", TERABYTE),  # a bytearray
        b"\x8d" + struct.pack("<Q", TERABYTE),  # text
        b"T" + struct.pack("<i", 2**31 - 1),  # a string of Python 2
        b"\x8b" + struct.pack("<i", 2**31 - 1),  # an integer
        b"\x95" + struct.pack("<Q", TERABYTE),  # a frame
        b"Nr" + struct.pack("<I", 2**32 - 1),  # a place in the table of what was seen
        b"Np4294967295\n",
    ],
    ids=lambda claim: claim[:2].hex(),
)
def test_claims_of_opcodes_are_compared_with_what_is_there(tmp_path: Path, claim: bytes) -> None:
    assert "is damaged" in refusal_of(tmp_path / "batch", b"\x80\x04" + claim + b"rest.")


def array_that_says(shape: Any, data: Any, dtype: str = "u1", fortran: Any = False) -> Any:
    """An object whose pickle is that of an array with any description."""

    class Liar:
        def __reduce__(self) -> Any:
            reconstruct = np.zeros(0).__reduce__()[0]
            return reconstruct, (np.ndarray, shape, b"b"), (1, shape, np.dtype(dtype), fortran, data)

    return Liar()


@pytest.mark.parametrize(
    ("shape", "length", "dtype", "fortran"),
    [
        ((TERABYTE,), 0, "u1", False),
        ((10_000, 3_072), 0, "u1", False),
        ((10_000, 3_072), 10, "u1", False),
        ((10_000, 3_072), 30_720_000, "u1", True),
        ((3_072, 10_000), 30_720_000, "u1", False),
        ((10_000, 3_072), None, "u1", False),
        ((10_000, 3_072), 8, "f8", False),
        ("many", 0, "u1", False),
    ],
)
def test_arrays_are_what_a_batch_has_or_are_not_made(
    tmp_path: Path, shape: Any, length: int | None, dtype: str, fortran: bool
) -> None:
    data = [1] * 10 if length is None else bytes(length)
    batch = {b"data": array_that_says(shape, data, dtype, fortran), b"labels": LABELS}
    assert "an array" in refusal_of(tmp_path / "batch", pickle.dumps(batch, 4))


def test_labels_are_not_unfolded(tmp_path: Path) -> None:
    """Ten lists of ten times the list before: a billion numbers in some hundred bytes."""
    folded: Any = [0] * 10
    for _ in range(9):
        folded = [folded] * 10
    content = pickle.dumps({b"data": array_that_says((10_000, 3_072), b""), b"labels": folded}, 4)
    assert "no list of 10,000 integers" in refusal_of(tmp_path / "batch", content)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(functools.partial(print, "code ran")),
        b"\x80\x04cos\nsystem\n.",
        b"\x80\x02c_codecs\nencode\n(X\x04\x00\x00\x00abcdX\x03\x00\x00\x00hextR.",
        b"\x80\x04P1\n.",
        b"\x80\x04\x82\x01.",
        b"\x80\x04(" * 1_000 + b".",
        b"(" * 100_000 + b"t" * 100_000 + b".",
        b"\x80\x04].",
        b"\x80\x04}.",
        b"\x80\x04N.",
        b".",
        b"R.",
        b"\x80\xff.",
        b"",
        b"I" + b"9" * 5_000 + b"\n.",
    ],
    ids=lambda content: content[:6].hex(),
)
def test_pickles_that_are_no_batch(tmp_path: Path, content: bytes) -> None:
    assert "is damaged" in refusal_of(tmp_path / "batch", content)


def test_objects_are_counted_before_they_are_made(tmp_path: Path) -> None:
    """An empty dict is one byte in a pickle, and sixty-four in memory."""
    assert "more than 1,048,576 opcodes" in refusal_of(tmp_path / "batch", b"}" * (2**20 + 1) + b".")


def test_a_batch_of_another_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    with path.open("wb") as file:
        file.truncate(TERABYTE)  # takes no room on the disk
    with pytest.raises(DataError, match=r"1,099,511,627,776 bytes, expected at most"):
        cifar10._read(path)
