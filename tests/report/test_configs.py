import pytest

from fedmpdd.report.configs import codec_text, differences, identity
from fedmpdd.simulation import parse_config
from fedmpdd.uplink.codec_config import parse_codec


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


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        ({"name": "fedsgd"}, "fedsgd"),
        ({"name": "mpdd", "m": 400}, "mpdd:m=400"),
        ({"keys": "partitioned", "name": "mpdd", "m": 4, "bits": 1}, "mpdd:m=4:bits=1:keys=partitioned"),
        ({"name": "mpdd", "m": 4, "clip": 2.0}, "mpdd:m=4:clip=2.0"),
        ({"name": "signsgd", "scaled": True, "error_feedback": True}, "signsgd:scaled=true:error_feedback=true"),
    ],
)
def test_a_codec_reads_as_on_the_command_line(codec: dict[str, object], text: str) -> None:
    config = parse_config({"codec": codec})
    assert codec_text(config) == text
    assert parse_codec(text) == config.codec


def test_configs_that_say_the_same_are_identical() -> None:
    one, two = (parse_config({"seed": seed, "codec": {"name": "mpdd", "m": 4}}) for seed in (1, 2))
    assert identity(one) != identity(two)
    assert identity(one, seed=None) == identity(two, seed=None)
