"""Runs whose clients have different links: bytes, journals, resumes, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmpdd as fm
from fedmpdd.codecs import Peaks
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.privacy.config import make_audit
from fedmpdd.runs.folders import Run, read_metrics
from fedmpdd.server.journal import JOURNAL, JournalReader, Record
from fedmpdd.simulation import client_work, codec_config, parse_config
from fedmpdd.simulation.engine import make_federation
from fedmpdd.simulation.replay import JournalReplica, model_sha256, replay
from fedmpdd.simulation.sampling import sample_clients
from fedmpdd.wire.mixed_bundle import unpack_mixed_bundle
from tests.simulation.test_engine import BASE

LINKS = ["peaks:m=2:group=64", "peaks:m=8:group=64", "mpdd:m=64:bits=1:family=hadamard"]


def config(**changes: Any) -> Any:
    values = {**BASE, "rounds": 6, "evaluate_every": 3, "checkpoint_every": 2, "links": LINKS}
    return parse_config({**values, "codec": {"keys": "derived"}, **changes})


def trained(run: Run) -> str:
    run.train()
    return model_sha256(run.federation.flat)


def interrupt(metrics: Any, run: Any) -> None:
    if metrics.round == 2:
        raise KeyboardInterrupt


CASES: dict[str, dict[str, Any]] = {
    "derived": {},
    "sent": {"codec": {"keys": "sent"}},
    "momentum, replay": {"server": {"optimiser": "momentum"}, "downlink": "replay"},
    "examples, dropout": {"weighting": "examples", "dropout": 0.4},
    "one codec twice": {"links": [LINKS[0], LINKS[0], LINKS[1]]},
    "equal weights, no variance": {"links": [LINKS[0], "topk:k=3"], "link_spread": "inf"},
    "without keys": {"links": ["qsgd:bits=4", "fedsgd"]},
    "protected": {"codec": {"keys": "derived", "clip": 2.0, "noise_multiplier": 0.1}},
    "robust": {"robust": {}},
    "forward": {"client": "forward"},
    "losses": {"links": ["fedkseed:m=4", "fedkseed:m=2"]},
    "local steps": {"local_steps": 2, "local_lr": 0.05},
    "growing": {"links": ["peaks:m=1:group=64:grows_to=4:grows_after=2", "peaks:m=4:group=64"]},
}


@pytest.mark.parametrize("name", CASES)
def test_a_journal_rebuilds_the_model_and_a_run_resumes_in_its_bits(name: str, tmp_path: Path) -> None:
    settings = config(journal=True, **CASES[name])
    whole = trained(Run.create(tmp_path / "whole", settings))
    replayed = replay(tmp_path / "whole")
    assert replayed.matches
    assert model_sha256(replayed.flat) == whole
    with pytest.raises(KeyboardInterrupt):
        Run.create(tmp_path / "half", settings).train(interrupt)
    assert trained(Run.resume(tmp_path / "half")) == whole
    assert replay(tmp_path / "half").matches


def test_a_journal_changes_no_number_and_frames_neither(tmp_path: Path) -> None:
    models = {trained(Run.create(tmp_path / str(journal), config(journal=journal))) for journal in (True, False)}
    assert len(models) == 1


def test_memories_of_clients_are_in_the_checkpoint(tmp_path: Path) -> None:
    settings = config(links=["eden:bits=1", "eden:bits=2"], codec={"keys": "derived", "error_feedback": True})
    whole = trained(Run.create(tmp_path / "whole", settings))
    with pytest.raises(KeyboardInterrupt):
        Run.create(tmp_path / "half", settings).train(interrupt)
    assert trained(Run.resume(tmp_path / "half")) == whole


def test_bytes_are_counted_client_by_client() -> None:
    settings = config()
    federation = make_federation(settings)
    sizes = [one.codec.build().bytes_per_update(federation.model.d) for one in settings.of_links]
    clients = sample_clients(settings, 0)
    metrics = federation.run_round()
    assert metrics.payload_bytes == sum(sizes[client % 3] for client in clients)
    assert metrics.uplink_bytes == metrics.payload_bytes + 8 * len(clients)


def test_bundles_of_a_journal_are_mixed(tmp_path: Path) -> None:
    settings = config(journal=True)
    run = Run.create(tmp_path / "run", settings)
    trained(run)
    with JournalReader(tmp_path / "run" / JOURNAL) as journal:
        bundles = [unpack_mixed_bundle(record.bundle, run.federation.codecs, journal.header.d) for record in journal]
    counts = [len(part.bundle.updates) for part in bundles[0].parts]
    assert sum(counts) == settings.per_round
    assert len(bundles) == sum(1 for _ in read_metrics(tmp_path / "run"))


def test_shares_follow_the_spread() -> None:
    """Every spread is another training."""
    models = set()
    for spread in (0.0, "middle", 400.0, "inf"):
        federation = make_federation(config(link_spread=spread))
        federation.run_round()
        models.add(model_sha256(federation.flat))
    assert len(models) == 4


def test_a_damaged_bundle_is_an_error_that_names_its_round(tmp_path: Path) -> None:
    settings = config(journal=True)
    federation = make_federation(settings)
    federation.run_round()
    record = Record(0, federation.bundle[:-1], model_sha256(federation.flat), {})
    with pytest.raises(fm.WireError):
        make_federation(settings).advance(record, changes_model=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"links": ["peaks:m=2", "topk:k=3"]}, "topk does not state the error of its updates"),
        ({"codec": {"keys": "shared"}}, "have the same error"),
        ({"codec": {"keys": "partitioned"}}, "slots of different lengths overlap"),
        ({"secure": {"clip": 1.0}, "codec": {"keys": "shared"}}, "secure sums add up"),
        ({"links": ["peaks:m=2:keys=partitioned"]}, "keys, which is said once"),
        ({"links": ["peaks:m=2:clip=3.0"]}, "clip, which is said once"),
        ({"links": ["fedkseed:m=4", "peaks:m=4"]}, "take codecs of one kind"),
        ({"links": "peaks:m=2"}, "expected a list of codecs"),
        ({"links": ["nothing:m=2"]}, "nothing"),
        ({"links": ["peaks:m=2"], "link_spread": -1.0}, "link_spread"),
        ({"links": [*LINKS, "fedsgd"], "link_spread": 0.0}, "loses nothing"),
        ({"links": ["fedsgd", "peaks:m=4"], "client": "forward"}, "no scalars"),
    ],
)
def test_what_links_cannot_have_is_refused_in_a_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make_federation(config(**changes))
    assert "\n" not in str(caught.value)


def test_a_codec_of_somebody_else_needs_trust(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("raise SystemExit('this code must not run')\n")
    settings = config(journal=True)
    trained(Run.create(tmp_path / "run", settings))
    path = tmp_path / "run" / JOURNAL
    with JournalReader(path) as journal:
        header = journal.header
    links = [{**header.config["links"][0], "name": f"{tmp_path}/theirs.py:Mine"}, *header.config["links"][1:]]
    with pytest.raises(RunError, match=r"links\.0\.name"):
        JournalReplica(header._replace(config={**header.config, "links": links}))


def test_a_config_goes_through_its_file() -> None:
    settings = config(link_spread="inf")
    assert parse_config(settings.model_dump(mode="json")) == settings
    assert settings.codec_words == " + ".join(f"{words}:keys=derived" for words in LINKS)
    assert settings.of_client(4).codec.words == f"{LINKS[1]}:keys=derived"


def test_the_front_door_takes_a_codec_for_every_link() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((40, 30)).astype(np.float32)
    task = fm.Task(
        model=torch.nn.Linear(30, 2),
        loss=torch.nn.functional.cross_entropy,
        clients=[(inputs[i::4], rng.integers(0, 2, 10)) for i in range(4)],
        test=(inputs, rng.integers(0, 2, 40)),
    )
    kept: dict[str, Any] = {"rounds": 3, "batch": 4, "keys": "derived", "progress": False}
    links: list[Any] = [Peaks(1, group=16), "peaks:m=3:group=16"]
    several = fm.simulate(task, links, **kept)
    named = fm.simulate(task, "mpdd:m=4", links=["peaks:m=1:group=16", "peaks:m=3:group=16"], **kept)
    assert several.model is not None
    assert named.model is not None
    for one, other in zip(several.model.parameters(), named.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [row["payload_bytes"] for row in several.as_rows()] == [2 * (2 + 3) * k for k in (1, 2, 3)]
    with pytest.raises(ConfigError, match="a codec for every link"):
        fm.simulate(task, [], **kept)


def test_passes_of_a_client_follow_from_its_link() -> None:
    settings = config(client="forward")
    assert [client_work(settings, client=i).tangents for i in range(3)] == [128, 512, 64]


def test_links_are_compared_with_one_codec_for_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs, labels = rng.standard_normal((40, 30)).astype(np.float32), rng.integers(0, 2, 40)
    task = fm.Task(
        model=torch.nn.Linear(30, 2),
        loss=torch.nn.functional.cross_entropy,
        clients=[(inputs[i::4], labels[i::4]) for i in range(4)],
        test=(inputs, labels),
    )
    small, large = Peaks(1, group=16), Peaks(3, group=16)
    kept: dict[str, Any] = {"seeds": 1, "rounds": 2, "keys": "derived", "progress": False}
    result = fm.compare(task, [small, [small, large]], out=tmp_path, **kept)
    words = [f"peaks:m={m}:group=16:keys=derived" for m in (1, 3)]
    assert [row.codec for row in result.rows] == [words[0], " + ".join(words)]
    assert [row.run.history.last.payload_bytes for row in result.rows] == [2 * 4 * 2, 2 * (2 * 2 + 2 * 3)]
    assert len({path.name for path in tmp_path.iterdir() if path.is_dir()}) == 2
    with pytest.raises(ConfigError, match="give them as one of the codecs"):
        fm.compare(task, [small], links=[small, large], **kept)


def test_another_codec_for_all_and_audits_leave_no_link_out() -> None:
    settings = config()
    assert codec_config(settings, "fedsgd").links == []
    audit = make_audit({**settings.model_dump(mode="json"), "device": "cpu"}, {"models": ["logistic"]})
    assert audit.codec_texts() == ["fedsgd", *LINKS]
