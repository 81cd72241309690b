"""Batch norm among clients: whose statistics normalise, and who gets to know them.

A client normalises by its own minibatch while it trains. What the server's model normalises by, when it is tested, is
the question. `averaged`: every client sends the statistics of its minibatches beside its update, and the server keeps a
running mean of them. `local`: statistics stay on the clients, and the model is tested by those of the test batch.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmpdd.errors import ConfigError

BatchNorm = Literal["averaged", "local"]
MOMENTUM = 0.1  # of the server's running mean, where a layer has none


def layers_of(module: nn.Module) -> dict[str, _BatchNorm]:
    """Return the batch norm layers of a module that keep statistics, by name."""
    return {
        name: child
        for name, child in module.named_modules()
        if isinstance(child, _BatchNorm) and child.running_mean is not None
    }


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a module has batch norm layers, be it without statistics."""
    return any(isinstance(child, _BatchNorm) for child in module.modules())


def check_choice(module: nn.Module, choice: BatchNorm | None) -> None:
    """Raise ConfigError where a module has batch norm and nobody said what is to become of its statistics."""
    layers = layers_of(module)
    if choice not in (None, "averaged", "local"):
        raise ConfigError(f'batch_norm = {choice!r}: expected "averaged" or "local"')
    if layers and choice is None:
        raise ConfigError(
            f"the model has batch norm ({next(iter(layers))}; {len(layers)} in all), whose statistics are no gradient: "
            'choose batch_norm="averaged" (clients send them, and their bytes count), batch_norm="local" (they stay '
            "on clients), or replace the layers by group norm with fedmpdd.torch.replace_batch_norm(model)"
        )


def without_statistics(module: nn.Module) -> None:
    """Have the batch norm layers of a module normalise by the batch that comes, and change nothing."""
    for layer in layers_of(module).values():
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        layer.track_running_stats = False


class BatchStatistics:
    """Catches the mean and variance of what enters batch norm layers, as one vector a client.

    Args:
        module: whose layers; their statistics are gone already, see `without_statistics`.
        names: of the layers.

    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self._caught: dict[str, Tensor] = {}
        self._names = list(names)
        self.size = 2 * sum(layer.num_features for layer in _named(module, names))
        for name in names:
            module.get_submodule(name).register_forward_pre_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def catch(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            values = inputs[0].detach()
            across = [dimension for dimension in range(values.ndim) if dimension != 1]
            variance = (
                values.var(across, correction=1) if values[:, 0].numel() > 1 else values.var(across, correction=0)
            )
            self._caught[name] = torch.cat([values.mean(across), variance])

        return catch

    def take(self) -> Tensor:
        """Return the statistics of the last forward pass: of each layer in turn its means, then its variances."""
        vector = torch.cat([self._caught[name] for name in self._names])
        self._caught.clear()
        return vector


class RunningStatistics:
    """The server's running means of what clients sent, put into a module when it is tested.

    Args:
        module: the model; its statistics are where the running means begin.
        hidden: whether clients clip, add noise or mask what else they send.

    """

    def __init__(self, module: nn.Module, *, hidden: bool = False) -> None:
        if hidden:
            raise ConfigError(
                'batch_norm = "averaged" with updates that are clipped, noisy or summed unseen: statistics travel '
                'beside them, as they are; use batch_norm = "local", or replace the layers by group norm'
            )
        self._layers = layers_of(module)
        layers = self._layers.values()
        self.vector = torch.cat([_given(part) for layer in layers for part in (layer.running_mean, layer.running_var)])
        momenta = [MOMENTUM if layer.momentum is None else layer.momentum for layer in layers]
        sizes = [2 * layer.num_features for layer in self._layers.values()]
        self._momenta = torch.cat(
            [torch.full((size,), momentum) for size, momentum in zip(sizes, momenta, strict=True)]
        )

    @property
    def names(self) -> list[str]:
        """The names of the layers."""
        return list(self._layers)

    def __len__(self) -> int:
        return len(self.vector)

    def take(self, statistics: Tensor, weights: Sequence[float] | None) -> None:
        """Move towards the (weighted) mean of clients' statistics [clients, len(self)]."""
        shares = torch.ones(len(statistics)) if weights is None else torch.tensor(weights)
        mean = (shares / shares.sum()).to(statistics.device) @ statistics
        self.vector = torch.lerp(self.vector, mean.to(self.vector.device), self._momenta)

    def put_into(self, module: nn.Module) -> None:
        """Have a copy of the model normalise by the running means."""
        begin = 0
        for name in self._layers:
            (layer,) = _named(module, [name])
            for buffer in (layer.running_mean, layer.running_var):
                end = begin + _given(buffer).numel()
                _given(buffer).copy_(self.vector[begin:end])
                begin = end


def _named(module: nn.Module, names: Sequence[str]) -> list[_BatchNorm]:
    layers = [module.get_submodule(name) for name in names]
    return [layer for layer in layers if isinstance(layer, _BatchNorm)]


def _given(buffer: Tensor | None) -> Tensor:
    assert buffer is not None  # layers_of leaves out those without
    return buffer
