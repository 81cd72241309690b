"""A codec in one file outside the package, that of examples/own_codec.py, through everything that codecs go through."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmpdd as fm
from fedmpdd.codecs import CODECS, Codec
from fedmpdd.codecs.registry import codec_named
from fedmpdd.errors import CodecError, FedmpddError, OrderError, RunError, UnknownCodecError
from fedmpdd.imports import import_path_of
from fedmpdd.privacy.audit import run_audit
from fedmpdd.privacy.config import load_audit
from fedmpdd.report import Goals, collect, tables
from fedmpdd.runs.driver import AfterRound
from fedmpdd.runs.folders import Run
from fedmpdd.simulation import Federation, federation_of, parse_config
from fedmpdd.simulation.replay import replay
from tests.front.test_simulate import SETTINGS, parameters
from tests.simulation.test_cuda import images
from tests.simulation.test_engine import BASE
from tests.tasks.own import regression

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_codec.py"
WORDS = "mycodec.py:Window(k=40)"
CONFIG = {**BASE, "rounds": 4, "evaluate_every": 2, "checkpoint_every": 1, "device": "cpu"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the codec in a file; frames of it say all, and nothing has registered it."""
    text = EXAMPLE.read_text(encoding="utf-8").replace("@fm.register\n", "")
    says_all = (
        "    self_contained = True\n\n"
        "    def parameters(self):\n        return fm.codecs.Parameters(size=self.k)\n\n"
        "    @classmethod\n    def _from_parameters(cls, parameters):\n        return cls(parameters.size)\n"
    )
    (tmp_path / "mycodec.py").write_text(
        text.replace("    unbiased = True\n", f"    unbiased = True\n{says_all}"), "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    before = dict(CODECS), set(sys.modules)
    yield tmp_path
    forget(*before)


def forget(codecs: dict[str, Any], modules: set[str]) -> None:
    """What another process would not know."""
    CODECS.clear()
    CODECS.update(codecs)
    for name in set(sys.modules) - modules:
        if name.startswith("_fedmpdd_file_"):
            del sys.modules[name]


@pytest.fixture
def codec(folder: Path) -> Codec:
    window: Any = codec_named("mycodec.py:Window")
    made: Codec = window(k=40)
    return made


def test_it_passes_the_common_checks(codec: Codec) -> None:
    assert fm.testing.check_codec(codec) == []


def test_objects_words_and_tables_train_the_same_model(codec: Codec) -> None:
    whole = simulated(codec)
    for same in (WORDS, "mycodec.py:Window:k=40", "window:k=40"):
        assert (parameters(simulated(same)) == parameters(whole)).all()
    assert whole.evaluations[-1].loss_of_test < whole.evaluations[0].loss_of_test


def simulated(codec: Any) -> Any:
    return fm.simulate(regression(), codec, **{**SETTINGS, "rounds": 12, "per_round": 8, "evaluate_every": 2}, lr=0.05)


def federation(device: str = "cpu", **options: Any) -> Federation:
    values = {**CONFIG, "device": device, "codec": {"name": WORDS, **options.pop("codec", {})}}
    return federation_of(parse_config(values), images(), **options)


def test_its_frames_carry_it_and_are_read_where_it_is_known(codec: Codec) -> None:
    (update,) = codec.encode(np.arange(100, dtype=np.float32)[None], [7])
    frame = fm.pack(update)
    assert frame[5] == 200
    assert fm.unpack(frame) == update
    by_value, by_frames = federation(), federation(frames=True)
    for _ in range(2):
        assert by_value.run_round().uplink_bytes == by_frames.run_round().uplink_bytes
    assert torch.equal(by_value.flat, by_frames.flat)
    del CODECS["window"]
    with pytest.raises(UnknownCodecError, match="200"):
        fm.unpack(frame)


def test_it_gives_the_same_bits_on_a_gpu(gpu: str, codec: Codec) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 1000), dtype=np.float32)
    here = codec.encode(rows, [1, 2, 3])
    assert codec.encode(torch.from_numpy(rows).to(gpu), [1, 2, 3]) == here
    assert np.array_equal(codec.decode_mean_on(gpu, here).cpu().numpy(), codec.decode_mean(here))
    trained = federation(gpu)
    losses = [trained.run_round().loss for _ in range(4)]
    assert trained.flat.is_cuda
    assert all(loss is not None and np.isfinite(loss) for loss in losses)


def test_it_is_compared(folder: Path) -> None:
    result = fm.compare(regression(), ["fedsgd", WORDS], seeds=1, out=folder / "runs", **SETTINGS)
    rows = [row.as_dict() for row in result.rows]
    assert [row["codec"] for row in rows] == ["fedsgd", WORDS]
    assert rows[1]["uplink_bytes"] < rows[0]["uplink_bytes"]


def test_it_is_audited_by_what_it_says_of_itself(folder: Path) -> None:
    changes = ["dataset=mnist-5k", "audit.models=[]", "model=logistic", "audit.images=1", "audit.effort=0.01"]
    results = run_audit(load_audit("audit-mnist", changes, codecs=WORDS), folder / "audit")
    row = next(row for row in results["rows"] if row["codec"] == WORDS)
    assert row["bits_revealed"] == 32 * 40


@pytest.mark.parametrize("journal", [False, True])
def test_its_runs_are_reported_and_gone_on_with(folder: Path, journal: bool) -> None:
    unknown = dict(CODECS), set(sys.modules)
    values = {**CONFIG, "codec": {"name": WORDS, "keys": "derived"}, "journal": journal}
    whole = Run.create(folder / "whole", parse_config(values)).train()
    stopped_after_two_rounds(folder / "cut", values)
    (start,) = json.loads((folder / "cut" / "environment.json").read_text(encoding="utf-8"))
    assert start["sources"]["codec.name"]["path"] == "mycodec.py:Window"
    forget(*unknown)
    document = tables(collect([folder / "cut"]), Goals())
    assert "mycodec.py:Window:k=40:keys=derived" in json.dumps(document)
    with pytest.raises(RunError, match=r"names codec\.name = 'mycodec\.py:Window'.*--trust-imports"):
        Run.resume(folder / "cut")
    if journal:
        with pytest.raises(RunError, match=r"--trust-imports"):
            replay(folder / "whole")
    assert "window" not in CODECS  # nobody has imported anything
    if journal:
        assert replay(folder / "whole", trust_imports="mycodec.py:Window").matches
    summary = Run.resume(folder / "cut", trust_imports="mycodec.py:Window").train()
    assert summary["model_sha256"] == whole["model_sha256"]


def stopped_after_two_rounds(folder: Path, values: dict[str, Any]) -> None:
    run = Run.create(folder, parse_config(values))
    run.train(stopped=lambda: run.federation.next_round == 2)


def test_one_that_a_file_registers_is_found_again(folder: Path) -> None:
    """The script registers it and names it by its word; the process that resumes has never seen the script."""
    script = "import fedmpdd as fm\nfrom fedmpdd.runs.folders import Run\nfrom fedmpdd.simulation import parse_config\n"
    script += "import mycodec\nfm.register(mycodec.Window)\n"
    script += f"values = {CONFIG!r}\nvalues['codec'] = {{'name': 'window', 'k': 40}}\n"
    script += "Run.create(__import__('pathlib').Path('run'), parse_config(values)).train()\n"
    (folder / "script.py").write_text(script, encoding="utf-8")
    subprocess.run([sys.executable, "script.py"], check=True, timeout=120, capture_output=True)
    config = json.loads((folder / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["codec"]["name"] == "mycodec:Window"
    with pytest.raises(FedmpddError, match="mycodec:Window"):
        Run.resume(folder / "run", trust_imports=True)  # a module that is not on this process's path
    sys.path.insert(0, str(folder))
    try:
        assert Run.resume(folder / "run", trust_imports=True).train()["rounds"] == 4
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("mycodec", None)


def test_a_folder_goes_on_with_more_rounds_and_with_no_other_codec(folder: Path, codec: Codec) -> None:
    seen: list[int] = []
    fm.simulate(regression(), codec, **SETTINGS, out=folder / "run", callbacks=[AfterRound(lambda *_: seen.append(1))])
    assert import_path_of(type(codec)) == "mycodec.py:Window"
    again = fm.simulate(regression(), WORDS, **{**SETTINGS, "rounds": 8}, out=folder / "run")
    assert (len(seen), len(again)) == (6, 8)
    with pytest.raises(RunError, match=r"codec\.k: 40 → 41"):
        fm.simulate(regression(), "mycodec.py:Window(k=41)", **SETTINGS, out=folder / "run")


def test_flower_nodes_know_it_by_its_registered_name(folder: Path) -> None:
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from fedmpdd.flower import FedMPDD
    from fedmpdd.flower.instructions import RoundInstructions
    from tests.flower.test_strategy import TARGET, flat_of, initial, run

    unknown = dict(CODECS), set(sys.modules)
    strategy = FedMPDD(codec="mycodec.py:Window:k=20", lr=0.3, seed=1)
    result = run(strategy, 30)
    assert np.linalg.norm(flat_of(result.arrays) - TARGET) < 0.5 * np.linalg.norm(TARGET)
    assert result.train_metrics_clientapp[30]["fedmpdd-dropped"] == 0
    strategy._begin(initial())
    order = strategy._order(1).as_text()
    assert "mycodec" not in order
    forget(*unknown)
    for text in (order, order.replace('"window"', '"mycodec.py:Window"')):
        with pytest.raises(OrderError, match=r"is unknown; .* once the module that registers it was imported"):
            RoundInstructions.from_text(text)
    assert "window" not in CODECS


def test_a_codec_without_a_number_travels_in_sessions_alone() -> None:
    """Also one that inherits from a codec whose frames are self-contained: number 0 stays unknown to receivers."""

    @dataclass(frozen=True)
    class Numberless(fm.FedSGD):
        name = "numberless"
        code = 0

    fm.register(Numberless)
    try:
        (update,) = Numberless().encode(np.ones((1, 5), np.float32), [3])
        with pytest.raises(CodecError, match="use a Session"):
            fm.pack(update)
        session = fm.Session(Numberless(), 5, sends_seed=False)
        assert session.unpack(session.pack(update)) == update
        frame = bytearray(fm.pack(fm.FedSGD().encode(np.ones((1, 5), np.float32), [3])[0]))
        frame[5] = 0  # the number of the codec
        with pytest.raises(UnknownCodecError):
            fm.unpack(bytes(frame))
    finally:
        del CODECS["numberless"]
