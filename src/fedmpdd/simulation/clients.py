"""What clients do before encoding: local gradients, or the model difference after several local steps."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedmpdd.codecs import DeComFL, ScalarCodec
from fedmpdd.directions import Key, direction
from fedmpdd.errors import ConfigError, FedmpddError
from fedmpdd.imports import words_and_line_of
from fedmpdd.simulation import forward, sampling
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.layers import LayerGradients, handles
from fedmpdd.simulation.local_steps import LocalTraining
from fedmpdd.simulation.workers import Workers
from fedmpdd.tasks.losses import logits_of
from fedmpdd.tasks.objective import Objective
from fedmpdd.tasks.randomness import ClientRandomness, visible_draws
from fedmpdd.tasks.stores import Batch, Store
from fedmpdd.tasks.task import check_objective

CHUNK_BYTES = 128 * 2**20  # per-client activations and gradients of one vectorised call stay about below this
CHUNK_CLIENTS = 25  # and enough calls remain to keep a few threads busy
CHUNK_DIRECTIONS = 32  # of a forward-mode client; more at once are hardly faster
GPU_SHARE = 8  # on a GPU: an eighth of its memory, by the same estimate, which is low for wide networks


GROUP_BYTES = 128 * 2**20  # gradients that wait at a time for being encoded


class Work(NamedTuple):
    """What clients of a round compute with."""

    round: int
    clients: NDArray[np.int64]
    batches: NDArray[np.int64]  # [clients, local steps, batch]


class Computed(NamedTuple):
    """What clients encode, with their losses and, where they are sent, the statistics of batch norm."""

    rows: Any  # gradients or differences [clients, d], or scalars along directions
    losses: Tensor
    statistics: Tensor | None = None  # [clients, how many]

    @classmethod
    def joined(cls, parts: "Sequence[Computed]") -> "Computed":
        """Return the losses and statistics of several groups of clients; their rows were encoded."""
        statistics = [part.statistics for part in parts if part.statistics is not None]
        losses = torch.cat([part.losses for part in parts])
        return cls(None, losses, torch.cat(statistics) if statistics else None)


class _Rows(NamedTuple):
    """Some of a round's clients at one of their steps, and which examples are in their minibatches."""

    clients: slice | NDArray[np.int64]  # an array where clients between them are done with their steps
    examples: NDArray[np.int64]  # [clients, batch]
    seeds: list[tuple[int, ...]]  # of what each client draws

    @property
    def numbers(self) -> list[int]:
        """The places of the clients in the round."""
        if isinstance(self.clients, slice):
            return list(range(self.clients.start, self.clients.stop))
        return [int(number) for number in self.clients]


class ClientStep:
    """Minibatch gradients of many clients on one machine, the data on the device that computes.

    Args:
        config: of the run.
        objective: what clients minimise.
        store: the examples of all clients.
        workers: the threads that compute.

    """

    def __init__(self, config: RunConfig, objective: Objective, store: Store, workers: Workers[Objective]) -> None:
        self._config = config
        self._objective = objective
        self._d = objective.d
        self._workers = workers
        self._device = torch.device(config.device)
        self._store = store.to(self._device)
        self._example_size = _example_size(self._store)
        self._method = config.gradient_method
        if self._method == "layers" and config.gradients == "auto" and not self._has_layers:
            self._method = "vmap"
        self._draws = False  # whether clients draw random numbers while they train; `check` finds out

    @property
    def _has_layers(self) -> bool:
        module, loss = self._objective.model.module, self._objective.loss
        is_trained = len(self._objective.model.names) == len(list(module.parameters()))  # all of it
        return handles(module) and loss.per_example is not None and is_trained

    def __call__(self, flat: Tensor, work: Work) -> Computed:
        """Return what each client encodes [clients, d]."""
        with visible_draws() if self._draws else nullcontext(), blamed_on_the_task(work.round):
            if self._config.trains_locally:
                return self._differences(flat, work)
            return self._all_gradients(flat, work)

    def cause(self, computed: Computed) -> str | None:
        """Return why rows may not be finite, as far as the examples show it."""
        number = self._store.not_finite()
        if number is None or bool(torch.isfinite(torch.as_tensor(computed.rows)).all()):
            return None
        return f"training example {number} holds NaN or infinity; leave such examples out, or fill them in"

    def _all_gradients(self, flat: Tensor, work: Work) -> Computed:
        clients = len(work.clients)
        gradients = torch.empty((clients, self._d), device=self._device)
        losses = torch.empty(clients, device=self._device)
        statistics = self._empty_statistics(clients)

        def compute(objective: Objective, rows: _Rows) -> None:
            some = None if statistics is None else statistics[rows.clients]
            losses[rows.clients] = self._gradients(objective, flat, rows, gradients[rows.clients], some)

        self._workers.map(compute, self._cut(work, 0))
        return Computed(gradients, losses, statistics)

    def _empty_statistics(self, clients: int) -> Tensor | None:
        statistics = self._objective.statistics
        return None if statistics is None else torch.zeros((clients, statistics.size), device=self._device)

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
        if self._method == "layers" and not self._has_layers:
            raise ConfigError(
                'gradients = "layers": the model is not a plain nn.Sequential of linear and convolutional layers, '
                'activations and pooling, with cross-entropy; use gradients = "auto"'
            )
        has_gradient = self._config.source == "backward"
        self._draws = check_objective(self._objective, flat, self._store, has_gradient=has_gradient)
        batch = self._config.batch if self._objective.mixes_examples else 1
        examples = np.arange(2 * batch).reshape(2, batch) % len(self._store)
        rows = _Rows(slice(0, 2), examples, [(0,), (1,)])
        if self._config.client == "forward":
            self._check_forward(flat, rows)
            return
        while (problem := self._problem_with(flat, rows)) is not None:
            # Not every model can be vectorised: one that looks at its numbers, or has an LSTM, goes client by client.
            if self._config.gradients != "auto" or self._method == "loop":
                how = "" if self._method == "loop" else ' all clients at once; try gradients = "auto"'
                text = words_and_line_of(problem)
                raise ConfigError(f"the model cannot be differentiated{how}: {text}") from problem
            self._method = "vmap" if self._method == "layers" else "loop"

    def _problem_with(self, flat: Tensor, rows: _Rows) -> Exception | None:
        """Return what the gradients of some clients raise, taken by the method that is chosen."""
        gradients, statistics = torch.empty((2, self._d), device=self._device), self._empty_statistics(2)
        try:
            with warnings.catch_warnings():
                if self._config.gradients == "auto":  # PyTorch vectorises some layers by a slow loop, and says so
                    warnings.filterwarnings("error", message="There is a performance drop")
                self._workers.map(lambda model, one: self._gradients(model, flat, one, gradients, statistics), [rows])
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's model
            return error
        return None

    def _check_forward(self, flat: Tensor, some: _Rows) -> None:
        rows = torch.ones((1 if self._one_direction else 2, self._d), device=self._device)
        try:
            forward.along(lambda parameters: self._client_losses(self._objective, parameters, some), flat, rows)
        except Exception as error:  # somebody else's model
            text = words_and_line_of(error)
            other = 'client = "backward"' if len(rows) == 1 else 'gradients = "loop", or client = "backward"'
            raise ConfigError(
                f'client = "forward": PyTorch cannot differentiate the model forwards: {text}; try {other}'
            ) from error

    def _differences(self, flat: Tensor, work: Work) -> Computed:
        """x_k − x after several local steps: what the server should subtract."""
        training = LocalTraining.of(self._config, self._objective.model.shapes)
        clients, steps = work.batches.shape[:2]
        differences = torch.zeros((clients, self._d), device=self._device)
        losses = torch.full((clients, steps), math.nan, device=self._device)
        statistics = self._empty_statistics(clients)
        optimisers = [training.start(flat) for _ in range(clients)]
        for step in range(steps):

            def compute(objective: Objective, rows: _Rows, step: int = step) -> None:
                moved = differences[rows.clients]
                gradients = torch.empty_like(moved)
                some = None if statistics is None else statistics[rows.clients]
                losses[rows.clients, step] = self._gradients(objective, flat - moved, rows, gradients, some)
                training.step(flat, moved, gradients, [optimisers[client] for client in rows.numbers])
                differences[rows.clients] = moved
                if statistics is not None and some is not None:
                    statistics[rows.clients] = some

            self._workers.map(compute, self._cut(work, step))
        return Computed(differences, losses, statistics)

    def _gradients(
        self, objective: Objective, flat: Tensor, rows: _Rows, gradients: Tensor, statistics: Tensor | None
    ) -> Tensor:
        """Write gradients of clients, at one model [d] or at one per client [clients, d], and return the losses."""
        batch = self._gathered(rows)
        if self._method == "layers":
            assert objective.loss.per_example is not None
            by_layers = LayerGradients(objective.model, fused=flat.is_cuda, per_example=objective.loss.per_example)
            inputs, targets = batch
            return by_layers(flat, inputs, targets, gradients)
        losses = self._vectorised if self._method == "vmap" else self._one_by_one
        return losses(objective, flat, batch, rows.seeds, gradients, statistics)

    def _vectorised(
        self, objective: Objective, flat: Tensor, batch: Batch, seeds: Any, gradients: Tensor, statistics: Tensor | None
    ) -> Tensor:
        function: Any = objective if statistics is None else objective.with_statistics
        derivative = torch.func.grad_and_value(function, has_aux=statistics is not None)
        together = torch.func.vmap(
            derivative, in_dims=(0 if flat.ndim == 2 else None, 0), randomness="different" if self._draws else "error"
        )
        with self._randomness(seeds, vectorised=True):
            gradients[:], values = together(flat, batch)
        if statistics is None:
            return cast(Tensor, values)
        losses, statistics[:] = values
        return cast(Tensor, losses)

    def _one_by_one(
        self, objective: Objective, flat: Tensor, batch: Batch, seeds: Any, gradients: Tensor, statistics: Tensor | None
    ) -> Tensor:
        values = []
        for i, seed in enumerate(seeds):
            variable = (flat[i] if flat.ndim == 2 else flat).detach().requires_grad_()
            with self._randomness([seed], vectorised=False):
                value = objective(variable, _of_client(batch, i))
                gradients[i] = torch.autograd.grad(value, variable)[0]
            if statistics is not None and objective.statistics is not None:
                statistics[i] = objective.statistics.take()
            values.append(value.detach())
        return torch.stack(values)

    def _randomness(self, seeds: Any, *, vectorised: bool) -> AbstractContextManager[object]:
        if not self._draws:
            return nullcontext()
        return ClientRandomness(seeds, vectorised=vectorised, device=self._device)

    def slopes(self, flat: Tensor, work: Work, codec: DeComFL, key: Key) -> Computed:
        """Return (f(x + μu) − f(x − μu)) / 2μ [clients, directions] along those of a shared key.

        All clients move to the same two points, so that their examples go through the network together.
        """
        slopes = np.empty((len(work.clients), codec.count))
        losses = torch.empty(len(work.clients), dtype=torch.float64, device=self._device)

        def compute(objective: Objective, rows: _Rows) -> None:
            with torch.no_grad():
                for j in range(codec.count):
                    step = codec.step * torch.from_numpy(direction(key, codec.count, j, self._d)).to(self._device)
                    ahead, behind = (self._client_losses(objective, flat + sign * step, rows) for sign in (1, -1))
                    slopes[rows.clients, j] = (ahead - behind).cpu().numpy() / (2 * codec.step)
                losses[rows.clients] = self._client_losses(objective, flat, rows)

        with visible_draws() if self._draws else nullcontext():
            self._workers.map(compute, self._cut(work, 0))
        return Computed(slopes, losses)

    def derivatives(self, flat: Tensor, work: Work, codec: ScalarCodec, keys: list[Key]) -> Computed:
        """Return d/dt f_i(x + t·u) at t = 0 [clients, count] along the directions of each client's key.

        Clients that share a key go through the network together. All on one thread: PyTorch keeps the state of
        forward-mode differentiation once for the whole process, and threads would spoil it for each other.
        """
        scalars = np.empty((len(work.clients), codec.count))
        losses = torch.empty(len(work.clients), dtype=torch.float64, device=self._device)
        shared = len(set(keys)) == 1
        with visible_draws() if self._draws else nullcontext():
            for rows in self._cut(work, 0, CHUNK_CLIENTS if shared else 1):

                def losses_at(parameters: Tensor, rows: _Rows = rows) -> Tensor:
                    return self._client_losses(self._objective, parameters, rows)

                at_once = 1 if self._one_direction else self._fitting(rows.examples.size, CHUNK_DIRECTIONS)
                key = keys[rows.numbers[0]]
                slopes, losses[rows.clients] = forward.derivatives(losses_at, flat, codec, key, at_once)
                scalars[rows.clients] = slopes.cpu().numpy()
        return Computed(scalars, losses)

    @property
    def _one_direction(self) -> bool:
        """Whether directions of a forward-mode client go through the network one by one."""
        return self._method == "loop" or self._draws

    def _client_losses(self, objective: Objective, flat: Tensor, rows: _Rows) -> Tensor:
        """The losses of clients at one model, in float64."""
        batch, loss = self._gathered(rows), objective.loss
        if loss.per_example is not None and not self._draws and not objective.mixes_examples:
            *inputs, targets = batch
            outputs = logits_of(objective.outputs(flat, *(part.flatten(0, 1) for part in inputs))).double()
            return loss.per_client(outputs, targets)
        if self._method == "loop":
            return torch.stack([self._loss(objective, flat, _of_client(batch, i), s) for i, s in enumerate(rows.seeds)])
        with self._randomness(rows.seeds, vectorised=True):
            together = torch.func.vmap(objective, in_dims=(None, 0), randomness="different" if self._draws else "error")
            losses: Tensor = together(flat, batch)
            return losses.double()

    def _loss(self, objective: Objective, flat: Tensor, batch: Batch, seed: tuple[int, ...]) -> Tensor:
        """The loss of one client."""
        with self._randomness([seed], vectorised=False):
            return objective(flat, batch).double()

    def _fitting(self, examples: int, most: int) -> int:
        """How many passes of so many examples fit memory side by side, and on the CPU at most `most`."""
        one = 4 * (self._d + 64 * self._example_size * examples)
        if self._device.type == "cuda":
            return max(1, torch.cuda.get_device_properties(self._device).total_memory // GPU_SHARE // one)
        return max(1, min(most, CHUNK_BYTES // one))

    def _cut(self, work: Work, step: int, most: int | None = None) -> Iterator[_Rows]:
        """Cut the clients into runs that fit memory, and have at most `most` of them.

        The cuts depend on the config, and on the kind of GPU, alone.
        """
        size = self._fitting(work.batches.shape[2], CHUNK_CLIENTS)
        size = size if most is None else min(size, most)
        at_work = np.flatnonzero(work.batches[:, step, 0] >= 0)  # the others have done all their steps
        for begin in range(0, len(at_work), size):
            some = at_work[begin : begin + size]
            seeds = [sampling.training_seed(self._config, work.round, client, step) for client in work.clients[some]]
            in_a_row = some[-1] - some[0] + 1 == len(some)
            yield _Rows(slice(int(some[0]), int(some[-1]) + 1) if in_a_row else some, work.batches[some, step], seeds)

    def _gathered(self, rows: _Rows) -> Batch:
        """Fetch the examples of some clients: by who computes with them, so that few are in memory at a time."""
        chosen = torch.from_numpy(rows.examples)
        if not self._store.draws:
            return self._store.gather(chosen.to(self._device))
        # A client's random crops are its own, whoever else is in the call.
        parts = [self._store.gather(one, seed) for one, seed in zip(chosen, rows.seeds, strict=True)]
        return tree_map(lambda *leaves: torch.stack(leaves), *parts)


@contextmanager
def blamed_on_the_task(round_number: int) -> Iterator[None]:
    """Turn what somebody's model, loss or dataset raises in a round into one line, the traceback behind it."""
    try:
        yield
    except (FedmpddError, MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        text = words_and_line_of(error)
        raise ConfigError(f"the model or the loss failed in round {round_number}: {text}") from error


def _of_client(batch: Batch, client: int) -> Batch:
    return tree_map(lambda leaf: leaf[client], batch)


def _example_size(store: Store) -> int:
    """How many numbers an example has, its target apart: what its activations are estimated by."""
    batch = store.gather(torch.zeros(1, dtype=torch.int64))
    return sum(math.prod(leaf.shape[1:]) for leaf in tree_leaves(batch[:-1] if isinstance(batch, tuple) else batch))
