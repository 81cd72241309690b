"""Bringing datasets from their official mirrors, and looking over what is there."""

import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedmpdd.data.base import RemoteFile, Source, sha256_of
from fedmpdd.errors import DataError

TIMEOUT_S = 30
CHUNK = 1 << 20


def fetch(source: Source, folder: Path, progress: Callable[[str, int, int | None], None] | None = None) -> list[Path]:
    """Download the files of a dataset that are not there yet, each checked before it is put in place."""
    brought = []
    for file in source.files:
        path = folder / file.path
        if not (path.is_file() and sha256_of(path) == file.sha256):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(f"{path.parent} cannot be made: {error}; choose another --data-dir") from None
            _download(file, path, progress)
            brought.append(path)
        elif not path.name.endswith(".tar.gz") or (source.find and len(source.find(folder)) == source.parts):
            continue
        if path.name.endswith(".tar.gz"):
            _extract(path)
    return brought


def _download(file: RemoteFile, path: Path, progress: Callable[[str, int, int | None], None] | None) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as partial:
        place = Path(partial.name)
        try:
            with urllib.request.urlopen(file.url, timeout=TIMEOUT_S) as answer:
                length = answer.headers.get("Content-Length")
                done = 0
                while chunk := answer.read(CHUNK):
                    partial.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(path.name, done, int(length) if length else None)
            partial.close()
            digest = sha256_of(place)
            if digest != file.sha256:
                raise DataError(
                    f"{file.url} has SHA-256 {digest}, expected {file.sha256}: "
                    "it was changed or cut off; try again later"
                )
            place.replace(path)
        except (urllib.error.URLError, OSError) as error:
            raise DataError(
                f"{file.url} cannot be fetched: {error}; get the file elsewhere and put it at {path}"
            ) from None
        finally:
            place.unlink(missing_ok=True)


def _extract(path: Path) -> None:
    with tarfile.open(path) as archive, tempfile.TemporaryDirectory(dir=path.parent) as work:
        archive.extractall(work, filter="data")
        for entry in Path(work).iterdir():
            target = path.parent / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            entry.replace(target)


class Finding(NamedTuple):
    """What is known of one file of a dataset."""

    dataset: str
    path: str
    state: str  # "ok", "missing", "damaged", or "unlisted" (it loads, but is not the published file)
    detail: str


def check(source: Source, folder: Path) -> Iterator[Finding]:
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
