"""CSV files of texts: what is read, what is refused, and how it is said."""

import csv
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpdd.errors import ConfigError, DataError
from fedmpdd.tasks.data import Texts, read_csv


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_file_is_read_with_classes_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", 'stars,review,who\n5,"Good, and\nlong.",ann\n10,Best.,bob\n1,Bad.,ann\n')
    texts = read_csv(path, text="review", label="stars", group="who")
    assert texts.texts == ("Good, and\nlong.", "Best.", "Bad.")
    assert texts.classes == ("1", "5", "10")  # by number, not by the alphabet
    assert texts.labels is not None
    assert texts.labels.tolist() == [1, 2, 0]
    assert texts.groups == ("ann", "bob", "ann")


def test_a_test_file_takes_the_classes_of_the_training_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "review,mood\nFine.,glad\n")
    texts = read_csv(path, text="review", label="mood", classes=("angry", "glad"))
    assert texts.labels is not None
    assert texts.labels.tolist() == [1]
    with pytest.raises(DataError, match=r"line 2: mood is 'glad', which is no class; expected one of 'sad', 'calm'"):
        read_csv(path, text="review", label="mood", classes=("sad", "calm"))


def test_texts_without_classes_are_read(tmp_path: Path) -> None:
    texts = read_csv(write(tmp_path / "x.csv", "line;by\nHo;ann\n"), text="line", group="by", delimiter=";")
    assert (texts.labels, texts.classes, texts.groups) == (None, (), ("ann",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"x\.csv is empty; expected a line with the names of columns"),
        ("text,label\n", "has a header and no rows"),
        ("sentence,label\na,0\n", r"has no column 'text'; expected one of that name among 'sentence', 'label'"),
        ("text,label,text\na,0,b\n", "has 2 columns 'text'"),
        ("text,label\na,0\nb,c,0\n", "line 3: 3 cells, and the header has 2; put texts that hold ',' in double quotes"),
        ("text,label\na\n", "line 2: 1 cells"),
        ("text,label\na,0\n  ,1\n", "line 3: text is empty"),
        ("text,label\na,\n", "line 2: label is empty"),
        ('text,label\n"a,0\n', "line 2: this is no CSV: unexpected end of data"),
        ('text,label\n"a"b,0\n', "line 2: this is no CSV"),
        ("text,label\n" + 200_000 * "a" + ",0\n", "line 2: this is no CSV: field larger than field limit"),
        (b"text,label\na,0\ncaf\xe9,1\n", "line 3: byte 0xe9 is no UTF-8; save it in UTF-8"),
        (b"text,label\na,0\nb\0,1\n", "line 3: a zero byte"),
        (b"PK\x03\x04\x00\x00", "a zero byte, which no text has; is this a CSV file"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_csv(write(tmp_path / "x.csv", content), text="text", label="label")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv was not found"):
        read_csv(tmp_path / "none.csv", text="text")
    with pytest.raises(DataError, match="cannot be read"):
        read_csv(tmp_path, text="text")
    with pytest.raises(ConfigError, match="expected one character"):
        read_csv(tmp_path, text="text", delimiter=", ")


def test_a_column_of_texts_is_no_column_of_classes(tmp_path: Path) -> None:
    rows = "".join(f"a,word {number}\n" for number in range(10_001))
    with pytest.raises(DataError, match="the column label holds 10,001 different words"):
        read_csv(write(tmp_path / "x.csv", "text,label\n" + rows), text="text", label="label")


def test_a_mark_of_byte_order_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert read_csv(write(tmp_path / "x.csv", b"\xef\xbb\xbftext\r\na\r\n"), text="text").texts == ("a",)


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0")).filter(str.strip),
            st.sampled_from(["0", "1", "two", "a,b", 'say "c"', "\u00fc"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    texts = read_csv(path, text="text", label="label")
    assert texts.labels is not None
    assert [(text, texts.classes[label]) for text, label in zip(texts.texts, texts.labels, strict=True)] == rows


@given(st.binary(max_size=60))
def test_any_bytes_are_texts_or_an_error_of_data(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = write(tmp_path_factory.mktemp("csv") / "x.csv", b"text,label\n" + content)
    with suppress(DataError):
        texts = read_csv(path, text="text", label="label")
        assert texts.labels is not None
        assert len(texts) == len(texts.labels) > 0


def test_a_split_has_every_text_once_and_is_the_same_again() -> None:
    texts = Texts(tuple(map(str, range(10))), np.arange(10) % 3, ("a", "b", "c"), tuple("xyzxyzxyzx"))
    rest, part = texts.split(3, seed=1)
    assert sorted(rest.texts + part.texts) == sorted(texts.texts)
    assert part.texts == texts.split(3, seed=1)[1].texts != texts.split(3, seed=2)[1].texts
    for some in (rest, part):
        assert some.labels is not None
        assert some.groups is not None
        for text, label, group in zip(some.texts, some.labels, some.groups, strict=True):
            assert (label, group) == (int(text) % 3, "xyzxyzxyzx"[int(text)])
    for count in (0, 10):
        with pytest.raises(ConfigError, match="expected 1 to 9 of the 10 texts"):
            texts.split(count)
    assert texts.select(slice(2)).texts == ("0", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("a", " "),), "text 1 is ' '; expected words"),
        ((("a", None),), "text 1 is None"),
        (((),), "one text or more"),
        (("a sentence",), "expected a sequence"),
        ((("a",), np.array([0, 1]), ("x", "y")), "2 labels came with 1 texts"),
        ((("a",), np.array([2]), ("x", "y")), "text 0 has label 2, which is no class; expected 0 to 1"),
        ((("a",), np.array([0.0]), ("x",)), "labels of float64"),
    ],
)
def test_texts_that_cannot_be_meant(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Texts(*arguments)  # type: ignore[arg-type]
