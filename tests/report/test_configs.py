from fedmpdd.report.configs import differences, identity
from fedmpdd.simulation import parse_config


def test_what_is_common_stands_once_and_the_rest_per_table() -> None:
    split = differences(
        [
            {"lr": 0.1, "clients": 5, "none": None, "codec": {"name": "mpdd", "m": 4}},
            {"lr": 0.2, "clients": 5, "none": None, "codec": {"name": "fedsgd"}},
        ]
    )
    assert split.common == {"clients": "5"}
    assert split.keys == ["lr", "codec.name", "codec.m"]
    assert split.rows == [["0.1", "mpdd", "4"], ["0.2", "fedsgd", "–"]]
    assert differences([]).common == {}


def test_configs_that_say_the_same_are_identical() -> None:
    one, two = (parse_config({"seed": seed, "codec": {"name": "mpdd", "m": 4}}) for seed in (1, 2))
    assert identity(one) != identity(two)
    assert identity(one, seed=None) == identity(two, seed=None)
