"""What a client computes on texts: the gradient of a model with adapters, for tokens or for guesses of embeddings."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedmpdd.errors import ConfigError, FedmpddError
from fedmpdd.imports import words_and_line_of
from fedmpdd.simulation.linear_layers import LinearLayerGradients, has_linear_layers
from fedmpdd.tasks.losses import Loss, inputs_and_targets
from fedmpdd.tasks.objective import Objective
from fedmpdd.tasks.stores import Batch, Store
from fedmpdd.tasks.task import check_objective, make_model

EXAMPLES = 32  # of one pass; more take more memory


PROBE = 16  # tokens of a text that is made up to see what layers take


class Embeddings(NamedTuple):
    """Guesses that stand where the embeddings of some tokens would.

    Args:
        values: [examples, positions, width].
        unknown: which positions they are for [examples, positions].

    """

    values: Tensor
    unknown: Tensor


class TextVictim:
    """A model and its loss, all of which an attacker knows. It is in eval mode: dropout is off.

    Args:
        model: takes the inputs of the examples. It is copied.
        loss: of the model.
        store: the examples, on the device that computes.
        device: where to compute.

    """

    def __init__(self, model: nn.Module, loss: Loss, store: Store, device: str) -> None:
        flat_model, flat = make_model(model, "default", 0)
        inputs_and_targets(store.gather(torch.arange(1)))  # raises what is no tuple
        self._guess: list[Embeddings] = []
        embedding = _embedding_of(flat_model.module)
        if embedding is not None:
            embedding.register_forward_hook(_exchange(self._guess))
        self._objective = Objective(flat_model, loss)
        check_objective(self._objective, flat, store.to("cpu"))
        self._objective.move_to(device)
        self.flat = flat.to(device)
        self.store = store.to(device)
        self.device = torch.device(device)
        self._lengths = _lengths_of(store)
        self.shapes = [tuple(shape) for shape in flat_model.shapes]
        by_layers = loss.per_example is not None and not self._objective.mixes_examples
        fits = by_layers and has_linear_layers(self._objective)
        self._by_layers = LinearLayerGradients(training=False) if fits else None
        self.embeddings = None  # of tokens [tokens, width], where they are not trained
        if embedding is not None:
            names = {f"{name}.weight" for name, one in flat_model.module.named_modules() if one is embedding}
            if not names & set(flat_model.names):
                self.embeddings = embedding.weight.detach().to(device).float()

    @property
    def d(self) -> int:
        """How many parameters are trained."""
        return len(self.flat)

    def gradients_of(
        self, examples: NDArray[np.int64], done: Callable[[int], None] | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """Return the gradients [batches, d] of batches of examples, by their numbers [batches, batch].

        Args:
            examples: the numbers.
            done: is told how many examples were looked at, whenever it are some more.
            targets: others than those of the examples [batches, batch].

        """
        size = max(1, EXAMPLES // examples.shape[1])
        gradients = torch.empty((len(examples), self.d), device=self.device)
        order = np.argsort(self._lengths[examples].max(axis=1), kind="stable")  # a pass costs as much as its longest
        for begin in range(0, len(examples), size):
            rows = order[begin : begin + size]
            batch = self.store.gather(torch.from_numpy(examples[rows]).to(self.device))
            if targets is not None:
                batch = (*batch[:-1], targets[rows].to(self.device))
            gradients[rows] = self.gradients(batch)
            if done is not None:
                done(examples[rows].size)
        return gradients

    def gradients(self, batch: Batch, guess: Embeddings | None = None) -> Tensor:
        """Return gradients [clients, d] of batches [clients, batch, …].

        Args:
            batch: the examples.
            guess: embeddings instead of those of tokens; the gradients can then be differentiated in them.

        """
        again = guess is not None
        # Of all kinds of attention only the plain one can be differentiated twice.
        kernel = sdpa_kernel(SDPBackend.MATH) if again else nullcontext()
        if guess is not None:
            self._guess.append(guess)
        try:
            with kernel:
                if self._by_layers is None:
                    return self._one_by_one(batch, again)
                models = self.flat.expand(len(batch[-1]), -1).detach().requires_grad_()
                losses = self._by_layers.losses(self._objective, models, batch)
                return torch.autograd.grad(losses.sum(), models, create_graph=again)[0]
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's model or loss
            raise ConfigError(f"the model cannot be attacked with these texts: {words_and_line_of(error)}") from error
        finally:
            self._guess.clear()

    def part(self, flat: Tensor, layer: str) -> Tensor:
        """Return what of a vector [d] belongs to the weight of a layer."""
        return self._objective.model.unflatten(flat)[f"{layer}.weight"]

    def token_layers(self) -> list[str]:
        """Return the trained linear layers whose input at a position depends on the token there alone."""
        if self.embeddings is None:
            return []
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(len(self.embeddings), (1, PROBE), generator=generator).to(self.device)
        order = torch.randperm(PROBE, generator=generator).to(self.device)
        one, other = self._inputs(ids), self._inputs(ids[:, order])
        alike = [name for name in one if torch.allclose(one[name][:, order], other[name], rtol=1e-4, atol=1e-5)]
        return [name for name in alike if torch.equal(one[name], one[alike[0]])]

    def token_vectors(self, layer: str) -> Tensor:
        """Return the input of one of `token_layers` for every token [tokens, width]."""
        assert self.embeddings is not None
        tokens = torch.arange(len(self.embeddings), device=self.device)
        parts = [self._inputs(some[None], last=layer)[layer][0] for some in torch.split(tokens, PROBE)]
        return torch.cat(parts).float()

    def _inputs(self, ids: Tensor, last: str | None = None) -> dict[str, Tensor]:
        """The inputs of trained linear layers for texts of these tokens; of those up to the last, if one is named."""
        caught: dict[str, Tensor] = {}

        def catch(name: str, module: nn.Module, inputs: Any) -> None:
            if inputs[0].shape[:2] == ids.shape:
                caught[name] = inputs[0].detach()
            if name == last:
                raise _EnoughError

        trained = {name.removesuffix(".weight") for name in self._objective.model.names}
        named = [(name, one) for name, one in self._objective.model.module.named_modules() if name in trained]
        linear = [(name, one) for name, one in named if isinstance(one, nn.Linear)]
        handles = [one.register_forward_pre_hook(partial(catch, name)) for name, one in linear]
        has_mask = len(self.store.gather(torch.arange(1, device=self.device))) > 2
        inputs = (ids, torch.ones_like(ids)) if has_mask else (ids,)
        try:
            with torch.no_grad():
                self._objective.tested(self.flat, lambda network: network(*inputs))
        except _EnoughError:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return caught

    def _one_by_one(self, batch: Batch, again: bool) -> Tensor:
        """Gradients where more is trained than linear layers."""
        rows, guess = [], self._guess[0] if again else None
        for client in range(len(batch[-1])):
            some = tuple(leaf[client] for leaf in batch)
            if guess is not None:
                part = slice(client * len(some[-1]), (client + 1) * len(some[-1]))
                self._guess[0] = Embeddings(guess.values[part], guess.unknown[part])
            flat = self.flat.detach().requires_grad_()
            value = self._objective.tested(flat, partial(self._loss, some))
            rows.append(torch.autograd.grad(value, flat, create_graph=again)[0])
        return torch.stack(rows)

    def _loss(self, batch: Batch, network: nn.Module) -> Tensor:
        return self._objective.loss(network, batch)


class _EnoughError(Exception):
    """What ends a forward pass whose later layers nobody needs."""


def _embedding_of(module: nn.Module) -> nn.Embedding | None:
    """The layer that makes vectors of tokens."""
    for each in module.modules():
        named: Any = getattr(each, "get_input_embeddings", None)
        if callable(named) and isinstance(layer := named(), nn.Embedding):
            return layer
    return next((each for each in module.modules() if isinstance(each, nn.Embedding)), None)


def _lengths_of(store: Store) -> NDArray[np.int64]:
    """How many tokens each example has, where an attention mask says so."""
    batch = store.gather(torch.arange(len(store)))
    has_mask = isinstance(batch, tuple) and len(batch) > 2 and batch[1].shape == batch[0].shape
    return batch[1].sum(dim=1).cpu().numpy() if has_mask else np.zeros(len(store), dtype=np.int64)


def _exchange(guess: list[Embeddings]) -> Callable[..., Tensor | None]:
    """A hook that puts guesses in the place of embeddings, while there are some."""

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        if not guess:
            return None
        return torch.where(guess[0].unknown[:, :, None], guess[0].values.to(output.dtype), output)

    return hook
