"""The checks that an author puts a codec through find what is wrong with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fedmpdd import MPDD, Codec, Key, Update
from fedmpdd.codecs import Arrays, Section, TopK
from fedmpdd.codecs.backends import Array, Backend
from fedmpdd.codecs.base import Columns
from fedmpdd.errors import ContentError
from fedmpdd.testing import CodecCheckError, check_codec


@dataclass(frozen=True)
class Halves(Codec):
    """Every coordinate in half precision: right, and below the base of all that are wrong."""

    name: ClassVar[str] = "halves"
    needs_key: ClassVar[bool] = False

    def sections(self, d: int) -> tuple[Section, ...]:
        return (Section("values", "<f2", d),)

    def check_content(self, arrays: Arrays, d: int) -> None:
        if not np.isfinite(arrays[0]).all():
            raise ContentError("a value is not finite: drop this update")

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        backend.require(backend.xp.abs(gradients) < 65_000, "a coordinate is too large; scale or clip the gradient")
        return (backend.cast(gradients, "<f2"),)

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        return backend.weighted_sum(d, factors, lambda i, part: backend.cast(columns[0][i][part], "<f8"))


class ClaimsNoBias(Halves):
    unbiased: ClassVar[bool] = True

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        (values,) = super()._encode(backend, gradients, keys)
        return (values * np.float16(0.9),)


class WrongFormula(MPDD):
    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        return 0.9 * super().variance(d, n, partitioned=partitioned, alignment=alignment)


class KeepsTheGradient(Halves):
    def sections(self, d: int) -> tuple[Section, ...]:
        return (Section("values", "<f4", d),)

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        return (gradients,)


class TakesAnything(Halves):
    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        return (np.nan_to_num(gradients).astype("<f2"),)


class RollsDice(Halves):
    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        return ((gradients + _DICE.normal(size=gradients.shape)).astype("<f2"),)


_DICE = np.random.default_rng(1)


class LooksAtOthers(Halves):
    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        (values,) = super()._encode(backend, gradients, keys)
        return (values - values.mean(axis=0, dtype=np.float32).astype("<f2"),)


class HasNoLength(Halves):
    def magnitude(self, update: Update) -> float:
        return 1 / super().magnitude(update)


@pytest.mark.parametrize(
    ("codec", "what"),
    [
        (ClaimsNoBias(), r"estimate is unbiased: unbiased is True, and the mean of 4000 estimates is off"),
        (WrongFormula(m=24), r"variance is that of the formula: the relative error of 1 clients is .* where variance"),
        (KeepsTheGradient(), r"updates keep no gradient: an update is a view of the gradient; copy it"),
        (TakesAnything(), r"bad gradients are refused: a coordinate that is nan is taken without a word"),
        (RollsDice(), r"same input gives the same updates: updates or estimates differ from call to call"),
        (LooksAtOthers(), r"a batch is its clients one by one: a client's update depends on the others"),
        (HasNoLength(), r"magnitude grows with the gradient: magnitude "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_wrong_is_named(codec: Codec, what: str) -> None:
    with pytest.raises(CodecCheckError, match=what):
        check_codec(codec)


def test_a_right_codec_passes_and_is_told_what_was_left_out() -> None:
    left_out = check_codec(Halves())
    assert any(line.startswith("estimate is unbiased: it says that it is biased") for line in left_out)
    assert check_codec(MPDD(m=24, bits=8)) == []
    assert len(check_codec(TopK(k=4), d=50)) == 3


def test_a_codec_that_raises_fails_the_check_and_not_the_caller() -> None:
    class Broken(Halves):
        def sections(self, d: int) -> tuple[Section, ...]:
            raise RuntimeError("no luck today")

    with pytest.raises(CodecCheckError, match="RuntimeError: no luck today"):
        check_codec(Broken())
