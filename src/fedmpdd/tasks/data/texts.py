"""Texts with classes or with somebody who said them, and the CSV files that they are read from."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ConfigError, DataError
from fedmpdd.imports import quote
from fedmpdd.tasks.data.base import DATA_VARIABLE

MOST_BYTES = 2**30  # of a CSV file
MOST_CLASSES = 10_000  # more are no classes: somebody named the wrong column


@dataclass(frozen=True)
class Texts:
    """Texts, each with what is known of it.

    Args:
        texts: one or more.
        labels: the number of each text's class, None where there are no classes.
        classes: what the classes are called, in the order of their numbers.
        groups: who said each text, None where that is not known.

    Example:
        >>> Texts(("Good.", "Bad."), np.array([1, 0]), ("negative", "positive")).select([1]).texts
        ('Bad.',)

    """

    texts: tuple[str, ...]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.texts, str) or not self.texts:
            raise DataError(f"texts = {quote(self.texts)}: expected a sequence of one text or more")
        for number, text in enumerate(self.texts):
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"text {number} is {quote(text)}; expected words: leave out texts that are empty")
        for name, values in (("labels", self.labels), ("groups", self.groups)):
            if values is not None and len(values) != len(self.texts):
                raise DataError(f"{len(values)} {name} came with {len(self.texts)} texts; expected one each")
        object.__setattr__(self, "texts", tuple(self.texts))
        object.__setattr__(self, "classes", tuple(self.classes))
        if self.labels is not None:
            object.__setattr__(self, "labels", self._numbers(np.asarray(self.labels)))

    def _numbers(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise DataError(f"labels of {labels.dtype} {list(labels.shape)} came; expected one whole number per text")
        outside = np.flatnonzero((labels < 0) | (labels >= len(self.classes)))
        if outside.size:
            number = int(outside[0])
            raise DataError(
                f"text {number} has label {labels[number]}, which is no class; expected 0 to {len(self.classes) - 1}"
            )
        return labels.astype(np.int64)

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, numbers: Sequence[int] | NDArray[np.integer] | slice) -> "Texts":
        """Return some of the texts, by their numbers.

        Args:
            numbers: which, in the order in which they are wanted; or a slice.

        """
        chosen = np.arange(len(self))[numbers if isinstance(numbers, slice) else np.asarray(numbers, dtype=np.int64)]
        return Texts(
            tuple(self.texts[number] for number in chosen),
            None if self.labels is None else self.labels[chosen],
            self.classes,
            None if self.groups is None else tuple(self.groups[number] for number in chosen),
        )

    def split(self, count: int, seed: int = 2024) -> tuple["Texts", "Texts"]:
        """Return two parts: all but some texts, and those, each in their order.

        Args:
            count: of the second part, which is drawn at random.
            seed: of the draw.

        Raises:
            ConfigError: nothing would be left in one of the parts.

        Example:
            >>> train, dev = Texts(("a", "b", "c")).split(1)
            >>> len(train), len(dev)
            (2, 1)

        """
        if not 0 < count < len(self):
            raise ConfigError(f"count = {quote(count)}: expected 1 to {len(self) - 1} of the {len(self):,} texts")
        drawn = np.zeros(len(self), bool)
        drawn[np.random.default_rng(seed).permutation(len(self))[:count]] = True
        return self.select(np.flatnonzero(~drawn)), self.select(np.flatnonzero(drawn))


class TextDataset(NamedTuple):
    """Texts to train on, to choose settings by, and to test on once."""

    name: str
    train: Texts
    dev: Texts
    test: Texts


def read_csv(
    path: str | Path,
    text: str,
    label: str | None = None,
    *,
    group: str | None = None,
    classes: Sequence[str] | None = None,
    delimiter: str = ",",
) -> Texts:
    """Return the texts of a CSV file, whose first line names its columns.

    Args:
        path: of the file, in UTF-8.
        text: the column of the texts.
        label: the column of the classes; left out where there are none.
        group: the column that says whose each text is: a client per name for `partition` with "natural".
        classes: what the classes are called. Left out, they are all that the column holds, in the order of the
            alphabet, or of numbers where all are. Give a test file those of the training file.
        delimiter: between columns.

    Returns:
        The texts.

    Raises:
        DataError: the file is missing, is no such table, lacks a column, or has a line with an empty text or with a
            label that is no class. The message names the line.

    Example:
        >>> train = read_csv("reviews.csv", text="review", label="stars")
        >>> test = read_csv("reviews-test.csv", text="review", label="stars", classes=train.classes)

    """
    path = Path(path)
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(f'delimiter = {quote(delimiter)}: expected one character, like "," or ";"')
    rows = list(_rows(path, [name for name in (text, label, group) if name is not None], delimiter))
    if not rows:
        raise DataError(f"{path} has a header and no rows; expected one text at least")
    texts = tuple(row[text] for _, row in rows)
    groups = None if group is None else tuple(row[group] for _, row in rows)
    if label is None:
        _check_filled(path, rows, [text] if group is None else [text, group])
        return Texts(texts, groups=groups)
    _check_filled(path, rows, [name for name in (text, label, group) if name is not None])
    names = _class_names(path, label, [row[label] for _, row in rows]) if classes is None else tuple(classes)
    numbers = {name: number for number, name in enumerate(names)}
    for line, row in rows:
        if row[label] not in numbers:
            raise DataError(
                f"{path}, line {line}: {label} is {quote(row[label])}, which is no class; expected one of "
                f"{_listed(names)}"
            )
    return Texts(texts, np.array([numbers[row[label]] for _, row in rows]), names, groups)


def _rows(path: Path, columns: Sequence[str], delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line on which each row ends, and its cells in the columns that are wanted."""
    reader = csv.reader(io.StringIO(_decoded(path), newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            raise DataError(f"{path} is empty; expected a line with the names of columns, and rows")
        places = [_place(path, header, name) for name in columns]
        for cells in reader:
            if not cells:  # a blank line
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells, and the header has {len(header)}; put texts "
                    f"that hold {quote(delimiter)} in double quotes"
                )
            yield reader.line_num, {name: cells[place] for name, place in zip(columns, places, strict=True)}
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: this is no CSV: {error}") from None


def _decoded(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise DataError(f"{path} has {size:,} bytes; expected at most {MOST_BYTES:,}: cut it into several files")
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} was not found; expected a CSV file there") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: byte {data[error.start]:#04x} is no UTF-8; save it in UTF-8") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(f"{path}, line {line}: a zero byte, which no text has; is this a CSV file?")
    return text


def _place(path: Path, header: list[str], name: str) -> int:
    if header.count(name) != 1:
        came = "no column" if name not in header else f"{header.count(name)} columns"
        raise DataError(f"{path} has {came} {quote(name)}; expected one of that name among {_listed(header)}")
    return header.index(name)


def _check_filled(path: Path, rows: Sequence[tuple[int, dict[str, str]]], columns: Sequence[str]) -> None:
    for line, row in rows:
        for name in columns:
            if not row[name].strip():
                raise DataError(f"{path}, line {line}: {name} is empty; leave the line out, or fill it in")


def _class_names(path: Path, label: str, labels: Sequence[str]) -> tuple[str, ...]:
    names = sorted(set(labels))
    if len(names) > MOST_CLASSES:
        raise DataError(
            f"{path}: the column {label} holds {len(names):,} different words; expected at most {MOST_CLASSES:,} "
            "classes: name another column as label"
        )
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in names):
        names.sort(key=int)
    return tuple(names)


def _listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(quote(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def present(folder: Path, parts: Iterable[str]) -> list[Path]:
    """Return the CSV files of a dataset that are there.

    Args:
        folder: of the dataset.
        parts: names of files, without their ending.

    """
    return [path for part in parts if (path := folder / f"{part}.csv").is_file()]


def missing_texts(name: str, path: Path, columns: str, *, has_mirror: bool = True) -> DataError:
    """Return the error for a dataset of texts that is not there.

    Args:
        name: of the dataset.
        path: of the file that was looked for.
        columns: what the file must have.
        has_mirror: whether it can be fetched.

    """
    how = f"get it with `fedmpdd data fetch {name}`" if has_mirror else f"put its files there ({columns})"
    return DataError(
        f"dataset {name} was not found: looked for {path}; {how}, or name a folder that has it with --data-dir or "
        f"{DATA_VARIABLE}"
    )
