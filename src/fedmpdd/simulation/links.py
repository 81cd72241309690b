"""The codecs of a run whose clients have different links, as engine and replay take them from its config."""

from collections.abc import Sequence

import torch

from fedmpdd.codecs import Codec
from fedmpdd.simulation.config import RunConfig


def codecs_of(config: RunConfig, shapes: Sequence[torch.Size] | Sequence[tuple[int, ...]]) -> tuple[Codec, ...]:
    """Return the codecs that clients of a run have, each once, in the order of its links.

    shapes: of the model's parameters.
    """
    sizes = [tuple(shape) for shape in shapes]
    codecs = [one.codec.build().for_shapes(sizes) for one in config.of_links]
    return tuple(dict.fromkeys(codecs))


def link_numbers(config: RunConfig, codecs: Sequence[Codec], shapes: Sequence[torch.Size]) -> tuple[int, ...]:
    """Return, for every link of a run, which of its codecs it has."""
    sizes = [tuple(shape) for shape in shapes]
    return tuple(codecs.index(one.codec.build().for_shapes(sizes)) for one in config.of_links)


def bundle_codecs(config: RunConfig, codecs: tuple[Codec, ...], round_number: int) -> Codec | tuple[Codec, ...]:
    """Return what reads the bundle of a round: a codec, or those of all links, in their order."""
    return config.bundle_codec(codecs if config.links else codecs[0], round_number)
