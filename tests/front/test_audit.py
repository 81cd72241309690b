"""An audit of a model, images and codecs of somebody's own by one call."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import fedmpdd as fm
from fedmpdd.errors import DataError, FedmpddError, RunError
from fedmpdd.front.audit import AuditResult
from fedmpdd.privacy.audit import CELLS
from fedmpdd.privacy.images import MOST_IMAGES, as_images
from fedmpdd.privacy.observation import Victim
from fedmpdd.report import collect
from fedmpdd.tasks.models import flatten

FEW: dict[str, Any] = {"attacks": ["adaptive"], "count": 2, "effort": 0.02, "progress": False}


def waves(count: int, side: int = 12, seed: int = 0) -> Any:
    """Smooth images [count, 1, side, side] in [0, 1]."""
    x, y = np.meshgrid(np.linspace(0, 1, side), np.linspace(0, 1, side))
    a, b, c = np.random.default_rng(seed).random((3, count, 1, 1))
    return (0.5 + 0.5 * np.sin(6 * (a * x + b * y + c)))[:, np.newaxis].astype(np.float32)


PICTURES, LABELS = waves(40), np.arange(40) % 4


def network(outputs: int = 4, side: int = 12) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 24), nn.Sigmoid(), nn.Linear(24, outputs))


def audited(model: Any = None, images: Any = PICTURES, codecs: Any = ("mpdd:m=60",), **changes: Any) -> AuditResult:
    own = isinstance(images, np.ndarray) and images is PICTURES and "labels" not in changes
    labels = {"labels": LABELS} if own else {}
    return fm.audit(model or network(), images, list(codecs), **{**FEW, **labels, **changes})


@dataclass(frozen=True)
class MyCodec(fm.MPDD):
    """A codec of somebody's own."""

    name: ClassVar[str] = "mine-of-an-audit"
    code: ClassVar[int] = 0
    m: int = 30


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> Any:
        return torch.from_numpy(PICTURES[number]), int(LABELS[number])


def test_own_model_images_and_codec_in_one_call(tmp_path: Path) -> None:
    model = network()
    before = [parameter.clone() for parameter in model.parameters()]
    result = audited(model, codecs=[MyCodec(), "mpdd:m=60:bits=1"], attacks=["dlg", "adaptive"], effort=0.1)
    mine = "tests.front.test_audit:MyCodec"
    assert list(result.verdict) == ["fedsgd", mine, "mpdd:m=60:bits=1"]
    assert result.verdict["fedsgd"] == "reconstructed"
    assert len(result.rows) == 3 * 2
    assert [row["linkage"] for row in result.rows[:2]] == [1.0, 1.0]
    frame = result.to_frame()
    assert list(frame.codec.unique()) == list(result.verdict)
    assert set(frame.model) == {"Sequential"}
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Sequential on images" in page
    assert "Model with the parameters that it came with" in page  # which may be those of a training
    assert str(result.folder) not in page
    assert page.count('class="image"') == 2 * 7  # the private images, and six attacks
    assert all(parameter.requires_grad for parameter in model.parameters())
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_what_is_printed_says_the_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks and services have it
    text = repr(audited())
    assert "\x1b" not in text
    assert re.search(r"mpdd:m=60 +adaptive +\S+ +\S+ +100% +100%", text)
    assert text.splitlines()[-2:] == [f"{name}: {word}" for name, word in audited().verdict.items()]
    assert max(map(len, text.splitlines())) <= 100


def folder_of_pictures(path: Path) -> Path:
    for number, (picture, label) in enumerate(zip(PICTURES, LABELS, strict=True)):
        place = path / f"class-{label}" / f"{number:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((picture[0] * 255).round().astype(np.uint8)).save(place)
    return path


def rows_of(result: AuditResult) -> Any:
    return [{key: value for key, value in row.items() if key not in ("seconds", "model")} for row in result.rows]


def test_images_come_in_any_form() -> None:
    expected = rows_of(audited())
    forms: list[tuple[Any, dict[str, Any]]] = [
        (torch.from_numpy(PICTURES), {"labels": torch.from_numpy(LABELS)}),
        (PICTURES[:, 0], {"labels": list(LABELS)}),
        ((PICTURES, LABELS), {}),
        (Pictures(), {}),
    ]
    for images, labels in forms:
        assert rows_of(audited(images=images, **labels)) == expected


def test_of_many_images_some_are_read_with_their_labels() -> None:
    many, labels = np.tile(PICTURES, (60, 1, 1, 1)), np.tile(LABELS, 60)
    images = as_images(many, labels)
    assert images.labels is not None
    assert len(images.images) == len(images.labels) == MOST_IMAGES < len(many)
    for picture, label in zip(images.images[::97], images.labels[::97], strict=True):
        assert label in LABELS[(picture == PICTURES).all(axis=(1, 2, 3))]
    with pytest.raises(DataError, match=r"labels of shape \[2000\] came for 2400 images"):
        as_images(many, labels[:2000])


def test_a_folder_of_pictures_has_a_class_per_folder(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "photos")
    bytes_of = (PICTURES * 255).round().astype(np.uint8)
    order = np.argsort(LABELS, kind="stable")
    by_class = audited(images=bytes_of[order], labels=LABELS[order])
    result = audited(images=folder)
    assert rows_of(result) == rows_of(by_class)
    assert "Sequential on photos" in result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    scaled = audited(network(side=16), str(folder), size=16)
    assert scaled.rows[0]["linkage"] == 1.0


def test_floats_of_any_range_reach_the_model_as_they_are() -> None:
    """The attack looks for pixels from 0 to 1, and the model gets what it was given."""
    found = as_images(4 * PICTURES - 3)
    assert (found.images.min(), found.images.max()) == (0, 1)
    victim = Victim(flatten(network())[0], found.shape, 4, found.mean, found.std)
    inputs = victim.inputs(torch.from_numpy(found.images))
    np.testing.assert_allclose(inputs, 4 * PICTURES - 3, atol=1e-5)
    given = audited(mean=0.75, std=0.25)  # (pixel − 0.75) / 0.25 is 4 · pixel − 3
    assert given.rows[0]["linkage"] == 1.0


def test_without_labels_an_image_is_of_the_class_that_the_model_sees() -> None:
    model = network()
    with torch.no_grad():
        seen = model(torch.from_numpy(PICTURES)).argmax(dim=1)
    assert rows_of(audited(model, PICTURES, labels=None)) == rows_of(audited(model, PICTURES, labels=seen))


def test_other_losses_are_attacked_where_labels_are_known() -> None:
    smoothed = audited(loss=nn.CrossEntropyLoss(label_smoothing=0.1), attacks=["dlg", "adaptive"], effort=0.2)
    assert smoothed.verdict["fedsgd"] == "reconstructed"
    targets = np.linspace(0, 1, 40, dtype=np.float32)[:, np.newaxis]
    regression = audited(network(1), labels=targets, loss=functional.mse_loss, effort=0.2)
    assert regression.rows[0]["ssim"] > 0.5
    assert regression.rows[0]["linkage"] == 1.0
    of_model = audited(loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    assert of_model.rows[0]["ssim"] == pytest.approx(audited().rows[0]["ssim"], abs=0.02)


def test_batch_norm_normalises_by_the_batch_and_dropout_is_off() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Dropout(0.5), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(100, 4))
    assert audited(model, effort=0.1).rows[0]["linkage"] == 1.0


def test_a_stopped_audit_goes_on_and_another_model_or_image_is_refused(tmp_path: Path) -> None:
    first = audited(out=tmp_path / "a")
    cells = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / CELLS).iterdir()}
    missing = sorted(cells)[-1]
    missing.unlink()
    assert rows_of(audited(out=tmp_path / "a")) == rows_of(first)
    assert {path.name for path in (tmp_path / "a" / CELLS).iterdir()} == {path.name for path in cells}
    for path, time in cells.items():
        assert path == missing or path.stat().st_mtime_ns == time
    torch.manual_seed(5)
    with pytest.raises(RunError, match="holds an audit of other parameters; choose another folder"):
        audited(nn.Sequential(nn.Flatten(), nn.Linear(144, 4)), out=tmp_path / "a")
    with pytest.raises(RunError, match="holds an audit of other images"):
        audited(images=waves(40, seed=3), labels=LABELS, out=tmp_path / "a")
    assert collect([tmp_path / "a"]).audits[0].attacks == 2


def test_a_trained_model_is_attacked_at_its_checkpoint(tmp_path: Path) -> None:
    clients = fm.partition((PICTURES, LABELS), 4)
    task = fm.Task(model=network(), clients=clients, test=(PICTURES, LABELS))
    run = tmp_path / "run"
    history = fm.simulate(task, "fedsgd", out=run, lr=1.0, rounds=3, batch=4, progress=False, device="cpu")
    trained = audited(trained=tmp_path / "run")
    assert rows_of(trained) == rows_of(audited(history.model))
    assert rows_of(trained) != rows_of(audited())


def test_updates_that_are_linked_are_not_called_harmless(tmp_path: Path) -> None:
    result = audited(codecs=["mpdd:m=30"], attacks=["inverting-gradients"], effort=0.001, count=8)
    row = result.rows[-1]
    assert (row["linkage"], row["ssim"] < 0.3) == (1.0, True)
    assert result.verdict["mpdd:m=30"] == row["verdict"] == "linked"
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "badge good" not in page
    assert "badge middling" in page
    assert "linkage 100% among" in row["sentence"]
    assert json.loads((result.folder / "results.json").read_text())["codecs"][1]["verdict"] == "linked"


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, images: torch.Tensor) -> Any:
        return self.inner(images.detach())


class Several(Detached):
    def forward(self, images: torch.Tensor) -> Any:
        return self.inner(images), 1


def spoiled() -> Any:
    pictures = PICTURES.copy()
    pictures[3, 0, 2, 2] = np.nan
    return pictures


def damaged_model() -> nn.Module:
    model = network()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    return model


def empty(path: Path) -> Path:
    path.mkdir()
    return path


def of_several_sizes(path: Path) -> Path:
    folder_of_pictures(path)
    Image.new("L", (20, 30)).save(path / "class-0" / "odd.png")
    return path


def of_no_pictures(path: Path) -> Path:
    path.mkdir()
    (path / "broken.png").write_bytes(b"no picture")
    return path


def _anything(value: Any) -> Any:
    return value


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "shape": (lambda _: audited(images=waves(40, 14), labels=LABELS), "does not take images of shape [1, 14, 14]"),
    "channels last": (lambda _: audited(images=np.zeros((9, 12, 12, 3), np.float32)), "transpose(0, 3, 1, 2)"),
    "flat": (lambda _: audited(images=np.zeros((9, 144), np.float32)), "expected [images, channels, height, width]"),
    "small": (lambda _: audited(images=waves(9, 8)), "11 × 11 pixels"),
    "no images": (lambda _: audited(images=PICTURES[:0]), "no images came"),
    "one image": (lambda _: audited(images=PICTURES[:1], count=1), "attack fewer, or give others as public ones"),
    "whole numbers": (lambda _: audited(images=(9 * PICTURES).astype(int)), "expected bytes (uint8)"),
    "nan": (lambda _: audited(images=spoiled()), "1 of 40 images hold NaN or infinity, first of all image 3"),
    "none": (lambda _: audited(images=None), "expected"),
    "labels short": (lambda _: audited(labels=LABELS[:3]), "labels of shape [3] came for 40 images"),
    "labels high": (lambda _: audited(network(3)), "classes 0 to 3, and the model has 3 outputs"),
    "labels words": (lambda _: audited(labels=["a"] * 40), "expected classes from 0 on"),
    "labels floats": (lambda _: audited(labels=LABELS / 4), "for a regression give its loss"),
    "no targets": (lambda _: audited(labels=None, loss=functional.mse_loss), "the loss needs targets; give labels="),
    "broadcast": (lambda _: audited(loss=functional.mse_loss), "compare all pairs"),
    "loss": (lambda _: audited(loss="mse"), "expected a function (outputs, targets)"),
    "no folder": (lambda path: audited(images=path / "x"), "is no folder; expected one with pictures"),
    "empty folder": (lambda path: audited(images=empty(path / "x")), "holds no pictures, nor do folders in it"),
    "sizes": (lambda path: audited(images=of_several_sizes(path / "x")), "give one size for all, like size=32"),
    "broken": (lambda path: audited(images=of_no_pictures(path / "x")), "is no picture that can be read"),
    "size": (lambda _: audited(size=12), "it is for folders of pictures"),
    "codec": (lambda _: audited(codecs=["mpddd:m=5"]), "did you mean mpdd?"),
    "codec class": (lambda _: audited(codecs=[fm.MPDD]), "MPDD(m=…)"),
    "codecs": (lambda _: fm.audit(network(), PICTURES, "mpdd:m=5"), "expected a list of codecs"),
    "no codecs": (lambda _: audited(codecs=[]), "codecs is empty"),
    "twice": (lambda _: audited(codecs=["mpdd:m=5", fm.MPDD(m=5)]), "is there twice"),
    "too large": (lambda _: audited(codecs=["topk:k=100000"]), "must not exceed d"),
    "losses": (lambda _: audited(codecs=["decomfl:m=5:keys=shared"]), "there is no attack on those here yet"),
    "attack": (lambda _: audited(attacks=["magic"]), "'magic' is unknown; use some of dlg"),
    "attacks": (lambda _: audited(attacks="dlg"), "expected a list of attacks, like ['dlg']"),
    "no attacks": (lambda _: audited(attacks=[]), "audit.attacks is empty"),
    "count": (lambda _: audited(count=0), "audit.images = 0"),
    "many": (lambda _: audited(count=41), "more than the 40 examples"),
    "idlg": (lambda _: audited(batch=2, attacks=["idlg"]), "use dlg"),
    "found": (lambda _: audited(batch=2, grants_labels=False), "grant labels"),
    "found, own loss": (
        lambda _: audited(grants_labels=False, loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
        "with another loss they are known",
    ),
    "tuple": (lambda _: audited(Several()), "returns a tuple, not a tensor of logits"),
    "detached": (lambda _: audited(Detached()), "cannot be attacked with these images"),
    "damaged": (lambda _: audited(damaged_model()), "NaN or infinity; look at the model"),
    "model": (lambda _: audited(3), "expected a torch.nn.Module, or a function that makes one"),
    "mean": (lambda _: audited(mean=(0.1, 0.2)), "for images of 1 channels: expected a number each"),
    "mean in words": (lambda _: audited(mean="imagenet"), "mean = 'imagenet' for images of 1 channels"),
    "std of NaN": (lambda _: audited(std=float("nan")), "std = nan for images of 1 channels"),
    "batch of 0": (lambda _: audited(batch=0), "batch = 0: expected a number of images"),
    "batch in words": (lambda _: audited(batch="2"), "batch = '2': expected a number of images"),
    "codec number": (lambda _: fm.audit(network(), PICTURES, _anything(3)), "codecs = 3: expected a list of codecs"),
    "attacks number": (lambda _: audited(attacks=3), "attacks = 3: expected a list of attacks"),
    "attacks none": (lambda _: audited(attacks=None), "attacks = None: expected a list of attacks, like ['dlg']"),
    "grants in words": (lambda _: audited(grants_labels="no"), "grants_labels = 'no': expected True or False"),
    "out": (lambda _: audited(out=3), "out = 3: expected a folder"),
    "mean and range": (lambda _: audited(images=9 * PICTURES, mean=0.5), "expected pixels from 0 to 1"),
    "public": (lambda _: audited(public=waves(5, 14)), "came for images of [1, 12, 12]"),
    "setting": (lambda _: audited(metric=3), "metric is no setting of an audit"),
    "device": (lambda _: audited(device="tpu"), "device = 'tpu'"),
    "trained": (lambda path: audited(trained=path / "x"), "is not a run"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_use_is_one_line(name: str, tmp_path: Path) -> None:
    use, words = WRONG[name]
    with pytest.raises(FedmpddError) as caught:
        use(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 330
