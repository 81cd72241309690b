"""Where a federation computes: the CPU, or a GPU from end to end."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedmpdd.directions import why_no_gpu
from fedmpdd.errors import ConfigError
from fedmpdd.simulation.config import RunConfig


def resolve_device(config: RunConfig) -> RunConfig:
    """Return the config with its device decided: "auto" is a GPU where there is one that works, or else the CPU."""
    if config.device == "cpu":
        return config
    problem = why_no_gpu()
    if problem is None:
        return config.model_copy(update={"device": "cuda"})
    if config.device == "cuda":
        raise ConfigError(f'device = "cuda": {problem}; use device = "cpu" or "auto"')
    return config.model_copy(update={"device": "cpu"})


@contextmanager
def reproducible_arithmetic(config: RunConfig) -> Iterator[None]:
    """Within the block PyTorch gives the same bits for the same config, on the same kind of machine.

    On the CPU its sums depend on its number of threads; on a GPU cuDNN may choose algorithms that differ from call to
    call, and matrix units may round inputs to ten bits, which a config must ask for.
    """
    if config.device != "cuda":
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
        return
    matmul = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=config.tf32):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul
