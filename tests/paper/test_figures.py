"""Figures of attacks, made small."""

from pathlib import Path

import pytest

from fedmpdd.errors import InputError
from fedmpdd.privacy.config import Audit, AuditConfig
from fedmpdd.simulation.config import parse_config
from fedmpdd_paper import figures
from fedmpdd_paper.figures import figure_is_done, figure_names, figure_text, load_figure, reproduce_figure
from fedmpdd_paper.trainings import Workspace

OWN = AuditConfig(attacks=("dlg",), codecs=("mpdd:m=50",), images=1, effort=0.01)


def small(*stages: int) -> tuple[Audit, tuple[int, ...]]:
    values = {"dataset": "mnist-5k", "model": "logistic", "clients": 10, "batch": 1, "rounds": max(stages, default=1)}
    return Audit(config=parse_config(values), audit=OWN), stages


@pytest.mark.parametrize("name", figure_names())
def test_every_figure_can_be_read(name: str) -> None:
    audit, stages = load_figure(name)
    assert {"adaptive"} < set(audit.audit.attacks)
    assert audit.config.rounds == max(stages, default=audit.config.rounds)
    for text in audit.codec_texts():
        audit.codec(text)


def test_a_figure_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(InputError, match="figure 'curves' is unknown"):
        load_figure("curves")


def test_a_figure_of_the_initial_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "load_figure", lambda name: small())
    assert not figure_is_done("small", Workspace(tmp_path, "cpu"))
    results = reproduce_figure("small", Workspace(tmp_path, "cpu"))
    assert figure_is_done("small", Workspace(tmp_path, "cpu"))
    assert [(row["codec"], row["attack"]) for row in results["rows"]] == [("fedsgd", "dlg"), ("mpdd:m=50", "dlg")]
    assert (tmp_path / "small" / "index.html").is_file()
    assert "| mpdd:m=50 | dlg |" in figure_text(results)
    assert (tmp_path / "small" / "table.md").read_text(encoding="utf-8") == figure_text(results)


def test_stages_are_attacked_where_the_training_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "load_figure", lambda name: small(0, 2, 5))
    rounds: list[int] = []
    shares: list[float] = []
    workspace = Workspace(tmp_path, "cpu")
    results = reproduce_figure(
        "small",
        workspace,
        on_round=lambda _, done, *__: rounds.append(done),
        on_attack=lambda _, share: shares.append(share),
    )
    assert rounds == [1, 2, 3, 4, 5]
    assert shares[-1] == 1
    assert [row["round"] for row in results["rows"]] == [0, 0, 2, 2, 5, 5]
    assert "| 5 | mpdd:m=50 | dlg |" in (tmp_path / "small" / "table.md").read_text(encoding="utf-8")
    monkeypatch.setattr(figures, "load_figure", lambda name: small(0, 2, 5, 7))
    assert not figure_is_done("small", workspace)
    monkeypatch.setattr(figures, "load_figure", lambda name: small(0, 2, 5))
    assert figure_is_done("small", workspace)
    rounds.clear()
    assert reproduce_figure("small", workspace, on_round=lambda _, done, *__: rounds.append(done)) == results
    assert rounds == []
