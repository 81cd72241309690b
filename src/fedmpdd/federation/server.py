"""The server's step: x_{k+1} from x_k and the decoded mean gradient."""

import torch
from torch import Tensor

from fedmpdd.federation.sections import ServerConfig
from fedmpdd.server_step import Step


class ServerStep(Step[Tensor]):
    """The step on tensors, see fedmpdd.server_step."""

    def __init__(self, config: ServerConfig, lr: float, d: int, device: str = "cpu") -> None:
        super().__init__(config, lr, lambda: torch.zeros(d, device=device))
