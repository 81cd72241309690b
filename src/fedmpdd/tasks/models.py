"""The paper's networks, any other torch module by import path, and models as flat vectors."""

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedmpdd.errors import ConfigError
from fedmpdd.imports import import_object, is_import_path, parse_import_path, words_of
from fedmpdd.tasks.language_model import Transformer
from fedmpdd.tasks.losses import logits_of


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
        """Views of a flat vector [d] as the module's parameters; of rows [n, d] as n of each, side by side."""
        parts = torch.split(flat, [shape.numel() for shape in self.shapes], dim=-1)
        before = flat.shape[:-1]
        named = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.view(*before, *shape) for name, part, shape in named}

    def __call__(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """Return the logits of inputs."""
        try:
            logits: Tensor = torch.func.functional_call(self.module, self.unflatten(flat), (inputs,))
        except SystemExit as error:  # else the process would end here, perhaps with status 0
            raise ConfigError(f"the model called exit({error.code!r}); a model must return its logits") from None
        return logits


def build(
    name: str, shape: tuple[int, int, int] | None, classes: int, *, init: str, seed: int, gives_classes: bool = True
) -> tuple[FlatModel, Tensor]:
    """Build a model by name, or by import path such as "mynet.py:Net(width=32)", and its initial parameters.

    shape: of an example, None where that is for the model to know. init: "default" (PyTorch's) or "uniform" (all from
    U(−0.5, 0.5), as gradient inversion papers have it). gives_classes: whether it must give logits of so many classes;
    else what it gives is for a loss of somebody's own to say.
    """
    try:
        model, flat = _build(name, shape, classes, init, seed)
        if shape is not None and gives_classes:
            _try(name, model, flat, shape, classes)
        return model, flat
    except (SystemExit, GeneratorExit) as error:  # from any method of somebody's module
        raise ConfigError(f"model = {name!r} cannot be made: {words_of(error)}") from None


def _build(
    name: str, shape: tuple[int, int, int] | None, classes: int, init: str, seed: int
) -> tuple[FlatModel, Tensor]:
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        module = _known(name, shape, classes) if name in MODELS else _made(name)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model = {name!r} gives a {type(module).__name__}; expected a torch.nn.Module")
        if init == "uniform":
            make_uniform(module)
    finally:
        torch.random.set_rng_state(state)
    return flatten(_as_float32(module), f"model = {name!r}")


def _as_float32(module: nn.Module) -> nn.Module:
    """The module in float32, unless it has adapters on a frozen base in bfloat16, which stays half as large."""
    has_half = any(value.dtype == torch.bfloat16 and not value.requires_grad for value in module.parameters())
    return module if has_half else module.float()


def _known(name: str, shape: tuple[int, int, int] | None, classes: int) -> nn.Module:
    if shape is None:
        raise ConfigError(
            f"model = {name!r} is made for images; the examples have another shape: name a model of yours"
        )
    return MODELS[name](shape, classes)


def make_uniform(module: nn.Module) -> None:
    """Draw all parameters that are trained from U(−0.5, 0.5), as gradient inversion papers have it."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            nn.init.uniform_(parameter, -0.5, 0.5)


def flatten(module: nn.Module, what: str = "the model") -> tuple[FlatModel, Tensor]:
    """Return a module as a function of one vector, in eval mode, and the vector of its parameters.

    Parameters with `requires_grad=False` are not in the vector, and stay as they are. The module is changed: it keeps
    what is not trained.

    Args:
        module: any module whose trained parameters are float32.
        what: how messages begin.

    Returns:
        The model and its parameters.

    Example:
        >>> flatten(torch.nn.Linear(3, 2))[1].shape
        torch.Size([8])

    """
    module = module.eval()
    lazy = [name for name, value in module.named_parameters() if nn.parameter.is_lazy(value)]
    if lazy:
        raise ConfigError(f"{what} has {lazy[0]} without a shape, as lazy layers do; call it on an example once before")
    empty = [name for name, value in module.named_parameters() if value.is_meta]
    if empty:
        raise ConfigError(f"{what} has {empty[0]} on the device meta, without numbers; make it on the CPU")
    parameters = [(name, value.detach()) for name, value in module.named_parameters() if value.requires_grad]
    if not parameters:
        raise ConfigError(f"{what} has no parameters with requires_grad=True; there is nothing to train")
    for name, value in parameters:
        if value.dtype != torch.float32:
            raise ConfigError(f"{what} has {name} in {value.dtype}; what is trained must be float32: call .float()")
    names, values = zip(*parameters, strict=True)
    flat = torch.cat([value.reshape(-1) for value in values]).contiguous()
    _keep_activations(module)
    return FlatModel(module.requires_grad_(False), names, tuple(value.shape for value in values)), flat


def _keep_activations(module: nn.Module) -> None:
    """Turn off gradient checkpointing of transformers, which saves memory and changes no number.

    It runs blocks again during the backward pass, when the parameters of the call are no longer in the module.
    """
    children: list[Any] = list(module.modules())
    for child in children:
        if getattr(child, "gradient_checkpointing", False) is True:
            child.gradient_checkpointing = False


def count_parameters(name: str, shape: tuple[int, int, int], classes: int) -> int | None:
    """Return how many parameters a model of this package has for these images, without making them.

    None for a model by import path: what it has is known only once it was made.
    """
    if name not in MODELS:
        return None
    try:
        with torch.device("meta"):  # shapes without memory
            return sum(parameter.numel() for parameter in MODELS[name](shape, classes).parameters())
    except (RuntimeError, ValueError, ZeroDivisionError, AssertionError) as error:
        raise ConfigError(f"model = {name!r} cannot be made for images of shape {list(shape)}: {error}") from None


def _imported(path: str) -> Callable[..., nn.Module]:
    if not is_import_path(path):
        raise ConfigError(
            f"model = {path!r} is unknown: expected one of {', '.join(MODELS)}, or an import path like "
            "package.module:Net or mynet.py:Net(width=32)"
        )
    factory = import_object(path, "model")
    if not _makes_modules(factory):
        raise ConfigError(
            f"model = {path!r} is {_kind_of(factory)}, which is not called; expected a class that derives from "
            "torch.nn.Module, or a Python function (or functools.partial of either) that returns a module"
        )
    return factory  # type: ignore[no-any-return]


def _makes_modules(factory: Any) -> bool:
    """Return whether this may be called: a module's class, a Python function, or a partial of these.

    Functions of C (os.abort), other classes and callable objects (builtins.exit) are not how models are made, and a
    call can end the process. What a Python function does is known only once it was called: this is a check against
    mistakes. Against other people's configs there is `fedmpdd.imports.check_trust`.
    """
    if isinstance(factory, functools.partial):
        return _makes_modules(factory.func)
    if isinstance(factory, type):
        return issubclass(factory, nn.Module)
    return isinstance(factory, types.FunctionType) or (
        isinstance(factory, types.MethodType) and isinstance(factory.__func__, types.FunctionType)
    )


def _kind_of(factory: Any) -> str:
    return f"the class {factory.__qualname__}" if isinstance(factory, type) else f"a {type(factory).__name__}"


def _made(path: str) -> nn.Module:
    factory = _imported(path)
    try:
        return factory()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Somebody else's code: whatever it raises, SystemExit too, it is this key of the config that must change.
        how = "with these arguments" if parse_import_path(path, "model").is_called else "without arguments"
        raise ConfigError(f"model = {path!r} cannot be made {how}: {words_of(error)}") from None


def _try(name: str, model: FlatModel, flat: Tensor, shape: tuple[int, int, int], classes: int) -> None:
    """Find out before the first round whether the model takes these images and gives these classes."""
    try:
        outputs = model(flat, torch.zeros(2, *shape))
    except Exception as error:  # likewise
        raise ConfigError(f"model = {name!r} does not take images of shape {list(shape)}: {words_of(error)}") from None
    logits = logits_of(outputs)
    if logits.shape[:2] != (2, classes):  # images have one label, texts one per position
        raise ConfigError(f"model = {name!r} gives {list(logits.shape)} for two images; expected [2, {classes}]")
