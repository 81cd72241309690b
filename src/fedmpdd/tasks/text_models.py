"""Language models as modules of tensors: what a tokenizer made of texts goes in, logits of classes come out.

Each of these modules wraps a model of transformers, with adapters or without. Columns that hold nothing but padding are
cut off before the model runs: a batch costs as much as its longest sentence, however wide the tensors are.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedmpdd.errors import ConfigError
from fedmpdd.imports import quote
from fedmpdd.tasks.losses import logits_of
from fedmpdd.tasks.objective import shared_copy

Examples = tuple[Tensor, ...]  # input_ids, attention_mask, perhaps activations; the targets last


class TextModel(nn.Module):
    """A model of transformers as a classifier of texts.

    Args:
        model: takes `input_ids` and `attention_mask`, and returns logits.

    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model = {quote(model)}: expected a torch.nn.Module, such as one of transformers")
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, activations: Tensor | None = None) -> Tensor:
        """Return logits [examples, classes].

        Args:
            input_ids: tokens [examples, positions].
            attention_mask: 1 where there is a token, 0 where there is padding.
            activations: what enters the first block that is trained, where they are cached.

        """
        some = occupied(attention_mask)
        input_ids, attention_mask = input_ids[:, some], attention_mask[:, some]
        if activations is None:
            return self.logits(input_ids, attention_mask)
        entry = next((module for module in self.modules() if isinstance(module, _Entry)), None)
        if entry is None:
            raise ConfigError("cached activations came to a whole model; give them to the model that came with them")
        entry.activations = activations[:, some]
        try:
            return self.logits(input_ids, attention_mask)
        finally:
            entry.activations = None

    def logits(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits of tokens without columns of padding."""
        options = {"use_cache": False} if "use_cache" in _options_of(self.model) else {}
        return logits_of(self.model(input_ids=input_ids, attention_mask=attention_mask, **options)).float()


class AnswerModel(TextModel):
    """A causal language model as a classifier: its logits are those of one word per class, after the last token.

    Sentences are padded on the left, so that the last position is that of the answer. Positions are counted from the
    first token of each sentence, so that padding changes nothing.

    Args:
        model: of transformers, for causal language modelling.
        words: the token of each class.

    """

    def __init__(self, model: nn.Module, words: Sequence[int]) -> None:
        super().__init__(model)
        self.words = tuple(words)

    def logits(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """See TextModel."""
        possible = {
            "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
            "use_cache": False,
            "logits_to_keep": 1,
        }
        taken = _options_of(self.model)
        options = {name: value for name, value in possible.items() if name in taken}
        logits = logits_of(self.model(input_ids=input_ids, attention_mask=attention_mask, **options))
        return logits[:, -1, list(self.words)].float()


class NextTokenModel(nn.Module):
    """A causal language model whose logits have the shape that cross-entropy takes: [examples, tokens, positions].

    Args:
        model: of transformers, for causal language modelling.

    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits [examples, tokens, positions] of tokens [examples, positions]; padding is on the right."""
        options = {"use_cache": False} if "use_cache" in _options_of(self.model) else {}
        return logits_of(self.model(input_ids=input_ids, **options)).float().transpose(1, 2)


class Cached:
    """The last blocks of a model, and examples that have gone through the others.

    It unpacks as `model, examples = cached`.

    Args:
        whole: the model from which they are.
        model: the same without the blocks that come before the first one that is trained.
        examples: as many as came, each with activations before its targets.

    """

    def __init__(self, whole: TextModel, model: TextModel, examples: tuple[Examples, ...]) -> None:
        self._whole = whole
        self.model = model
        self.examples = examples

    def __iter__(self) -> Any:
        return iter((self.model, self.examples))

    def restore(self, trained: nn.Module) -> TextModel:
        """Return the whole model with the parameters of one that was trained on activations.

        Args:
            trained: `history.model`, say.

        Returns:
            A model that takes sentences. What is not trained it shares with the model that was cached.

        """
        frozen: list[Any] = [one for one in self._whole.parameters() if not one.requires_grad]
        frozen += list(self._whole.buffers())
        whole = copy.deepcopy(self._whole, {id(tensor): tensor for tensor in frozen})
        values = dict(trained.named_parameters())
        with torch.no_grad():
            for name, parameter in whole.named_parameters():
                if parameter.requires_grad:
                    if name not in values:
                        raise ConfigError(f"the model has no parameter {name}; expected history.model of this task")
                    parameter.copy_(values[name])
        return whole


def cache_activations(model: TextModel, *examples: Examples, batch: int = 64) -> Cached:
    """Run the blocks that are not trained once, and keep what they give for every example.

    A training then computes the later blocks alone. The blocks before the first one with a trained parameter run in
    eval mode: dropout in them, if there is any, never drops. Activations take 4 bytes × positions × width for each
    example.

    Args:
        model: of `Prompt.model` or `Sentences.model`, whose first blocks are frozen: with adapters in its last blocks.
        examples: of the same encoder: tuples of input_ids, attention_mask and targets.
        batch: examples that are computed at a time.

    Returns:
        The model that takes activations, and the examples that have them: `model, (train, test) = …`. Its `restore`
        puts what was trained back into the whole model.

    Raises:
        ConfigError: the first block is trained, or something before it, so that nothing can be kept.

    Example:
        >>> cached = cache_activations(prompt.model(lora), prompt.examples(data.train), prompt.examples(data.dev))
        >>> task = Task(model=cached.model, clients=partition(cached.examples[0], 100), test=cached.examples[1])

    """
    if not isinstance(model, TextModel):
        raise ConfigError(f"model of type {type(model).__name__} came; expected one of Prompt.model or Sentences.model")
    path, blocks = _blocks_of(model)
    trained = [any(one.requires_grad for one in block.parameters()) for block in blocks]
    first = trained.index(True) if any(trained) else len(trained) - 1
    if first == 0:
        raise ConfigError(
            f"the first of {len(trained)} blocks is trained, so that nothing comes before it to be cached; put "
            f"adapters into the last blocks alone, such as layers {len(trained) - 2} and {len(trained) - 1}"
        )
    collector = _Collector(model, blocks[first - 1])
    collector.check(examples)
    cached = tuple(collector.added_to(part, batch) for part in examples)
    return Cached(model, _tail(model, path, first, collector.returns_tuple), cached)


def occupied(attention_mask: Tensor) -> slice:
    """Return the columns from the first to the last that hold a token of some example."""
    try:
        columns = attention_mask.any(dim=0).nonzero()
        return slice(int(columns[0]), int(columns[-1]) + 1)
    except RuntimeError:  # within torch.func.vmap, where no shape may depend on numbers
        return slice(None)


class _Skip(nn.Module):
    """What stands where a block was whose work is done."""

    def __init__(self, block: nn.Module, *, returns_tuple: bool) -> None:
        super().__init__()
        for name, value in vars(block).items():  # such as the kind of attention, which the model may look at
            if not name.startswith("_") and isinstance(value, str | int | bool | None) and name != "training":
                setattr(self, name, value)
        self._returns_tuple = returns_tuple

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Any:
        return (hidden,) if self._returns_tuple else hidden


class _Entry(_Skip):
    """What stands where the last frozen block was: it gives the activations that are cached."""

    activations: Tensor | None = None

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Any:
        if self.activations is None:
            raise ConfigError(
                "a model without its first blocks came with sentences; give it the examples of cache_activations, or "
                "restore the whole model"
            )
        return super().forward(self.activations.to(hidden.dtype))


class _Collector:
    """Catches what leaves a block of a model in eval mode."""

    def __init__(self, model: TextModel, block: nn.Module) -> None:
        self._model = model
        self._block = block
        self.returns_tuple = False

    def check(self, examples: tuple[Examples, ...]) -> None:
        """Raise ConfigError where examples are none, or what leaves the block depends on something trained."""
        for number, part in enumerate(examples):
            if not isinstance(part, tuple) or len(part) != 3 or not all(isinstance(leaf, Tensor) for leaf in part):
                raise ConfigError(
                    f"examples {number} are {quote(part)}; expected (input_ids, attention_mask, targets) of "
                    "Prompt.examples or Sentences.examples"
                )
        for ids, mask, _ in examples[:1]:
            if self._left_by(ids[:1], mask[:1]).requires_grad:
                raise ConfigError(
                    "what enters the first trained block depends on a trained parameter, such as an embedding; freeze "
                    "it, so that activations stay what they are"
                )

    def added_to(self, examples: Examples, batch: int) -> Examples:
        """Return examples with activations before their targets, those at padding 0."""
        ids, mask, targets = examples
        order = mask.sum(dim=1).argsort(stable=True)  # sentences of one length side by side
        activations = None
        for some in torch.split(order, batch):
            columns = occupied(mask[some])
            with torch.no_grad():
                left = self._left_by(ids[some][:, columns], mask[some][:, columns]).float().cpu()
            if activations is None:
                activations = torch.zeros(*ids.shape, left.shape[-1])
            activations[some, columns] = left * mask[some][:, columns, None]
        assert activations is not None
        return ids, mask, activations, targets

    def _left_by(self, ids: Tensor, mask: Tensor) -> Tensor:
        caught: list[Tensor] = []

        def catch(module: nn.Module, inputs: Any, output: Any) -> None:
            self.returns_tuple = isinstance(output, tuple)
            caught.append(output[0] if self.returns_tuple else output)
            raise _EnoughError

        device = next(self._model.parameters()).device
        training = [module for module in self._model.modules() if module.training]
        hook = self._block.register_forward_hook(catch)
        try:
            self._model.eval()
            self._model.logits(ids.to(device), mask.to(device))
        except _EnoughError:
            pass
        finally:
            hook.remove()
            for module in training:
                module.training = True
        return caught[0]


class _EnoughError(Exception):
    """What ends a forward pass whose later blocks nobody needs."""


def _tail(model: TextModel, path: str, first: int, returns_tuple: bool) -> TextModel:
    """A copy of a model over the same tensors, without the work of its first blocks."""
    tail = shared_copy(model)
    assert isinstance(tail, TextModel)
    blocks = tail.get_submodule(path)
    assert isinstance(blocks, nn.ModuleList)
    for number in range(first):
        kind = _Entry if number == first - 1 else _Skip
        blocks[number] = kind(blocks[number], returns_tuple=returns_tuple)
    if isinstance(tail, AnswerModel):
        _keep_rows(tail)
    return tail


def _keep_rows(tail: AnswerModel) -> None:
    """Let the head of a language model compute the words of classes alone: they are few of tens of thousands."""
    base = _base_of(tail.model)
    head = base.get_output_embeddings() if hasattr(base, "get_output_embeddings") else None
    if type(head) is not nn.Linear or head.weight.requires_grad or head.bias is not None:
        return
    rows = nn.Linear(head.in_features, len(tail.words), bias=False, dtype=head.weight.dtype)
    rows.weight = nn.Parameter(head.weight[list(tail.words)].detach().clone(), requires_grad=False)
    base.set_output_embeddings(rows)
    tail.words = tuple(range(len(tail.words)))


def _blocks_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The largest list of modules of one class: the blocks of a transformer."""
    lists = [
        (sum(one.numel() for one in module.parameters()), name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len({type(block) for block in module}) == 1
    ]
    if not lists:
        raise ConfigError("the model has no list of blocks, after which activations could be cached")
    _, name, blocks = max(lists, key=lambda one: one[0])
    return name, blocks


def _base_of(model: nn.Module) -> Any:
    """The model below the adapters of PEFT, or the model itself."""
    get_base: Any = getattr(model, "get_base_model", None)
    return model if get_base is None else get_base()


def _options_of(model: nn.Module) -> set[str]:
    """The names of what the model below adapters takes."""
    return set(inspect.signature(_base_of(model).forward).parameters)
