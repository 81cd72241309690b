"""Codecs: one file each, one contract, one registry."""

from fedmpdd.codecs.base import NO_KEY, Arrays, Codec, Parameters, Section, Update
from fedmpdd.codecs.mpdd import MPDD

CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (MPDD,)}

__all__ = ["CODECS", "MPDD", "NO_KEY", "Arrays", "Codec", "Parameters", "Section", "Update"]
