"""SST-2: sentences of film reviews, negative or positive, whole sentences alone."""

from pathlib import Path

import numpy as np

from fedmpdd.tasks.data.base import RemoteFile, Source, damaged
from fedmpdd.tasks.data.texts import TextDataset, Texts, missing_texts, present, read_csv

NAME = "sst2"
SIZES = {"train": 6_920, "dev": 872, "test": 1_821}
CLASSES = ("negative", "positive")
_HASHES = {
    "train": "6003623bcb35aad3a446a265b8931b7ccab61fcc10f2e9c1fec916ff67c7be35",
    "dev": "f34c4987fea208fefc2d62a1b42c83a766cbfc7ce58c2a878ef953cf91f01729",
    "test": "519cea7ed4d22fe7ec4eccbb3d5ba6d88902a3b15ce129f476aa8364463a9fc7",
}


def load(folder: Path) -> TextDataset:
    """Return the three parts, from `sst2/train.csv`, `dev.csv` and `test.csv` with the columns label and sentence."""
    return TextDataset(NAME, *(_part(folder / NAME / f"{part}.csv", size) for part, size in SIZES.items()))


def _part(path: Path, size: int) -> Texts:
    if not path.is_file():
        raise missing_texts(NAME, path, "columns label, sentence", has_mirror=False)
    texts = read_csv(path, text="sentence", label="label", classes=("0", "1"))
    if len(texts) != size:
        raise damaged(path, f"it has {len(texts):,} sentences, expected {size:,}")
    assert texts.labels is not None
    return Texts(texts.texts, texts.labels.astype(np.int64), CLASSES)


SOURCE = Source(
    NAME,
    load,
    tuple(RemoteFile(f"{NAME}/{part}.csv", digest, url="") for part, digest in _HASHES.items()),
    lambda folder: present(folder / NAME, SIZES),
    len(SIZES),
)
