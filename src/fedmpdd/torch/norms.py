"""Group norm for models that have batch norm, whose statistics are no gradient and belong to nobody alone."""

import copy
import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmpdd.errors import ConfigError
from fedmpdd.imports import quote


def replace_batch_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of a model with group norm where it has batch norm: nothing is shared between examples or clients.

    Args:
        model: any module. Scale and shift of its batch norm layers are taken over.
        groups: of channels, of equal size; fewer where the channels cannot be divided so.

    Returns:
        The copy.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 12, 3), torch.nn.BatchNorm2d(12))
        >>> replace_batch_norm(model)[1]
        GroupNorm(4, 12, eps=1e-05, affine=True)

    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model = {quote(model)}: expected a torch.nn.Module")
    if not isinstance(groups, int) or groups < 1:
        raise ConfigError(f"groups = {quote(groups)}: expected how many groups of channels, 1 or more")
    model = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, _BatchNorm):
            parent, _, last = name.rpartition(".")
            if not name:
                return _group_norm(layer, groups)
            setattr(model.get_submodule(parent), last, _group_norm(layer, groups))
    return model


def _group_norm(layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    norm = nn.GroupNorm(math.gcd(groups, channels), channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        norm.weight, norm.bias = layer.weight, layer.bias
    return norm
