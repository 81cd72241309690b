"""What an audit attacks: private images, the model they were used on, and what clients send of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch import from_numpy as tensor_of

from fedmpdd.codecs import Codec
from fedmpdd.directions import Key, derive_seed
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.privacy import metrics
from fedmpdd.privacy.config import Audit
from fedmpdd.privacy.leakage import entropy_bound
from fedmpdd.privacy.observation import Observation, Victim, observe
from fedmpdd.privacy.priors import PublicImages
from fedmpdd.runs.folders import CHECKPOINT, read_checkpoint
from fedmpdd.runs.history import read_config
from fedmpdd.simulation import sampling
from fedmpdd.simulation.config import RunConfig
from fedmpdd.tasks import models
from fedmpdd.tasks.data import load

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """The private batches, the model they were used on, and what everybody knows."""

    victim: Victim
    flat: Tensor
    images: Float32  # [problems, batch, channels, height, width], in [0, 1]
    labels: NDArray[np.int64]  # [problems, batch]
    public: PublicImages
    pool: PublicImages  # the private dataset, from which decoys for linkage are drawn
    bits_per_image: float

    @property
    def guesses(self) -> dict[str, list[float]]:
        """SSIM per image of what needs no update: black, the mean image, the mean image of the right class."""
        mean = self.public.mean()
        result: dict[str, list[float]] = {"zero": [], "mean": [], "class mean": []}
        for image, label in self._each():
            for name, guess in zip(
                result, (np.zeros_like(image), mean, self.public.class_mean(int(label))), strict=True
            ):
                result[name].append(metrics.ssim(guess, image))
        return result

    def codec(self, audit: Audit, text: str) -> Codec:
        """Return a codec of the audit, for the model of this case, with its schedule if it has one."""
        return audit.codec(text).for_shapes([tuple(shape) for shape in self.victim.model.shapes])

    def _each(self) -> Iterator[tuple[Float32, int]]:
        for images, labels in zip(self.images, self.labels, strict=True):
            yield from zip(images, labels, strict=True)


def make_case(audit: Audit, data_dir: Path | None = None) -> Case:
    """Load data and model, and choose the private images."""
    config, asked = audit.config, audit.audit
    trained = None if asked.run is None else _config_of(Path(asked.run), audit)  # before any code of a user is imported
    dataset = load(config.dataset, data_dir)
    shape = dataset.train.images.shape[1:]
    model, flat = models.build(
        config.model,
        (shape[0], shape[1], shape[2]),
        dataset.classes,
        init=config.init,
        seed=sampling.model_seed(config),
    )
    if asked.run is not None and trained is not None:
        flat = _trained(Path(asked.run), trained, flat)
    normalised = config.pixels == "normalised"
    victim = Victim(
        model,
        (shape[0], shape[1], shape[2]),
        dataset.classes,
        dataset.mean if normalised else (0.0,) * shape[0],
        dataset.std if normalised else (1.0,) * shape[0],
    )
    private, public = (
        PublicImages((part.images / np.float32(255)).astype(np.float32), part.labels)
        for part in (dataset.train, dataset.test)
    )
    count = asked.images * audit.batch
    if count > len(private.labels):
        raise ConfigError(f"audit.images · batch = {count} is more than the {len(private.labels)} examples there are")
    chosen = np.random.default_rng([asked.seed, 0]).choice(len(private.labels), count, replace=False)
    return Case(
        victim,
        flat,
        private.images[chosen].reshape(asked.images, audit.batch, *shape),
        private.labels[chosen].reshape(asked.images, audit.batch),
        public,
        private,
        entropy_bound(dataset.train.images[:2000]),
    )


def _config_of(folder: Path, audit: Audit) -> RunConfig:
    """The config of a run that has the model and the data of the audit.

    The audit imports the model that its own config names, never one that only the folder does.
    """
    config = read_config(folder)
    if (config.model, config.dataset) != (audit.config.model, audit.config.dataset):
        raise ConfigError(
            f"audit.run = {str(folder)!r} trained {config.model} on {config.dataset}, but the audit is of "
            f"{audit.config.model} on {audit.config.dataset}; if you trust the folder, give model={config.model} "
            f"dataset={config.dataset}"
        )
    return config


def _trained(folder: Path, config: RunConfig, initial: Tensor) -> Tensor:
    """The model of a run's newest checkpoint."""
    path = folder / CHECKPOINT
    if not path.is_file():
        raise RunError(f"{folder} has no checkpoint; train it first")
    checkpoint = read_checkpoint(path, config, initial.numel())
    if "model" not in checkpoint.vectors:
        raise RunError(f"{path} holds no model; train the run again")
    return tensor_of(checkpoint.vectors["model"])


def observations_of(audit: Audit, case: Case, text: str) -> list[Observation]:
    """Let every client encode its batch; what comes back is all that attacks see."""
    codec = case.codec(audit, text).largest()
    rounds = audit.audit.rounds
    return [
        observe(
            case.victim,
            [case.flat] * rounds,
            codec,
            [Key(derive_seed(audit.audit.seed, r, client)) for r in range(rounds)],
            images,
            labels,
            grant_labels=audit.audit.labels == "known",
            protection=audit.protection(text),
            noise=[np.random.default_rng([audit.audit.seed, 1, client, r]) for r in range(rounds)],
        )
        for client, (images, labels) in enumerate(zip(case.images, case.labels, strict=True))
    ]
