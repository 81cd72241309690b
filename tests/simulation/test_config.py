from pathlib import Path
from typing import Any

import pytest

from fedmpdd.codecs import MPDD
from fedmpdd.errors import ConfigError
from fedmpdd.simulation import load_config, parse_config, shipped_configs
from fedmpdd.simulation.config import apply_overrides
from fedmpdd.uplink.protection import Protection


def test_every_shipped_config_is_sound() -> None:
    assert {"demo", "lenet-fmnist"} <= set(shipped_configs())
    for name in shipped_configs():
        assert load_config(name).rounds > 0


def test_overrides_change_what_they_name() -> None:
    config = load_config("lenet-fmnist", ["codec.m=50", "codec.bits=1", "codec.family=hadamard", "seed=3", "lr=0.5"])
    assert config.codec.build() == MPDD(50, bits=1, family="hadamard")
    assert (config.seed, config.lr, config.per_round) == (3, 0.5, 50)
    assert load_config("lenet-fmnist", ["clients_per_round=7"]).per_round == 7  # instead of participation


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('clients = 1_000_000\nclients_per_round = 100\n[codec]\nname = "mpdd"\nm = 8\n', encoding="utf-8")
    config = load_config(str(path))
    assert (config.clients, config.per_round) == (1_000_000, 100)
    path.write_text("clients = ", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(str(path))


def test_a_config_survives_its_own_json() -> None:
    config = load_config("lenet-fmnist", ["codec.bits=4"])
    assert parse_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("speed=9", "speed is not a key of a config; the keys here are dataset, "),
        ("partition.speed=9", "partition.speed is not a key .* kind, seed"),
        ("batch=many", "batch = 'many': input should be a valid integer"),
        ("batch=0", "batch = 0: input should be greater than or equal to 1"),
        ("lr=-1", "lr = -1: input should be greater than 0"),
        ("lr=nan", "lr = nan"),
        ("participation=0.001", "expected 1 to all of them"),
        ("participation=1.5", "participation = 1.5"),
        ("clients_per_round=101", "clients = 100 are 101; expected 1"),
        ("dataset=imagenet", "use one of mnist, fashion-mnist, cifar-10, mnist-5k"),
        ("partition.kind=random", "'iid', 'classes' or 'dirichlet'"),
        ("codec.name=zip", "name = 'zip' is unknown; use one of "),
        ("codec.q=3", "mpdd has no parameter 'q'; it has m, bits, family"),
        ("codec.clip=0", "codec.clip = 0: input should be greater than 0"),
        ("codec.clip=inf", "codec.clip = inf"),
        ("codec.noise_multiplier=1.0", "without a bound on the scalars no noise is enough"),
        ("codec.noise_multiplier=-1", "codec.noise_multiplier = -1"),
        ("codec.scale_grid=2.0", "it is for bits = 1"),
        ("codec.scale_grid=1", "codec.scale_grid = 1: input should be greater than 1"),
        ("codec.m=0", "m = 0 is not a number of directions"),
        ("codec.keys=guessed", "codec.keys = 'guessed'"),
        ("local_lr=0", "local_lr = 0: input should be greater than 0"),
        ("schedule.rounds=-1", "schedule: rounds = -1"),
        ("dropout=1", "dropout = 1"),
        ("seed=-1", "seed = -1"),
        ("seed", "expected key=value"),
        ("seed.x=1", "seed is a value, not a table"),
        ("server.optimiser=lion", "'sgd', 'momentum' or 'adam'"),
    ],
)
def test_bad_input_names_the_key_the_value_and_what_is_allowed(change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("lenet-fmnist", [change])


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ({"name": "fedsgd", "clip": 1.0}, "clip: FedSGD.* has no scalars along directions"),
        (
            {"name": "gaussian", "noise": 1.0, "noise_multiplier": 1.0},
            "noise_multiplier: Gaussian.* has no scalars",
        ),
        (
            {"name": "mpdd", "m": 8, "clip": 1.0, "error_feedback": True},
            "error_feedback takes back",
        ),
    ],
)
def test_protection_that_makes_no_sense(codec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"codec": codec})


def test_protection_is_read_and_goes_with_its_codec() -> None:
    changes = ["codec.clip=2", "codec.noise_multiplier=0.5", "codec.bits=1", "codec.scale_grid=2.0"]
    config = load_config("lenet-fmnist", changes)
    assert config.codec.protection() == Protection(MPDD(400, bits=1), clip=2, noise_multiplier=0.5, scale_grid=2.0)
    assert parse_config(config.model_dump(mode="json")) == config
    assert load_config("lenet-fmnist").codec.protection() is None
    values = apply_overrides(config.model_dump(mode="json"), ["codec.name=fedsgd"])
    assert parse_config(values).codec.protection() is None


def test_a_codec_may_be_named_in_words() -> None:
    config = load_config("demo", ["codec.keys=shared", "codec=randk:k=7"])  # in any order, as of codec.name
    assert (config.codec.words, config.codec.keys) == ("randk:k=7:keys=shared", "shared")
    with pytest.raises(ConfigError, match=r"codec = 'mpdd:m=4': expected a table of keys"):  # folders are no words
        parse_config({"codec": "mpdd:m=4"})


def test_unknown_config_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="demo, lenet-fmnist"):
        load_config("nowhere")


def test_both_ways_to_say_how_many_clients() -> None:
    values: dict[str, Any] = {"participation": 0.5, "clients_per_round": 50}
    assert parse_config(values).per_round == 50
    with pytest.raises(ConfigError, match="of clients = 100 are 50, and clients_per_round = 40; leave out one"):
        parse_config({**values, "clients_per_round": 40})


def test_gradients_go_by_the_batch() -> None:
    assert load_config("demo", ["batch=16"]).gradient_method == "vmap"
    assert load_config("demo", ["batch=32"]).gradient_method == "loop"
    assert load_config("demo", ["batch=32", "gradients=vmap"]).gradient_method == "vmap"


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5_000])
def test_brackets_and_digits_without_end_are_errors_of_ours(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="not an override"):
        load_config("demo", [f"seed={text}"])
    path = tmp_path / "deep.toml"
    path.write_text(f"seed = {text}")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(str(path))
