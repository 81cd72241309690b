"""What an audit attacks: private images, the model they were used on, and what clients send of them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import from_numpy as tensor_of

from fedmpdd.codecs import Codec
from fedmpdd.directions import Key, derive_seed
from fedmpdd.errors import ConfigError, FedmpddError, RunError
from fedmpdd.imports import OBJECT, function_named, is_named, named_object, words_of
from fedmpdd.privacy import metrics
from fedmpdd.privacy.config import Audit
from fedmpdd.privacy.curvature import Curvature, curvature_of
from fedmpdd.privacy.images import ImageSet, images_named
from fedmpdd.privacy.leakage import entropy_bound
from fedmpdd.privacy.observation import Observation, Victim, observe, one_hot
from fedmpdd.privacy.priors import PublicImages
from fedmpdd.runs.folders import CHECKPOINT, read_checkpoint
from fedmpdd.runs.history import read_config
from fedmpdd.simulation import sampling
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.devices import resolve_device
from fedmpdd.tasks import models
from fedmpdd.tasks.batch_norm import without_statistics
from fedmpdd.tasks.data import DATASETS
from fedmpdd.tasks.losses import CrossEntropy, Loss, as_loss, logits_of
from fedmpdd.tasks.models import FlatModel
from fedmpdd.tasks.objective import Objective
from fedmpdd.tasks.stores import TensorStore
from fedmpdd.tasks.task import check_objective, make_model

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

    @cached_property
    def curvature(self) -> Curvature:
        """What the network does between images that anybody can have."""
        return curvature_of(self.victim, self.flat, torch.from_numpy(self.public.images))

    @property
    def pool_labels(self) -> NDArray[np.int64] | None:
        """The classes that decoys are of; None where there are none, and any image is a decoy."""
        return self.pool.labels if self.victim.targets is None else None

    def fingerprints(self) -> dict[str, str]:
        """Return SHA-256 of the private batches and of the model's parameters."""
        targets = b"" if self.victim.targets is None else self.victim.targets.cpu().numpy().tobytes()
        private = self.images.tobytes() + self.labels.tobytes() + targets
        parts = {"images": private, "parameters": self.flat.cpu().numpy().tobytes()}
        return {what: hashlib.sha256(part).hexdigest() for what, part in parts.items()}

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
    device = device_of(config)
    trained = None if asked.run is None else _config_of(Path(asked.run), audit)  # before any code of a user is imported
    images = images_named(config, data_dir)
    loss = CrossEntropy() if config.loss == "cross-entropy" else as_loss(function_named(config.loss, "loss"))
    model, flat = _model_of(config, images, loss)
    if asked.run is not None and trained is not None:
        flat = _trained(Path(asked.run), trained, flat)
    without_statistics(model.module)  # as clients train: by the batch, of which there is one for every guess
    model.module.to(device)
    flat = flat.to(device)
    count = asked.images * audit.batch
    if count > len(images.images):
        raise ConfigError(f"audit.images · batch = {count} is more than the {len(images.images)} examples there are")
    chosen = np.random.default_rng([asked.seed, 0]).choice(len(images.images), count, replace=False)
    victim = Victim(model, images.shape, images.classes or 1, images.mean, images.std)
    if config.dataset not in DATASETS:
        images = _with_labels(images, victim, flat, loss)
        victim = replace(victim, classes=_outputs_of(victim, flat, images.images[:1]).shape[1])
    if not isinstance(loss, CrossEntropy):
        victim = replace(victim, objective=Objective(model, loss))
    if images.targets is not None:  # a label is the number of a private image
        targets = images.targets[torch.from_numpy(chosen)].to(device)
        victim = replace(victim, classes=count, targets=targets)
    pool = PublicImages(
        images.images, np.zeros(len(images.images), np.int64) if images.labels is None else images.labels
    )
    public = _others(pool, chosen) if images.public is None else images.public
    private = np.arange(count) if images.labels is None else images.labels[chosen]
    case = Case(
        victim,
        flat,
        images.images[chosen].reshape(asked.images, audit.batch, *images.shape),
        private.reshape(asked.images, audit.batch),
        public,
        pool,
        entropy_bound(np.rint(images.images[:2000] * 255).astype(np.uint8)),
    )
    if config.dataset not in DATASETS or is_named(config.model) or victim.objective is not None:
        _try(case, audit)
    return case


def device_of(config: RunConfig) -> str:
    """Return where an audit computes: on a GPU only where one is asked for, for most problems are too small for it."""
    return resolve_device(config).device if config.device == "cuda" else "cpu"


def _model_of(config: RunConfig, images: ImageSet, loss: Loss) -> tuple[FlatModel, Tensor]:
    """The model at its start: of this package, by import path, or an object of this process."""
    seed = sampling.model_seed(config)
    if config.model.startswith(OBJECT):
        return make_model(named_object(config.model, "model"), config.init, seed)
    classes = images.classes
    if classes is None:
        classes = 10 if images.labels is None else max(2, int(images.labels.max()) + 1)
    checked = isinstance(loss, CrossEntropy) and images.classes is not None
    return models.build(config.model, images.shape, classes, init=config.init, seed=seed, gives_classes=checked)


def _outputs_of(victim: Victim, flat: Tensor, images: Float32) -> Tensor:
    """What the network makes of images, in a matrix."""
    with torch.no_grad():
        try:
            outputs = victim.model(flat, victim.inputs(torch.from_numpy(images).to(flat.device)))
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's model
            raise ConfigError(
                f"the model does not take images of shape {list(images.shape[1:])}: {words_of(error)}"
            ) from None
    return logits_of(outputs).reshape(len(images), -1)


def _with_labels(images: ImageSet, victim: Victim, flat: Tensor, loss: Loss) -> ImageSet:
    """Images of somebody's own with classes that the loss takes; those that the model sees where nobody gave any."""
    has_none = images.labels is None and images.targets is None
    if not isinstance(loss, CrossEntropy):
        if has_none:
            raise ConfigError("the images have no labels, and the loss needs targets; give labels=")
        return images
    logits = _outputs_of(victim, flat, images.images[:2])
    if images.targets is not None:
        CrossEntropy.check(logits, images.targets[:2])
    classes = logits.shape[1]
    if has_none:
        seen = [_outputs_of(victim, flat, part) for part in np.array_split(images.images, len(images.images) // 64 + 1)]
        images = replace(images, labels=torch.cat(seen).argmax(dim=1).cpu().numpy())
    assert images.labels is not None
    CrossEntropy.check(logits, torch.from_numpy(images.labels[: len(logits)]), images.labels)
    return replace(images, classes=classes)


def _others(pool: PublicImages, chosen: NDArray[np.int64]) -> PublicImages:
    """The images that are not attacked."""
    rest = np.delete(np.arange(len(pool.images)), chosen)
    if not len(rest):
        raise ConfigError(
            f"audit.images · batch = {len(chosen)} are all of the images, and an attacker knows others of their kind; "
            "attack fewer, or give others as public ones"
        )
    return PublicImages(pool.images[rest], pool.labels[rest])


def _try(case: Case, audit: Audit) -> None:
    """Find out before the first attack whether gradients of this model can be had, and be differentiated in images."""
    victim = case.victim
    if victim.objective is not None and audit.audit.labels == "found":
        raise ConfigError('audit.labels = "found" looks for classes of cross-entropy; with another loss they are known')
    images = torch.from_numpy(case.images[:1]).to(case.flat.device).requires_grad_()
    labels = one_hot(torch.from_numpy(case.labels[:1]).to(case.flat.device), victim.classes)
    if case.victim.targets is not None or audit.config.dataset not in DATASETS:
        objective = victim.objective or Objective(victim.model, CrossEntropy())
        first = torch.from_numpy(case.labels[:1].reshape(-1))
        targets = first if victim.targets is None else victim.targets.cpu()[first]
        inputs = victim.inputs(torch.from_numpy(case.images[0]))
        batch = (inputs.to(case.flat.device), targets.to(case.flat.device))
        check_objective(objective, case.flat, TensorStore(batch))
    try:
        gradients = victim.gradients(case.flat, images, labels)
        slopes = torch.autograd.grad(gradients.square().sum(), images, allow_unused=True)[0]
    except FedmpddError:
        raise
    except Exception as error:  # somebody else's model or loss
        raise ConfigError(f"the model or the loss cannot be attacked with these images: {words_of(error)}") from None
    if not bool(torch.isfinite(gradients).all()):
        raise ConfigError("the gradient of a private image holds NaN or infinity; look at the model and its loss")
    if slopes is None or not bool(slopes.any()):
        raise ConfigError("the gradient of the model does not depend on the image, as far as PyTorch can tell")


def _config_of(folder: Path, audit: Audit) -> RunConfig:
    """The config of a run that has the model and the data of the audit.

    The audit imports the model that its own config names, never one that only the folder does.
    """
    config = read_config(folder)
    if audit.config.model.startswith(OBJECT):  # whether it is that of the run shows in its parameters alone
        return config
    if config.model == audit.config.model and audit.config.dataset not in DATASETS:
        return config  # images of one's own on a model that was trained with others
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
