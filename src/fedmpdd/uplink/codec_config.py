"""A codec as configs and command lines name it: its parameters, who chooses keys, and what protects its updates."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from fedmpdd.codecs import Codec, make_codec
from fedmpdd.documents import parse_override
from fedmpdd.errors import ConfigError, InputError
from fedmpdd.imports import is_import_path
from fedmpdd.uplink.protection import Protection
from fedmpdd.uplink.uplink import check_parts


class CodecConfig(BaseModel):
    """A codec by name, its own parameters, and who chooses keys.

    keys: "sent" (each client draws a seed and sends it, as in the paper), "derived" (seeds follow from the session's
    seed, round and client, and are not sent), "partitioned" (one seed a round, one slot a client, nothing sent) or
    "shared" (one key a round for all clients, nothing sent).
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

    @model_validator(mode="after")
    def _known(self, info: ValidationInfo) -> "CodecConfig":
        if not can_build(self, info):
            return self
        try:
            check_parts(self.build(), self.keys, remembers=self.error_feedback, protection=self.protection())
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    @classmethod
    def of(cls, codec: Codec) -> "CodecConfig":
        """Return the config of a codec that is there as an object."""
        values = {f.name: getattr(codec, f.name) for f in fields(codec) if f.name != "shapes"}  # type: ignore[arg-type]
        return cls.model_validate({"name": codec.name, **values})

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
        """Return the codec itself."""
        try:
            return make_codec(self.name, dict(self.__pydantic_extra__ or {}))
        except InputError as error:
            raise ValueError(str(error)) from None


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


def codec_overrides(text: str) -> list[str]:
    """Return the changes to a config that such a text stands for."""
    name, *parameters = text.strip().split(":")
    return [f"codec.name={name}", *(f"codec.{parameter}" for parameter in parameters)]


def codec_words(name: str, parameters: Mapping[str, Any]) -> str:
    """Return the text that `parse_codec` reads as this codec."""
    words = {key: str(value).lower() if isinstance(value, bool) else value for key, value in parameters.items()}
    return ":".join([name, *(f"{key}={word}" for key, word in words.items())])


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
    return f"{where} = {problem['input']!r}: {message[0].lower()}{message[1:]}"
