"""Codecs in words and tables: one config however it was written, and the words lead back to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedmpdd.codecs import CODECS, MPDD, FedSGD, Peaks, make_codec, register
from fedmpdd.codecs.registry import codec_named
from fedmpdd.errors import CodecError, ConfigError
from fedmpdd.imports import OBJECT
from fedmpdd.simulation import parse_config
from fedmpdd.uplink.codec_config import CodecConfig, codec_list, codec_overrides, parse_codec
from tests.testing.test_codec_checks import Halves

HERE = "tests.uplink.test_codec_config"


@dataclass(frozen=True)
class Mine(Halves):
    m: int = 3
    mode: str = "plain"
    sizes: tuple[int, ...] = ()

    name: ClassVar[str] = "mine-for-tests"


@dataclass(frozen=True)
class Clipper(Halves):
    clip: float = 1.0
    name: ClassVar[str] = "clipper-for-tests"


class Unfrozen(Halves):
    __hash__: Any = None


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(CODECS)
    yield
    CODECS.clear()
    CODECS.update(before)


@pytest.mark.parametrize(
    "text",
    [
        "mpdd:m=400:bits=1:family=hadamard:keys=partitioned",
        "topk:k=5:error_feedback=true",
        "mpdd:m=400:clip=1.0:noise_multiplier=1e-05",
        f"{HERE}:Mine",
        f"{HERE}:Mine:m=5:keys=shared",
        f"{HERE}:Mine:mode=a-b:sizes=[1, 2]",
        f'{HERE}:Mine:mode="a:b, (c"',
        f'{HERE}:Mine:mode="3"',
        f'{HERE}:Mine:mode="it\'s \\"quoted\\""',
    ],
)
def test_words_lead_back_to_the_codec(text: str) -> None:
    config = parse_codec(text)
    assert config.words == text
    assert parse_codec(config.words) == config
    assert config.build() == parse_codec(text).build()


@pytest.mark.parametrize(
    "text", [f"{HERE}:Mine(m=5)", f"{HERE}:Mine( m = 5 )", "tests/uplink/test_codec_config.py:Mine(m=5)"]
)
def test_what_a_path_is_called_with_is_a_parameter(text: str) -> None:
    config = parse_codec(f"{text}:keys=shared")
    assert config.build() == Mine(5)
    assert (config.model_extra, config.keys) == ({"m": 5}, "shared")
    assert "(" not in config.name
    assert parse_codec(f"{HERE}:Mine(sizes=(1, 2), mode='a:b')").build() == Mine(3, "a:b", (1, 2))


def test_a_table_and_words_are_the_same() -> None:
    table = CodecConfig.model_validate({"name": f"{HERE}:Mine(m=5)", "keys": "shared"})
    assert table == parse_codec(f"{HERE}:Mine:m=5:keys=shared")
    assert codec_overrides(f"{HERE}:Mine(m=5):keys=shared") == [f"codec.name={HERE}:Mine(m=5)", "codec.keys=shared"]


def test_objects_are_recorded_by_what_leads_to_their_class() -> None:
    assert CodecConfig.of(MPDD(5)).name == "mpdd"
    assert CodecConfig.of(Peaks(3)).words == "peaks:m=3"
    assert CodecConfig.of(Mine(5)).name == f"{HERE}:Mine"

    @dataclass(frozen=True)
    class Local(Halves):
        name: ClassVar[str] = "local-for-tests"

    config = CodecConfig.of(Local())
    assert config.name.startswith(OBJECT)
    assert config.build() == Local()


def test_a_registered_name_is_recorded_by_what_leads_to_its_class() -> None:
    """Who resumes has not imported the file that registers it."""
    register(Mine)
    assert parse_codec("mine-for-tests:m=5") == parse_codec(f"{HERE}:Mine:m=5")


def test_messages_carry_registered_names_and_import_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_codec(f"{HERE}:Mine:m=5").registered() == ("mine-for-tests", {"m": 5})
    assert make_codec("mine-for-tests", {"m": 5}) == Mine(5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text("raise SystemExit(3)", encoding="utf-8")
    with pytest.raises(CodecError, match=r"'theirs\.py:Mine' is unknown; .* once the module that registers it was imp"):
        make_codec("theirs.py:Mine", {})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("mpdd", "mpdd needs m; write mpdd:m=…"),
        ("mpdd:400", "'400' is no parameter; write key=value, like mpdd:m=…"),
        ("nothing:m=3", "'nothing' is unknown; use one of mpdd"),
        (f"{HERE}:Mine(5)", r"write each parameter as name=value, like Mine(m=3)"),
        (f"{HERE}:Mine(m=5):m=6", "says m = 5, and m = 6 beside it; keep one"),
        (f"{HERE}:Mine(keys='shared')", "keys is no parameter of a codec; write it behind"),
        (f"{HERE}:Mine:n=5", "mine-for-tests has no parameter 'n'; it has m, mode, sizes"),
        (f"{HERE}:Mina", "has no Mina; did you mean Mine?"),
        (f"{HERE}:HERE", "expected a class that derives from fedmpdd.Codec"),
        (f"{HERE}:Path", "expected a class that derives from fedmpdd.Codec"),
        (f"{HERE}:Unfrozen", "is no frozen dataclass"),
        (f"{HERE}:Clipper", "has a parameter clip, which means something else here; rename it"),
        ("nowhere.py:Mine", "there is no file nowhere.py"),
        ("nowhere.py", "names a file, and nothing in it"),
    ],
)
def test_wrong_words_are_one_line(text: str, word: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_codec(text)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_parameter_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="which no file can hold"):
        CodecConfig.of(Mine(sizes=object()))  # type: ignore[arg-type]


def test_two_codecs_of_one_name_are_not_confused() -> None:
    @dataclass(frozen=True)
    class Other(Halves):
        name: ClassVar[str] = "mine-for-tests"

    codec_named(f"{HERE}:Mine")
    with pytest.raises(CodecError, match="as Mine has; change it"):
        register(Other)


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
    assert config.codec.words == text
    assert parse_codec(text) == config.codec


def test_an_object_has_the_words_of_its_text() -> None:
    codecs = [FedSGD(), MPDD(400), MPDD(m=400, bits=1, family="hadamard"), Peaks(m=14)]
    texts = ["fedsgd", "mpdd:m=400", "mpdd:m=400:bits=1:family=hadamard", "peaks:m=14"]
    assert [CodecConfig.of(codec).words for codec in codecs] == texts
    assert [CodecConfig.of(codec) for codec in codecs] == [parse_codec(text) for text in texts]


def test_a_list_is_parted_at_commas_that_are_not_in_brackets() -> None:
    assert codec_list("fedsgd, mpdd:m=400:bits=1,") == ["fedsgd", "mpdd:m=400:bits=1"]
    assert codec_list("mycodec.py:Mine(m=3,size=(2,4)),fedsgd") == ["mycodec.py:Mine(m=3,size=(2,4))", "fedsgd"]
    assert codec_list(" ") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mpdd,m=400", "m=400 came where a codec begins; parameters follow a colon, not a comma: mpdd:m=400"),
        ("fedsgd,mpdd:m=4,bits=1:keys=sent", "not a comma: mpdd:m=4:bits=1:keys=sent"),
        ("m=400", "not a comma: mpdd:m=400"),
        ("a.py:Mine(m=3,fedsgd", "a bracket has no partner"),
        ("a.py:Mine)", "a bracket has no partner"),
    ],
)
def test_a_list_that_cannot_be_meant_says_how_it_is_written(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        codec_list(text, "--codecs")
    assert str(caught.value).startswith("--codecs ")
    assert "\n" not in str(caught.value)
