"""Banking77: questions of a bank's customers, each with one of 77 intents."""

from pathlib import Path

from fedmpdd.tasks.data.base import RemoteFile, Source, damaged
from fedmpdd.tasks.data.texts import TextDataset, Texts, missing_texts, present, read_csv

NAME = "banking77"
SIZES = {"train": 10_003, "test": 3_080}
CLASSES = 77
DEV, DEV_SEED = 1_000, 77  # the published files have no dev part; this one of the training file is ours, for good
_MIRROR = "https://raw.githubusercontent.com/PolyAI-LDN/task-specific-datasets/master/banking_data"
_HASHES = {
    "train": "b06e26ac675513959a63135f11b94ea7786ed02da65db93a5650d8838cbc664b",
    "test": "d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d",
}


def load(folder: Path) -> TextDataset:
    """Return 9,003 questions to train on, 1,000 drawn from the same file, and 3,080 to test on.

    They come from `banking77/train.csv` and `test.csv` with the columns text and category. The classes are in the order
    of the alphabet.
    """
    train = _part(folder, "train")
    if len(train.classes) != CLASSES:
        path = folder / NAME / "train.csv"
        raise damaged(path, f"it has {len(train.classes)} different categories, expected {CLASSES}")
    rest, dev = train.split(DEV, DEV_SEED)
    return TextDataset(NAME, rest, dev, _part(folder, "test", train.classes))


def _part(folder: Path, part: str, classes: tuple[str, ...] | None = None) -> Texts:
    path = folder / NAME / f"{part}.csv"
    if not path.is_file():
        raise missing_texts(NAME, path, "columns text, category")
    texts = read_csv(path, text="text", label="category", classes=classes)
    if len(texts) != SIZES[part]:
        raise damaged(path, f"it has {len(texts):,} questions, expected {SIZES[part]:,}")
    return texts


SOURCE = Source(
    NAME,
    load,
    tuple(RemoteFile(f"{NAME}/{part}.csv", digest, f"{_MIRROR}/{part}.csv") for part, digest in _HASHES.items()),
    lambda folder: present(folder / NAME, SIZES),
    len(SIZES),
)
