"""An audit of a fine-tuning on texts by one call."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import fedmpdd as fm
from fedmpdd.codecs import Section
from fedmpdd.errors import ConfigError, DataError, FedmpddError
from fedmpdd.front.audit_text import TextAuditResult
from fedmpdd.privacy.text_audit import rank_of_first, wilson
from tests.privacy.text_cases import classifier, symbols

FEW: dict[str, Any] = {"count": 12, "candidates": 20, "token_count": 4, "effort": 0.05, "device": "cpu"}


def audited(codecs: Any = ("mpdd:m=60",), examples: Any = None, model: Any = None, **changes: Any) -> TextAuditResult:
    options = {"progress": False, **FEW, **changes}
    return fm.audit_text(model or classifier(), symbols() if examples is None else examples, codecs, **options)


@dataclass(frozen=True)
class Thirds(fm.Codec):
    """Every third coordinate; a codec that the package has not heard of."""

    name: ClassVar[str] = "thirds"
    needs_key: ClassVar[bool] = False

    def sections(self, d: int) -> Any:
        return (Section("values", "<f4", (d + 2) // 3),)

    def check_content(self, arrays: Any, d: int) -> None:
        pass

    def _encode(self, backend: Any, gradients: Any, keys: Any) -> Any:
        return (gradients[:, ::3],)

    def _decode_sum(self, backend: Any, columns: Any, keys: Any, factors: Any, d: int) -> Any:
        result = np.zeros(d, np.float32)
        for factor, row in zip(factors, columns[0], strict=True):
            result[::3] += np.float32(factor) * row
        return result


@dataclass(frozen=True)
class Silence(Thirds):
    """Sends nothing of the gradient."""

    name: ClassVar[str] = "silence"

    def _encode(self, backend: Any, gradients: Any, keys: Any) -> Any:
        return (np.ones_like(gradients[:, ::3]),)


def test_model_texts_and_codecs_in_one_call(tmp_path: Path) -> None:
    model = classifier()
    before = [parameter.clone() for parameter in model.parameters()]
    result = audited([fm.MPDD(60), "peaks:m=4:group=16", Thirds()], model=model)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    mine = "tests.front.test_audit_text:Thirds"
    assert list(result.verdict) == ["fedsgd", "mpdd:m=60", "peaks:m=4:group=16", mine]
    assert result.verdict["mpdd:m=60"].startswith("tells sentence")
    rows = {(row["codec"], row["attack"], row["adversary"], row["batch"]): row for row in result.rows}
    assert len(rows) == 5 + 7 + 7 + 5  # an outsider only where a codec needs a key
    sums = rows["fedsgd", "token sums", "server", 1]
    assert sums["found"] > 0.5 > sums["chance"]
    for codec in ("fedsgd", "mpdd:m=60", mine):
        row = rows[codec, "sentence", "server", 1]
        assert (row["found"], row["top5"], row["candidates"], row["verdict"]) == (1.0, 1.0, 20, "leaks")
        assert row["absent"] <= 0.5  # of twelve: by chance in less than one try of a million
    label = rows["fedsgd", "label", "server", 1]
    assert label["low"] < label["found"] < label["high"] or label["found"] == 1
    assert rows["mpdd:m=60", "label", "server", 1]["whole"] == label["found"]
    tokens = rows["fedsgd", "tokens", "server", 1]
    assert tokens["found"] > tokens["chance"]
    assert rows[mine, "tokens", "server", 1]["bytes"] == 4 * ((result.results["d"] + 2) // 3)
    assert json.loads(json.dumps(result.results, allow_nan=False))["rows"] == result.rows
    assert list(result.to_frame().codec.unique()) == list(result.verdict)
    assert "peaks:m=4:group=16: " in repr(result)
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "tells sentence" in page
    assert "of a fine-tuning tells of a text" in page


def test_the_same_seed_gives_the_same_numbers() -> None:
    one, other = (audited(attacks=["sentence", "label"], batches=[1]).rows for _ in range(2))
    assert [{**row, "seconds": 0} for row in one] == [{**row, "seconds": 0} for row in other]


def test_an_update_that_says_nothing_tells_nothing() -> None:
    """Of 12 sentences among 20, guesses find 4 or more in one audit of five hundred."""
    result = audited([Silence()], attacks=["sentence", "label"])
    silent = [row for row in result.rows if "Silence" in row["codec"]]
    assert all(row["found"] <= 0.25 for row in silent if row["attack"] == "sentence")
    assert {row["verdict"] for row in silent} <= {"nothing beyond chance", "inconclusive"}


def test_where_the_whole_gradient_tells_nothing_the_audit_is_inconclusive() -> None:
    class Same(torch.nn.Module):
        """Whatever the text, the gradient is that of its class, and all are of one."""

        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(1, 2)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
            return self.head(torch.ones(len(ids), 1))

    ids, mask, _ = symbols()
    result = audited(["mpdd:m=3"], (ids, mask, torch.zeros(len(ids)).long()), Same(), attacks=["sentence"])
    assert set(result.verdict.values()) == {"inconclusive"}


def test_next_tokens_have_no_class_and_can_be_told_apart() -> None:
    ids = symbols()[0]

    class Next(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model: Any = classifier().model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids=ids).logits
            return logits.transpose(1, 2)

    examples = (ids[:, :-1], ids[:, 1:])
    result = audited(["peaks:m=8:group=16"], examples, Next(), attacks=["sentence"])
    assert result.rows[0]["found"] == 1.0
    assert result.rows[0]["swapped"] is None
    with pytest.raises(ConfigError, match=r'no class each, as "label" and "tokens" need; give attacks='):
        audited(examples=examples, model=Next())


def test_few_decoys_are_said() -> None:
    examples = tuple(leaf[:60] for leaf in symbols())
    result = audited(examples=examples, attacks=["sentence"], batches=[1], candidates=100)
    assert {row["candidates"] for row in result.rows} == {25}
    assert result.rows[0]["chance"] == 1 / 25


def test_a_text_that_comes_twice_is_one() -> None:
    ids, mask, labels = (leaf[:20] for leaf in symbols())
    with pytest.raises(DataError, match="20 different texts came, and 12 are attacked"):
        audited(examples=tuple(leaf.repeat(20, *[1] * (leaf.ndim - 1)) for leaf in (ids, mask, labels)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codecs": "fedsgd"}, "codecs = 'fedsgd': expected a list"),
        ({"codecs": []}, "codecs is empty"),
        ({"codecs": ["decomfl:m=3:keys=shared"]}, "sends losses"),
        ({"codecs": ["peaks:m=14"]}, "14 peaks of 256 are 3,584 derivatives of d = 1344"),
        ({"attacks": ["dlg"]}, "attacks has 'dlg'; expected a list of some of sentence, label, tokens"),
        ({"attacks": "label"}, "attacks = 'label': expected a list"),
        ({"batches": []}, r"batches = \[\]: expected a list of sizes"),
        ({"batches": [0]}, "batches = 0: expected a whole number, 1 or more"),
        ({"count": 1}, "count = 1: expected a whole number, 2 or more"),
        ({"candidates": 2.5}, "candidates = 2.5"),
        ({"effort": 0}, "effort = 0: expected a number above 0"),
        ({"device": "tpu"}, 'device = \'tpu\': expected "cpu", "cuda" or "auto"'),
        ({"model": 3}, "model = 3: expected a torch.nn.Module"),
    ],
)
def test_wrong_uses_are_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FedmpddError, match=words) as problem:
        audited(**changes)
    assert "\n" not in str(problem.value)


def test_the_rank_of_equals_is_drawn() -> None:
    rng = np.random.default_rng(0)
    assert rank_of_first(np.array([1.0, 2.0, 0.0]), rng) == 1
    assert rank_of_first(np.array([np.nan, -1.0, np.nan]), rng) >= 1
    first = sum(rank_of_first(np.zeros(10), rng) == 0 for _ in range(1000))
    assert 70 <= first <= 132  # 100 by chance; outside in less than one try of five hundred


def test_intervals_hold_what_they_should() -> None:
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1
    rng = np.random.default_rng(1)
    held = [low <= 0.3 <= high for low, high in (wilson(int(rng.binomial(40, 0.3)), 40) for _ in range(400))]
    assert 0.91 <= np.mean(held) <= 0.98  # 95 %; outside in less than one try of five hundred
