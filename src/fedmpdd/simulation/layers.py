"""Gradients of many clients at one model, layer by layer.

All clients of a round stand at the same model, so that their examples can go forward and backward as one batch. Only
the gradients of weights differ: a layer's is a matrix product of its input and the gradient at its output, one product
per client. What lies between two layers (bias, activation, pooling) only moves memory, and is fused on a GPU.
"""

import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmpdd.tasks.losses import CrossEntropy
from fedmpdd.tasks.models import FlatModel

BETWEEN = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d, nn.Flatten, nn.Identity)
COLUMN_BYTES = 2 * 2**30  # patches of a convolution that are laid out at a time

MANY_CHANNELS = 16  # of a convolution's input, from which on its kernel is taken element by element
BLOCK_SHAPES = 256  # that are compiled in one process

Losses = Callable[[Tensor, Tensor], Tensor]  # of outputs and targets, one of each example
Block = Callable[[Tensor, Tensor | None], Tensor]
_Function = TypeVar("_Function", bound=Callable[..., Tensor])


class _Layer(NamedTuple):
    name: str
    module: nn.Conv2d | nn.Linear
    after: Block  # adds the bias, and applies what follows up to the next layer


def handles(module: nn.Module) -> bool:
    """Return whether a module is a plain sequence of linear and convolutional layers, each with its own parameters."""
    if type(module) is not nn.Sequential:
        return False
    children = list(module.children())
    layers = [child for child in children if _is_layer(child)]
    return (
        len(layers) > 0
        and all(_is_layer(child) or type(child) in BETWEEN for child in children)
        and len(children) == len(module)  # a module that stands twice is one child
    )


class LayerGradients:
    """Gradients and losses of clients [clients, batch, …], all at the model `flat`."""

    def __init__(
        self,
        model: FlatModel,
        *,
        fused: bool,
        per_example: Callable[[Tensor, Tensor], Tensor] = CrossEntropy.per_example,
    ) -> None:
        self._model = model
        self._fused = fused
        self._per_example = per_example
        before: list[nn.Module] = []
        follows: list[tuple[str, nn.Conv2d | nn.Linear, list[nn.Module]]] = []
        for name, child in model.module.named_children():
            if isinstance(child, nn.Conv2d | nn.Linear):
                follows.append((name, child, []))
            else:
                (follows[-1][2] if follows else before).append(child)
        self._before = nn.Sequential(*before)
        self._layers = [_Layer(name, layer, _after(layer, modules, fused=fused)) for name, layer, modules in follows]

    def __call__(self, flat: Tensor, inputs: Tensor, labels: Tensor, gradients: Tensor) -> Tensor:
        """Write gradients [clients, d], and return losses [clients]."""
        if self._fused:
            # Said by the compiler where a config does not ask for ten-bit inputs: that is a choice, not an oversight.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        clients, batch = labels.shape
        parameters = self._model.unflatten(flat.detach())
        x = self._before(inputs.flatten(0, 1))
        if self._fused and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        entered, left = [], []
        for name, layer, after in self._layers:
            entered.append(x.detach())
            weight = parameters[f"{name}.weight"]
            if isinstance(layer, nn.Conv2d):
                if self._fused:
                    weight = weight.contiguous(memory_format=torch.channels_last)
                x = functional.conv2d(x, weight, None, layer.stride, layer.padding)
            else:
                x = functional.linear(x, weight)
            left.append(x if x.requires_grad else x.requires_grad_())
            x = after(x, parameters.get(f"{name}.bias"))
        losses = self._per_example(x, labels.flatten()).view(clients, batch).mean(dim=1)
        slopes = torch.autograd.grad(losses.sum(), left)

        parts = dict(zip(self._model.names, self._split(gradients), strict=True))
        for (name, layer, _), values, slope in zip(self._layers, entered, slopes, strict=True):
            if isinstance(layer, nn.Conv2d):
                _convolution(parts[f"{name}.weight"], layer, values, slope, fused=self._fused)
            else:
                by_client = slope.view(clients, batch, -1).transpose(1, 2)
                parts[f"{name}.weight"].copy_((by_client @ values.view(clients, batch, -1)).flatten(1))
            if layer.bias is not None:
                parts[f"{name}.bias"].copy_(_per_client(slope, clients).sum(dim=1))
        return losses.detach()

    def _split(self, gradients: Tensor) -> Iterable[Tensor]:
        return torch.split(gradients, [shape.numel() for shape in self._model.shapes], dim=1)


def _is_layer(module: nn.Module) -> bool:
    if type(module) is nn.Linear:
        return True
    return (
        type(module) is nn.Conv2d
        and module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def _after(layer: nn.Conv2d | nn.Linear, modules: list[nn.Module], *, fused: bool) -> Block:
    is_image = isinstance(layer, nn.Conv2d)
    if not fused:
        return _block(is_image, modules)
    # Without parameters, equal descriptions are equal functions: later runs of a process use what was compiled.
    return _compile_once((str(is_image), *map(repr, modules)), _block(is_image, modules))


def _compile_once(key: tuple[str, ...], function: _Function) -> _Function:
    if key not in _compiled:
        # The compiler counts the shapes of all blocks together, and gives up after eight.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, BLOCK_SHAPES)
        _compiled[key] = torch.compile(function, dynamic=False)
    return cast(_Function, _compiled[key])


_compiled: dict[tuple[str, ...], Callable[..., Tensor]] = {}


def _block(is_image: bool, modules: list[nn.Module]) -> Block:
    early: list[nn.Module] = []
    late = modules
    if list(map(type, modules[:2])) == [nn.ReLU, nn.MaxPool2d]:
        # The largest of rectified values is the largest value, rectified, and the bias of a pool is one number: pooled
        # first, there is four times less to do.
        early, late = [modules[1]], [modules[0], *modules[2:]]

    def block(x: Tensor, bias: Tensor | None) -> Tensor:
        for module in early:
            x = module(x)
        if bias is not None:
            x = x + (bias.view(-1, 1, 1) if is_image else bias)
        for module in late:
            x = module(x)
        return x

    return block


def _per_client(slope: Tensor, clients: int) -> Tensor:
    """Slopes as rows [clients, examples · positions, outputs]."""
    rows = slope.permute(0, 2, 3, 1) if slope.ndim == 4 else slope
    return rows.reshape(clients, -1, slope.shape[1])


def _convolution(out: Tensor, layer: nn.Conv2d, values: Tensor, slope: Tensor, *, fused: bool) -> None:
    """Write the gradient of a convolution's weight for every client."""
    assert not isinstance(layer.padding, str)
    if any(layer.padding):
        values = functional.pad(values, (layer.padding[1],) * 2 + (layer.padding[0],) * 2)
    if layer.stride == (1, 1) and layer.in_channels >= MANY_CHANNELS:
        _by_shifts(out, layer, values, slope)
    else:
        _by_patches(out, layer, values, slope, fused=fused)


def _by_shifts(out: Tensor, layer: nn.Conv2d, values: Tensor, slope: Tensor) -> None:
    """A matrix product per element of the kernel, each of slopes and shifted values, where nothing has to be copied.

    Values lie as rows of channels, position after position. Slopes get zeros where the kernel would leave the image, so
    that a shift is the same number of rows everywhere.
    """
    clients, (high, wide) = len(out), layer.kernel_size
    _, channels, height, width = values.shape
    rows = values.permute(0, 2, 3, 1).reshape(clients, -1, channels)
    outside = (0, width - slope.shape[3], 0, height - slope.shape[2])
    slopes = _per_client(functional.pad(slope, outside), clients).transpose(1, 2)
    kernels = out.view(clients, -1, channels, high, wide)
    for i in range(high):
        for j in range(wide):
            shift = i * width + j
            kernels[..., i, j].copy_(slopes[..., : rows.shape[1] - shift] @ rows[:, shift:])


def _by_patches(out: Tensor, layer: nn.Conv2d, values: Tensor, slope: Tensor, *, fused: bool) -> None:
    """One matrix product of slopes and the patches that the kernel sees, laid out for a few clients at a time."""
    clients, batch = len(out), len(values) // len(out)
    patch = layer.weight[0].numel()
    lay_out = _compile_once(("patches",), _patches) if fused else _gathered_patches
    # Rows of a multiple of four numbers: others are several times slower on a GPU.
    aligned = -(-patch // 4) * 4 if values.is_cuda else patch
    size = max(1, COLUMN_BYTES // (4 * batch * slope[0, 0].numel() * aligned))
    for begin in range(0, clients, size):
        some = slice(begin, min(begin + size, clients))
        examples = slice(some.start * batch, some.stop * batch)
        columns = lay_out(values[examples], layer.kernel_size, layer.stride, aligned)
        rows = _per_client(slope[examples], some.stop - some.start)
        products = rows.transpose(1, 2) @ columns.view(some.stop - some.start, -1, aligned)
        out[some].copy_(products[..., :patch].flatten(1))


def _patches(values: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], aligned: int) -> Tensor:
    """Rows of `aligned` numbers, one per example and position: what the kernel sees there, then zeros."""
    seen = values.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1]).permute(0, 2, 3, 1, 4, 5)
    rows = seen.flatten(3)
    return functional.pad(rows, (0, aligned - rows.shape[3]))


def _gathered_patches(values: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], aligned: int) -> Tensor:
    """The same numbers by a table of places: on a CPU several times faster than copies of overlapping windows."""
    return values.flatten(1).index_select(1, _places(values.shape[1:], kernel, stride, aligned))


@lru_cache(maxsize=64)
def _places(shape: torch.Size, kernel: tuple[int, ...], stride: tuple[int, ...], aligned: int) -> Tensor:
    numbers = torch.arange(shape.numel()).view(1, *shape)
    return _patches(numbers, kernel, stride, aligned).flatten()
