"""Group norm in the place of batch norm."""

from typing import Any

import torch
from torch import nn

from fedmpdd.torch import replace_batch_norm


def test_batch_norm_can_be_replaced() -> None:
    model = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.Sequential(nn.BatchNorm2d(12, affine=False)))
    replaced: Any = replace_batch_norm(model)
    assert isinstance(model[1], nn.BatchNorm2d)
    first, second = replaced[1], replaced[2][0]
    assert isinstance(first, nn.GroupNorm)
    assert first.num_groups == 4
    assert isinstance(second, nn.GroupNorm)
    assert not second.affine
    assert not list(replaced.buffers())
    one = torch.randn(4, 3, 8, 8)
    assert torch.allclose(replaced(one)[:1], replaced(one[:1]), atol=1e-6)  # nobody depends on the others
    assert isinstance(replace_batch_norm(nn.BatchNorm2d(12)), nn.GroupNorm)
