"""The loss of a client as a function of a flat vector: the model in train mode, on one batch."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedmpdd.errors import ConfigError
from fedmpdd.tasks.batch_norm import BatchStatistics, has_batch_norm, layers_of, without_statistics
from fedmpdd.tasks.losses import Loss
from fedmpdd.tasks.models import FlatModel
from fedmpdd.tasks.stores import Batch
from fedmpdd.torch.frozen import copy_sharing_frozen, frozen_sha256

Result = TypeVar("Result")


class Objective:
    """A model and its loss, which clients minimise.

    Args:
        model: the model, in eval mode, as it is tested.
        loss: of a network and a batch.
        sends_statistics: whether the statistics of batch norm layers are wanted beside losses.

    """

    def __init__(self, model: FlatModel, loss: Loss, *, sends_statistics: bool = False) -> None:
        self.model = model
        self.loss = loss
        self.sends_statistics = sends_statistics
        network = shared_copy(model.module).train()
        names = list(layers_of(network))
        without_statistics(network)
        self.statistics = BatchStatistics(network, names) if sends_statistics else None
        self.mixes_examples = has_batch_norm(network)  # then those of several clients must not go together
        # Where what is not trained came from, before it is moved to the device that computes.
        self._frozen = {
            name: value.detach() for name, value in model.module.named_parameters() if name not in model.names
        }
        self._training, self._testing = _Holder(network), _Holder(model.module)

    @property
    def d(self) -> int:
        """Number of parameters that are trained."""
        return self.model.d

    def move_to(self, device: str) -> None:
        """Move what is not trained to the device that computes."""
        self.model.module.to(device)
        self.network.to(device)

    @property
    def network(self) -> nn.Module:
        """The module in train mode."""
        return self._training.network

    @property
    def frozen_sha256(self) -> str | None:
        """The hash of what is not trained, None where all of the model is."""
        return frozen_sha256(self.model.module, self.model.names)

    def trained(self, flat: Tensor) -> nn.Module:
        """Return a module with these parameters, as somebody would go on with it: in eval mode, ready for gradients.

        Its frozen parameters share the memory of those that the model was made with, and are where those are.
        """
        module = copy_sharing_frozen(self.model.module, self._frozen)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, part in self.model.unflatten(flat).items():
                parameters[name].copy_(part)
                parameters[name].requires_grad_()
        return module

    def copy(self) -> "Objective":
        """Return another one for another thread; parameters that are not trained, and buffers, are shared."""
        model = FlatModel(shared_copy(self.model.module), self.model.names, self.model.shapes)
        return Objective(model, self.loss, sends_statistics=self.sends_statistics)

    def __call__(self, flat: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        return self._held(self._training, flat, lambda network: self.loss(network, batch))

    def outputs(self, flat: Tensor, *inputs: Any) -> Any:
        """Return what the model makes of inputs in train mode."""
        return self._held(self._training, flat, lambda network: network(*inputs))

    def tested(self, flat: Tensor, call: Callable[[nn.Module], Result]) -> Result:
        """Return what a function makes of the model in eval mode, with these parameters."""
        return self._held(self._testing, flat, call)

    def _held(self, holder: "_Holder", flat: Tensor, call: Callable[[nn.Module], Result]) -> Result:
        parameters = {f"network.{name}": part for name, part in self.model.unflatten(flat).items()}
        try:
            result: Result = torch.func.functional_call(holder, parameters, (call,))
        except SystemExit as error:  # else the process would end here, perhaps with status 0
            raise ConfigError(f"the model called exit({error.code!r}); a model must return its outputs") from None
        return result

    def with_statistics(self, flat: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the mean loss of a batch, and the statistics of batch norm layers."""
        assert self.statistics is not None
        value = self(flat, batch)
        return value, self.statistics.take()


class _Holder(nn.Module):
    """A network for which parameters are given while a function looks at it, whatever of it the function calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, call: Callable[[nn.Module], Any]) -> Any:
        """Return what the function makes of the network."""
        return call(self.network)


def shared_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module's structure over the same parameters and buffers."""
    tensors: list[Any] = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
