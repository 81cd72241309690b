"""What clients do before encoding: local gradients, or the model difference after several local steps."""

from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import DeComFL, ScalarCodec
from fedmpdd.directions import Key, direction
from fedmpdd.errors import ConfigError
from fedmpdd.simulation import forward
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.layers import LayerGradients, handles
from fedmpdd.simulation.workers import Workers
from fedmpdd.tasks.data import Dataset
from fedmpdd.tasks.models import FlatModel

CHUNK_BYTES = 128 * 2**20  # per-client activations and gradients of one vectorised call stay about below this
CHUNK_CLIENTS = 25  # and enough calls remain to keep a few threads busy
CHUNK_DIRECTIONS = 32  # of a forward-mode client; more at once are hardly faster
IMAGES, TEXTS = 500, 50  # that are evaluated at a time: a text has a label per position
GPU_SHARE = 8  # on a GPU: an eighth of its memory, by the same estimate, which is low for wide networks


GROUP_BYTES = 128 * 2**20  # gradients that wait at a time for being encoded


class _Chunk(NamedTuple):
    """Some of a round's clients, and their minibatches."""

    clients: slice
    inputs: Tensor
    labels: Tensor


class _Rows(NamedTuple):
    """Some of a round's clients, and which examples are in their minibatches; images are 784 times as large, say."""

    clients: slice
    examples: NDArray[np.int64]  # [clients, batch]


class ClientStep:
    """Minibatch gradients of many clients on one machine, the data on the device that computes."""

    def __init__(self, config: RunConfig, model: FlatModel, dataset: Dataset, workers: Workers) -> None:
        self._config = config
        self._model = model
        self._d = model.d
        self._workers = workers
        self._device = torch.device(config.device)
        self._images = torch.from_numpy(np.ascontiguousarray(dataset.train.images)).to(self._device)
        self._labels = torch.from_numpy(dataset.train.labels).to(self._device)
        self._pixels = Pixels(config, dataset)
        self._method = config.gradient_method
        if self._method == "layers" and config.gradients == "auto" and not handles(model.module):
            self._method = "vmap"

    def __call__(self, flat: Tensor, batches: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return what each client encodes [clients, d] from batches [clients, steps, batch], and the losses."""
        if self._config.local_steps > 1:
            return self._differences(flat, batches)
        gradients = torch.empty((len(batches), self._d), device=self._device)
        losses = torch.empty(len(batches), device=self._device)

        def compute(model: FlatModel, rows: _Rows) -> None:
            losses[rows.clients] = self._gradients(model, flat, self._gathered(rows), gradients[rows.clients])

        self._workers.map(compute, self._cut(batches[:, 0]))
        return gradients, losses

    def groups(self, clients: int) -> Iterator[slice]:
        """Cut a round's clients into groups whose gradients fit memory together.

        Every group but the last is a whole number of vectorised calls, so that the calls, and with them the bits, are
        those of all clients at once.
        """
        chunk = self._fitting(self._config.batch, CHUNK_CLIENTS)
        size = chunk * max(1, GROUP_BYTES // (4 * self._d * chunk))
        for begin in range(0, clients, size):
            yield slice(begin, min(begin + size, clients))

    def check(self, flat: Tensor) -> None:
        """Raise ConfigError if gradients of this model cannot be taken the way the config says."""
        if self._method == "layers" and not handles(self._model.module):
            raise ConfigError(
                'gradients = "layers": the model is not a plain nn.Sequential of linear and convolutional layers, '
                'activations and pooling; use gradients = "auto"'
            )
        inputs = self._pixels(self._images[:2]).unsqueeze(1)
        chunk = _Chunk(slice(0, len(inputs)), inputs, self._labels[:2].unsqueeze(1))
        if self._config.client == "forward":
            self._check_forward(flat, chunk)
            return
        try:
            gradients = torch.empty((len(inputs), self._d), device=self._device)
            self._workers.map(lambda model, one: self._gradients(model, flat, one, gradients), [chunk])
        except Exception as error:  # somebody else's model
            raise ConfigError(
                f"gradients = {self._config.gradients!r}: the model cannot be differentiated so: {error}; "
                'try gradients = "loop"'
            ) from None

    def _check_forward(self, flat: Tensor, chunk: _Chunk) -> None:
        rows = torch.ones((1 if self._method == "loop" else 2, self._d), device=self._device)
        try:
            forward.along(lambda parameters: _client_losses(self._model, parameters, chunk), flat, rows)
        except Exception as error:  # somebody else's model
            other = 'client = "backward"' if len(rows) == 1 else 'gradients = "loop", or client = "backward"'
            raise ConfigError(
                f'client = "forward": PyTorch cannot differentiate the model forwards: {error}; try {other}'
            ) from None

    def _differences(self, flat: Tensor, batches: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """x_k − x after several local steps: what the server should subtract."""
        local_lr = self._config.local_lr
        assert local_lr is not None
        differences = torch.zeros((len(batches), self._d), device=self._device)
        losses = torch.empty(batches.shape[:2], device=self._device)
        for step in range(batches.shape[1]):

            def compute(model: FlatModel, rows: _Rows, step: int = step) -> None:
                moved = differences[rows.clients]
                gradients = torch.empty_like(moved)
                losses[rows.clients, step] = self._gradients(model, flat - moved, self._gathered(rows), gradients)
                moved += local_lr * gradients

            self._workers.map(compute, self._cut(batches[:, step]))
        return differences, losses

    def _gradients(self, model: FlatModel, flat: Tensor, chunk: _Chunk, gradients: Tensor) -> Tensor:
        """Write gradients of a chunk, at one model [d] or at one per client [clients, d], and return the losses."""

        def loss(parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(model(parameters, inputs), labels)

        model_each = flat.ndim == 2
        if self._method == "layers":
            return LayerGradients(model, fused=flat.is_cuda)(flat, chunk.inputs, chunk.labels, gradients)
        if self._method == "vmap":
            together = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(0 if model_each else None, 0, 0))
            gradients[:], losses = together(flat, chunk.inputs, chunk.labels)
            return cast(Tensor, losses)
        values = []
        for i, (inputs, labels) in enumerate(zip(chunk.inputs, chunk.labels, strict=True)):
            variable = (flat[i] if model_each else flat).detach().requires_grad_()
            value = loss(variable, inputs, labels)
            gradients[i] = torch.autograd.grad(value, variable)[0]
            values.append(value.detach())
        return torch.stack(values)

    def slopes(
        self, flat: Tensor, batches: NDArray[np.int64], codec: DeComFL, key: Key
    ) -> tuple[NDArray[np.float64], Tensor]:
        """Return (f(x + μu) − f(x − μu)) / 2μ [clients, directions] along those of a shared key, and the losses.

        All clients move to the same two points, so that their examples go through the network together.
        """
        slopes = np.empty((len(batches), codec.count))
        losses = torch.empty(len(batches), dtype=torch.float64, device=self._device)

        def compute(model: FlatModel, rows: _Rows) -> None:
            chunk = self._gathered(rows)
            with torch.no_grad():
                for j in range(codec.count):
                    step = codec.step * torch.from_numpy(direction(key, codec.count, j, self._d)).to(self._device)
                    ahead, behind = (_client_losses(model, flat + sign * step, chunk) for sign in (1, -1))
                    slopes[chunk.clients, j] = (ahead - behind).cpu().numpy() / (2 * codec.step)
                losses[chunk.clients] = _client_losses(model, flat, chunk)

        self._workers.map(compute, self._cut(batches[:, 0]))
        return slopes, losses

    def derivatives(
        self, flat: Tensor, batches: NDArray[np.int64], codec: ScalarCodec, keys: list[Key]
    ) -> tuple[NDArray[np.float64], Tensor]:
        """Return d/dt f_i(x + t·u) at t = 0 [clients, count] along the directions of each client's key, and the losses.

        Clients that share a key go through the network together. All on one thread: PyTorch keeps the state of
        forward-mode differentiation once for the whole process, and threads would spoil it for each other.
        """
        scalars = np.empty((len(batches), codec.count))
        losses = torch.empty(len(batches), dtype=torch.float64, device=self._device)
        shared = len(set(keys)) == 1
        for rows in self._cut(batches[:, 0], CHUNK_CLIENTS if shared else 1):
            chunk = self._gathered(rows)

            def losses_at(parameters: Tensor, chunk: _Chunk = chunk) -> Tensor:
                return _client_losses(self._model, parameters, chunk)

            key = keys[chunk.clients.start]
            at_once = 1 if self._method == "loop" else self._fitting(chunk.labels.shape[:2].numel(), CHUNK_DIRECTIONS)
            slopes, losses[chunk.clients] = forward.derivatives(losses_at, flat, codec, key, at_once)
            scalars[chunk.clients] = slopes.cpu().numpy()
        return scalars, losses

    def _fitting(self, examples: int, most: int) -> int:
        """How many passes of so many examples fit memory side by side, and on the CPU at most `most`."""
        one = 4 * (self._d + 64 * int(np.prod(self._images.shape[1:])) * examples)
        if self._device.type == "cuda":
            return max(1, torch.cuda.get_device_properties(self._device).total_memory // GPU_SHARE // one)
        return max(1, min(most, CHUNK_BYTES // one))

    def _cut(self, examples: NDArray[np.int64], most: int | None = None) -> Iterator[_Rows]:
        """Cut the clients into runs that fit memory, and have at most `most` of them.

        The cuts depend on the config, and on the kind of GPU, alone.
        """
        size = self._fitting(examples.shape[1], CHUNK_CLIENTS)
        size = size if most is None else min(size, most)
        for begin in range(0, len(examples), size):
            part = examples[begin : begin + size]
            yield _Rows(slice(begin, begin + len(part)), part)

    def _gathered(self, rows: _Rows) -> _Chunk:
        """Fetch the examples of some clients: by who computes with them, so that few are in memory at a time."""
        chosen = torch.from_numpy(rows.examples).to(self._device)
        return _Chunk(rows.clients, self._pixels(self._images[chosen]), self._labels[chosen])


def _client_losses(model: FlatModel, flat: Tensor, chunk: _Chunk) -> Tensor:
    clients = len(chunk.labels)
    logits = model(flat, chunk.inputs.flatten(0, 1)).double()
    losses = torch.nn.functional.cross_entropy(logits, chunk.labels.flatten(0, 1), reduction="none")
    return losses.view(clients, -1).mean(dim=1)


class Pixels:
    """Bytes to network inputs, as the config says."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        channels = (-1, 1, 1)
        if config.pixels == "normalised":
            mean, std = (torch.tensor(values).view(channels) for values in (dataset.mean, dataset.std))
        else:
            mean, std = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
        unit = 1 if config.pixels == "raw" else 255
        self._scale = (1 / (unit * std)).to(config.device)
        self._offset = (mean / std).to(config.device)

    def __call__(self, images: Tensor) -> Tensor:
        """Return float inputs for byte images."""
        return images.float() * self._scale - self._offset


class Evaluator:
    """Accuracy and loss on the test examples."""

    def __init__(self, config: RunConfig, dataset: Dataset, workers: Workers) -> None:
        self._workers = workers
        self._images = torch.from_numpy(np.ascontiguousarray(dataset.test.images)).to(config.device)
        self._labels = torch.from_numpy(dataset.test.labels).to(config.device)
        self._pixels = Pixels(config, dataset)

    def __call__(self, flat: Tensor) -> tuple[float, float]:
        """Return (accuracy from 0 to 1, mean loss)."""
        batch = IMAGES if self._labels.ndim == 1 else TEXTS

        def compute(model: FlatModel, begin: int) -> tuple[int, float]:
            labels = self._labels[begin : begin + batch]
            with torch.no_grad():
                logits = model(flat, self._pixels(self._images[begin : begin + batch]))
                loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            return int((logits.argmax(dim=1) == labels).sum()), float(loss)

        results = self._workers.map(compute, range(0, len(self._labels), batch))
        correct, losses = zip(*results, strict=True)
        return sum(correct) / self._labels.numel(), sum(losses) / self._labels.numel()
