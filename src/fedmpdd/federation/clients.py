"""What clients do before encoding: local gradients, or the model difference after several local steps."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import DeComFL
from fedmpdd.data import Dataset
from fedmpdd.directions import Key, direction
from fedmpdd.federation.config import RunConfig
from fedmpdd.models import FlatModel

CHUNK_BYTES = 256 * 2**20  # per-client activations and gradients of one vectorised call stay about below this


class ClientStep:
    """Minibatch gradients of many clients on one machine."""

    def __init__(self, config: RunConfig, model: FlatModel, dataset: Dataset) -> None:
        self._config = config
        self._model = model
        self._images = torch.from_numpy(np.ascontiguousarray(dataset.train.images))
        self._labels = torch.from_numpy(dataset.train.labels)
        self._pixels = Pixels(config, dataset)
        per_client = torch.func.grad_and_value(self._loss)
        self._vectorised: Any = torch.func.vmap(per_client, in_dims=(None, 0, 0))
        self._vectorised_models: Any = torch.func.vmap(per_client, in_dims=(0, 0, 0))

    def _loss(self, flat: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(self._model(flat, inputs), labels)

    def __call__(self, flat: Tensor, batches: NDArray[np.int64]) -> tuple[NDArray[np.float32], float]:
        """Return what each client encodes [clients, d] from batches [clients, steps, batch], and the mean loss."""
        if self._config.local_steps > 1:
            return self._differences(flat, batches)
        gradients = np.empty((len(batches), self._model.d), dtype=np.float32)
        losses = np.empty(len(batches))
        for begin, end, inputs, labels in self._chunks(batches[:, 0]):
            if self._config.gradient_method == "vmap":
                values, loss = self._vectorised(flat, inputs, labels)
                gradients[begin:end], losses[begin:end] = values.numpy(), loss.numpy()
            else:
                self._one_by_one(flat, inputs, labels, gradients[begin:end], losses[begin:end])
        return gradients, float(losses.mean())

    def _one_by_one(
        self, flat: Tensor, inputs: Tensor, labels: Tensor, gradients: NDArray[np.float32], losses: NDArray[np.float64]
    ) -> None:
        variable = flat.detach().requires_grad_()
        for i in range(len(inputs)):
            loss = self._loss(variable, inputs[i], labels[i])
            (gradient,) = torch.autograd.grad(loss, variable)
            gradients[i], losses[i] = gradient.numpy(), float(loss.detach())

    def _differences(self, flat: Tensor, batches: NDArray[np.int64]) -> tuple[NDArray[np.float32], float]:
        """x_k − x after several local steps: what the server should subtract."""
        assert self._config.local_lr is not None
        differences = np.empty((len(batches), self._model.d), dtype=np.float32)
        losses = np.empty(batches.shape[:2])
        for step in range(batches.shape[1]):
            for begin, end, inputs, labels in self._chunks(batches[:, step]):
                done = torch.from_numpy(differences[begin:end]) if step else torch.zeros(end - begin, self._model.d)
                local = flat - done
                if self._config.gradient_method == "vmap":
                    gradients, loss = self._vectorised_models(local, inputs, labels)
                else:
                    gradients, loss = torch.empty_like(local), torch.empty(len(local))
                    for i in range(len(local)):
                        self._one_by_one(
                            local[i],
                            inputs[i : i + 1],
                            labels[i : i + 1],
                            gradients[i : i + 1].numpy(),
                            loss[i : i + 1].numpy(),
                        )
                losses[begin:end, step] = loss.numpy()
                differences[begin:end] = (done + self._config.local_lr * gradients).numpy()
        return differences, float(losses.mean())

    def loss_differences(
        self, flat: Tensor, batches: NDArray[np.int64], codec: DeComFL, key: Key
    ) -> tuple[NDArray[np.float64], float]:
        """Return f_i(x + μu) − f_i(x − μu) [clients, directions] along the directions of a shared key, and the loss.

        All clients move to the same two points, so that their examples go through the network together.
        """
        rows = batches[:, 0]
        differences, means = np.empty((len(rows), codec.m)), []
        with torch.no_grad():
            for begin, end, inputs, labels in self._chunks(rows):
                for j in range(codec.m):
                    step = codec.step * torch.from_numpy(direction(key, codec.m, j, self._model.d))
                    ahead, behind = (self._client_losses(flat + sign * step, inputs, labels) for sign in (1, -1))
                    differences[begin:end, j] = (ahead - behind).numpy()
                means.append(self._client_losses(flat, inputs, labels).numpy())
        return differences, float(np.concatenate(means).mean())

    def _client_losses(self, flat: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        clients, batch = labels.shape
        logits = self._model(flat, inputs.flatten(0, 1)).double()
        losses = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="none")
        return losses.view(clients, batch).mean(dim=1)

    def _chunks(self, rows: NDArray[np.int64]) -> Any:
        """Cut the clients into runs that fit memory; the cuts depend on the config alone."""
        size = max(1, CHUNK_BYTES // (4 * (self._model.d + 64 * int(np.prod(self._images.shape[1:])) * rows.shape[1])))
        for begin in range(0, len(rows), size):
            chosen = torch.from_numpy(rows[begin : begin + size])
            yield begin, begin + len(chosen), self._pixels(self._images[chosen]), self._labels[chosen]


class Pixels:
    """Bytes to network inputs, as the config says."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        channels = (-1, 1, 1)
        if config.pixels == "normalised":
            mean, std = (torch.tensor(values).view(channels) for values in (dataset.mean, dataset.std))
        else:
            mean, std = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
        self._shift, self._scale = mean, 1 / (255 * std)
        self._offset = mean / std

    def __call__(self, images: Tensor) -> Tensor:
        """Return float inputs for byte images."""
        return images.float() * self._scale - self._offset


class Evaluator:
    """Accuracy and loss on the test examples."""

    def __init__(self, config: RunConfig, model: FlatModel, dataset: Dataset) -> None:
        self._model = model
        self._images = torch.from_numpy(np.ascontiguousarray(dataset.test.images))
        self._labels = torch.from_numpy(dataset.test.labels)
        self._pixels = Pixels(config, dataset)

    def __call__(self, flat: Tensor, batch: int = 500) -> tuple[float, float]:
        """Return (accuracy from 0 to 1, mean loss)."""
        correct, loss = 0, 0.0
        with torch.no_grad():
            for begin in range(0, len(self._labels), batch):
                logits = self._model(flat, self._pixels(self._images[begin : begin + batch]))
                labels = self._labels[begin : begin + batch]
                correct += int((logits.argmax(dim=1) == labels).sum())
                loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
        return correct / len(self._labels), loss / len(self._labels)
