"""What a run is: one TOML file, checked key by key."""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, fields
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, overload

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from fedmpdd.codecs import CODECS, Codec
from fedmpdd.codecs.registry import parameter_names
from fedmpdd.documents import parse_override
from fedmpdd.errors import ConfigError, InputError
from fedmpdd.imports import is_named
from fedmpdd.server.step import FALLING, Schedule, StepRule
from fedmpdd.tasks.batch_norm import BatchNorm
from fedmpdd.tasks.data import DATASETS, TEXT_DATASETS, PartitionKind
from fedmpdd.uplink import RobustMean, SecureRounds, check_links, check_memory, check_parts
from fedmpdd.uplink.arrivals import SYNCHRONOUS, Arrivals
from fedmpdd.uplink.codec_config import CodecConfig, can_build, codec_overrides, explain, parse_codec

STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
Kind = TypeVar("Kind")


def _table_of(kind: type[Kind]) -> BeforeValidator:
    """Return what makes settings of a table: dataclasses, which rooms above this one have without pydantic."""
    types = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    required = [field.name for field in fields(kind) if field.default is MISSING]  # type: ignore[arg-type]

    def read(value: Any) -> Any:
        if value is None or isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"expected a table with the keys {', '.join(types)}, got {value!r}")
        for key in value:
            if key not in types:
                raise ValueError(f"{key} is not a key of this table; its keys are {', '.join(types)}")
        for key in required:
            if key not in value:
                raise ValueError(f"{key} is missing, and has no default")
        whole = {key: float(one) for key, one in value.items() if types[key] is float and type(one) is int}
        return kind(**{**value, **whole})

    return BeforeValidator(read)


def _codec_tables(links: Any) -> Any:
    """Codecs in words as tables, as the codec of all clients may be written too."""
    if not isinstance(links, list | tuple):
        raise ValueError(f"expected a list of codecs, like ['peaks:m=7', 'peaks:m=28'], got {links!r:.60}")
    try:
        return [parse_codec(link) if isinstance(link, str) else link for link in links]
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _with_first_link(values: dict[str, Any]) -> dict[str, Any]:
    """A config's table in which the codec is that of the first link, where it is named nowhere else."""
    codec = values.get("codec", {})
    if not values.get("links") or not isinstance(codec, dict) or set(codec) - set(CodecConfig.model_fields):
        return values
    try:
        first = CodecConfig.model_validate(_codec_tables(values["links"])[0])
    except ValueError:  # said where links are looked at
        return values
    own = first.model_dump(mode="json", exclude=set(CodecConfig.model_fields) - {"name"})
    return values if "name" in codec else {**values, "codec": {**own, **codec}}


class PartitionConfig(BaseModel):
    """How examples are dealt out. Its seed is apart from the training seed, so that five seeds share one split."""

    model_config = STRICT

    kind: PartitionKind = Field(default=PartitionKind.IID, strict=False)  # a word in TOML
    seed: int = Field(default=2024, ge=0, lt=2**63)
    classes_per_client: int = Field(default=2, ge=1)
    alpha: float = Field(default=0.5, gt=0)
    virtual_size: int = Field(default=64, ge=1)


class RunConfig(BaseModel):
    """One training."""

    model_config = STRICT

    dataset: str = "mnist-5k"
    pixels: Literal["unit", "normalised", "raw"] = "normalised"
    model: str = "lenet"
    init: Literal["default", "uniform"] = "default"
    loss: str = "cross-entropy"
    metrics: list[str] | None = None
    batch_norm: BatchNorm | None = None
    clients: int = Field(default=100, ge=1, le=2**32)
    participation: float | None = Field(default=None, gt=0, le=1)
    clients_per_round: int | None = Field(default=None, ge=1)
    batch: int = Field(default=1, ge=1)
    local_steps: int = Field(default=1, ge=1)
    local_epochs: int | None = Field(default=None, ge=1)
    local_lr: float | None = Field(default=None, gt=0)
    local_optimiser: str | None = None
    proximal: float = Field(default=0.0, ge=0)
    lr: float = Field(default=0.1, gt=0)
    schedule: Annotated[Schedule, _table_of(Schedule)] = Schedule()
    rounds: int = Field(default=100, ge=1, lt=2**32)
    evaluate_every: int = Field(default=8, ge=1)
    checkpoint_every: int = Field(default=50, ge=1)
    seed: int = Field(default=17, ge=0, lt=2**63)
    weighting: Literal["equal", "examples"] = "equal"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    downlink: Literal["model", "replay"] = "model"
    downlink_bits: Literal[32, 16, 8, 4, 1] | None = None
    journal: bool | None = None
    client: Literal["backward", "forward"] = "backward"
    gradients: Literal["auto", "vmap", "loop", "layers"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tf32: bool = False
    partition: PartitionConfig = PartitionConfig()
    server: Annotated[StepRule, _table_of(StepRule)] = StepRule()
    secure: Annotated[SecureRounds | None, _table_of(SecureRounds)] = None
    robust: Annotated[RobustMean | None, _table_of(RobustMean)] = None
    arrivals: Annotated[Arrivals, _table_of(Arrivals)] = SYNCHRONOUS
    links: Annotated[list[CodecConfig], BeforeValidator(_codec_tables)] = Field(default_factory=list)
    link_spread: Annotated[float, Field(ge=0)] | Literal["middle", "inf"] = "middle"
    codec: CodecConfig = Field(default_factory=lambda: CodecConfig.model_validate({"name": "mpdd", "m": 400}))

    _dropped: dict[str, Any] = PrivateAttr(default_factory=dict)  # settings of earlier versions that are no more

    @model_validator(mode="wrap")
    @classmethod
    def _known(cls, values: Any, handler: ModelWrapValidatorHandler["RunConfig"]) -> "RunConfig":
        kept, dropped = _without_dropped(values)
        whole = _with_whole_schedule(kept)
        config = handler(_with_first_link(whole) if isinstance(whole, dict) else whole)
        config._dropped = dropped
        return config

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> "RunConfig":
        if self.dataset in TEXT_DATASETS:
            raise ValueError(
                f"dataset = {self.dataset!r} holds texts, and a config names no tokenizer; name a function that "
                "returns an fm.Task, such as mytask.py:sst2 (docs/own-texts.md)"
            )
        if self.dataset not in DATASETS and not is_named(self.dataset):
            raise ValueError(
                f"dataset = {self.dataset!r} is unknown; use one of {', '.join(DATASETS)}, or an import path such as "
                "mydata.py:load"
            )
        self._check_counts()
        if not all(can_build(codec, info) for codec in (self.codec, *self.links)):
            return self
        try:
            self._check_links()
            for one in self.of_links:
                one._check_uplink()
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def _check_counts(self) -> None:
        """Raise ValueError unless a round has a number of clients, and one number."""
        shares = {
            f"participation = {self.participation}": self._share_of_clients,
            f"clients_per_round = {self.clients_per_round}": self.clients_per_round,
        }
        asked = {words: count for words, count in shares.items() if count is not None}
        if len(set(asked.values())) > 1:
            first, second = asked
            raise ValueError(f"{first} of clients = {self.clients} are {asked[first]}, and {second}; leave out one")
        if not 1 <= self.per_round <= self.clients:
            words = next(iter(asked))
            raise ValueError(f"{words} of clients = {self.clients} are {self.per_round}; expected 1 to all of them")

    def _check_links(self) -> None:
        """Raise InputError where clients cannot have these codecs side by side."""
        if not self.links:
            return
        check_links(self.codec.keys, sums=self.secure is not None)
        beside = {key: field.default for key, field in CodecConfig.model_fields.items() if key != "name"}
        for link in self.links:
            for key, default in beside.items():
                if getattr(link, key) not in (default, getattr(self.codec, key)):
                    raise ConfigError(
                        f"links: {link.words} has {key}, which is said once for all clients; set codec.{key}"
                    )
        if len({one.source for one in self.of_links}) > 1:
            raise ConfigError(
                "links: some codecs encode losses and others gradients, and all clients compute alike; take codecs of "
                "one kind"
            )

    def _check_uplink(self) -> None:
        """Raise InputError where the parts of an update cannot work together; each part says so of itself."""
        codec, keys, protection = self.codec.build(), self.codec.keys, self.codec.protection()
        check_parts(codec, keys, protection=protection, mean_bits=self.downlink_bits)
        if self.source == "forward":
            codec.along_directions()
        if self.codec.error_feedback:
            hidden = protection is not None or self.secure is not None
            check_memory(codec, has_gradient=self.source == "backward", hidden=hidden)
        if self.secure is not None:
            self.secure.check_parts(
                codec, keys, weighting=self.weighting, robust=self.robust is not None, protects=protection is not None
            )
            try:
                self.secure.check(self.per_round)
            except ConfigError as error:
                raise ConfigError(f"secure.{error}") from None

    @property
    def of_links(self) -> "tuple[RunConfig, ...]":
        """The config of the clients of each link, with the codec of that link; this one where all have one codec."""
        if not self.links:
            return (self,)
        shared = self.codec.model_dump(include=set(CodecConfig.model_fields) - {"name"})
        codecs = [{**link.model_dump(exclude=set(shared)), **shared} for link in self.links]
        return tuple(
            self.model_copy(update={"links": [], "codec": CodecConfig.model_construct(**codec)}) for codec in codecs
        )

    def of_client(self, client: int) -> "RunConfig":
        """Return the config that a client has: client i has link i mod their number."""
        configs = self.of_links
        return configs[client % len(configs)]

    @property
    def spread(self) -> float | None:
        """How far gradients of clients are from their mean, by which links are weighed; None to follow the codecs."""
        return None if self.link_spread == "middle" else float(self.link_spread)

    @property
    def codec_words(self) -> str:
        """The codec of all clients in words, or those of all links."""
        return " + ".join(one.codec.words for one in self.of_links)

    @property
    def trains_locally(self) -> bool:
        """Whether clients take steps and send how far they came, and not a gradient."""
        alone = (self.local_epochs, self.local_lr, self.local_optimiser)
        return self.local_steps > 1 or any(setting is not None for setting in alone)

    @property
    def client_lr(self) -> float | None:
        """The step size of clients; that of the server by default, and None where their optimiser has one."""
        return self.lr if self.local_lr is None and self.local_optimiser is None else self.local_lr

    @property
    def sends_sums(self) -> bool:
        """Whether clients step as far as the server does, and send what it is to step along: sums of gradients.

        So a server with plain steps averages their models, whatever `lr` is.
        """
        return self.trains_locally and self.local_lr is None and self.local_optimiser is None

    @property
    def score(self) -> str:
        """The metric that targets and tables go by; with a minus before it where lower is better."""
        if self.metrics is None:
            return "accuracy" if self.loss == "cross-entropy" else "-loss"
        return metric_name(self.metrics[0]) if self.metrics else "-loss"

    @property
    def source(self) -> str:
        """Where scalars come from: "backward", "forward" or "losses"."""
        return "losses" if self.of_links[0].codec.build().source == "losses" else self.client

    def check_trainable(self) -> None:
        """Raise ConfigError for a config of an earlier version that had what is no more."""
        for key, value in self._dropped.items():
            raise ConfigError(
                f"{key} = {value!r} was dropped: by this project's own measurements it did not pay "
                "(docs/results/README.md); fedmpdd 0.1.0 could train, resume and replay with it"
            )

    @property
    def journaled(self) -> bool:
        """Whether the run keeps a journal: as it says, or else where clients are sent what is in it."""
        return self.downlink == "replay" if self.journal is None else self.journal

    @property
    def is_followed(self) -> bool:
        """Whether somebody takes the server's steps too, by bundles: from a journal, or from round to round."""
        return self.journaled or self.downlink == "replay"

    @property
    def mean_bits(self) -> int | None:
        """The bits of the one update that stands for a round; None where the clients' updates do."""
        trims = self.robust is not None and self.robust.trims(self.codec.build(), shared=self.shares_keys)
        return 32 if self.downlink_bits is None and trims else self.downlink_bits

    @overload
    def bundle_codec(self, codec: Codec, round_number: int) -> Codec: ...

    @overload
    def bundle_codec(self, codec: Codec | tuple[Codec, ...], round_number: int) -> Codec | tuple[Codec, ...]: ...

    def bundle_codec(self, codec: Codec | tuple[Codec, ...], round_number: int) -> Codec | tuple[Codec, ...]:
        """Return the codec of the updates in a round's bundle: the clients' own, or that of their mean.

        codec: that of the config, for the shapes of the model; those of all links where clients have different ones.
        """
        if isinstance(codec, tuple):
            return tuple(one.at_round(round_number) for one in codec)
        one = self.mean_bits is not None or self.secure is not None
        if one and codec.scalar_codec is not None:
            return codec.at_round(round_number).along_directions().with_bits(self.mean_bits or 32)
        return codec.at_round(round_number)

    @property
    def shares_keys(self) -> bool:
        """Whether all clients of a round have one key."""
        return self.codec.keys == "shared"

    @property
    def per_round(self) -> int:
        """How many clients take part in a round: βN of the paper."""
        share = self._share_of_clients if self.clients_per_round is None else self.clients_per_round
        return self.clients if share is None else share

    @property
    def _share_of_clients(self) -> int | None:
        # 0.29 · 100 is 28.999… in floating point, and is meant to be 29.
        return None if self.participation is None else math.floor(self.participation * self.clients + 1e-9)

    @property
    def gradient_method(self) -> Literal["vmap", "loop", "layers"]:
        """All clients at once, one by one, or at once and layer by layer.

        "auto" goes by the batch, not by the clock, so that a config has one result: measured on two cores, one
        vectorised call wins up to batches of 16 and the loop from 32 on; on a GPU layers win, for models that are made
        of known ones (docs/performance.md).
        """
        one_model = self.client == "backward" and not self.trains_locally  # which layers need, and nothing forwards
        if self.gradients != "auto":
            return self.gradients if one_model or self.gradients != "layers" else "vmap"
        if self.client == "forward":  # several directions at once: up to five times as fast (docs/forward.md)
            return "vmap"
        if self.device == "cuda":
            return "layers" if one_model else "vmap"
        return "vmap" if self.batch <= 16 else "loop"


def settings_named(word: str) -> list[str]:
    """Return the dotted keys of a config that end in a word, the outermost first.

    >>> settings_named("rounds"), settings_named("clip"), settings_named("momentum")
    (['rounds', 'schedule.rounds'], ['codec.clip', 'secure.clip'], ['server.momentum'])
    """
    of_codecs = [*CodecConfig.model_fields, *(name for codec in CODECS.values() for name in parameter_names(codec))]
    tables = {
        "": list(RunConfig.model_fields),
        "codec": of_codecs,
        "partition": list(PartitionConfig.model_fields),
        **{
            name: [field.name for field in fields(kind)]
            for name, kind in {
                "schedule": Schedule,
                "server": StepRule,
                "secure": SecureRounds,
                "robust": RobustMean,
                "arrivals": Arrivals,
            }.items()
        },
    }
    keys = [f"{table}.{name}".lstrip(".") for table, names in tables.items() for name in dict.fromkeys(names)]
    return [key for key in keys if key == word or key.endswith(f".{word}")]


def metric_name(text: str) -> str:
    """Return what a metric is called that a config gives as `name=path`, or by a path whose last part is its name."""
    name, path = metric_parts(text)
    return name or path.partition("(")[0].rpartition(":")[2]


def metric_parts(text: str) -> tuple[str, str]:
    """Return the name that a metric is given, "" if none is, and its path, which may have arguments."""
    name, equals, path = text.partition("=")
    return (name, path) if equals and not set(name) & set(":(") else ("", text)


def shipped_configs() -> dict[str, str]:
    """Return the texts of the configs that come with the package, by name."""
    folder = files("fedmpdd.simulation") / "configs"
    return {
        entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def load_config(source: str | Path, overrides: Sequence[str] | None = None) -> RunConfig:
    """Read a config, change some of its keys, and check it.

    Args:
        source: a shipped name such as "demo", or a TOML file.
        overrides: like those of the command line: "rounds=20", "codec.m=400".

    Returns:
        The config, for `train`.

    Example:
        >>> load_config("demo", ["rounds=20"]).rounds
        20

    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides = {overrides!r:.60}: expected a list of them, like ['rounds=20']")
    values = read_table(source)
    values.pop("audit", None)  # how it would be attacked is nothing to a training
    return parse_config(apply_overrides(values, overrides or []))


def read_table(source: str | Path) -> dict[str, Any]:
    """Read a config by shipped name or path as a table, unchecked."""
    shipped = shipped_configs()
    if not isinstance(source, str | Path):
        raise ConfigError(f"config {source!r:.60} came; expected a file, or a shipped name: {', '.join(shipped)}")
    path = Path(source)
    source = str(source)
    if source in shipped:
        text = shipped[source]
    elif path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} cannot be read as text: {error}") from None
    else:
        raise ConfigError(f"config {source!r} is neither a file nor one of the shipped ones: {', '.join(shipped)}")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and brackets in brackets
        raise ConfigError(f"{source} is not TOML: {error}") from None


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a config's table with `key=value` changes, keys of inner tables written with dots."""
    # A codec's name first: it clears the parameters of the one before.
    for override in sorted(overrides, key=lambda text: not text.startswith(("codec=", "codec.name="))):
        key, value = parse_override(override)
        words = key == "codec" and isinstance(value, str)
        for change in codec_overrides(value) if words else [override]:
            _apply(values, change)
    return values


def parse_config(values: dict[str, Any], *, follow_imports: bool = True) -> RunConfig:
    """Check a config that is already a table.

    follow_imports: whether a codec that is named by an import path is imported to be checked. Without, the config can
    be read, and is of somebody whose code nobody has to run.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"a config is a table of keys, got {values!r}")
    try:
        return RunConfig.model_validate(values, context={"follow_imports": follow_imports})
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(problem) for problem in error.errors())) from None


DROPPED = {"": ("evaluate_mean",), "codec": ("memory",), "server": ("control",)}  # by table; null where not used


def codec_config(config: RunConfig, text: str) -> RunConfig:
    """Return a config with another codec.

    Args:
        config: of which the keys and client memory stay; all clients get the codec, whatever their links.
        text: the codec, like "fedsgd" or "mpdd:m=400:bits=1".

    Returns:
        The config.

    Example:
        >>> codec_config(load_config("demo"), "qsgd:bits=4").codec.name
        'qsgd'

    """
    values = {**config.model_dump(mode="json"), "links": []}
    chosen = {"keys", "error_feedback"} & config.codec.model_fields_set
    values["codec"] = {key: values["codec"][key] for key in chosen}
    return parse_config(apply_overrides(values, codec_overrides(text)))


def _without_dropped(values: Any) -> tuple[Any, dict[str, Any]]:
    """Part a config's table from what is no setting any more, and return what of that was in use."""
    dropped: dict[str, Any] = {}
    if not isinstance(values, dict):
        return values, dropped
    kept = dict(values)
    for table, keys in DROPPED.items():
        inner = kept if not table else kept.get(table)
        if not isinstance(inner, dict):
            continue
        inner = dict(inner)
        for key in keys:
            if inner.pop(key, None) is not None:
                dropped[f"{table}.{key}".lstrip(".")] = (values if not table else values[table])[key]
        kept = inner if not table else {**kept, table: inner}
    return kept, dropped


def _with_whole_schedule(values: Any) -> Any:
    """Return a config's table in which a schedule that does not say over how many rounds goes over all of them."""
    schedule = values.get("schedule") if isinstance(values, dict) else None
    if not isinstance(schedule, dict) or schedule.get("kind") not in FALLING or schedule.get("rounds"):
        return values
    return {
        **values,
        "schedule": {**schedule, "rounds": values.get("rounds", RunConfig.model_fields["rounds"].default)},
    }


def _apply(values: dict[str, Any], override: str) -> None:
    key, value = parse_override(override)
    table = values
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{override!r}: {parent} is a value, not a table")
    if key == "codec.name":  # another codec has other parameters
        kept: dict[str, Any] = {name: table[name] for name in ("keys", "error_feedback") if name in table}
        table.clear()
        table.update(kept)
    if key in ("participation", "clients_per_round"):
        values.pop("participation", None)
        values.pop("clients_per_round", None)
    table[last] = value


def _explain(problem: Any) -> str:
    """One sentence: the key, what came, what is allowed."""
    if problem["type"] == "extra_forbidden":
        known = (PartitionConfig if problem["loc"][0] == "partition" else RunConfig).model_fields
        return f"{'.'.join(map(str, problem['loc']))} is not a key of a config; the keys here are {', '.join(known)}"
    explained = explain(problem)
    table = problem["loc"][0] if problem["loc"] else ""
    if table in ("server", "secure", "robust", "arrivals") and not explained.startswith(f"{table}: expected"):
        return explained.replace(": ", ".", 1)  # the message begins with a key of the table
    return explained
