"""What is not trained is there once, and is known by its hash."""

import hashlib
import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedmpdd.errors import RunError
from fedmpdd.torch.frozen import check_frozen, copy_sharing_frozen, frozen_sha256


def network() -> Any:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    return module


def test_a_copy_shares_what_is_frozen_and_nothing_else() -> None:
    module = network()
    copy: Any = copy_sharing_frozen(module)
    assert copy[0].weight.data_ptr() == module[0].weight.data_ptr()
    assert copy[2].weight.data_ptr() != module[2].weight.data_ptr()
    assert copy[2].weight.requires_grad
    copy.to(torch.float64).requires_grad_(True)  # as a move to another device would
    assert module[0].weight.dtype == torch.float32
    assert not module[0].weight.requires_grad


def test_tied_parameters_stay_tied() -> None:
    module = network()
    module.append(nn.Linear(4, 3))
    module[3].weight = module[0].weight
    copy: Any = copy_sharing_frozen(module)
    assert copy[3].weight is copy[0].weight


class Packed(nn.Parameter):
    """As libraries of quantised layers have them: with attributes that a view would not have."""


def test_other_kinds_of_parameters_are_copied_as_they_are() -> None:
    module = network()
    module[0].weight = Packed(module[0].weight.detach(), requires_grad=False)
    copy: Any = copy_sharing_frozen(module)
    assert copy[0].weight.data_ptr() != module[0].weight.data_ptr()
    assert torch.equal(copy[0].weight, module[0].weight)


def test_the_hash_is_that_of_the_page_on_journals() -> None:
    module = network()
    module.register_buffer("scale", torch.ones(2, dtype=torch.bfloat16))
    parts = [b"fedmpdd frozen 1"]
    for name, value in (("0.bias", module[0].bias), ("0.weight", module[0].weight)):
        text = json.dumps([name, "float32", list(value.shape)]).encode()
        numbers = value.flatten().tolist()
        parts += [struct.pack("<Q", len(text)), text, struct.pack(f"<{len(numbers)}f", *numbers)]
    text = b'["scale", "bfloat16", [2]]'
    parts += [struct.pack("<Q", len(text)), text, b"\x80\x3f\x80\x3f"]
    assert frozen_sha256(module) == hashlib.sha256(b"".join(parts)).hexdigest()


def test_trained_parameters_do_not_count_and_frozen_ones_and_buffers_do() -> None:
    module = network()
    first = frozen_sha256(module)
    with torch.no_grad():
        module[2].weight += 1
    assert frozen_sha256(module) == first
    assert frozen_sha256(module, {"0.weight", "0.bias", "2.weight", "2.bias"}) is None
    with torch.no_grad():
        module[0].weight[0, 0] += 1
    changed = frozen_sha256(module)
    assert changed != first
    module.register_buffer("cache", torch.ones(1), persistent=False)
    assert frozen_sha256(module) == changed
    module.register_buffer("table", torch.ones(1))
    assert frozen_sha256(module) != changed


def test_statistics_of_batch_norm_do_not_count_since_they_change() -> None:
    assert frozen_sha256(nn.BatchNorm1d(3)) is None
    assert frozen_sha256(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))) is None


@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8]),
    st.lists(st.integers(0, 3), max_size=3),
)
def test_any_dtype_and_shape_has_a_hash(dtype: torch.dtype, shape: list[int]) -> None:
    module = nn.Module()
    module.register_buffer("table", torch.zeros(shape, dtype=dtype))
    other = nn.Module()
    other.register_buffer("table", torch.zeros([*shape, 1], dtype=dtype))
    assert frozen_sha256(module) != frozen_sha256(other)


def test_another_frozen_model_is_refused_with_both_hashes() -> None:
    check_frozen(None, "ab" * 32, "a file")
    check_frozen("ab" * 32, "ab" * 32, "a file")
    with pytest.raises(
        RunError, match=r"^a file was made with a frozen model of hash (ab){8}….* (cd){8}…; load"
    ) as got:
        check_frozen("ab" * 32, "cd" * 32, "a file")
    assert "\n" not in str(got.value)
    with pytest.raises(RunError, match="none, since all of it is trained"):
        check_frozen("ab" * 32, None, "a file")
