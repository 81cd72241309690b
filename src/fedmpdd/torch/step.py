"""The server's step by any optimiser of PyTorch, behind the same interface as the steps without PyTorch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedmpdd.errors import ConfigError, FedmpddError
from fedmpdd.imports import quote, words_of
from fedmpdd.server.step import CONSTANT, Schedule

Factory = Callable[[Iterable[nn.Parameter]], Optimizer]


class TorchStep:
    """Steps of an optimiser along mean gradients, its parameters those of the model, in their shapes.

    Args:
        factory: from parameters to an optimiser; one that keeps a number per parameter, or one for all of them.
        lr: the step size, whatever the optimiser was made with.
        shapes: of the model's parameters.
        schedule: a factor of the step size for each round.

    Example:
        >>> step = TorchStep(lambda parameters: torch.optim.Adam(parameters), 0.1, [torch.Size([3])])
        >>> step(torch.zeros(3), torch.ones(3), 0)
        tensor([-0.1000, -0.1000, -0.1000])

    """

    def __init__(
        self, factory: Factory, lr: float, shapes: Sequence[torch.Size], schedule: Schedule = CONSTANT
    ) -> None:
        self._lr, self._shapes, self._schedule = lr, shapes, schedule
        self._factory = factory
        self._optimiser: Optimizer | None = None
        self._loaded: Mapping[str, Tensor] = {}
        # What it keeps is known after a step: one is taken on zeros.
        trial = TorchStep.__new__(TorchStep)
        trial.__dict__.update(self.__dict__)
        try:
            trial(torch.zeros(trial._d), torch.zeros(trial._d), 0)
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's code
            raise ConfigError(f"server.optimiser cannot step along a gradient: {words_of(error)}") from None
        self._names = list(trial.state)

    @property
    def _d(self) -> int:
        return sum(shape.numel() for shape in self._shapes)

    def __call__(self, flat: Tensor, gradient: Tensor, round_number: int) -> Tensor:
        """Return the model after one step."""
        optimiser = self._optimiser or self._made(flat)
        for parameter, value, slope in zip(self._parameters, self._split(flat), self._split(gradient), strict=True):
            parameter.data.copy_(value)
            parameter.grad = slope
        factor = self._schedule.factor(round_number)
        for group, share in zip(optimiser.param_groups, self._shares, strict=True):
            group["lr"] = self._lr * share * factor
        optimiser.step()
        return torch.cat([parameter.detach().flatten() for parameter in self._parameters])

    def _made(self, flat: Tensor) -> Optimizer:
        self._parameters = [nn.Parameter(part.clone()) for part in self._split(flat)]
        self._optimiser = optimiser = make_optimiser(self._factory, self._parameters, "server.optimiser")
        given = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        if {id(parameter) for parameter in given} != {id(parameter) for parameter in self._parameters}:
            raise ConfigError("server.optimiser does not step all parameters that it was given; pass them all to it")
        base = optimiser.defaults["lr"]
        self._shares = [group["lr"] / base for group in optimiser.param_groups]
        self._put_state()
        return optimiser

    @property
    def lengths(self) -> dict[str, set[int]]:
        """How long the vectors of the state may be, by the names that they have in checkpoints."""
        return {f"server.{name}": {0, 1, self._d} for name in self._names}

    @property
    def state(self) -> dict[str, Tensor]:
        """What the optimiser keeps: a vector [d] for numbers per parameter, and one [1] for those of all."""
        if self._optimiser is None:
            return dict(self._loaded) or {name: torch.zeros(0) for name in getattr(self, "_names", ())}
        kept = [self._optimiser.state[parameter] for parameter in self._parameters]
        result: dict[str, Tensor] = {}
        for name, first in kept[0].items():
            if not isinstance(first, Tensor):
                if first is None:
                    continue
                raise ConfigError(f"server.optimiser keeps {name} = {first!r:.40}, which no checkpoint could hold")
            values = [state.get(name) for state in kept]
            if first.ndim == 0:
                result[name] = values[0].detach().float().reshape(1)
            elif all(v is not None and v.shape == shape for v, shape in zip(values, self._shapes, strict=True)):
                result[name] = torch.cat([value.detach().flatten() for value in values])
            else:
                raise ConfigError(
                    f"server.optimiser keeps {name} in another shape than the parameters have; use one that keeps a "
                    "number per parameter, such as Adam"
                )
        return result

    @state.setter
    def state(self, vectors: Mapping[str, Any]) -> None:
        self._loaded = {name: torch.as_tensor(vector) for name, vector in vectors.items()}
        self._optimiser = None

    def _put_state(self) -> None:
        """Put what was loaded into a new optimiser."""
        if not any(vector.numel() for vector in self._loaded.values()):
            return
        assert self._optimiser is not None
        for number, parameter in enumerate(self._parameters):
            self._optimiser.state[parameter] = {
                name: vector[0].clone() if vector.numel() == 1 < self._d else self._split(vector)[number].clone()
                for name, vector in self._loaded.items()
            }
        self._loaded = {}

    def _split(self, flat: Tensor) -> list[Tensor]:
        return split(torch.as_tensor(flat), self._shapes)


def make_optimiser(factory: Any, parameters: list[nn.Parameter], key: str) -> Optimizer:
    """Return what a factory makes of parameters, or raise ConfigError that names the key it came from."""
    if isinstance(factory, Optimizer) or not callable(factory):
        raise ConfigError(
            f"{key} = {quote(factory)}: expected a function from parameters to an optimiser, since each run makes its "
            "own, like lambda parameters: torch.optim.Adam(parameters, lr=0.001)"
        )
    try:
        optimiser = factory(parameters)
    except Exception as error:  # somebody else's code
        raise ConfigError(f"{key} cannot be made of parameters: {words_of(error)}") from error
    if not isinstance(optimiser, Optimizer):
        raise ConfigError(
            f"{key} gives a {type(optimiser).__name__}; expected a function from parameters to one of torch.optim, "
            "like lambda parameters: torch.optim.Adam(parameters, lr=0.001)"
        )
    return optimiser


def split(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Return the parts of a vector, in the shapes of the parameters."""
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
