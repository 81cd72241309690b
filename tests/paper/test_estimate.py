"""What is left of a table, and how long that takes."""

from dataclasses import replace
from pathlib import Path

from fedmpdd_paper.estimate import Estimate, done_methods, estimate, estimate_study
from fedmpdd_paper.reproduce import reproduce
from fedmpdd_paper.studies import folder_of
from fedmpdd_paper.tables import SEEDS
from fedmpdd_paper.trainings import Training, Workspace, lr_that_won, train
from tests.paper.test_reproduce import small_table
from tests.paper.test_studies import STUDY


def test_what_is_done_counts_no_more(tmp_path: Path) -> None:
    table, workspace = small_table(), Workspace(tmp_path, "cpu")
    before = estimate(table, table.methods, 2, workspace)
    assert (before.trainings, before.done, before.rounds) == (6, 0, 6 * 24)
    assert 0 < before.seconds < 600
    timed: list[str] = []
    reproduce(table, workspace, seeds=2, methods=table.methods[:1])
    after = estimate(table, table.methods, 2, workspace, timed.append)
    assert (after.trainings, after.done, after.rounds) == (6, 3, 3 * 24)
    assert timed == ["ours"]
    assert done_methods(table, table.methods, 2, workspace) == [table.methods[0]]
    assert done_methods(table, table.methods, 3, workspace) == []


def test_a_seed_is_done_with_the_step_size_that_won_and_with_no_other(tmp_path: Path) -> None:
    table, workspace = small_table(), Workspace(tmp_path, "cpu")
    method = table.methods[0]
    reproduce(table, workspace, seeds=1, methods=[method])
    won = lr_that_won(table, method, tmp_path)
    assert won is not None
    (other,) = {*table.lrs} - {won}
    for lr, done in ((other, []), (won, [method])):
        train(Training(table, method, SEEDS[1], lr), workspace)
        assert done_methods(table, [method], 2, workspace) == done


def test_the_variants_of_a_study_are_counted_alike(tmp_path: Path) -> None:
    workspace, folder = Workspace(tmp_path, "cpu"), folder_of(STUDY, STUDY.variants[1], 17, 0.001, tmp_path)
    before = estimate_study(STUDY, 2, workspace)
    assert (before.trainings, before.done, before.rounds) == (4 + 3, 0, (4 + 3) * 40)
    assert before.seconds > 0
    folder.mkdir(parents=True)
    (folder / "done").touch()
    after = estimate_study(STUDY, 1, workspace)
    assert (after.trainings, after.done, after.rounds) == (4, 1, 3 * 40)


def test_a_search_comes_on_top_of_the_seeds(tmp_path: Path) -> None:
    table = replace(small_table(), search=8)
    found = estimate(table, table.methods[:1], 2, Workspace(tmp_path, "cpu"))
    assert (found.trainings, found.rounds) == (4, 2 * 8 + 2 * 24)


def test_it_reads_well() -> None:
    assert str(Estimate(6, 6, 0, 0.0)) == "all 6 trainings are there"
    assert str(Estimate(6, 3, 7_200, 30)) == "3 of 6 trainings to do, at most 7,200 rounds: about 30 s"
    assert str(Estimate(6, 3, 72, 7_300)).endswith("about 2 h 2 min")
    assert str(Estimate(6, 3, 72, 1_800)).endswith("about 30 min")
