"""`fedmpdd replay`: the model of any round, from the journal alone, proved by its hash."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from torch import from_numpy as tensor_of

from fedmpdd import models
from fedmpdd.bundle import unpack_bundle
from fedmpdd.codecs import MPDD, Codec
from fedmpdd.errors import ContentError, JournalError, WireError
from fedmpdd.federation import sampling
from fedmpdd.federation.catch_up import CatchUp
from fedmpdd.federation.config import RunConfig, parse_config
from fedmpdd.federation.devices import resolve_device
from fedmpdd.federation.journal import JOURNAL, Header, JournalReader
from fedmpdd.federation.server import ServerStep


def model_sha256(flat: Tensor) -> str:
    """SHA-256 of a flat float32 model, little-endian."""
    return hashlib.sha256(flat.cpu().numpy().astype("<f4", copy=False).tobytes()).hexdigest()


def bundle_codec(config: RunConfig, codec: Codec, round_number: int) -> Codec:
    """Return the codec of the updates in a round's bundle: the clients' own, or that of their mean."""
    if isinstance(codec, MPDD) and (config.downlink_bits is not None or config.secure is not None):
        return MPDD(codec.m, config.downlink_bits or 32, codec.family)
    return codec.at_round(round_number)


def stepped(flat: Tensor, data: bytes, codec: Codec, step: ServerStep, round_number: int) -> Tensor:
    """Return the model after a round, from the one before it and the round's bundle."""
    bundle = unpack_bundle(data, codec, flat.numel())
    return step(flat, bundle.estimate(str(flat.device)), round_number) if bundle.updates else flat


class Replica:
    """A model that follows a federation by its bundles: a client's, or one that is rebuilt from a journal."""

    def __init__(self, header: Header, device: str = "cpu") -> None:
        config = resolve_device(parse_config({**header.config, "device": device}))
        model, flat = models.build(
            config.model, header.shape, header.classes, init=config.init, seed=sampling.model_seed(config)
        )
        if model.d != header.d or model_sha256(flat) != header.model_sha256:
            raise JournalError(
                f"the initial model built here has hash {model_sha256(flat)[:16]}…, the journal's has "
                f"{header.model_sha256[:16]}…: another version of PyTorch, or of the model's code; begin with a model "
                "that was sent"
            )
        self.config = config
        self.flat = flat.to(config.device)
        self._codec = config.codec.build().for_shapes([tuple(shape) for shape in model.shapes])
        self._step = ServerStep(config.server, config.lr, model.d, config.device)
        self.next_round = 0

    def apply(self, data: bytes) -> None:
        """Go one round further."""
        k = self.next_round
        self.flat = stepped(self.flat, data, bundle_codec(self.config, self._codec, k), self._step, k)
        self.next_round = k + 1

    def catch_up(self, message: CatchUp) -> None:
        """Go on with what the server sent."""
        if message.vectors:
            expected = 1 + len(self._step.state)
            if len(message.vectors) != expected:
                raise ContentError(f"{len(message.vectors)} vectors came; the model and its optimiser are {expected}")
            model, *state = (tensor_of(vector.copy()).to(self.config.device) for vector in message.vectors)
            self.flat, self.next_round = model, message.round
            self._step.state.update(zip(self._step.state, state, strict=True))
            return
        if message.round != self.next_round:
            raise ContentError(
                f"bundles from round {message.round} on came, and the model here is that of round {self.next_round}; "
                "ask for a model"
            )
        for bundle in message.bundles:
            self.apply(bundle)

    def vectors(self) -> tuple[NDArray[np.float32], ...]:
        """The model, and what the server's optimiser keeps, for somebody who has neither."""
        return tuple(vector.cpu().numpy() for vector in (self.flat, *self._step.state.values()))

    @property
    def sha256(self) -> str:
        """The hash of the model as it is now."""
        return model_sha256(self.flat)


@dataclass(frozen=True)
class Replayed:
    """A model that was rebuilt, and whether every round on the way had the hash that the journal says."""

    flat: Tensor
    rounds: int
    matches: bool
    first_difference: int | None  # the first round whose model has another hash
    torn_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedmpdd replay --json` prints."""
        return {
            "rounds": self.rounds,
            "sha256": model_sha256(self.flat),
            "matches": self.matches,
            "first_difference": self.first_difference,
            "torn_bytes": self.torn_bytes,
        }


def write_model(path: Path, found: Replayed) -> None:
    """Write a model to a .safetensors file, its parameters one flat vector as in checkpoints."""
    metadata = {"next_round": str(found.rounds)}
    save_file({"model": found.flat.cpu().contiguous()}, path, metadata=metadata)


def replay(
    folder: Path,
    *,
    until: int | None = None,
    device: str = "cpu",
    on_progress: Callable[[str, float], None] | None = None,
) -> Replayed:
    """Rebuild the model of a run folder after all rounds of its journal, or after the first `until` of them."""
    different: int | None = None
    with JournalReader(folder / JOURNAL) as journal:
        replica = Replica(journal.header, device)
        if until != 0:
            for record in journal:
                try:
                    replica.apply(record.bundle)
                except WireError as error:  # the checksum holds: it was written so
                    raise JournalError(f"{journal.path}: round {record.round} cannot be decoded: {error}") from None
                if different is None and model_sha256(replica.flat) != record.model_sha256:
                    different = record.round
                if on_progress is not None:
                    on_progress(f"round {record.round}", journal.end / journal.size)
                if replica.next_round == until:
                    break
        if until is not None and replica.next_round < until:
            raise JournalError(
                f"{journal.path} holds {replica.next_round} rounds, and --until {until} is more; ask for at most those"
            )
        return Replayed(replica.flat, replica.next_round, different is None, different, journal.torn)
