from typing import Any

import pytest

from fedmpdd.experiments.table_text import goal_sentences, markdown, short_name, three_digits


def row(codec: str, bytes_to_target: float | None, *, runs: int = 2, **more: Any) -> dict[str, Any]:
    there = {"mean": bytes_to_target, "sd": 0.0, "reached": 0 if bytes_to_target is None else 2, "runs": runs}
    accuracy = {"mean": 0.5, "sd": 0.01, "reached": runs, "runs": runs}
    ours: dict[str, Any] = dict.fromkeys(("bytes_to_target", "rounds_to_target", "bytes_to_harder"), there)
    framed = {**there, "mean": None if bytes_to_target is None else bytes_to_target + 1_000}
    ours |= dict.fromkeys(("frames_to_target", "frames_to_harder"), framed)
    ours |= dict.fromkeys(("accuracy_at_budget", "final_accuracy"), accuracy)
    return {"method": codec, "codec": codec, "lr": 0.1, "paper": None, "ours": ours, **more}


def results(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"table": "small", "target": 0.6, "harder": 0.8, "budget": 1000, "rows": list(rows)}


ONE_BIT = "mpdd:m=400:bits=1:family=hadamard:keys=partitioned"


def test_the_best_of_each_kind_is_compared() -> None:
    found = goal_sentences(
        results(row("fedsgd", 9e6), row("mpdd:m=400", 3e5), row("mpdd:m=200", 3e6), row(ONE_BIT, 2e3))
    )
    assert found[0].startswith("FedMPDD float32 against FedSGD, bytes (goal 20): at 60% 30 times fewer (mpdd:m=400)")
    assert f"at 80% 150 times fewer ({ONE_BIT})" in found[1]
    assert found[2].startswith("The same in whole frames")
    assert f"at 80% 100 times fewer ({ONE_BIT})" in found[2]


def test_what_not_every_seed_reached_is_not_compared() -> None:
    found = goal_sentences(results(row("fedsgd", 9e6), row("mpdd:m=400", 3e5, runs=3), row(ONE_BIT, None)))
    assert all("not every seed" in sentence for sentence in found)
    text = markdown(results(row("fedsgd", 9e6), row("mpdd:m=400", 3e5, runs=3)))
    assert "300 kB ± 0%, 2/3" in text
    assert "| –, – |" in text


def test_what_diverged_is_said() -> None:
    assert "50.0% ± 1.0, 2 diverged" in markdown(results(row("mpdd:m=50", None, diverged=2)))


def test_a_final_accuracy_stands_beside_the_papers() -> None:
    text = markdown(results(row("mpdd:m=50", 1e6, paper={"final_accuracy": 30.44})))
    assert text.splitlines()[6].startswith("| mpdd:m=50 | 0.1 | 50.0% ± 1.0 (30.44 %) | 1 MB")
    assert "goal" not in text


def test_three_digits() -> None:
    assert [three_digits(value) for value in (16_683.0, 999.6, 31.62, 0.4487)] == ["16,700", "1,000", "31.6", "0.449"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("FedMPDD(m=400)", "FedMPDD(m=400)"),
        ("FedSGD+Laplace(var=0.5)", "FedSGD+Laplace(var=0.5)"),
        ("eden", "eden"),
        ("topk:k=400:error_feedback=true", "topk:k=400:error_feedback=true"),
        ("peaks:m=14:keys=derived", "peaks, m = 14"),
        (ONE_BIT, "hadamard, 1 bit, m = 400"),
        ("mpdd:m=400:family=hadamard:keys=partitioned", "hadamard, 32 bits, m = 400"),
    ],
)
def test_names_that_fit_a_legend(name: str, expected: str) -> None:
    assert short_name({"method": name}) == expected
