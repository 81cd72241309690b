"""`fedmpdd audit` of a model, images and a codec in files of somebody's own: begun, stopped, gone on with, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from fedmpdd.cli import main
from fedmpdd.codecs import CODECS
from fedmpdd.pages.audits import CELLS, RESULTS
from tests.front.test_audit import LABELS, PICTURES

NET = """
from torch import nn
def Net(width=8):
    return nn.Sequential(nn.Conv2d(1, width, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(width * 25, 4))
"""
CODEC = """
from dataclasses import dataclass
import fedmpdd as fm
@dataclass(frozen=True)
class Mine(fm.MPDD):
    m: int = 12
    name = "mine-in-a-file"
    code = 0
"""
DATA = """
import numpy as np
def load():
    random = np.random.default_rng(0)
    return random.random((30, 1, 12, 12), dtype=np.float32), np.arange(30) % 4
"""
WANTED = "mpdd:m=50,mycodec.py:Mine(m=30,bits=8)"
SMALL = ("audit.batch=1", "audit.images=2", "audit.effort=0.02", 'audit.attacks=["adaptive"]')
OWN = ("audit", "demo", "model=mynet.py:Net(width=4)", "--images", "photos", "--codecs", WANTED, *SMALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a network, a codec, a dataset and pictures."""
    for name, text in (("mynet", NET), ("mycodec", CODEC), ("mydata", DATA)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    for number, (picture, label) in enumerate(zip(PICTURES, LABELS, strict=True)):
        place = tmp_path / "photos" / str(label) / f"{number:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((picture[0] * 255).round().astype("uint8")).save(place)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    CODECS.pop("mine-in-a-file", None)  # which the next test has in another file


def fedmpdd(*arguments: str) -> int:
    """Run the command in this process, and return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedmpdd", *arguments])
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


def test_own_model_images_and_codec(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedmpdd(*OWN, "--out", "a", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [codec["codec"] for codec in document["codecs"]] == ["fedsgd", "mpdd:m=50", "mycodec.py:Mine(m=30,bits=8)"]
    assert {row["model"] for row in document["rows"]} == {"mynet.py:Net(width=4)"}
    assert "mynet.py:Net(width=4) on photos" in (here / "a" / "index.html").read_text(encoding="utf-8")
    # It goes on where it was, and by itself only where its code is trusted.
    before = document["rows"]
    next((here / "a" / CELLS).glob("*mine*")).unlink()
    assert fedmpdd("audit", "--resume", "a") == 2
    told = capsys.readouterr().err
    assert "model = 'mynet.py:Net(width=4)' and audit.codecs.1 = 'mycodec.py:Mine(m=30,bits=8)'" in told
    assert "--trust-imports" in told
    assert fedmpdd("audit", "--resume", "a", "--trust-imports", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [{**row, "seconds": 0} for row in rows] == [{**row, "seconds": 0} for row in before]
    assert fedmpdd(*OWN, "seed=3", "--out", "a") == 2
    assert "with other settings" in capsys.readouterr().err


@pytest.mark.slow
def test_own_images_by_import_path_in_several_processes(here: Path) -> None:
    words = ("audit", "demo", "model=mynet.py:Net", "--images", "mydata.py:load", "--codecs", "fedsgd", *SMALL)
    assert fedmpdd(*words, "--out", "a", "--jobs", "2") == 0
    assert fedmpdd(*words, "--out", "b") == 0
    one, two = (json.loads((here / name / RESULTS).read_text())["rows"] for name in ("a", "b"))
    assert [{**row, "seconds": 0} for row in one] == [{**row, "seconds": 0} for row in two]


@pytest.mark.slow
def test_a_killed_audit_goes_on(here: Path) -> None:
    command = [sys.executable, "-m", "fedmpdd", *OWN, "audit.effort=0.1", "--out", "a"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        while not list((here / "a" / CELLS).glob("*.npz")) and running.poll() is None:
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGKILL)
    kept = {path: path.stat().st_mtime_ns for path in (here / "a" / CELLS).glob("*.npz")}
    assert kept
    assert fedmpdd(*OWN, "audit.effort=0.1", "--out", "a") == 0
    assert len(list((here / "a" / CELLS).glob("*.npz"))) == 3
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("audit",), "name a config, like `fedmpdd audit audit-mnist`"),
        (("audit", "demo", "--images", "nowhere"), "--images nowhere: there is no such folder"),
        (("audit", "demo", "--images", "photos", "--size", "16", "--codecs", "mpdd:m=0"), "m = 0"),
        (("audit", "demo", "--size", "16"), "--size 16 came without --images"),
        (("audit", "demo", "--images", "mydata.py:load", "--size", "16"), "says itself how large"),
        (("audit", "demo", "--images", "mydata.py:lod"), "did you mean load?"),
        (("audit", "demo", "--trust-imports"), "--trust-imports is for --resume"),
        (("audit", "--resume", "photos"), "is no audit: it has no config.json"),
        (("audit", "demo", "--resume", "photos"), "goes on as the config of that audit says"),
        (("audit", "demo", "--codecs", "mpdd,m=400"), "parameters follow a colon"),
        (("audit", "demo", "--images", "photos", "audit.images=4", "audit.batch=10"), "are all of the images"),
        (("audit", "demo", "--images", "photos", "model=mynet.py:Net(width=0)", *SMALL), "model = "),
        (("audit", "demo", "device=cuda", *SMALL, "--images", "photos"), 'device = "cuda"'),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_a_wrong_command_is_one_line(
    here: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert fedmpdd(*arguments) in (1, 2)
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert words in told[0]
    assert not (here / "audits").exists()
