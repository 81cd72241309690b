"""`fedmpdd audit`: every attack on every codec, on the same private images, with controls and a verdict.

    AUDIT/config.json            the run's config and the audit's
    AUDIT/cells/NAME.npz         one attack on one codec of one model: images, numbers, history; written when done
    AUDIT/results.json           rows, verdicts, meters
    AUDIT/index.html             the page
    AUDIT/MODEL.png              all reconstructions, a line per row of the results

A cell that is there is not attacked again, so that an audit that was stopped goes on where it was.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedmpdd import models
from fedmpdd.data import load
from fedmpdd.directions import Key, derive_seed
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.federation import sampling
from fedmpdd.federation.devices import reproducible_arithmetic
from fedmpdd.federation.engine import partition_of
from fedmpdd.federation.runs import CHECKPOINT, FolderLock, read_config, write_atomically, write_json
from fedmpdd.privacy import metrics
from fedmpdd.privacy.attacks import ATTACKS, Reconstruction, Setting
from fedmpdd.privacy.config import Audit
from fedmpdd.privacy.linkage import linkage
from fedmpdd.privacy.meter import entropy_bound, meter, revealed_bits
from fedmpdd.privacy.observation import Observation, Victim, observe
from fedmpdd.privacy.priors import PublicImages
from fedmpdd.privacy.verdicts import Evidence, sentence, strongest, verdict

CONFIG, RESULTS, CELLS, PAGE = "config.json", "results.json", "cells", "index.html"
CONTROL = "fedsgd"
Float32 = NDArray[np.float32]
OnProgress = Callable[[str, float], None]  # the cell at work, and how much of the whole audit is done


@dataclass(frozen=True)
class Scene:
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

    def _each(self) -> Iterator[tuple[Float32, int]]:
        for images, labels in zip(self.images, self.labels, strict=True):
            yield from zip(images, labels, strict=True)


@dataclass(frozen=True)
class Row:
    """One attack on one codec; numbers are medians over images unless they say otherwise."""

    model: str
    codec: str
    attack: str
    ssim: float
    control_ssim: float
    class_mean_ssim: float
    mse: float
    psnr: float
    labels_found: float  # share
    linkage: float | None  # share of images found among 100 of their class
    truth_fits_better: float  # share of problems where the optimiser was stuck
    bits_revealed: int
    verdict: str
    sentence: str
    ssim_each: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


def set_scene(audit: Audit, data_dir: Path | None = None) -> Scene:
    """Load data and model, and choose the private images."""
    config, own = audit.config, audit.audit
    dataset = load(config.dataset, data_dir)
    shape = dataset.train.images.shape[1:]
    model, flat = models.build(
        config.model,
        (shape[0], shape[1], shape[2]),
        dataset.classes,
        init=config.init,
        seed=sampling.model_seed(config),
    )
    if own.run is not None:
        flat = _trained(Path(own.run), audit, flat)
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
    count = own.images * audit.batch
    if count > len(private.labels):
        raise ConfigError(f"audit.images · batch = {count} is more than the {len(private.labels)} examples there are")
    chosen = np.random.default_rng([own.seed, 0]).choice(len(private.labels), count, replace=False)
    return Scene(
        victim,
        flat,
        private.images[chosen].reshape(own.images, audit.batch, *shape),
        private.labels[chosen].reshape(own.images, audit.batch),
        public,
        private,
        entropy_bound(dataset.train.images[:2000]),
    )


def _trained(folder: Path, audit: Audit, initial: Tensor) -> Tensor:
    """The model of a run's newest checkpoint."""
    config = read_config(folder)
    if (config.model, config.dataset) != (audit.config.model, audit.config.dataset):
        raise ConfigError(
            f"audit.run = {str(folder)!r} trained {config.model} on {config.dataset}, but the audit is of "
            f"{audit.config.model} on {audit.config.dataset}"
        )
    try:
        with safe_open(folder / CHECKPOINT, framework="pt") as file:
            flat: Tensor = file.get_tensor("model")
    except (SafetensorError, OSError) as error:
        raise RunError(f"{folder} has no checkpoint that can be read: {error}; train it first") from None
    if flat.shape != initial.shape:
        raise ConfigError(f"audit.run = {str(folder)!r} has {len(flat)} parameters, the model here {len(initial)}")
    return flat


def observations_of(audit: Audit, scene: Scene, text: str) -> list[Observation]:
    """Let every client encode its batch; what comes back is all that attacks see."""
    codec = audit.codec(text).for_shapes([tuple(shape) for shape in scene.victim.model.shapes])
    rounds = audit.audit.rounds
    return [
        observe(
            scene.victim,
            [scene.flat] * rounds,
            codec,
            [Key(derive_seed(audit.audit.seed, r, client)) for r in range(rounds)],
            images,
            labels,
            grant_labels=audit.audit.labels == "known",
            protection=audit.protection(text),
            noise=[np.random.default_rng([audit.audit.seed, 1, client, r]) for r in range(rounds)],
        )
        for client, (images, labels) in enumerate(zip(scene.images, scene.labels, strict=True))
    ]


@dataclass(frozen=True)
class Section:
    """One model's share of the results, with what the page shows of it."""

    audit: Audit
    scene: Scene
    guesses: dict[str, list[float]]
    cells: dict[tuple[str, str], dict[str, Any]]  # by codec and attack
    rows: list[Row]


def run_audit(
    audit: Audit, folder: Path, data_dir: Path | None = None, progress: OnProgress | None = None, jobs: int = 1
) -> dict[str, Any]:
    """Attack everything that is not attacked yet, and write results and page. Returns the results.

    jobs: how many processes attack at a time; the results are the same.
    """
    audits = audit.by_model()
    scenes = [set_scene(own, data_dir) for own in audits]  # before anything is written: they may refuse the config
    lock = _take(folder, audit)
    if jobs > 1:
        _attack_apart(audits, folder, data_dir, progress, jobs)
    sections = []
    for number, (own, scene) in enumerate(zip(audits, scenes, strict=True)):

        def report(name: str, share: float, number: int = number) -> None:
            if progress is not None:
                progress(name, (number + share) / len(audits))

        sections.append(_section(own, scene, folder, report))
    results = {
        "rows": [row.as_dict() for section in sections for row in section.rows],
        "codecs": [
            _codec_summary(section.audit, section.scene, text, section.rows)
            for section in sections
            for text in section.audit.codec_texts()
        ],
        "guesses": {
            section.audit.config.model: {name: median(values) for name, values in section.guesses.items()}
            for section in sections
        },
        "config": audit.model_dump(mode="json"),
    }
    write_json(folder / RESULTS, results)
    from fedmpdd.privacy.page import picture, write_page

    write_page(folder / PAGE, results, sections)
    for section in sections:
        (folder / f"{_file_name(section.audit.config.model)}.png").write_bytes(picture(section))
    del lock
    return results


def is_attacked(audit: Audit, folder: Path) -> bool:
    """Return whether all attacks of an audit, and those on its control, were made in this folder."""
    return all(
        _cell_path(folder, own, text, attack).is_file() for own in audit.by_model() for text, attack in _cells_of(own)
    )


def _attack_apart(
    audits: list[Audit], folder: Path, data_dir: Path | None, progress: OnProgress | None, jobs: int
) -> None:
    """Make the cells that are missing, each in a process that is busy with no other one."""
    todo = [
        (own, text, attack)
        for own in audits
        for text, attack in _cells_of(own)
        if not _cell_path(folder, own, text, attack).is_file()
    ]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:  # a fork would take PyTorch's threads with it
        begun = {
            pool.submit(_make_cell, own, text, attack, folder, data_dir): f"{own.config.model}, {attack} on {text}"
            for own, text, attack in todo
        }
        try:
            for done, future in enumerate(as_completed(begun), start=1):
                future.result()
                if progress is not None:
                    progress(begun[future], done / len(begun))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _make_cell(audit: Audit, text: str, attack: str, folder: Path, data_dir: Path | None) -> None:
    """Make one cell in a process of its own; scenes are the same wherever they are set."""
    with reproducible_arithmetic(audit.config.model_copy(update={"device": "cpu"})):
        _attack(
            audit, set_scene(audit, data_dir), text, attack, _cell_path(folder, audit, text, attack), lambda _: None
        )


def _cells_of(audit: Audit) -> list[tuple[str, str]]:
    return [(text, attack) for text in audit.codec_texts() for attack in audit.audit.attacks]


def _cell_path(folder: Path, audit: Audit, text: str, attack: str) -> Path:
    return folder / CELLS / f"{_file_name(audit.config.model)}-{_file_name(text)}-{attack}.npz"


def _section(audit: Audit, scene: Scene, folder: Path, progress: OnProgress) -> Section:
    todo = _cells_of(audit)
    guesses = scene.guesses
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for number, (text, attack) in enumerate(todo):

        def report(share: float, number: int = number, name: str = f"{attack} on {text}") -> None:
            progress(f"{audit.config.model}, {name}", (number + share) / len(todo))

        report(0.0)
        # Problems are small: more threads of PyTorch would only wait for each other, and change last bits.
        path = _cell_path(folder, audit, text, attack)
        if not path.is_file():
            with reproducible_arithmetic(audit.config.model_copy(update={"device": "cpu"})):
                _attack(audit, scene, text, attack, path, report)
        with np.load(path) as stored:
            cells[text, attack] = {name: stored[name] for name in stored.files}
    rows = [_row(audit, scene, text, attack, cells, guesses["class mean"]) for text, attack in todo]
    progress(audit.config.model, 1.0)
    return Section(audit, scene, guesses, cells, rows)


def _take(folder: Path, audit: Audit) -> FolderLock:
    """Make the folder, or go on in one that belongs to the same audit."""
    document = audit.model_dump(mode="json")
    path = folder / CONFIG
    if path.is_file():
        try:
            # Read as an audit, so that keys which did not exist then have the values that were meant.
            before = Audit.model_validate(json.loads(path.read_text(encoding="utf-8"))).model_dump(mode="json")
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}; choose another --out") from None
        # More codecs or attacks may join; whatever changes a number may not.
        for one in (before, document):
            one["audit"] = {
                key: value for key, value in one["audit"].items() if key not in ("codecs", "attacks", "models")
            }
            one["config"] = {key: value for key, value in one["config"].items() if key not in ("codec", "model")}
        if before != document:
            raise RunError(f"{folder} holds an audit with other settings; choose another --out, or delete it")
    elif folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} exists and is not an audit; choose another --out")
    (folder / CELLS).mkdir(parents=True, exist_ok=True)
    write_json(path, audit.model_dump(mode="json"))
    return FolderLock(folder)


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


def _attack(audit: Audit, scene: Scene, text: str, name: str, path: Path, report: Callable[[float], None]) -> None:
    """Make one cell."""
    observations = observations_of(audit, scene, text)
    codec = observations[0].sights[0].codec
    protection = observations[0].sights[0].protection
    noisy = protection is not None and protection.noise_deviation > 0
    setting = Setting(audit.config.model, codec, audit.audit.rounds, noisy, scene.public, audit.audit.effort)
    attack = ATTACKS[name](setting)
    start = time.perf_counter()
    found = attack.run(observations, seed=audit.audit.seed, progress=report)
    seconds = time.perf_counter() - start
    ordered = _ordered(found, scene)
    truth = attack.losses_at(observations, scene.images, scene.labels)
    linked = linkage(
        observations, scene.images, scene.labels, scene.pool.images, scene.pool.labels, seed=audit.audit.seed
    )
    each = [
        (metrics.ssim(a, b), metrics.mse(a, b), metrics.psnr(a, b))
        for guess, true in zip(ordered.images, scene.images, strict=True)
        for a, b in zip(guess, true, strict=True)
    ]
    history = [[snapshot.iteration, median(_ssims(snapshot.images, scene.images))] for snapshot in ordered.history]
    arrays: dict[str, Any] = {
        "images": ordered.images,
        "labels": ordered.labels,
        "losses": found.losses,
        "truth": truth,
        "each": np.array(each),
        "history": np.array(history),
        "linkage": np.array(np.nan if linked is None else linked),
        "seconds": np.array(seconds),
    }

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_atomically(path, write)


def _ssims(found: Float32, truth: Float32) -> list[float]:
    return [
        metrics.ssim(a, b) for guess, true in zip(found, truth, strict=True) for a, b in zip(guess, true, strict=True)
    ]


def _ordered(found: Reconstruction, scene: Scene) -> Reconstruction:
    """Put the images of each batch in the order of the true ones: an attacker cannot know it and need not."""
    orders = [metrics.best_order(a, b) for a, b in zip(found.images, scene.images, strict=True)]

    def sort(values: NDArray[Any]) -> NDArray[Any]:
        return np.stack([own[order] for own, order in zip(values, orders, strict=True)])

    return Reconstruction(
        sort(found.images),
        sort(found.labels),
        found.losses,
        tuple(snapshot._replace(images=sort(snapshot.images)) for snapshot in found.history),
    )


def _row(
    audit: Audit,
    scene: Scene,
    text: str,
    attack: str,
    cells: dict[tuple[str, str], dict[str, Any]],
    class_mean: list[float],
) -> Row:
    cell, control = cells[text, attack], cells[CONTROL, attack]
    ssim, control_ssim = cell["each"][:, 0].tolist(), control["each"][:, 0].tolist()
    # A hair's breadth is no better fit: both losses end in rounding errors.
    better = cell["truth"] < 0.999 * cell["losses"] - 1e-12
    found = verdict(Evidence(ssim, class_mean, control_ssim, better.tolist()))
    numbers = (median(ssim), median(class_mean), median(control_ssim))
    linked = float(cell["linkage"])
    codec = audit.codec(text).for_shapes([tuple(shape) for shape in scene.victim.model.shapes])
    return Row(
        model=audit.config.model,
        codec=text,
        attack=attack,
        ssim=numbers[0],
        control_ssim=numbers[2],
        class_mean_ssim=numbers[1],
        mse=float(np.median(cell["each"][:, 1])),
        psnr=float(min(np.median(cell["each"][:, 2]), 200.0)),
        labels_found=float((cell["labels"] == scene.labels).mean()),
        linkage=None if np.isnan(linked) else linked,
        truth_fits_better=float(better.mean()),
        bits_revealed=audit.audit.rounds * revealed_bits(codec, len(scene.flat)),
        verdict=found,
        sentence=sentence(text, attack, found, *numbers),
        ssim_each=ssim,
        seconds=float(cell["seconds"]),
    )


def _codec_summary(audit: Audit, scene: Scene, text: str, rows: list[Row]) -> dict[str, Any]:
    own = [row for row in rows if row.codec == text]
    config = audit.config
    codec = audit.codec(text).for_shapes([tuple(shape) for shape in scene.victim.model.shapes])
    partition = partition_of(config, scene.pool.labels)
    some = range(min(config.clients, 100))
    count = meter(
        codec,
        len(scene.flat),
        rounds=config.rounds,
        participation=config.per_round / config.clients,
        examples_per_client=float(np.mean([partition.examples_of(client).size for client in some])),
        bits_per_example=scene.bits_per_image,
    )
    return {
        "model": config.model,
        "codec": text,
        "verdict": strongest([row.verdict for row in own]),
        "meter": count.as_dict(),
    }
