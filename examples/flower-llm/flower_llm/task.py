"""The base model with its adapters, the sentences, and gradients on them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

import fedmpdd as fm
from fedmpdd.errors import DataError
from fedmpdd.simulation import parse_config, sampling
from fedmpdd.tasks.data import make_partition
from fedmpdd.torch.frozen import frozen_sha256

Config = Mapping[str, Any]


class Classifier:
    """The base model that this machine has, with adapters, and what turns sentences into its inputs."""

    def __init__(self, config: Config, name: str) -> None:
        words = [word for word in str(config["words"]).split(",") if word]
        classes = len(words) or int(config["classes"])
        base, tokenizer = fm.load_pretrained(
            name, layers=int(config["blocks"]) or None, classes=None if words else classes
        )
        head = [] if words else [part for part, _ in base.named_children() if part in ("classifier", "score")]
        self.adapted = fm.lora(
            base,
            int(config["rank"]),
            targets=str(config["targets"]).split(","),
            layers=int(config["adapted-blocks"]) or None,
            head=head,
        )
        cut: dict[str, Any] = {"length": int(config["length"]), "too_long": "cut"}
        self.encoder = fm.text.Prompt(tokenizer, words, **cut) if words else fm.text.Sentences(tokenizer, **cut)
        self.model = self.encoder.model(self.adapted)
        self.classes = tuple(map(str, range(classes)))
        self.trained = {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    @property
    def base_sha256(self) -> str | None:
        """The hash of all that is not trained, which never crosses the network."""
        return frozen_sha256(self.model)

    def load(self, adapters: Mapping[str, Tensor]) -> None:
        """Take the numbers of adapters that came."""
        with torch.no_grad():
            for name, value in self.trained.items():
                value.copy_(adapters[name])

    def adapters(self) -> dict[str, Tensor]:
        """Return the numbers of the adapters, and of the head if there is one."""
        return {name: value.detach() for name, value in self.trained.items()}

    def gradient(self, texts: fm.text.Texts) -> tuple[dict[str, Tensor], float]:
        """Return the gradient of the mean loss on a minibatch, and that loss."""
        *inputs, labels = self.encoder.examples(texts)
        loss = functional.cross_entropy(self.model.train()(*inputs), labels)
        values = torch.autograd.grad(loss, list(self.trained.values()))
        return dict(zip(self.trained, values, strict=True)), loss.item()

    def step(self, gradient: Mapping[str, Tensor], lr: float) -> None:
        """Take a step of SGD."""
        with torch.no_grad():
            for name, value in self.trained.items():
                value.sub_(lr * gradient[name])

    @torch.no_grad()
    def test(self, texts: fm.text.Texts) -> tuple[float, float]:
        """Return loss and accuracy on sentences."""
        *inputs, labels = self.encoder.examples(texts)
        batches = zip(*(torch.split(part, 32) for part in inputs), strict=True)
        logits = torch.cat([self.model.eval()(*batch) for batch in batches])
        accuracy = (logits.argmax(1) == labels).float().mean()
        return functional.cross_entropy(logits, labels).item(), accuracy.item()


class Share:
    """The sentences of one node: a file of its own, or its share of SST-2."""

    def __init__(self, node: Config, classes: tuple[str, ...]) -> None:
        self.number = int(node["partition-id"])
        if "train" in node:
            self._texts = read(str(node["train"]), classes)
            self._held: NDArray[np.int64] = np.arange(len(self._texts))
        else:
            self._texts = fm.text.load("sst2").train
            assert self._texts.labels is not None
            self._held = make_partition(self._texts.labels, int(node["num-partitions"])).examples_of(self.number)

    def __len__(self) -> int:
        return len(self._held)

    def minibatches(self, batch: int, steps: int, server_round: int, seed: int) -> list[fm.text.Texts]:
        """Return the minibatches of a round, those that the local engine would draw for this client."""
        several = {"local_steps": steps, "local_lr": 1.0} if steps > 1 else {}  # of any size: nothing is drawn by it
        config = parse_config({"batch": batch, "seed": seed, **several})
        drawn = sampling.sample_batches(config, server_round - 1, np.array([self.number]), [self._held])
        return [self._texts.select(numbers) for numbers in drawn[0]]


def read(path: str, classes: tuple[str, ...]) -> fm.text.Texts:
    """Return the sentences of a CSV file with columns sentence and label; labels are numbers from 0."""
    return fm.text.read_csv(path, text="sentence", label="label", classes=classes)


def dev_sentences(config: Config, classes: tuple[str, ...]) -> fm.text.Texts:
    """Return the sentences that the server tests on."""
    texts = read(str(config["dev"]), classes) if config["dev"] else fm.text.load("sst2").dev
    return texts.select(slice(int(config["dev-sentences"]) or None))


def check_base(expected: str, classifier: Classifier) -> None:
    """Raise DataError where this machine has another base model than the server."""
    current = classifier.base_sha256 or ""
    if current != expected:
        raise DataError(
            f"the base model here has SHA-256 {current[:16]}…, and the server's has {expected[:16]}…; install the same "
            "files on all machines"
        )


def seed_dropout(*numbers: int) -> None:
    """Have PyTorch draw what follows from these numbers, such as seed, round and node."""
    torch.manual_seed(int(np.random.default_rng(numbers).integers(2**63)))
