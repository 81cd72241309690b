"""Datasets from files: what is read, what is refused, and how it is said."""

import functools
import gzip
import hashlib
import http.server
import io
import pickle
import struct
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fedmpdd.errors import DataError
from fedmpdd.tasks import data
from fedmpdd.tasks.data import DATASETS, cifar10, data_folder, idx
from fedmpdd.tasks.data.base import RemoteFile, sha256_of
from fedmpdd.tasks.data.fetch import _extract, check, fetch
from tests.tasks.data.fixtures import write_cifar, write_idx, write_mnist


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder)
    return folder


def test_mnist_is_read(mnist: Path) -> None:
    dataset = data.load("mnist", mnist)
    assert dataset.train.images.shape == (60_000, 1, 28, 28)
    assert dataset.test.labels.tolist() == [i % 10 for i in range(10_000)]
    assert dataset.train.images.flags.writeable  # torch wants it so


def test_missing_dataset_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    for name in ("mnist", "fashion-mnist", "cifar-10"):
        with pytest.raises(DataError, match=rf"looked for {tmp_path}.*fedmpdd data fetch {name}"):
            data.load(name, tmp_path)
    with pytest.raises(DataError, match="expected one of mnist, fashion-mnist, cifar-10, mnist-5k"):
        data.load("imagenet", tmp_path)


def test_damaged_idx_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    write_idx(path, np.zeros((5, 2), dtype=np.uint8))
    with pytest.raises(DataError, match=r"x\.gz is damaged: its header"):
        idx.read(path, (6, 2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"x\.gz is damaged"):
        idx.read(path, (5, 2))
    path.write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match=r"x\.gz is damaged"):
        idx.read(path, (5, 2))
    path.write_bytes(whole[:12] + b"\xff\xff\xff" + whole[15:])
    with pytest.raises(DataError, match=r"x\.gz is damaged"):
        idx.read(path, (5, 2))


def test_labels_out_of_range_are_damage(mnist: Path, tmp_path: Path) -> None:
    for part in idx.PARTS:
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / part).symlink_to(mnist / "mnist" / part)
    path = tmp_path / "mnist" / idx.PARTS[3]
    path.unlink()
    write_idx(path, np.full(10_000, 10, dtype=np.uint8))
    with pytest.raises(DataError, match="label 10"):
        data.load("mnist", tmp_path)


def test_an_npz_batch_that_says_it_is_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", b"")
    whole = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        whole[whole.index(mark) + flags] |= 1
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"data_batch_1\.npz is damaged"):
        cifar10._read(path)


@pytest.mark.parametrize(("form", "place"), [("npz", "cifar-10"), ("pickle", "cifar-10/cifar-10-batches-py")])
def test_cifar_is_read_in_both_forms(tmp_path: Path, form: str, place: str) -> None:
    write_cifar(tmp_path / place, form)
    dataset = data.load("cifar-10", tmp_path)
    assert dataset.train.images.shape == (50_000, 3, 32, 32)
    assert dataset.train.images[[0, 49_999], 0, 0, 0].tolist() == [0, 4]
    assert dataset.test.images[0, 0, 0, 0] == 5


def test_damaged_cifar_batches_are_named_and_pickles_run_no_code(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10"
    write_cifar(folder, "npz")
    (folder / "data_batch_3.npz").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(DataError, match=r"data_batch_3\.npz is damaged"):
        data.load("cifar-10", tmp_path)
    np.savez(folder / "data_batch_3.npz", data=np.zeros((3, 3072), np.uint8), labels=[1, 2, 3])
    with pytest.raises(DataError, match=r"data_batch_3\.npz is damaged: it holds"):
        data.load("cifar-10", tmp_path)
    evil = tmp_path / "evil"
    evil.write_bytes(pickle.dumps(functools.partial(print, "code ran")))
    with pytest.raises(DataError, match=r"evil is damaged: it asks for"):
        cifar10._read(evil)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10000, 1099511627776), }",
        "{'descr': '|V1099511627776', 'fortran_order': False, 'shape': (10000, 3072), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (10000, 3072), }",
        "{'descr': '|u1', 'fortran_order': True, 'shape': (10000, 3072), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10000, 3072), }",  # and then nothing
        "{" * 200,
        "__import__('os').abort()",
    ],
)
def test_npz_batches_that_claim_more_than_they_hold(tmp_path: Path, header: str) -> None:
    path = tmp_path / "data_batch_1.npz"
    text = (header + "\n").encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
        archive.writestr("labels.npy", b"")
    tracemalloc.start()
    with pytest.raises(DataError, match=r"data_batch_1\.npz is damaged"):
        cifar10._read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_an_idx_file_that_unpacks_to_gigabytes_is_read_as_far_as_it_should_go(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    write_idx(path, np.zeros((5, 2), dtype=np.uint8))
    with path.open("ab") as file:
        file.write(gzip.compress(bytes(2**24), 1) * 64)  # a gigabyte of zeros in some megabytes
    tracemalloc.start()
    with pytest.raises(DataError, match="another number of bytes"):
        idx.read(path, (5, 2))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21


def test_data_folder_is_given_or_named_or_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDMPDD_DATA", str(tmp_path / "named"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "named"
    monkeypatch.delenv("FEDMPDD_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "fedmpdd" / "data"


# -------------------------------------------------------------------------------------------------- fetching


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder served over HTTP on loopback."""
    folder = tmp_path / "mirror"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            return

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_fetch_brings_checks_and_does_not_bring_again(mirror: tuple[Path, str], tmp_path: Path) -> None:
    served, url = mirror
    (served / "a.gz").write_bytes(b"a file")
    digest = hashlib.sha256(b"a file").hexdigest()
    source = replace(DATASETS["mnist"], files=(RemoteFile("mnist/a.gz", digest, f"{url}/a.gz"),))
    assert fetch(source, tmp_path) == [tmp_path / "mnist" / "a.gz"]
    assert fetch(source, tmp_path) == []
    (tmp_path / "mnist" / "a.gz").write_bytes(b"damaged")
    assert fetch(source, tmp_path) == [tmp_path / "mnist" / "a.gz"]


def test_a_changed_or_missing_file_on_the_mirror_leaves_nothing_behind(
    mirror: tuple[Path, str], tmp_path: Path
) -> None:
    served, url = mirror
    (served / "a.gz").write_bytes(b"changed")
    for name, message in (("a.gz", "SHA-256"), ("b.gz", "cannot be fetched")):
        source = replace(DATASETS["mnist"], files=(RemoteFile(f"mnist/{name}", "0" * 64, f"{url}/{name}"),))
        with pytest.raises(DataError, match=message):
            fetch(source, tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_fetched_archives_are_unpacked(mirror: tuple[Path, str], tmp_path: Path) -> None:
    served, url = mirror
    write_cifar(tmp_path / "cifar-10-batches-py", "pickle")
    with tarfile.open(served / "c.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    file = RemoteFile("cifar-10/c.tar.gz", sha256_of(served / "c.tar.gz"), f"{url}/c.tar.gz")
    target = tmp_path / "data"
    fetch(replace(DATASETS["cifar-10"], files=(file,)), target)
    assert data.load("cifar-10", target).train.images.shape == (50_000, 3, 32, 32)
    # A batch that was damaged and deleted comes back out of the archive, which is not brought again.
    (target / "cifar-10" / "cifar-10-batches-py" / "data_batch_2").unlink()
    assert fetch(replace(DATASETS["cifar-10"], files=(file,)), target) == []
    assert data.load("cifar-10", target).train.images.shape == (50_000, 3, 32, 32)


def archive_with(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return path


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **values: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for key, value in values.items():
        setattr(info, key, value)
    return info, content


@pytest.mark.parametrize(
    "members",
    [
        [member("batches/link", kind=tarfile.SYMTYPE, linkname="/etc/passwd")],
        [member("batches/link", kind=tarfile.LNKTYPE, linkname="batches/one")],
        [member("batches/device", kind=tarfile.CHRTYPE)],
        [member("batches/pipe", kind=tarfile.FIFOTYPE)],
        [member("/absolute/one", b"1")],
        [member("../outside", b"1")],
        [member("batches/../../outside", b"1")],
        [member("batches//one", b"1")],
        [member("c.tar.gz", b"1")],  # would take the place of a file beside the archive
        [member("batches/one", b"1"), member("batches/one", b"2")],
        [member("batches/one", b"1"), member("batches/one/two", b"2")],
        [member(f"batches/{i}", b"1") for i in range(17)],
        [member("batches/one", b"1", pax_headers={"size": str(2**40)})],
        [member("batches/" + "x" * 300, b"1")],  # a name that no file system takes
    ],
    ids=lambda members: f"{members[-1][0].name[:20]}-{members[-1][0].type!r}",
)
def test_members_that_no_dataset_has_are_refused(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    path = archive_with(tmp_path / "c.tar.gz", *members)
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"c\.tar\.gz is damaged"):
        _extract(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_members_that_claim_a_terabyte_cost_nothing(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "c.tar.gz"
    info = tarfile.TarInfo("batches/one")
    info.type, info.size = kind, 2**40
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            file.write(bytes(2**20))
    tracemalloc.start()
    with pytest.raises(DataError, match="says that it has 1,099,511,627,776 bytes"):
        _extract(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"no archive"), gzip.compress(bytes(10_000))[:-9]],
    ids=["empty", "text", "packed-text", "cut"],
)
def test_archives_that_are_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.tar.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"c\.tar\.gz is damaged"):
        _extract(path)


def test_lengths_that_a_mirror_makes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A length that is no number is not shown; more bytes than any file has are not taken."""

    class Answer(io.BytesIO):
        headers: ClassVar[dict[str, str]] = {"Content-Length": "-1e9"}

    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Answer(b"a file"))
    seen: list[int | None] = []
    file = RemoteFile("mnist/a.gz", hashlib.sha256(b"a file").hexdigest(), "http://127.0.0.1/a.gz")
    fetch(replace(DATASETS["mnist"], files=(file,)), tmp_path, lambda name, done, total: seen.append(total))
    assert seen == [None]
    monkeypatch.setattr("fedmpdd.tasks.data.fetch.MOST_FILE_BYTES", 5)
    with pytest.raises(DataError, match="more than 5 bytes"):
        fetch(replace(DATASETS["mnist"], files=(replace(file, path="mnist/b.gz"),)), tmp_path)
    assert [path.name for path in (tmp_path / "mnist").iterdir()] == ["a.gz"]


def test_check_tells_published_files_from_others(mnist: Path, tmp_path: Path) -> None:
    states = {finding.state for finding in check(DATASETS["mnist"], mnist)}
    assert states == {"damaged"}  # right form, but not the published bytes
    assert [finding.state for finding in check(DATASETS["mnist"], tmp_path)] == ["missing"]
    assert [finding.state for finding in check(DATASETS["mnist-5k"], tmp_path)] == ["ok"]
