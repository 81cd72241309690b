"""MNIST: 70,000 handwritten digits."""

from functools import partial

from fedmpdd.tasks.data import idx
from fedmpdd.tasks.data.base import Source

SOURCE = Source(
    "mnist",
    partial(idx.load, "mnist", mean=0.1307, std=0.3081),
    idx.files(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    partial(idx.find, "mnist"),
)
