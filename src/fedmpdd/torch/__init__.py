"""For training loops of one's own: gradients of a PyTorch module to frames, and frames to steps of any optimiser."""

from fedmpdd.torch.adapters import count_trained
from fedmpdd.torch.ddp import DDPHook, ddp_hook
from fedmpdd.torch.loop import Client, Server
from fedmpdd.torch.norms import replace_batch_norm

__all__ = ["Client", "DDPHook", "Server", "count_trained", "ddp_hook", "replace_batch_norm"]
