from typing import Any

import pytest

from fedmpdd_paper.table_text import goal_numbers, goal_sentences, markdown, short_name, three_digits


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
    assert found[3].startswith("Our best codec in whole frames")
    assert f"at 80% 100 times fewer ({ONE_BIT})" in found[3]


def test_what_was_lost_by_a_seed_is_best_of_all_and_not_of_what_stays() -> None:
    peaks = "peaks:m=7:keys=derived"
    rows = results(row("fedsgd", 9e6), row("mpdd:m=400", 3e5, lost=1), row(ONE_BIT, 2e3), row(peaks, 1e3, lost=1))
    found = goal_sentences(rows)
    assert f"at 60% 300 times fewer ({peaks})" in found[1]
    assert found[2].startswith("Our best of which no seed was lost")
    assert f"at 60% 150 times fewer ({ONE_BIT})" in found[2]
    assert goal_numbers(rows, "harder") == [30, 300, 150, pytest.approx(301 / 2), 9_000]


def test_a_missed_goal_is_said_and_why() -> None:
    small = results(row("fedsgd", 9e6), row("mpdd:m=400", 3e5), row(ONE_BIT, 3.1e3))
    small["missed"] = "the noise."
    found = goal_sentences(small)
    assert "**missed**" not in found[0]
    assert found[1].count("times fewer") == found[1].count("**missed**") == 2
    assert found[-1] == "Why: the noise."
    reached = {**small, "rows": [*small["rows"], row("peaks:m=7:keys=derived", 3e3)]}
    assert not any("missed" in sentence or "Why" in sentence for sentence in goal_sentences(reached))


def test_what_not_every_seed_reached_is_not_compared() -> None:
    found = goal_sentences(results(row("fedsgd", 9e6), row("mpdd:m=400", 3e5, runs=3), row(ONE_BIT, None)))
    assert all("not every seed" in sentence for sentence in found)
    text = markdown(results(row("fedsgd", 9e6), row("mpdd:m=400", 3e5, runs=3)))
    assert "300 kB ± 0%, 2/3" in text
    assert "| –, – |" in text


def test_what_was_lost_is_said() -> None:
    assert "50.0% ± 1.0, 2 lost" in markdown(results(row("mpdd:m=50", None, lost=2)))


def test_a_row_as_people_read_it() -> None:
    """Numbers that all differ, so that none can stand for another."""
    own = row("eden", 2e3, paper={"acc_at_budget": 41.5, "used_bytes": 7e6, "rounds_to_target": 77, "ssim": 0.9})
    own["ours"] = {
        "accuracy_at_budget": {"mean": 0.5, "sd": 0.01, "reached": 3, "runs": 3},
        "bytes_to_target": {"mean": 2e3, "sd": 2e2, "reached": 3, "runs": 3},
        "rounds_to_target": {"mean": 12, "sd": 3, "reached": 2, "runs": 3},
        "bytes_to_harder": {"mean": 5e3, "sd": 1e3, "reached": 3, "runs": 3},
    }
    own["audit"] = {"attack": "dlg", "ssim": 0.12, "adaptive_ssim": 0.34, "verdict": "partly"}
    text = markdown(results(row("fedsgd", 9e6), row("mpdd:m=400", 3e5), own)).splitlines()[8]
    assert text == (
        "| eden | 0.1 | 50.0% ± 1.0 (41.5 %) | 2 kB ± 10% (7 MB) | 12 ± 3, 2/3 (77) | 5 kB ± 20% "
        "| 4,500×, 150× | 1,800×, 60× | 0.12 (0.9) | 0.34 | partly |"
    )


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
