"""A table: the paper's rows as codecs of this package, our own rows beside them, and what is measured."""

import json
import math
import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from fedmpdd.errors import InputError
from fedmpdd.simulation import RunConfig, codec_config, parse_config

SEEDS = (17, 123, 777, 2023, 424242)  # the paper's five

# The names in the paper's tables, and what they are here. {} is the number in the name.
_METHODS = (
    (r"FedSGD", "fedsgd"),
    (r"FedSGD\+Laplace\(var=(.+)\)", "laplace:noise={}"),
    (r"FedSGD\+Gaussian\(var=(.+)\)", "gaussian:noise={}"),
    (r"FedMPDD\(m=(\d+)\)", "mpdd:m={}"),
    (r"QSGD\((\d)-bit\)", "qsgd:bits={}"),
    (r"Top-k\(k=(\d+)\)", "topk:k={}"),
    (r"SA-FedLora", "sa-fedlora"),
)


_FEDMPDD = r"mpdd:m=(\d+)"
_FOLDERS = {"table": "tables", "figure": "figures", "study": "studies", "finetuning": "finetunings"}


@dataclass(frozen=True)
class Method:
    """A row of a table: a codec, and the paper's numbers for it where it has any."""

    name: str
    codec: str
    paper: dict[str, Any] | None


@dataclass(frozen=True)
class Table:
    """What to run for one table of the paper, and what to read off."""

    name: str
    config: RunConfig
    methods: tuple[Method, ...]
    target: float
    second_target: float
    budget: int
    attack: str
    lrs: tuple[float, ...]
    search: int | None = None  # rounds of the search for a step size; all of them if not given
    images: int = 4  # that are attacked per row
    optimiser: Literal["measured", "lbfgs", "adam"] = "measured"  # of the paper's attack, see fedmpdd.privacy.config
    missed: str | None = None  # why a goal is out of reach here, where it is

    @property
    def round_cap(self) -> int:
        """The round in which the smallest FedMPDD of the paper has spent the budget.

        Accuracy at the budget is read no later, so that codecs that could not spend it in a week have a number too.
        """
        directions = [int(match[1]) for method in self.methods if (match := re.fullmatch(_FEDMPDD, method.codec))]
        if not directions:
            return self.config.rounds
        return math.ceil(self.budget / (self.config.per_round * 4 * min(directions)))

    def run_config(self, method: Method, seed: int, lr: float, device: str) -> RunConfig:
        """Return the config of one training."""
        values = codec_config(self.config, method.codec).model_dump(mode="json")
        return parse_config({**values, "seed": seed, "lr": lr, "device": device})


def shipped_names(kind: str) -> list[str]:
    """Return the names of all tables, figures or studies."""
    entries = (entry.name for entry in (files("fedmpdd_paper") / _FOLDERS[kind]).iterdir())
    return sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml"))


def read_shipped(kind: str, name: str) -> dict[str, Any]:
    """Return the settings of a table, figure or study."""
    if name not in (names := shipped_names(kind)):
        raise InputError(f"{kind} {name!r} is unknown: expected one of {', '.join(names)}")
    return tomllib.loads((files("fedmpdd_paper") / _FOLDERS[kind] / f"{name}.toml").read_text(encoding="utf-8"))


def table_names() -> list[str]:
    """Return the names of all tables."""
    return shipped_names("table")


def load_table(name: str) -> Table:
    """Read a table's config and the paper's numbers."""
    values = read_shipped("table", name)
    table = values.pop("table")
    printed = json.loads((files("fedmpdd_paper") / "paper.json").read_text(encoding="utf-8")).get(name, [])
    config = parse_config(values)
    directions = next((row["method"] for row in printed if row["method"].startswith("FedMPDD")), "0")
    size = int(re.findall(r"\d+", directions)[0])
    methods = [Method(row["method"], codec_of(row["method"], size), row) for row in printed]
    methods += [Method(text, text, None) for text in table["ours"]]
    return Table(
        name,
        config,
        tuple(methods),
        table["target"],
        table["harder"],
        table["budget"],
        table["attack"],
        tuple(table["lrs"]),
        table.get("search"),
        table.get("images", 4),
        table.get("optimiser", "measured"),
        table.get("missed"),
    )


def codec_of(method: str, size: int) -> str:
    """Return the codec that a method of the paper is here; lp-proj, whose size is not stated, gets `size` numbers."""
    if method == "lp-proj":
        return f"lp-proj:size={size}"
    for pattern, text in _METHODS:
        if match := re.fullmatch(pattern, method):
            return text.format(*match.groups())
    raise InputError(f"method {method!r} of the paper is unknown here")
