"""Datasets from files: what is read, what is refused, and how it is said."""

import functools
import hashlib
import http.server
import pickle
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmpdd import data
from fedmpdd.data import DATASETS, cifar10, data_folder, idx
from fedmpdd.data.base import RemoteFile, sha256_of
from fedmpdd.data.fetch import check, fetch
from fedmpdd.errors import DataError
from tests.data.made_up import write_cifar, write_idx, write_mnist


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


def test_check_tells_published_files_from_others(mnist: Path, tmp_path: Path) -> None:
    states = {finding.state for finding in check(DATASETS["mnist"], mnist)}
    assert states == {"damaged"}  # right form, but not the published bytes
    assert [finding.state for finding in check(DATASETS["mnist"], tmp_path)] == ["missing"]
    assert [finding.state for finding in check(DATASETS["mnist-5k"], tmp_path)] == ["ok"]
