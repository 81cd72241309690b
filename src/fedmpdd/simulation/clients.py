"""What clients do before encoding: local gradients, or the model difference after several local steps."""

import math
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from fedmpdd.codecs import ScalarCodec
from fedmpdd.directions import Key
from fedmpdd.errors import ConfigError, FedmpddError
from fedmpdd.imports import words_and_line_of
from fedmpdd.simulation import forward, sampling
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.devices import reproducible_arithmetic
from fedmpdd.simulation.layers import LayerGradients, handles
from fedmpdd.simulation.linear_layers import LinearLayerGradients, equal_frozen, has_linear_layers
from fedmpdd.simulation.local_steps import LocalTraining
from fedmpdd.simulation.workers import Workers
from fedmpdd.simulation.zeroth_order import ZerothOrder
from fedmpdd.tasks.losses import logits_of
from fedmpdd.tasks.objective import Objective
from fedmpdd.tasks.randomness import ClientRandomness, visible_draws
from fedmpdd.tasks.stores import Batch, Store
from fedmpdd.tasks.task import check_objective

CHUNK_BYTES = 128 * 2**20  # per-client activations and gradients of one vectorised call stay about below this
CHUNK_CLIENTS = 25  # and enough calls remain to keep a few threads busy
CHUNK_EXAMPLES = 32  # of one pass for many clients, by linear layers: a round is several passes, for several threads
CHUNK_DIRECTIONS = 32  # of a forward-mode client; more at once are hardly faster
ROUNDING = 0.1  # of a gradient's length, more than which two ways to add it up cannot differ, in bfloat16 either
GPU_SHARE = 8  # on a GPU: an eighth of its memory, by the same estimate, which is low for wide networks


GROUP_BYTES = 64 * 2**20  # gradients that wait at a time for being encoded
Result = TypeVar("Result")


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


@dataclass(frozen=True, eq=False)
class GradientRequest:
    """Gradients that a round asks for: of clients, all at one model or each at another, on one minibatch each.

    Args:
        client_step: what would compute them for this federation alone.
        flat: the server's model [d].
        work: the round's clients and minibatches.
        step: which of the clients' steps it is; those that are done with theirs are left out.
        moved: how far each client has moved from the server's model [clients, d]; None where they stand at it.

    """

    client_step: "ClientStep"
    flat: Tensor
    work: Work
    step: int = 0
    moved: Tensor | None = None

    def compute(self) -> Computed:
        """Return the gradients and the losses of all clients; zero and NaN of those that take no step."""
        return self.client_step.gradients(self)


Asking = Generator[GradientRequest, Computed, Computed]  # asks for gradients, is sent them, and returns what to encode


def answered(asking: Generator[GradientRequest, Computed, Result]) -> Result:
    """Run something that asks for gradients, computing each request when it comes, and return its result."""
    try:
        request = next(asking)
        while True:
            request = asking.send(request.compute())
    except StopIteration as end:
        result: Result = end.value
        return result


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
        self._source = store
        self._store = store.to(self._device)
        self._joins: dict[ClientStep, bool] = {}
        self._example_size = _example_size(self._store)
        self._method = self._first_method()
        self._linear_layers = LinearLayerGradients() if self._by_linear_layers else None
        self._draws = False  # whether clients draw random numbers while they train; `check` finds out

    def _first_method(self) -> str:
        """How gradients are taken, as far as the config and the layers of the model tell."""
        method = self._config.gradient_method
        if self._by_linear_layers:
            return "layers"
        return "vmap" if method == "layers" and self._config.gradients == "auto" and not self._has_layers else method

    @property
    def _is_partly_frozen(self) -> bool:
        module = self._objective.model.module
        return len(self._objective.model.names) < len(list(module.parameters()))

    @property
    def _has_layers(self) -> bool:
        module, loss = self._objective.model.module, self._objective.loss
        return handles(module) and loss.per_example is not None and not self._is_partly_frozen

    @property
    def _by_linear_layers(self) -> bool:
        """Whether linear layers are all that is trained, as in adapters, and nothing mixes the examples of a batch."""
        config, objective = self._config, self._objective
        if config.gradients not in ("auto", "layers") or config.source == "forward":
            return False
        if objective.loss.per_example is None or objective.mixes_examples or not has_linear_layers(objective):
            return False
        asked_for = config.gradients == "layers" and not config.trains_locally and not self._has_layers
        return self._is_partly_frozen or asked_for

    def __call__(self, flat: Tensor, work: Work) -> Computed:
        """Return what each client encodes [clients, d]."""
        return answered(self.steps(flat, work))

    def steps(self, flat: Tensor, work: Work) -> Asking:
        """Ask for the gradients of a round, and return what each client encodes [clients, d].

        Who computes what is asked for may do so together with what other federations ask for.
        """
        if self._config.trains_locally:
            return (yield from self._differences(flat, work))
        return (yield GradientRequest(self, flat, work))

    def gradients(self, request: GradientRequest) -> Computed:
        """Return gradients and losses of the clients of a request."""
        work, moved = request.work, request.moved
        clients = len(work.clients)
        start = torch.empty if moved is None else torch.zeros
        gradients = start((clients, self._d), device=self._device)
        losses = torch.full((clients,), math.nan, device=self._device)
        statistics = self._empty_statistics(clients)

        def compute(objective: Objective, rows: _Rows) -> None:
            at = request.flat if moved is None else request.flat - moved[rows.clients]
            # Where clients between them are done with their steps, an index gives a copy.
            in_place = isinstance(rows.clients, slice)
            some = gradients[rows.clients]
            sent = None if statistics is None else statistics[rows.clients]
            losses[rows.clients] = self._gradients(objective, at, rows, some, sent)
            if not in_place:
                gradients[rows.clients] = some
                if statistics is not None and sent is not None:
                    statistics[rows.clients] = sent

        with self._arithmetic(), blamed_on_the_task(work.round):
            self._workers.map(compute, self._cut(work, request.step))
        return Computed(gradients, losses, statistics)

    def joins(self, other: "ClientStep") -> bool:
        """Return whether clients of another federation can go through the network together with those of this one.

        They can where linear layers are all that is trained, and the federations share the examples, the loss, the size
        of minibatches and everything that is frozen.
        """
        if other not in self._joins:
            self._joins[other] = other is self or self._is_like(other)
        return self._joins[other]

    def _is_like(self, other: "ClientStep") -> bool:
        for each in (self, other):
            if each._method != "layers" or each._linear_layers is None or each._draws:
                return False
        mine, theirs = self._objective, other._objective
        if (self._source, mine.loss, self._device) != (other._source, theirs.loss, other._device):
            return False
        if (self._config.batch, mine.model.names) != (other._config.batch, theirs.model.names):
            return False
        return self._source.draws is False and equal_frozen(mine.model.module, theirs.model.module, mine.model.names)

    def gradients_of_all(self, requests: Sequence[GradientRequest]) -> list[Computed]:
        """Return the gradients and losses of several requests, each of a federation that this one's clients join."""
        if len(requests) == 1 or self._linear_layers is None:
            return [request.compute() for request in requests]
        numbers = [np.flatnonzero(request.work.batches[:, request.step, 0] >= 0) for request in requests]
        models, batches = [], []
        for request, at_work in zip(requests, numbers, strict=True):
            flat = request.flat.expand(len(at_work), -1)
            models.append(flat if request.moved is None else flat - request.moved[at_work])
            examples = torch.from_numpy(request.work.batches[at_work, request.step])
            batches.append(request.client_step._store.gather(examples.to(self._device)))
        together, batch = torch.cat(models), tree_map(lambda *leaves: torch.cat(leaves), *batches)
        gradients, losses = torch.empty_like(together), torch.empty(len(together), device=self._device)
        size, by_layers = self._fitting(self._config.batch, self._most_clients), self._linear_layers

        def compute(objective: Objective, begin: int) -> None:
            rows = slice(begin, begin + size)
            some = tree_map(lambda leaf: leaf[rows], batch)
            losses[rows] = by_layers(objective, together[rows], some, gradients[rows])

        with self._arithmetic(), blamed_on_the_task(requests[0].work.round):
            self._workers.map(compute, range(0, len(together), size))
        results, begin = [], 0
        for request, at_work in zip(requests, numbers, strict=True):
            rows, begin = slice(begin, begin + len(at_work)), begin + len(at_work)
            if len(at_work) == len(request.work.clients):
                results.append(Computed(gradients[rows], losses[rows]))
                continue
            everybody = torch.zeros((len(request.work.clients), self._d), device=self._device)
            lost = torch.full((len(everybody),), math.nan, device=self._device)
            everybody[at_work], lost[at_work] = gradients[rows], losses[rows]
            results.append(Computed(everybody, lost))
        return results

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        with reproducible_arithmetic(self._config), visible_draws() if self._draws else nullcontext():
            yield

    def cause(self, computed: Computed) -> str | None:
        """Return why rows may not be finite, as far as the examples show it."""
        number = self._store.not_finite()
        if number is None or bool(torch.isfinite(torch.as_tensor(computed.rows)).all()):
            return None
        return f"training example {number} holds NaN or infinity; leave such examples out, or fill them in"

    def _empty_statistics(self, clients: int) -> Tensor | None:
        statistics = self._objective.statistics
        return None if statistics is None else torch.zeros((clients, statistics.size), device=self._device)

    def groups(self, clients: int) -> Iterator[slice]:
        """Cut a round's clients into groups whose gradients fit memory together.

        Every group but the last is a whole number of vectorised calls, so that the calls, and with them the bits, are
        those of all clients at once.
        """
        chunk = self._fitting(self._config.batch, self._most_clients)
        size = chunk * max(1, GROUP_BYTES // (4 * self._d * chunk))
        for begin in range(0, clients, size):
            yield slice(begin, min(begin + size, clients))

    def check(self, flat: Tensor) -> None:
        """Raise ConfigError if gradients of this model cannot be taken the way the config says."""
        if self._method == "layers" and not self._has_layers and self._linear_layers is None:
            raise ConfigError(
                'gradients = "layers": the model is neither a plain nn.Sequential of linear and convolutional layers, '
                "activations and pooling, with cross-entropy, nor one of which only linear layers are trained; use "
                'gradients = "auto"'
            )
        has_gradient = self._config.source == "backward"
        self._draws = check_objective(self._objective, flat, self._store, has_gradient=has_gradient)
        batch = self._config.batch if self._objective.mixes_examples else 1
        if self._linear_layers is not None:
            batch = 2  # so that the order of examples shows
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
        by_linear_layers = self._method == "layers" and self._linear_layers is not None
        if by_linear_layers and self._draws:
            return RuntimeError("the model draws random numbers, which clients of one pass would share")
        try:
            with warnings.catch_warnings():
                if self._config.gradients == "auto":  # PyTorch vectorises some layers by a slow loop, and says so
                    warnings.filterwarnings("error", message="There is a performance drop")
                self._workers.map(lambda model, one: self._gradients(model, flat, one, gradients, statistics), [rows])
            if by_linear_layers:
                self._check_order(flat, rows, gradients)
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's model
            return error
        return None

    def _check_order(self, flat: Tensor, rows: _Rows, gradients: Tensor) -> None:
        """Raise RuntimeError where a client by itself has other gradients: the model does not keep to one dimension."""
        alone = torch.empty_like(gradients)
        self._one_by_one(self._objective, flat, self._gathered(rows), rows.seeds, alone, None)
        if not bool(((gradients - alone).norm(dim=1) <= ROUNDING * alone.norm(dim=1)).all()):
            raise RuntimeError(
                "clients in one pass have other gradients than alone, so that the model does not keep examples in the "
                "first dimension"
            )

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

    def _differences(self, flat: Tensor, work: Work) -> Asking:
        """x_k − x after several local steps: what the server should subtract."""
        training = LocalTraining.of(self._config, self._objective.model.shapes)
        clients, steps = work.batches.shape[:2]
        differences = torch.zeros((clients, self._d), device=self._device)
        losses = torch.full((clients, steps), math.nan, device=self._device)
        statistics = self._empty_statistics(clients)
        optimisers = [training.start(flat) for _ in range(clients)]
        for step in range(steps):
            computed = yield GradientRequest(self, flat, work, step, differences)
            losses[:, step] = computed.losses
            with reproducible_arithmetic(self._config), blamed_on_the_task(work.round):  # optimisers are somebody's too
                for rows in self._cut(work, step):
                    moved = differences[rows.clients]
                    training.step(flat, moved, computed.rows[rows.clients], [optimisers[i] for i in rows.numbers])
                    differences[rows.clients] = moved
                    if statistics is not None and computed.statistics is not None:
                        statistics[rows.clients] = computed.statistics[rows.clients]
        return Computed(differences / self._config.lr if self._config.sends_sums else differences, losses, statistics)

    def _gradients(
        self, objective: Objective, flat: Tensor, rows: _Rows, gradients: Tensor, statistics: Tensor | None
    ) -> Tensor:
        """Write gradients of clients, at one model [d] or at one per client [clients, d], and return the losses."""
        batch = self._gathered(rows)
        if self._method == "layers" and self._linear_layers is not None:
            return self._linear_layers(objective, flat, batch, gradients)
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

    def slopes(self, flat: Tensor, work: Work, codec: ScalarCodec, keys: list[Key]) -> Computed:
        """Return what clients encode that compute losses only, or take steps without a gradient [clients, m]."""
        config = self._config
        training = LocalTraining.of(config, self._objective.model.shapes) if config.trains_locally else None
        scalars = np.empty((len(work.clients), codec.count))
        steps = (work.batches.shape[1],) if config.trains_locally else ()
        losses = torch.full((len(work.clients), *steps), math.nan, dtype=torch.float64, device=self._device)

        def compute(objective: Objective, rows: _Rows) -> None:
            def losses_at(models: Tensor, step: int) -> Tensor:
                return self._client_losses(objective, models, self._at_step(rows, work, step))

            def losses_of_all(models: Tensor, step: int) -> Tensor:
                return self._losses_of_all(objective, models, self._at_step(rows, work, step))

            with torch.no_grad():
                some = [keys[number] for number in rows.numbers]
                at_once = self._models_at_once(rows.examples.size)
                taken = int((work.batches[rows.numbers[0], :, 0] >= 0).sum())
                zeroth_order = ZerothOrder(codec, taken, training)
                scalars[rows.clients], seen = zeroth_order.scalars(
                    losses_at, flat, some, losses_of_all=losses_of_all if at_once > 1 else None, at_once=at_once
                )
                losses[rows.clients, ...] = (
                    functional.pad(seen, (0, steps[0] - taken), value=math.nan) if steps else seen
                )

        # With local epochs each has another number of steps.
        cuts = self._cut(work, 0, None if config.local_epochs is None else 1)
        with visible_draws() if self._draws else nullcontext(), blamed_on_the_task(work.round):
            if config.source == "losses":
                self._workers.map(compute, cuts)
            else:  # on one thread: see `derivatives`
                for rows in cuts:
                    compute(self._objective, rows)
        sums = scalars / config.lr if config.sends_sums else scalars
        return Computed(sums, losses, self._statistics_at(flat, work))

    def _statistics_at(self, flat: Tensor, work: Work) -> Tensor | None:
        """The statistics of clients' first minibatches at the server's model, where they are wanted: a pass each."""
        statistics = self._empty_statistics(len(work.clients))
        if statistics is None:
            return None
        with torch.no_grad(), visible_draws() if self._draws else nullcontext():
            for rows in self._cut(work, 0):
                batch = self._gathered(rows)
                for place, seed in enumerate(rows.seeds):
                    with self._randomness([seed], vectorised=False):
                        _, statistics[rows.numbers[place]] = self._objective.with_statistics(
                            flat, _of_client(batch, place)
                        )
        return statistics

    def _models_at_once(self, examples: int) -> int:
        """How many models, each with so many examples, one pass takes side by side."""
        if self._method != "layers" or self._linear_layers is None:
            return 1
        if self._device.type == "cuda":
            return self._fitting(examples, 1)
        return max(1, CHUNK_EXAMPLES // examples)

    def _losses_of_all(self, objective: Objective, models: Tensor, rows: _Rows) -> Tensor:
        """The losses [models, clients] of all clients at each of some models [models, d], in float64."""
        assert self._linear_layers is not None
        clients = len(rows.examples)
        batch = tree_map(lambda leaf: leaf.expand(len(models), *leaf.shape).flatten(0, 1), self._gathered(rows))
        together = models.repeat_interleave(clients, dim=0)
        losses = self._linear_layers.losses(objective, together, batch, precise=True)
        return losses.view(len(models), clients).double()

    def _at_step(self, rows: _Rows, work: Work, step: int) -> _Rows:
        """The same clients at another of their steps."""
        clients = work.clients[rows.clients]
        seeds = [sampling.training_seed(self._config, work.round, client, step) for client in clients]
        return _Rows(rows.clients, work.batches[rows.clients, step], seeds)

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
        return Computed(scalars, losses, self._statistics_at(flat, work))

    @property
    def _one_direction(self) -> bool:
        """Whether directions of a forward-mode client go through the network one by one."""
        return self._method == "loop" or self._draws

    def _client_losses(self, objective: Objective, flat: Tensor, rows: _Rows) -> Tensor:
        """The losses of clients at one model [d], or at one per client [clients, d], in float64."""
        batch, loss = self._gathered(rows), objective.loss
        if flat.ndim == 2:
            return self._losses_apart(objective, flat, batch, rows.seeds)
        if loss.per_example is not None and not self._draws and not objective.mixes_examples:
            *inputs, targets = batch
            outputs = objective.outputs(flat, *(part.flatten(0, 1) for part in inputs))
            return loss.per_client(logits_of(outputs).double(), targets)
        if self._method == "loop":
            return self._losses_apart(objective, flat.expand(len(rows.seeds), -1), batch, rows.seeds)
        with self._randomness(rows.seeds, vectorised=True):
            together = torch.func.vmap(objective, in_dims=(None, 0), randomness="different" if self._draws else "error")
            losses: Tensor = together(flat, batch)
            return losses.double()

    def _losses_apart(self, objective: Objective, models: Tensor, batch: Batch, seeds: Any) -> Tensor:
        """The losses of clients at one model each [clients, d], in float64."""

        def value(flat: Tensor, one: Batch) -> Tensor:
            if objective.loss.per_example is None:
                return objective(flat, one).double()
            *inputs, targets = one  # in float64 from the outputs on: a slope is the difference of two such losses
            outputs = logits_of(objective.outputs(flat, *inputs)).double()
            return objective.loss.per_client(outputs, targets[None])[0]

        if self._method == "layers" and self._linear_layers is not None:
            return self._linear_layers.losses(objective, models, batch, precise=True).double()

        if self._method == "loop":
            values = []
            for i, seed in enumerate(seeds):
                with self._randomness([seed], vectorised=False):
                    values.append(value(models[i], _of_client(batch, i)))
            return torch.stack(values)
        with self._randomness(seeds, vectorised=True):
            together = torch.func.vmap(value, in_dims=(0, 0), randomness="different" if self._draws else "error")
            losses: Tensor = together(models, batch)
            return losses

    @property
    def _most_clients(self) -> int:
        """How many clients one pass has at most on a CPU."""
        if self._method == "layers" and self._linear_layers is not None:
            return max(1, CHUNK_EXAMPLES // self._config.batch)
        return CHUNK_CLIENTS

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
        size = self._fitting(work.batches.shape[2], self._most_clients)
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
