"""The sections of a run's config: partition, server, codec, secure sums."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedmpdd.codecs import Codec, make_codec
from fedmpdd.errors import ConfigError, InputError
from fedmpdd.tasks.data import PartitionKind
from fedmpdd.uplink import Protection, RobustMean, SecureRounds, check_parts

STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PartitionConfig(BaseModel):
    """How examples are dealt out. Its seed is apart from the training seed, so that five seeds share one split."""

    model_config = STRICT

    kind: PartitionKind = Field(default=PartitionKind.IID, strict=False)  # a word in TOML
    seed: int = Field(default=2024, ge=0, lt=2**63)
    classes_per_client: int = Field(default=2, ge=1)
    alpha: float = Field(default=0.5, gt=0)
    virtual_size: int = Field(default=64, ge=1)


class ServerConfig(BaseModel):
    """How the server steps along the decoded gradient."""

    model_config = STRICT

    optimiser: Literal["sgd", "momentum", "adam"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)


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
    def _known(self) -> "CodecConfig":
        try:
            check_parts(self.build(), self.keys, remembers=self.error_feedback, protection=self.protection())
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def protection(self) -> Protection | None:
        """Return what protects updates, if anything does."""
        given = {
            key: getattr(self, key)
            for key in ("clip", "noise_multiplier", "scale_grid")
            if getattr(self, key) != type(self).model_fields[key].default
        }
        if not given:
            return None
        try:
            return Protection(self.build(), **given)
        except InputError as error:
            raise ValueError(f"{', '.join(given)}: {error}") from None

    def build(self) -> Codec:
        """Return the codec itself."""
        try:
            return make_codec(self.name, dict(self.__pydantic_extra__ or {}))
        except InputError as error:
            raise ValueError(str(error)) from None


class RobustConfig(BaseModel):
    """A mean that a minority of lying clients cannot move far: the fields of fedmpdd.uplink.RobustMean.

    The median magnitude that updates shrink to is that of their own round, so that a run can be resumed at any round.
    """

    model_config = STRICT

    shrink: float = Field(default=1.0, gt=0)
    trim: float = Field(default=0.3, ge=0, lt=0.5)
    disagreement: float = Field(default=2.0, gt=0)

    def build(self) -> RobustMean:
        """Return the mean itself."""
        return RobustMean(self.shrink, self.trim, self.disagreement)


class SecureConfig(BaseModel):
    """Rounds in which the server sees the sum of all scalars: the fields of fedmpdd.uplink.SecureRounds."""

    model_config = STRICT

    clip: float = Field(gt=0)
    noise_multiplier: float = Field(default=0.0, ge=0)
    ring_bits: int = Field(default=32, ge=16, le=64)
    dropouts: float = Field(default=0.3, ge=0, lt=0.5)
    colluding: float = Field(default=0.0, ge=0, lt=0.5)
    neighbours: int = Field(default=0, ge=0, multiple_of=2)

    def build(self) -> SecureRounds:
        """Return the agreement itself."""
        return SecureRounds(**self.model_dump())

    def check(self, codec: Codec, keys: str, clients: int) -> None:
        """Raise ConfigError unless so many clients with this codec have a sum that hides each of them."""
        if not codec.adds_up or (codec.needs_key and keys != "shared"):
            raise ConfigError(
                'secure adds up scalars along the same directions: use codec.name = "mpdd" with keys = "shared" and '
                '32 bits, or "fedsgd"'
            )
        try:
            self.build().check(clients)
        except ConfigError as error:
            raise ConfigError(f"secure.{error}") from None

    def colluders(self, clients: int) -> int:
        """Return what SecureRounds says."""
        return self.build().colluders(clients)

    def honest_minimum(self, clients: int) -> int:
        """Return what SecureRounds says."""
        return self.build().honest_minimum(clients)

    def threshold(self, clients: int) -> int:
        """Return what SecureRounds says."""
        return self.build().threshold(clients)

    def noise_in_steps(self, clients: int) -> float:
        """Return what SecureRounds says."""
        return self.build().noise_in_steps(clients)
