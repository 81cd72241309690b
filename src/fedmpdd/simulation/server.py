"""The server's step: x_{k+1} from x_k and the decoded mean gradient."""

import torch
from torch import Tensor

from fedmpdd.server.step import Step
from fedmpdd.simulation.sections import ServerConfig


class ServerStep(Step[Tensor]):
    """The step on tensors, see fedmpdd.server.step."""

    def __init__(self, config: ServerConfig, lr: float, d: int, device: str = "cpu") -> None:
        super().__init__(config, lr, lambda: torch.zeros(d, device=device))
