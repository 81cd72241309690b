"""Every example runs as it stands, and does what it says."""

import io
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path

import pytest

from fedmpdd.codecs import CODECS

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def codecs() -> Iterator[None]:
    """A script that registers a codec leaves none behind."""
    before = dict(CODECS)
    yield
    CODECS.clear()
    CODECS.update(before)


def output_here(script: str, *arguments: str, cwd: Path = EXAMPLES.parent) -> str:
    """Run a script in this process: another start takes seconds, and `own_loop.py` has one."""
    out, path = io.StringIO(), EXAMPLES / script
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), chdir(cwd):
        patch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()


def output_of(*command: str, cwd: Path = EXAMPLES.parent) -> str:
    result = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    return result.stdout


def losses_in(output: str) -> list[float]:
    return [float(line.split("loss ")[1].split()[0]) for line in output.splitlines()]


def test_a_loop_of_ones_own() -> None:
    output = output_of("examples/own_loop.py")
    assert "45 bytes from each client" in output
    assert losses_in(output)[-1] < 0.5 * losses_in(output)[0]


def test_the_federated_loop_has_at_most_ten_lines() -> None:
    """From the client to the server's step: what somebody adds to a model and data that are there."""
    text = (EXAMPLES / "own_loop.py").read_text(encoding="utf-8")
    begin, end = text.index("codec = "), text.index("    if round_number")
    lines = [line for line in text[begin:end].splitlines() if line.strip()]
    assert "fm.torch.Client(" in text[begin:end]
    assert lines[-1].strip() == "server.step(frames)"
    assert len(lines) == 10


def test_a_regression_of_ones_own() -> None:
    whole, scalars = output_here("regression.py").splitlines()
    assert "8,460 bytes an update" in whole  # the frozen layer's 320 parameters are not sent
    assert "45 bytes an update" in scalars
    for line in (whole, scalars):
        early, late = (float(number) for number in re.findall(r"(\d\.\d\d)", line))
        assert late < 0.8 * early


def test_a_codec_of_ones_own(codecs: None) -> None:
    whole, window = output_here("own_codec.py").splitlines()
    assert 10 * bytes_in(window) < bytes_in(whole)
    assert losses_in(window)[0] < 1.3 * losses_in(whole)[0]


def test_an_audit_of_ones_own(tmp_path: Path) -> None:
    output = output_here("own_audit.py", str(tmp_path / "page.html"))
    verdicts = dict(line.rsplit(": ", 1) for line in output.splitlines()[-5:-1])
    assert verdicts["fedsgd"] == verdicts["mpdd:m=100"] == "reconstructed"
    assert verdicts["mpdd:m=100:clip=1:noise_multiplier=1.0"] == "nothing beyond the class mean"
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def bytes_in(line: str) -> int:
    return int(line.split("with ")[1].split()[0].replace(",", ""))


def test_a_language_model_is_fine_tuned(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="the extra `llm` is not installed")
    from tests.flower import llm

    assert len((EXAMPLES / "fine_tuning.py").read_text(encoding="utf-8").splitlines()) <= 40
    llm.save_model(tmp_path / "model", "bert")
    films = [str(llm.write_films(tmp_path / f"{seed}.csv", count, seed)) for seed, count in enumerate((300, 60))]
    output = output_here("fine_tuning.py", str(tmp_path / "model"), "15", *films, cwd=tmp_path)
    before, after, sent = re.findall(r"[\d.]+", output)
    assert float(after) > float(before) + 0.05
    assert int(sent) == 15 * 20 * 17 / 100
    assert (tmp_path / "adapters" / "films" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_data_parallel_training() -> None:
    output = output_of("-m", "torch.distributed.run", "--nproc-per-node", "2", "examples/ddp.py")
    assert losses_in(output)[-1] < 0.5 * losses_in(output)[0]
    assert "6,262 bytes sent by this worker" in output
