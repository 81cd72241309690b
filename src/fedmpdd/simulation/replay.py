"""`fedmpdd replay`: the model of any round, from the journal alone, proved by its hash."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch import from_numpy as tensor_of

from fedmpdd.codecs import MPDD, Codec
from fedmpdd.errors import ContentError, JournalError, RunError, WireError
from fedmpdd.simulation import sampling
from fedmpdd.simulation.catch_up import CatchUp
from fedmpdd.simulation.config import RunConfig, parse_config
from fedmpdd.simulation.devices import resolve_device
from fedmpdd.simulation.journal import JOURNAL, Header, JournalReader
from fedmpdd.simulation.server import ServerStep
from fedmpdd.tasks import models
from fedmpdd.wire.bundle import unpack_bundle

ANOTHER_START = (
    "another kind of CPU (PyTorch's random numbers differ with its instruction set, and with ATEN_CPU_CAPABILITY), "
    "another version of PyTorch, or of the model's code"
)


def model_sha256(flat: Tensor) -> str:
    """SHA-256 of a flat float32 model, little-endian."""
    return hashlib.sha256(flat.cpu().numpy().astype("<f4", copy=False).tobytes()).hexdigest()


def bundle_codec(config: RunConfig, codec: Codec, round_number: int) -> Codec:
    """Return the codec of the updates in a round's bundle: the clients' own, or that of their mean."""
    if isinstance(codec, MPDD) and (config.mean_bits is not None or config.secure is not None):
        return MPDD(codec.m, config.mean_bits or 32, codec.family)
    return codec.at_round(round_number)


def stepped(flat: Tensor, data: bytes, codec: Codec, step: ServerStep, round_number: int) -> Tensor:
    """Return the model after a round, from the one before it and the round's bundle."""
    bundle = unpack_bundle(data, codec, flat.numel())
    return step(flat, bundle.estimate(str(flat.device)), round_number) if bundle.updates else flat


class Replica:
    """A model that follows a federation by its bundles: a client's, or one that is rebuilt from a journal."""

    def __init__(
        self,
        header: Header,
        device: str = "cpu",
        *,
        initial: NDArray[np.float32] | None = None,
        trust_imports: bool | str = False,
    ) -> None:
        """Begin before the first round.

        header: of the journal, or of a message. device: where to compute. initial: the parameters to begin with, from
        a journal that holds them; else they are made as the header says. trust_imports: whether the code that the
        header names as the model may be imported and called: True, or the one import path that may.
        """
        config = resolve_device(parse_config({**header.config, "device": device}))
        models.check_trust(config.model, "the journal", trust_imports)
        d = models.count_parameters(config.model, header.shape, header.classes)
        if d is not None and d != header.d:  # before any memory is taken for them
            raise JournalError(f"the journal is of {header.d} parameters, and {config.model} has {d}: it was changed")
        model, made = models.build(
            config.model, header.shape, header.classes, init=config.init, seed=sampling.model_seed(config)
        )
        flat = made if initial is None else tensor_of(initial)
        if model.d != header.d or model_sha256(flat) != header.model_sha256:
            raise JournalError(
                f"the initial model built here has {model.d} parameters and hash {model_sha256(flat)[:16]}…, the "
                f"journal's has {header.d} and {header.model_sha256[:16]}…: {ANOTHER_START}; begin with a model that "
                "was sent, or with a journal that holds the initial one"
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
    try:
        save_file({"model": found.flat.cpu().contiguous()}, path, metadata=metadata)
    except SafetensorError as error:
        raise RunError(f"--model {path} cannot be written: {error}; choose another place") from None


def replay(
    folder: Path,
    *,
    until: int | None = None,
    device: str = "cpu",
    on_progress: Callable[[str, float], None] | None = None,
    trust_imports: bool | str = False,
) -> Replayed:
    """Rebuild the model of a run folder after all rounds of its journal, or after the first `until` of them.

    folder: the run. device: where to compute. on_progress: called with words and the share that is done.
    trust_imports: whether the code that the journal names as its model may be imported and called: True, or the one
    import path that may. Models of this package need neither.
    """
    different: int | None = None
    with JournalReader(folder / JOURNAL) as journal:
        initial = journal.initial_model()
        replica = Replica(journal.header, device, initial=initial, trust_imports=trust_imports)
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
