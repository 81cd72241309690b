"""Bringing datasets from their official mirrors, and looking over what is there."""

import gzip
import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from fedmpdd.errors import DataError
from fedmpdd.tasks.data.base import RemoteFile, Source, damaged, sha256_of

TIMEOUT_S = 30
CHUNK = 1 << 20
MOST_FILE_BYTES = 2**30  # of a file that is fetched; the largest, CIFAR-10's archive, has 170 MB
MOST_MEMBER_BYTES, MOST_NAME_BYTES, MOST_MEMBERS = 2**26, 2**16, 16  # of an archive; together at most 1 GiB


def fetch(
    source: Source[object], folder: Path, progress: Callable[[str, int, int | None], None] | None = None
) -> list[Path]:
    """Download the files of a dataset that are not there yet, each checked before it is put in place."""
    brought = []
    for file in source.files:
        path = folder / file.path
        if not (path.is_file() and sha256_of(path) == file.sha256):
            if not file.url:
                raise DataError(
                    f"no mirror of {source.name} is known; get its files elsewhere and put them into {path.parent}"
                )
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(f"{path.parent} cannot be made: {error}; choose another --data-dir") from None
            _download(file, path, progress)
            brought.append(path)
        elif not _is_unpacked(file) or (source.find and len(source.find(folder)) == source.parts):
            continue
        if _is_unpacked(file):
            _extract(path)
    return brought


def _is_unpacked(file: RemoteFile) -> bool:
    return file.path.endswith(".tar.gz") and not file.kept_packed


def _download(file: RemoteFile, path: Path, progress: Callable[[str, int, int | None], None] | None) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as partial:
        unfinished = Path(partial.name)
        try:
            with urllib.request.urlopen(file.url, timeout=TIMEOUT_S) as answer:
                length = answer.headers.get("Content-Length") or ""
                total = int(length) if length.isdecimal() and len(length) < 20 else None
                done = 0
                while chunk := answer.read(CHUNK):
                    partial.write(chunk)
                    done += len(chunk)
                    if done > MOST_FILE_BYTES:
                        raise DataError(
                            f"{file.url} sends more than {MOST_FILE_BYTES:,} bytes: it is another file; try again later"
                        )
                    if progress is not None:
                        progress(path.name, done, total)
            partial.close()
            digest = sha256_of(unfinished)
            if digest != file.sha256:
                raise DataError(
                    f"{file.url} has SHA-256 {digest}, expected {file.sha256}: "
                    "it was changed or cut off; try again later"
                )
            unfinished.replace(path)
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise DataError(
                f"{file.url} cannot be fetched: {error}; get the file elsewhere and put it at {path}"
            ) from None
        finally:
            unfinished.unlink(missing_ok=True)


class _CheckedMember(tarfile.TarInfo):
    """A member of an archive whose size is looked at before it is read: names and comments are read whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        _check_size(member, MOST_MEMBER_BYTES if member.type in tarfile.REGULAR_TYPES else MOST_NAME_BYTES)
        return member


def _check_size(member: tarfile.TarInfo, most: int) -> None:
    if not 0 <= member.size <= most:
        raise DataError(f"a member says that it has {member.size:,} bytes; expected at most {most:,}")


def _extract(path: Path) -> None:
    """Unpack an archive of plain files in folders, beside it; of one that is refused with DataError nothing is left."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            with (
                gzip.open(path) as unpacked,
                tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_CheckedMember) as archive,
            ):
                for number, member in enumerate(archive):
                    if number == MOST_MEMBERS:
                        raise DataError(f"it has more than {MOST_MEMBERS} members")
                    _extract_member(archive, member, Path(work))
            for entry in Path(work).iterdir():
                _put_in_place(entry, path.parent / entry.name)
    except DataError as error:
        raise damaged(path, str(error)) from None
    except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        raise damaged(path, f"it cannot be unpacked: {error}") from None


def _extract_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    parts = member.name.rstrip("/").split("/")
    inside = not {"", ".", ".."} & set(parts) and "\0" not in member.name and "\\" not in member.name
    if not inside or not (member.isdir() or (member.isreg() and not member.issparse() and len(parts) > 1)):
        raise DataError(f"its member {member.name[:80]!r} is no plain file in a folder of the archive")
    _check_size(member, MOST_MEMBER_BYTES)  # again: a comment may have set another
    target = folder.joinpath(*parts)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    data = archive.extractfile(member)
    assert data is not None  # of a plain file
    with target.open("xb") as file:
        shutil.copyfileobj(data, file, CHUNK)


def _put_in_place(entry: Path, target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    entry.replace(target)


class Finding(NamedTuple):
    """What is known of one file of a dataset."""

    dataset: str
    path: str
    state: str  # "ok", "missing", "damaged", or "unlisted" (it loads, but is not the published file)
    detail: str


def check(source: Source[object], folder: Path) -> Iterator[Finding]:
    """Look at every file of a dataset, and then load it."""
    listed = {folder / file.path: file.sha256 for file in source.files}
    present = source.find(folder) if source.find else []
    try:
        source.load(folder)
        trouble = None
    except DataError as error:
        trouble = str(error)
    for path in present:
        if path not in listed:
            state, detail = "unlisted", "not the published file; its shapes and labels are checked when it is loaded"
        elif sha256_of(path) == listed[path]:
            state, detail = "ok", "SHA-256 as published"
        else:
            state, detail = "damaged", f"SHA-256 differs; delete it and run `fedmpdd data fetch {source.name}`"
        yield Finding(source.name, str(path), state, detail)
    if trouble is not None:
        yield Finding(source.name, str(folder), "damaged" if present else "missing", trouble)
    elif not present:
        yield Finding(source.name, "(inside a package)", "ok", "loads")
