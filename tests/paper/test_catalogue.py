import pytest

from fedmpdd.errors import InputError
from fedmpdd_paper.catalogue import all_names, choose, described


def test_all_is_every_table_and_figure() -> None:
    wanted = choose(["all"])
    assert (
        len(wanted.tables) + wanted.latency + len(wanted.figures) + len(wanted.studies) + len(wanted.finetunings)
        == len(all_names())
        == len(described())
    )
    assert len(wanted.tables) >= 12


def test_names_are_sorted_by_what_has_to_be_done() -> None:
    wanted = choose(["cifar10-attack", "m-sweep", "m-sweep"])
    assert [table.name for table in wanted.tables] == ["m-sweep"]
    assert wanted.figures == ["cifar10-attack"]
    assert not wanted.latency
    assert choose(["encode-latency"]).latency


def test_a_name_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(InputError, match="'table-7' is unknown: expected all, or some of cifar10-iid-cnn"):
        choose(["m-sweep", "table-7"])
    with pytest.raises(InputError, match="'table-7' is unknown"):
        choose(["all", "table-7"])
    assert choose(["m-sweep", "all"]).tables[0].name == "m-sweep"
