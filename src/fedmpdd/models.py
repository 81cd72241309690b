"""The paper's networks, any other torch module by import path, and models as flat vectors."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmpdd.errors import ConfigError
from fedmpdd.language_model import Transformer


def logistic(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Softmax regression: 7,850 parameters on MNIST."""
    channels, height, width = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))


def lenet(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The LeNet of gradient inversion papers, with sigmoids: 13,426 parameters on MNIST."""
    channels, height, width = shape
    side = ((height + 3) // 4) * ((width + 3) // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=1, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(12 * side, classes),
    )


def cnn_lin2022(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The CNN of lin2022: 44,426 parameters on MNIST (the paper prints 61,706; its layers and bytes say 44,426)."""
    channels, height, width = shape
    side = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def cnn_mcmahan2017(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The CNN of mcmahan2017, as the paper lays it out: 319,242 parameters on CIFAR-10."""
    channels, height, width = shape
    side = (((height - 2) // 2 - 2) // 2 - 2) * (((width - 2) // 2 - 2) // 2 - 2)
    return nn.Sequential(
        nn.Conv2d(channels, 128, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 128, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 128, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * side, classes),
    )


def transformer(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A language model of six blocks: 10,942,464 parameters on bytes, 256 at a time."""
    return Transformer(shape[2], classes, width=384, depth=6, heads=6)


def transformer_tiny(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The same with two narrow blocks, for a CPU: 149,248 parameters."""
    return Transformer(shape[2], classes, width=64, depth=2, heads=2)


MODELS: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {
    "logistic": logistic,
    "lenet": lenet,
    "cnn-lin2022": cnn_lin2022,
    "cnn-mcmahan2017": cnn_mcmahan2017,
    "transformer": transformer,
    "transformer-tiny": transformer_tiny,
}


@dataclass(frozen=True)
class FlatModel:
    """A module without parameters of its own: they are slices of one flat vector, given at every call."""

    module: nn.Module
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def d(self) -> int:
        """Number of parameters."""
        return sum(shape.numel() for shape in self.shapes)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector as the module's parameters."""
        parts = torch.split(flat, [shape.numel() for shape in self.shapes])
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def __call__(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """Return the logits of inputs."""
        logits: Tensor = torch.func.functional_call(self.module, self.unflatten(flat), (inputs,))
        return logits


def build(name: str, shape: tuple[int, int, int], classes: int, *, init: str, seed: int) -> tuple[FlatModel, Tensor]:
    """Build a model by name, or by import path "package.module:callable", and its initial parameters.

    init: "default" (PyTorch's) or "uniform" (all from U(−0.5, 0.5), as gradient inversion papers have it).
    """
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        module = MODELS[name](shape, classes) if name in MODELS else _made(name)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model = {name!r} gives a {type(module).__name__}; expected a torch.nn.Module")
        if init == "uniform":
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -0.5, 0.5)
    finally:
        torch.random.set_rng_state(state)
    if any(True for _ in module.buffers()):
        raise ConfigError(
            f"model = {name!r} has buffers (batch norm keeps running statistics); a federation averages gradients "
            "only: use group or layer norm instead"
        )
    module = module.float().eval()
    parameters = [(key, value.detach()) for key, value in module.named_parameters()]
    if not parameters:
        raise ConfigError(f"model = {name!r} has no parameters; there is nothing to train")
    names, values = zip(*parameters, strict=True)
    flat = torch.cat([value.reshape(-1) for value in values]).contiguous()
    model = FlatModel(module.requires_grad_(False), names, tuple(value.shape for value in values))
    _try(name, model, flat, shape, classes)
    return model, flat


def _imported(path: str) -> Callable[..., nn.Module]:
    module, _, attribute = path.partition(":")
    if not attribute:
        raise ConfigError(
            f"model = {path!r} is unknown: expected one of {', '.join(MODELS)}, "
            "or an import path like package.module:Net"
        )
    try:
        factory: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"model = {path!r} cannot be imported: {error}; a module of your own must be on PYTHONPATH"
        ) from None
    return factory


def _made(path: str) -> nn.Module:
    factory = _imported(path)
    try:
        return factory()
    except Exception as error:
        # Somebody else's code: whatever it raises, it is this key of the config that must change.
        raise ConfigError(f"model = {path!r} cannot be made without arguments: {error}") from None


def _try(name: str, model: FlatModel, flat: Tensor, shape: tuple[int, int, int], classes: int) -> None:
    """Find out before the first round whether the model takes these images and gives these classes."""
    try:
        logits = model(flat, torch.zeros(2, *shape))
    except Exception as error:  # likewise
        raise ConfigError(f"model = {name!r} does not take images of shape {list(shape)}: {error}") from None
    if logits.shape[:2] != (2, classes):  # images have one label, texts one per position
        raise ConfigError(f"model = {name!r} gives {list(logits.shape)} for two images; expected [2, {classes}]")
