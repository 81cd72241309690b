"""What of a module is not trained: shared instead of copied, and known by its hash.

A pretrained network has many times the parameters that are trained of it. Copies of it share those numbers, and files
name them by a hash.
"""

import copy
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmpdd.errors import RunError

FROZEN = "frozen_sha256"  # what files call the hash

_KIND = b"fedmpdd frozen 1"  # what is hashed first: another way of hashing has another number here


def copy_sharing_frozen(module: nn.Module, shared: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return a copy of a module that holds the numbers of its frozen parameters in the same memory.

    The parameters of the copy are objects of their own: to move the copy to another device, or to unfreeze a part of
    it, changes nothing of the original. To write into the numbers themselves does.

    Args:
        module: any module.
        shared: the numbers of frozen parameters, by name; by default those of the parameters with
            `requires_grad=False`, where they are.

    Example:
        >>> layer = torch.nn.Linear(3, 2).requires_grad_(False)
        >>> copy_sharing_frozen(layer).weight.data_ptr() == layer.weight.data_ptr()
        True

    """
    named = dict(module.named_parameters())
    if shared is None:
        shared = {name: parameter.detach() for name, parameter in named.items() if not parameter.requires_grad}
    memo: dict[int, object] = {}
    for name, numbers in shared.items():
        if type(named[name]) is nn.Parameter:  # subclasses, as of quantised layers, know more than numbers
            memo[id(named[name])] = nn.Parameter(numbers, requires_grad=False)
    return copy.deepcopy(module, memo)


def frozen_sha256(module: nn.Module, trained: Collection[str] | None = None) -> str | None:
    """Return the SHA-256 of everything of a module that is not trained: docs/journal.md has the layout.

    That is its frozen parameters and its persistent buffers, but for the statistics of batch norm, which change.

    Args:
        module: any module.
        trained: the names of the parameters that are trained; those with `requires_grad=True` by default.

    Returns:
        64 hexadecimal digits, or None where all of the module is trained.

    Example:
        >>> frozen_sha256(torch.nn.Linear(3, 2)) is None
        True

    """
    if trained is None:
        trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    frozen = dict(_frozen_tensors(module, trained))
    if not frozen:
        return None
    digest = hashlib.sha256(_KIND)
    for name in sorted(frozen):
        tensor = frozen[name]
        text = json.dumps([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]).encode()
        digest.update(len(text).to_bytes(8, "little") + text)
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_frozen(expected: str | None, current: str | None, source: str) -> None:
    """Raise RunError where what is frozen here is not what it was when something was trained.

    Args:
        expected: the hash in a file; None of files that have none, as those of earlier versions, which say nothing.
        current: the hash of the model here.
        source: what file, for the message.

    """
    if expected is not None and expected != current:
        raise RunError(
            f"{source} was made with a frozen model of hash {expected[:16]}…, and that of the model here is "
            f"{f'{current[:16]}…' if current else 'none, since all of it is trained'}; load the base model that it was "
            "made with"
        )


def _frozen_tensors(module: nn.Module, trained: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    yield from ((name, value) for name, value in module.named_parameters() if name not in trained)
    persistent = module.state_dict(keep_vars=True)
    changing = [f"{name}." if name else "" for name, child in module.named_modules() if isinstance(child, _BatchNorm)]
    for name, value in module.named_buffers():
        if name in persistent and not name.startswith(tuple(changing)):
            yield name, value
