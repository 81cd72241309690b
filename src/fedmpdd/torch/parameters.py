"""The parameters of a module that are trained, as one vector in the order of the module."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fedmpdd.codecs import Codec
from fedmpdd.codecs.registry import check_is_codec
from fedmpdd.errors import CodecError, ConfigError, GradientError
from fedmpdd.imports import quote


class TrainedParameters:
    """The parameters of a module that want a gradient; frozen ones are not encoded and cost no bytes.

    Args:
        model: a module, or some parameters of one.

    """

    def __init__(self, model: nn.Module | Iterable[nn.Parameter]) -> None:
        if isinstance(model, str | type) or not isinstance(model, nn.Module | Iterable):
            raise ConfigError(f"model = {quote(model)}: expected a torch.nn.Module, or a list of its parameters")
        named = list(model.named_parameters() if isinstance(model, nn.Module) else enumerate(model))
        for _, one in named:
            if not isinstance(one, Tensor):
                raise ConfigError(
                    f"model holds {quote(one)}; expected parameters: pass model.parameters(), or the model"
                )
        trained = [(str(name), parameter) for name, parameter in named if parameter.requires_grad]
        if not trained:
            raise ConfigError("the model has no parameter with requires_grad=True; unfreeze what is to be trained")
        self.names = [name for name, _ in trained]
        self.parameters = [parameter for _, parameter in trained]
        devices = sorted({str(parameter.device) for parameter in self.parameters})
        if len(devices) > 1:
            raise ConfigError(f"the parameters are on {', '.join(devices)}; move the model to one device")

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Their shapes, in order."""
        return [tuple(parameter.shape) for parameter in self.parameters]

    @property
    def d(self) -> int:
        """How many coordinates they have together."""
        return sum(parameter.numel() for parameter in self.parameters)

    def gradient(self) -> Tensor:
        """Return their gradients as one vector, float32 [d]; raise GradientError where one has none."""
        missing = [name for name, one in zip(self.names, self.parameters, strict=True) if one.grad is None]
        if missing:
            raise GradientError(
                f"{len(missing)} of {len(self.names)} parameters have no gradient, {missing[0]} for one; call "
                "loss.backward() first, and freeze with requires_grad_(False) what the loss does not depend on"
            )
        return flatten([one.grad for one in self.parameters if one.grad is not None])

    def set_gradient(self, flat: Tensor) -> None:
        """Make slices of a vector [d] their gradients."""
        start = 0
        for parameter in self.parameters:
            part = flat[start : start + parameter.numel()].view(parameter.shape)
            parameter.grad = part.to(parameter.device, parameter.dtype, copy=True)
            start += parameter.numel()


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors one after another as one vector of float32."""
    return torch.cat([tensor.detach().to(torch.float32).flatten() for tensor in tensors])


def check_sends_gradients(codec: Codec) -> None:
    """Raise CodecError unless this is a codec of gradients, which a training loop has."""
    if check_is_codec(codec).source != "gradient":
        raise CodecError(f"{codec.name} sends losses, and a loop has gradients; use another codec")
