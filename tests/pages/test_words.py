from fedmpdd.pages import words
from fedmpdd.runs.history import Statistic


def test_accuracies_sizes_and_counts() -> None:
    assert words.score(Statistic(0.889, 0.0014, 2, 2), "accuracy") == "88.9 ± 0.1 %"
    assert words.score(Statistic(0.889, None, 1, 3), "accuracy") == "88.9 % (1 of 3 seeds)"
    assert words.score(Statistic(0.031249, 0.00041, 2, 2), "loss") == "0.03125 ± 0.00041"
    assert words.score(Statistic(-1.5, None, 1, 1), "r2") == "-1.5"
    assert words.size(Statistic(808_000, 228_500, 2, 2)) == "808 ± 228 kB"
    assert words.size(Statistic(1_520_000, 0.0, 2, 2)) == "1.52 MB"
    assert words.size(Statistic(28_267_200, 4_441_762, 2, 2)) == "28.3 ± 4.4 MB"
    assert words.size(Statistic(60, None, 1, 1)) == "60 B"
    assert words.size(Statistic(0, None, 1, 1)) == "0 B"
    assert words.count(Statistic(5, 1.414, 2, 2)) == "5.0 ± 1.4"
    assert words.count(Statistic(1234, None, 1, 1)) == "1,234"
    assert words.score(None, "accuracy") == words.score(None, "r2") == words.size(None) == words.count(None) == "–"


def test_ratios_and_differences() -> None:
    assert [words.ratio(value) for value in (1.0, 0.5, 0.002, 1.3, 25.0, None)] == [
        "1", "1/2.0", "1/500", "1.30 times more", "25 times more", "–",
    ]  # fmt: skip
    assert [words.ratio(value) for value in (10, 9.999, 1 / 19, 0.1)] == [
        "10 times more", "10 times more", "1/19", "1/10",
    ]  # fmt: skip
    differences = [words.difference(value, "accuracy") for value in (0.0123, -0.005, 0.0001, None)]
    assert differences == ["+1.2", "−0.5", "0.0", "–"]
    assert [words.difference(value, "loss") for value in (0.01234, -0.5, 0.0)] == ["+0.0123", "−0.5", "0"]


def test_what_was_typed_is_read_back() -> None:
    assert [words.plain_bytes(value) for value in (64, 1500, 1234, 200_000, 1_000_000)] == [
        "64 B", "1.5 kB", "1,234 B", "200 kB", "1 MB",
    ]  # fmt: skip
    assert [words.goal(value, "accuracy") for value in (0.6, 0.625, 0.29)] == ["60 %", "62.5 %", "29 %"]
    assert [words.goal(value, "loss") for value in (0.05, 3)] == ["0.05", "3"]
    assert [words.named(text) for text in ("object:Net#2", "lenet")] == ["Net#2", "lenet"]


def test_names_break_after_colons_and_stay_escaped() -> None:
    assert str(words.breakable("mpdd:m=4:<b>")) == "mpdd:<wbr>m=4:<wbr>&lt;b&gt;"
