"""`fedmpdd replay`: the model of any round, from the journal alone, proved by its hash."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch import from_numpy as tensor_of

from fedmpdd.errors import ContentError, JournalError, RunError, WireError
from fedmpdd.imports import Trust, check_trust, import_paths, named_object
from fedmpdd.server.journal import JOURNAL, Header, JournalReader
from fedmpdd.server.replica import Replica
from fedmpdd.server.step import OPTIMISERS, Step
from fedmpdd.simulation import sampling
from fedmpdd.simulation.catch_up import CatchUp
from fedmpdd.simulation.config import RunConfig, parse_config
from fedmpdd.simulation.devices import resolve_device
from fedmpdd.simulation.links import bundle_codecs, codecs_of
from fedmpdd.tasks import models
from fedmpdd.tasks.models import FlatModel
from fedmpdd.torch.frozen import FROZEN, check_frozen, frozen_sha256
from fedmpdd.torch.step import TorchStep

_UNUSED = ("dataset", "loss", "metrics", "model")  # keys whose code a replay without the model does not call

ANOTHER_START = (
    "another kind of CPU (PyTorch's random numbers differ with its instruction set, and with ATEN_CPU_CAPABILITY), "
    "another version of PyTorch, or of the model's code"
)


def model_sha256(flat: Tensor) -> str:
    """SHA-256 of a flat float32 model, little-endian."""
    return hashlib.sha256(flat.cpu().numpy().astype("<f4", copy=False).tobytes()).hexdigest()


def replica_at(flat: Tensor, config: RunConfig, shapes: Sequence[torch.Size] = ()) -> Replica[Any]:
    """Return the server's model before the first round: an array, or a tensor where PyTorch or a GPU steps.

    shapes: of the parameters, for an optimiser of PyTorch.
    """
    if config.server.optimiser not in OPTIMISERS and not config.is_followed:
        factory = named_object(config.server.optimiser, "server.optimiser")
        step: Any = TorchStep(factory, config.lr, shapes, config.schedule)
        return Replica(flat.to(config.device), step)
    vector: Any = flat.to(config.device) if config.device == "cuda" else flat.numpy()
    zeros = (lambda: vector.new_zeros(vector.shape)) if config.device == "cuda" else (lambda: np.zeros_like(vector))
    return Replica(vector, Step(config.server, config.lr, zeros, config.schedule))


class JournalReplica:
    """A model that follows a federation by its bundles: a client's, or one that is rebuilt from a journal."""

    def __init__(
        self,
        header: Header,
        device: str = "cpu",
        *,
        initial: NDArray[np.float32] | None = None,
        trust_imports: Trust = False,
    ) -> None:
        """Begin before the first round.

        header: of the journal, or of a message. device: where to compute. initial: the parameters to begin with, from
        a journal that holds them; else they are made as the header says. With them, of a frozen model only its hash is
        known, and the model is not made unless the codec knows the shapes of its matrices. trust_imports: whether the
        code that the header names as the model may be imported and called: True, or the one import path that may.
        """
        # What is trained of a frozen model follows from the journal alone, unless the codec knows matrices.
        is_enough = initial is not None and header.frozen_sha256 is not None
        _check_trust(header, trust_imports, _UNUSED if is_enough else ())
        config = resolve_device(parse_config({**header.config, "device": device}))
        config.check_trainable()
        codecs = tuple(dict.fromkeys(one.codec.build() for one in config.of_links))
        if initial is None or not is_enough or codecs_of(config, [(header.d,)]) != codecs:
            _check_trust(header, trust_imports)
            model, made = _model_of(header, config)
            codecs = codecs_of(config, model.shapes)
            initial = made.numpy() if initial is None else initial
        flat = tensor_of(initial)
        if flat.numel() != header.d or model_sha256(flat) != header.model_sha256:
            raise JournalError(
                f"the initial model built here has {flat.numel()} parameters and hash {model_sha256(flat)[:16]}…, the "
                f"journal's has {header.d} and {header.model_sha256[:16]}…: {ANOTHER_START}; begin with a model that "
                "was sent, or with a journal that holds the initial one"
            )
        self.config = config
        self._codecs = codecs
        self._replica = replica_at(flat, config)

    @property
    def flat(self) -> Tensor:
        """The model's parameters."""
        flat: Any = self._replica.flat
        return tensor_of(flat) if isinstance(flat, np.ndarray) else flat

    @property
    def next_round(self) -> int:
        """The number of the next round."""
        return self._replica.next_round

    def apply(self, data: bytes) -> None:
        """Go one round further."""
        self._replica.apply(data, bundle_codecs(self.config, self._codecs, self.next_round))

    def catch_up(self, message: CatchUp) -> None:
        """Go on with what the server sent."""
        if message.vectors:
            expected = len(self._replica.vectors)
            if len(message.vectors) != expected:
                raise ContentError(f"{len(message.vectors)} vectors came; the model and its optimiser are {expected}")
            vectors = (replica_at(tensor_of(vector.copy()), self.config).flat for vector in message.vectors)
            self._replica.load(tuple(vectors), message.round)
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
        return tuple(np.asarray(torch.as_tensor(vector).cpu()) for vector in self._replica.vectors)

    @property
    def sha256(self) -> str:
        """The hash of the model as it is now."""
        return model_sha256(self.flat)


def _check_trust(header: Header, trust_imports: Trust, unused: Sequence[str] = ()) -> None:
    """Raise RunError where code would be imported that nobody asked for; nothing of `unused` keys will be."""
    paths = {key: text for key, text in import_paths(header.config).items() if key.split(".")[0] not in unused}
    if isinstance(trust_imports, Mapping):
        trust_imports = {key: text for key, text in trust_imports.items() if key.split(".")[0] not in unused}
    check_trust(paths, "the journal", trust_imports)


def _model_of(header: Header, config: RunConfig) -> tuple[FlatModel, Tensor]:
    """The model that a header names, made here, with its first parameters."""
    d = models.count_parameters(config.model, header.shape, header.classes)
    if d is not None and d != header.d:  # before any memory is taken for them
        raise JournalError(f"the journal is of {header.d} parameters, and {config.model} has {d}: it was changed")
    model, flat = models.build(
        config.model,
        header.shape if header.classes > 1 else None,
        header.classes,
        init=config.init,
        seed=sampling.model_seed(config),
        gives_classes=config.loss == "cross-entropy",
    )
    if model.d != header.d:
        raise JournalError(
            f"the model built here has {model.d} parameters, the journal's has {header.d}: {ANOTHER_START}"
        )
    check_frozen(header.frozen_sha256, frozen_sha256(model.module, model.names), "the journal")
    return model, flat


@dataclass(frozen=True)
class Replayed:
    """A model that was rebuilt, and whether every round on the way had the hash that the journal says."""

    flat: Tensor
    rounds: int
    matches: bool
    first_difference: int | None  # the first round whose model has another hash
    torn_bytes: int
    frozen_sha256: str | None = None  # of what is not trained, which is not in the journal

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedmpdd replay --json` prints."""
        return {
            "rounds": self.rounds,
            "sha256": model_sha256(self.flat),
            "matches": self.matches,
            "first_difference": self.first_difference,
            "torn_bytes": self.torn_bytes,
        }


def write_model(path: Path, replayed: Replayed) -> None:
    """Write a model to a .safetensors file, its parameters one flat vector as in checkpoints."""
    metadata = {"next_round": str(replayed.rounds)}
    if replayed.frozen_sha256 is not None:
        metadata[FROZEN] = replayed.frozen_sha256
    try:
        save_file({"model": replayed.flat.cpu().contiguous()}, path, metadata=metadata)
    except SafetensorError as error:
        raise RunError(f"--model {path} cannot be written: {error}; choose another place") from None


def replay(
    folder: Path,
    *,
    until: int | None = None,
    device: str = "cpu",
    on_progress: Callable[[str, float], None] | None = None,
    trust_imports: Trust = False,
) -> Replayed:
    """Rebuild the model of a run folder after all rounds of its journal, or after the first `until` of them.

    folder: the run. device: where to compute. on_progress: called with words and the share that is done.
    trust_imports: whether the code that the journal names as its model may be imported and called: True, or the one
    import path that may. Models of this package need neither.
    """
    different: int | None = None
    with JournalReader(folder / JOURNAL) as journal:
        initial = journal.initial_model()
        replica = JournalReplica(journal.header, device, initial=initial, trust_imports=trust_imports)
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
        frozen = journal.header.frozen_sha256
        return Replayed(replica.flat, replica.next_round, different is None, different, journal.torn, frozen)
