import pytest

from fedmpdd.errors import InputError
from fedmpdd_paper.tables import SEEDS, codec_of, load_table, table_names


@pytest.mark.parametrize("name", table_names())
def test_every_table_can_be_run_as_it_is(name: str) -> None:
    table = load_table(name)
    assert table.config.partition.seed == 2024
    assert table.config.evaluate_every == 8
    assert table.config.lr in table.lrs  # the paper's own is among those tried
    for method in table.methods:
        for seed in SEEDS:
            config = table.run_config(method, seed, table.lrs[0], "cpu")
            assert (config.seed, config.lr) == (seed, table.lrs[0])
    assert name == "m-sweep" or table.methods[0].codec == "fedsgd"  # what others are compared with
    assert sum("bits=1" in method.codec for method in table.methods) >= 2


def test_methods_of_the_paper_are_codecs_here() -> None:
    assert codec_of("FedSGD+Laplace(var=0.5)", 1) == "laplace:noise=0.5"
    assert codec_of("FedMPDD(m=400)", 1) == "mpdd:m=400"
    assert codec_of("QSGD(4-bit)", 1) == "qsgd:bits=4"
    assert codec_of("lp-proj", 400) == "lp-proj:size=400"
    with pytest.raises(InputError, match="unknown here"):
        codec_of("magic", 1)


def test_a_table_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(InputError, match="table 'table-9' is unknown: expected one of cifar10-iid-cnn"):
        load_table("table-9")
