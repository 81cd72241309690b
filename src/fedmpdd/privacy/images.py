"""Images to attack: of a dataset of this package, or somebody's own, in arrays, a dataset of PyTorch or a folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.errors import ConfigError, DataError, MissingDependencyError
from fedmpdd.imports import named_object, quote, words_of
from fedmpdd.pages.audits import IMAGE_FOLDER
from fedmpdd.privacy.priors import PublicImages
from fedmpdd.simulation.config import RunConfig
from fedmpdd.tasks.data import DATASETS, Dataset, load
from fedmpdd.tasks.stores import Batch, Store, as_store
from fedmpdd.tasks.task import Task

Float32 = NDArray[np.float32]

MOST_IMAGES = 2_000  # of somebody's own that are read: enough to choose from, and for an attacker to learn from
SMALLEST_SIDE = 11  # of an image: the window of SSIM
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class ImageSet:
    """Images that clients may hold, and what an attacker knows of their kind.

    Attributes:
        name: what pages call them.
        images: [examples, channels, height, width], in [0, 1].
        labels: classes, one each; None where nobody gave any.
        public: what an attacker knows; None for those of the images that are not attacked.
        classes: how many there are; None where the model says it.
        mean: inputs of the model are (pixel − mean) / std, by channel.
        std: likewise.
        targets: of a loss that takes no classes, one each.

    """

    name: str
    images: Float32
    labels: NDArray[np.int64] | None
    public: PublicImages | None
    classes: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    targets: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def __name__(self) -> str:  # which configs of this process call it by
        return self.name


def images_named(config: RunConfig, data_dir: Path | None = None) -> ImageSet:
    """Return the images that a config names: a dataset of this package, or what an import path or object leads to."""
    if config.dataset in DATASETS:
        return _of_dataset(load(config.dataset, data_dir), config.pixels)
    value = named_object(config.dataset, "dataset")
    try:
        value = value() if callable(value) and not isinstance(value, Store | ImageSet) else value
    except (KeyboardInterrupt, DataError, MissingDependencyError):
        raise
    except BaseException as error:  # somebody else's code
        raise ConfigError(f"dataset = {config.dataset!r} cannot be loaded: {words_of(error)}") from None
    if isinstance(value, ImageSet):
        return value
    if isinstance(value, Dataset):
        return _of_dataset(value, config.pixels)
    if isinstance(value, Task):
        return as_images(value.clients.store, public=value.test)
    if isinstance(value, dict) and {"train", "test"} <= set(value):
        return as_images(value["train"], public=value["test"])
    if isinstance(value, tuple) and len(value) == 2 and getattr(value[1], "ndim", 3) > 2:  # else images and labels
        return as_images(value[0], public=value[1])
    return as_images(value)


def image_folder(
    path: str | Path,
    size: int | Sequence[int] | None = None,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
) -> ImageSet:
    """Return the pictures of a folder: a class per folder in it, or none at all.

    Args:
        path: of the folder.
        size: height and width to scale to, or one number for both; pictures of different sizes need it.
        mean: inputs of the model are (pixel − mean) / std, per channel or one for all.
        std: likewise.

    Example:
        >>> image_folder("photos", size=32).images.shape  # doctest: +SKIP
        (12, 3, 32, 32)

    """
    images, labels = read_folder(Path(path), size)
    return as_images(images, labels, name=Path(path).name or str(path), mean=mean, std=std)


def folder_named(path: Path, size: int | None = None) -> str:
    """Return the text by which a config names the pictures of a folder."""
    return f"{IMAGE_FOLDER}({path.as_posix()!r}{'' if size is None else f', size={size}'})"


def as_images(
    data: Any,
    labels: Any = None,
    *,
    public: Any = None,
    name: str = "images",
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    size: int | Sequence[int] | None = None,
) -> ImageSet:
    """Return somebody's images as an audit attacks them.

    Args:
        data: an array or tensor [images, channels, height, width] or [images, height, width], a tuple of one and its
            labels, a dataset of PyTorch or Hugging Face, or a folder of pictures. Bytes are divided by 255. Floats are
            inputs of the model as they are.
        labels: one each, where the data have none.
        public: other images of the kind, in any of these forms, which an attacker knows.
        name: what pages call them.
        mean: inputs of the model are (pixel − mean) / std, per channel or one for all.
        std: likewise.
        size: of the pictures of a folder.

    """
    if isinstance(data, ImageSet) and labels is None and public is None and mean is None and std is None:
        return data
    images, targets, places = _arrays(data, size)
    if labels is not None:
        targets = _labels(labels, int(places[-1]) + 1)[torch.from_numpy(places)]  # the last image is always read
    known, known_labels = (None, None) if public is None else _arrays(public, size)[:2]
    if known is not None and known.shape[1:] != images.shape[1:]:
        raise DataError(f"public images of shape {list(known.shape[1:])} came for images of {list(images.shape[1:])}")
    channels = images.shape[1]
    if mean is None and std is None:
        images, known, offset, scale = _in_a_box(images, known)
        means, deviations = (offset,) * channels, (scale,) * channels
    else:
        _check_box(images, known)
        means, deviations = _per_channel(mean, 0.0, channels, "mean"), _per_channel(std, 1.0, channels, "std")
    classes, targets = _parted(targets, len(images))
    attacker = None
    if known is not None:
        known_classes, _ = _parted(known_labels, len(known))
        attacker = PublicImages(known, np.full(len(known), -1) if known_classes is None else known_classes)
    return ImageSet(name, images, classes, attacker, None, means, deviations, targets)


def read_folder(path: Path, size: int | Sequence[int] | None = None) -> tuple[Any, NDArray[np.int64] | None]:
    """Return the pictures of a folder as bytes [images, channels, height, width], and their classes if it has some."""
    if not path.is_dir():
        raise DataError(f"{path} is no folder; expected one with pictures, or with a folder of them for every class")
    classes = sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith("."))
    by_class = [(number, file) for number, inner in enumerate(classes) for file in _pictures_in(inner)]
    files = by_class or [(-1, file) for file in _pictures_in(path)]
    if not files:
        kinds = ", ".join(PICTURES[:4])
        raise DataError(f"{path} holds no pictures, nor do folders in it; expected files such as {kinds}")
    files = [files[place] for place in _some(len(files))]
    pictures = [_read_picture(file, size) for _, file in files]
    channels = max(picture.shape[0] for picture in pictures)
    pictures = [np.repeat(picture, channels, axis=0) if len(picture) < channels else picture for picture in pictures]
    for (_, file), picture in zip(files, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            sides = " and ".join(" × ".join(map(str, each.shape[1:])) for each in (pictures[0], picture))
            raise DataError(
                f"pictures of {sides} came ({files[0][1].name} and {file.name}); give one size for all, like size=32"
            )
    return np.stack(pictures), np.array([number for number, _ in files]) if by_class else None


# ------------------------------------------------------------------------------------------------------ parts


def _of_dataset(dataset: Dataset, pixels: str) -> ImageSet:
    channels = dataset.train.images.shape[1]
    normalised = pixels == "normalised"
    private, public = (
        PublicImages((part.images / np.float32(255)).astype(np.float32), part.labels)
        for part in (dataset.train, dataset.test)
    )
    return ImageSet(
        dataset.name,
        private.images,
        private.labels,
        public,
        dataset.classes,
        dataset.mean if normalised else (0.0,) * channels,
        dataset.std if normalised else (1.0,) * channels,
    )


def _arrays(data: Any, size: int | Sequence[int] | None) -> tuple[Float32, Tensor | None, NDArray[np.int64]]:
    """Images of whatever holds them, their labels if there are some, and the places of all these among what came."""
    labels: Any = None
    if isinstance(data, str | Path):
        data, labels = read_folder(Path(data), size)
    elif size is not None:
        raise ConfigError(f"size = {size!r} came with a {type(data).__name__}; it is for folders of pictures")
    if isinstance(data, list) and data and all(isinstance(one, np.ndarray | Tensor) for one in data):
        data = torch.stack([torch.as_tensor(one) for one in data])
    if isinstance(data, np.ndarray | Tensor):
        if len(data) == 0:
            raise DataError("no images came; expected two at least: one to attack, and one that an attacker knows")
        data = torch.as_tensor(data)
        places = _some(len(data))
        labels = None if labels is None else labels[places]
        images = data[torch.from_numpy(places)]
        if not images.is_floating_point() and images.dtype != torch.uint8:
            raise DataError(f"pixels of {images.dtype} came; expected bytes (uint8), or floats as the model takes them")
        images = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    else:
        store = as_store(data)
        places = _some(len(store))
        images, labels = _parts_of(store.gather(torch.from_numpy(places)))
    return _checked(images), None if labels is None else torch.as_tensor(labels).cpu(), places


def _some(count: int) -> NDArray[np.int64]:
    """As many places as are read, evenly among all: files and datasets are often sorted by class."""
    return np.linspace(0, count - 1, min(count, MOST_IMAGES)).astype(np.int64)


def _parts_of(batch: Batch) -> tuple[Tensor, Any]:
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, dict):
        inputs = next((batch[key] for key in ("image", "images", "pixel_values", "img", "x") if key in batch), None)
        if inputs is None:
            raise DataError(f"examples are dicts of {', '.join(batch)}; expected image and label, or tuples of them")
        return inputs, next((batch[key] for key in ("label", "labels", "target", "y") if key in batch), None)
    return batch[0], batch[-1] if len(batch) > 1 else None


def _checked(images: Any) -> Float32:
    if not isinstance(images, Tensor):
        raise DataError(
            f"images of type {type(images).__name__} came; expected arrays or tensors of them, or a dataset"
        )
    images = images.detach().cpu().float()
    if images.ndim == 3:
        images = images[:, None]
    shape = list(images.shape)
    if images.ndim != 4:
        raise DataError(f"images of shape {shape} came; expected [images, channels, height, width]")
    if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4):
        raise DataError(
            f"images of shape {shape} came; expected [images, channels, height, width]: images.transpose(0, 3, 1, 2)"
        )
    if min(shape[2:]) < SMALLEST_SIDE:
        raise DataError(
            f"images of {shape[2]} × {shape[3]} came; SSIM, by which they are compared, looks at {SMALLEST_SIDE} × "
            f"{SMALLEST_SIDE} pixels at a time: scale them up"
        )
    bad = (~torch.isfinite(images)).flatten(1).any(dim=1)
    if bool(bad.any()):
        first = int(bad.int().argmax())
        raise DataError(
            f"{int(bad.sum())} of {shape[0]} images hold NaN or infinity, first of all image {first}; leave them out"
        )
    return np.ascontiguousarray(images.numpy())


def _labels(labels: Any, count: int) -> Tensor:
    array = labels if isinstance(labels, Tensor) else np.asarray(labels)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "biuf":
        raise DataError(f"labels such as {quote(labels)} came; expected classes from 0 on, or numbers for a loss")
    given = torch.as_tensor(array)
    if given.ndim == 0 or len(given) != count:
        raise DataError(f"labels of shape {list(given.shape)} came for {count} images; expected one each")
    return given.cpu()


def _parted(labels: Tensor | None, count: int) -> tuple[NDArray[np.int64] | None, Tensor | None]:
    """Classes, or targets of another kind."""
    if labels is None:
        return None, None
    labels = _labels(labels, count)
    if labels.ndim == 1 and not labels.is_floating_point():
        return labels.long().numpy(), None
    return None, labels.float() if labels.is_floating_point() else labels.long()


def _in_a_box(images: Float32, known: Float32 | None) -> tuple[Float32, Float32 | None, float, float]:
    """Images in [0, 1], and what inputs of the model are made of them with: (pixel − offset) / scale."""
    both = [images] if known is None else [images, known]
    low, high = float(min(part.min() for part in both)), float(max(part.max() for part in both))
    if low >= 0 and high <= 1:
        return images, known, 0.0, 1.0
    span = max(high - low, 1e-6)
    boxed = [((part - np.float32(low)) / np.float32(span)).clip(0, 1).astype(np.float32) for part in both]
    return boxed[0], boxed[1] if len(boxed) > 1 else None, -low / span, 1 / span


def _check_box(images: Float32, known: Float32 | None) -> None:
    for part in (images, known):
        if part is not None and not 0 <= part.min() <= part.max() <= 1:
            raise DataError(
                f"pixels from {part.min():.3g} to {part.max():.3g} came with a mean or std; expected pixels from 0 to "
                "1, of which these make inputs, or neither of them for images that are inputs already"
            )


def _per_channel(values: Any, default: float, channels: int, key: str) -> tuple[float, ...]:
    try:
        numbers = np.asarray(default if values is None else values, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.array(np.nan)
    fits = numbers.shape in ((), (channels,)) and bool(np.isfinite(numbers).all())
    if not fits or (key == "std" and numbers.min() <= 0):
        above = ", above 0" if key == "std" else ""
        raise ConfigError(f"{key} = {quote(values)} for images of {channels} channels: expected a number each{above}")
    return tuple(np.broadcast_to(numbers, channels).tolist())


def _pictures_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES and file.is_file())


def _read_picture(file: Path, size: int | Sequence[int] | None) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise MissingDependencyError("pictures need pillow, which is missing; pip install 'fedmpdd[privacy]'") from None
    try:
        with Image.open(file) as opened:
            picture = opened.convert("L" if opened.mode in ("1", "L", "LA", "I;16") else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} is no picture that can be read: {words_of(error)}; take it out") from None
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
