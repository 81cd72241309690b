"""The server's step: x_{k+1} from x_k and the decoded mean gradient."""

import torch
from torch import Tensor

from fedmpdd.federation.config import ServerConfig


class ServerStep:
    """SGD (the paper's), SGD with momentum, or Adam; its state is a few vectors that a checkpoint holds.

    Every client that follows the model takes the same step, on whatever it has, and must come to the same bits. So: one
    correctly rounded operation at a time, none that a GPU would fuse, and no division by a constant, which it would
    turn into a product.
    """

    def __init__(self, config: ServerConfig, lr: float, d: int, device: str = "cpu") -> None:
        self._config = config
        # It multiplies model differences too: with several local steps 1.0 is plain averaging.
        self._lr = lr
        names: tuple[str, ...] = {"sgd": (), "momentum": ("velocity",), "adam": ("first", "second")}[config.optimiser]
        if config.control is not None:
            names = (*names, "control")
        self.state: dict[str, Tensor] = {name: torch.zeros(d, device=device) for name in names}

    @property
    def control(self) -> Tensor | None:
        """What clients subtract from their gradients, if anything: the running mean of all estimates so far."""
        return self.state.get("control")

    def __call__(self, flat: Tensor, gradient: Tensor, round_number: int) -> Tensor:
        """Algorithm 2, line 22: x_{k+1} = x_k − η ĝ, or its relative."""
        c = self._config
        if c.control is not None:
            mean = self.state["control"]
            gradient = mean + gradient
            self.state["control"] = mean + c.control * (gradient - mean)
        if c.optimiser == "sgd":
            return flat - self._lr * gradient
        if c.optimiser == "momentum":
            velocity = self.state["velocity"].mul_(c.momentum).add_(gradient)
            return flat - self._lr * velocity
        first = self.state["first"].mul_(c.beta1).add_((1 - c.beta1) * gradient)
        second = self.state["second"].mul_(c.beta2).add_((1 - c.beta2) * (gradient * gradient))
        steps = round_number + 1
        first_unbiased = first * (1 / (1 - c.beta1**steps))
        second_unbiased = second * (1 / (1 - c.beta2**steps))
        return flat - self._lr * first_unbiased / (second_unbiased.sqrt() + c.epsilon)
