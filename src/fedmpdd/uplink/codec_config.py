"""A codec as configs and command lines name it: its parameters, who chooses keys, and what protects its updates.

mpdd:m=400:bits=1:keys=partitioned      of this package, or registered: its name, then key=value, with colons between
mycodec.py:Mine:m=3:keys=partitioned    somebody's own, by the import path of its class
mycodec.py:Mine(m=3):keys=partitioned   the same
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from fedmpdd.codecs import Codec, make_codec
from fedmpdd.codecs.registry import (
    CODECS,
    check_is_codec,
    codec_named,
    config_name_of,
    default_values,
    parameter_names,
)
from fedmpdd.documents import parse_override
from fedmpdd.errors import ConfigError, InputError
from fedmpdd.imports import is_import_path, parse_import_path
from fedmpdd.uplink.protection import Protection
from fedmpdd.uplink.uplink import check_parts


class CodecConfig(BaseModel):
    """A codec by name, its own parameters, and who chooses keys.

    name: a registered name, or the import path of a class. What the path is called with becomes parameters, so that a
    codec has one config however it was written.
    keys: "sent" (each client draws a seed and sends it, as in the paper), "derived" (seeds follow from the session's
    seed, round and client, and are not sent), "partitioned" (one seed a round, one slot a client, nothing sent) or
    "shared" (one key a round for all clients, nothing sent). The default is "sent", and "shared" for codecs that were
    made for it.
    error_feedback: whether clients remember what was left out of their updates, see fedmpdd.uplink.ErrorFeedback.
    clip, noise_multiplier, scale_grid: what protects updates, see fedmpdd.uplink.Protection.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "mpdd"
    keys: Literal["sent", "derived", "partitioned", "shared"] = "sent"
    error_feedback: bool = False
    clip: float | None = Field(default=None, gt=0, strict=True, allow_inf_nan=False)
    # Not "noise", which is what laplace and gaussian call their variance.
    noise_multiplier: float = Field(default=0.0, ge=0, strict=True, allow_inf_nan=False)
    scale_grid: float | None = Field(default=None, gt=1, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, values: Any) -> Any:
        return _with_parameters(values) if isinstance(values, dict) and isinstance(values.get("name"), str) else values

    @model_validator(mode="after")
    def _known(self, info: ValidationInfo) -> "CodecConfig":
        if not can_build(self, info):
            return self
        try:
            codec = self.build()
            check_parts(codec, self.keys, remembers=self.error_feedback, protection=self.protection())
        except InputError as error:
            raise ValueError(str(error)) from None
        if codec.shares_key and "keys" not in self.model_fields_set:
            return self.model_copy(update={"keys": "shared"})
        return self

    @classmethod
    def of(cls, codec: Codec) -> "CodecConfig":
        """Return the config of a codec that is there as an object; what is default is left out, as in words.

        A class of somebody's own stands in it by its import path, or, where it has none, by a name that this process
        alone knows.
        """
        check_is_codec(codec)
        values = {name: getattr(codec, name) for name in parameter_names(type(codec))}
        for name, value in values.items():
            if not _is_plain(value):
                raise ConfigError(
                    f"{codec.name} has {name} = {value!r:.60}, which no file can hold; parameters of a codec are "
                    "numbers, words, truth values, None, and tuples of these"
                )
        defaults = default_values(type(codec))
        changed = {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}
        return cls.model_validate({"name": config_name_of(type(codec)), **changed})

    def protection(self) -> Protection | None:
        """Return what protects updates, if anything does."""
        settings = {
            key: getattr(self, key)
            for key in ("clip", "noise_multiplier", "scale_grid")
            if getattr(self, key) != type(self).model_fields[key].default
        }
        if not settings:
            return None
        try:
            return Protection(self.build(), **settings)
        except InputError as error:
            raise ValueError(f"{', '.join(settings)}: {error}") from None

    def build(self) -> Codec:
        """Return the codec itself; one that is named by an import path is imported."""
        try:
            return make_codec(*self.registered())
        except InputError as error:
            raise ConfigError(str(error).removeprefix("codec.")) from None

    @property
    def words(self) -> str:
        """The text that `parse_codec` reads as this config: all that is not default, its own parameters first.

        >>> parse_codec("mpdd:keys=shared:m=400").words
        'mpdd:m=400:keys=shared'
        """
        values = self.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
        names = sorted(values, key=lambda key: key in CodecConfig.model_fields)
        return codec_words(self.name, {key: values[key] for key in names})

    def registered(self) -> tuple[str, dict[str, Any]]:
        """Return the name that the codec is registered under, and its parameters: what messages carry."""
        codec = codec_named(self.name)
        for name in parameter_names(codec):
            if name in CodecConfig.model_fields:
                raise ConfigError(f"{self.name} has a parameter {name}, which means something else here; rename it")
        return codec.name, dict(self.__pydantic_extra__ or {})


def _with_parameters(values: dict[str, Any]) -> dict[str, Any]:
    """The table of a codec with what its import path is called with as keys, and a path instead of a name of a user."""
    name = values["name"]
    if not is_import_path(name):
        return {**values, "name": config_name_of(CODECS[name])} if name in CODECS else values
    try:
        path = parse_import_path(name, "name")
    except ConfigError as error:
        raise ValueError(str(error)) from None
    if path.args:
        raise ValueError(f"name = {name!r}: write each parameter as name=value, like {path.attribute}(m=3)")
    for key, value in path.kwargs.items():
        if key in CodecConfig.model_fields:
            raise ValueError(f"name = {name!r}: {key} is no parameter of a codec; write it behind, like :{key}=…")
        if key in values and values[key] != value:
            raise ValueError(f"name = {name!r} says {key} = {value!r}, and {key} = {values[key]!r} beside it; keep one")
    return {**values, "name": f"{path.target}:{path.attribute}", **path.kwargs}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(one) for one in value)
    return value is None or type(value) in (bool, int, float, str)


def can_build(config: CodecConfig, info: ValidationInfo) -> bool:
    """Return whether a codec may be made to check its config: not one by import path, where these are not followed."""
    return not is_import_path(config.name) or (info.context or {}).get("follow_imports", True)


def parse_codec(text: str) -> CodecConfig:
    """Return the codec that a text like `mpdd:m=400:bits=1:keys=partitioned` describes, or raise ConfigError."""
    overrides = [parse_override(override) for override in codec_overrides(text)]
    values = {key.removeprefix("codec."): value for key, value in overrides}
    try:
        return CodecConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(explain(problem, ("codec",)) for problem in error.errors())) from None


def codec_list(text: str, option: str = "--codecs") -> list[str]:
    """Return the codecs of a list with commas, or raise ConfigError.

    Args:
        text: such as `fedsgd,mpdd:m=400,mycodec.py:Mine(m=3,size=2)`. Commas in brackets are part of a codec.
        option: that the text was given with, for the message.

    Example:
        >>> codec_list("fedsgd, mpdd:m=400")
        ['fedsgd', 'mpdd:m=400']

    """
    if sum(map(text.count, "([{")) != sum(map(text.count, ")]}")):
        raise ConfigError(f"{option} {text!r:.200}: a bracket has no partner; write mycodec.py:Mine(m=3,size=2)")
    codecs: list[str] = []
    for piece in filter(None, map(str.strip, _split(text, ","))):
        if re.match(r"\w+\s*=", piece):  # a name of a codec has no =
            codec = f"{codecs[-1]}:{piece}" if codecs else f"mpdd:{piece}"
            raise ConfigError(
                f"{option} {text!r:.200}: {piece} came where a codec begins; parameters follow a colon, not a comma: "
                f"{codec}"
            )
        codecs.append(piece)
    return codecs


def codec_overrides(text: str) -> list[str]:
    """Return the changes to a config that such a text stands for.

    >>> codec_overrides("mycodec.py:Mine(m=3):keys=shared")
    ['codec.name=mycodec.py:Mine(m=3)', 'codec.keys=shared']
    """
    name, *parameters = _split(text.strip(), ":")
    if parameters and name not in CODECS and (is_import_path(name) or "=" not in parameters[0].partition("(")[0]):
        name = f"{name}:{parameters.pop(0)}"
    for parameter in parameters:
        if "=" not in parameter:
            key = next(iter(parameter_names(CODECS[name])), "keys") if name in CODECS else "m"
            raise ConfigError(
                f"codec {text!r:.200}: {parameter!r} is no parameter; write key=value, like {name}:{key}=…"
            )
    return [f"codec.name={name}", *(f"codec.{parameter}" for parameter in parameters)]


def _split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators, but for those in brackets and quotes."""
    parts, depth, quote, escaped = [""], 0, "", False
    for letter in text:
        if quote:
            quote, escaped = quote if letter != quote or escaped else "", letter == "\\" and not escaped
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == separator and not quote and depth < 1:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def codec_words(name: str, parameters: Mapping[str, Any]) -> str:
    """Return the text that `parse_codec` reads as this codec."""
    return ":".join([name, *(f"{key}={_word(value)}" for key, value in parameters.items() if value is not None)])


def _word(value: Any) -> str:
    """A value as `parse_override` reads it: words as they are, if that is unmistakable."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_word(one) if not isinstance(one, str) else _quoted(one) for one in value)}]"
    if isinstance(value, str):
        is_plain = re.fullmatch(r"[\w.+-]*", value) and parse_override(f"key={value}")[1] == value
        return value if is_plain else _quoted(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def explain(problem: Any, table: Sequence[str] = ()) -> str:
    """Return one sentence for an error of pydantic: the key, what came, what is allowed.

    Args:
        problem: one of the errors.
        table: the names of the tables that its place is in.

    """
    where = ".".join(str(part) for part in (*table, *problem["loc"]))
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    if problem["type"] in ("model_type", "dict_type"):
        return f"{where} = {problem['input']!r:.60}: expected a table of keys; write each like {where}.KEY=…"
    return f"{where} = {problem['input']!r}: {message[0].lower()}{message[1:]}"
