"""Adapters: a pretrained model of which little is trained, so that d is small. Made and saved through PEFT."""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedmpdd.errors import ConfigError, MissingDependencyError, RunError
from fedmpdd.imports import quote, words_of
from fedmpdd.torch.frozen import FROZEN, check_frozen, copy_sharing_frozen, frozen_sha256
from fedmpdd.torch.parameters import TrainedParameters

_MOST_NAMED = 12  # layers that a message lists
_ADAPTER = "default"  # what PEFT calls the one adapter of a model


def lora(
    model: nn.Module,
    rank: int = 4,
    *,
    targets: Sequence[str] = ("q_proj", "v_proj"),
    layers: int | Sequence[int] | None = None,
    alpha: float | None = None,
    head: Sequence[str] = (),
    seed: int | None = 17,
) -> Any:
    """Return a model of which low-rank adapters are trained, and nothing else but a head that is named.

    A layer W of the base becomes W + (alpha / rank)·B·A, where A [rank, inputs] and B [outputs, rank] are trained. B
    begins at zero, so that the first model does what the base does. The base is not changed; the new model shares its
    numbers, which are in memory once.

    Args:
        model: a model of transformers, in float32 or bfloat16. What is trained is float32 either way.
        rank: of the adapters, from 1.
        targets: the linear layers that get an adapter, by the last part of their names or by more of it. Models call
            them differently: Llama has "q_proj" and "v_proj", BERT has "query" and "value".
        layers: the blocks that get adapters. A number n is the last n blocks, which is the cheapest choice: a backward
            pass ends where adapters end. A list has the numbers of blocks from 0; −1 is the last one. None is all.
        alpha: of the factor alpha / rank; 2·rank by default, a factor of 2.
        head: modules that are trained whole, on numbers of their own, such as ("score",) of a classifier.
        seed: what the first A are drawn by, and nothing else: the same numbers on every machine. None draws the seed
            from PyTorch's generator: in a function given to `fm.Task` each seed of a run then has its own.

    Returns:
        The model of PEFT. What is trained of it, d, says `fm.torch.count_trained`.

    Raises:
        ConfigError: the model has no such layers or blocks, has adapters already, or is in float16.
        MissingDependencyError: the package peft is not installed.

    Example:
        >>> base = fm.load_pretrained("smollm2-135m").model  # doctest: +SKIP
        >>> fm.torch.count_trained(fm.lora(base, rank=4))  # doctest: +SKIP
        230400

    """
    peft = _peft("fm.lora")
    _check_model(model)
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 1:
        raise ConfigError(f"rank = {quote(rank)}: expected a whole number, 1 or more")
    alpha = 2 * int(rank) if alpha is None else alpha
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise ConfigError(f"alpha = {quote(alpha)}: expected a number above 0, or None for 2·rank")
    number = _seed(seed)
    targets = _names(targets, "targets")
    heads = _heads(model, _names(head, "head"))
    chosen = _in_blocks(_outside(_matching(model, targets), heads), layers)
    base = copy_sharing_frozen(model, {name: value.detach() for name, value in model.named_parameters()})
    kind = _task_type(base, heads)
    config = peft.LoraConfig(
        r=int(rank),
        lora_alpha=alpha,
        target_modules=_shortened(model, targets, [name for name, _ in chosen]),
        modules_to_save=heads or None,
        task_type=kind,
        fan_in_fan_out=any(type(layer).__name__ == "Conv1D" for _, layer in chosen),
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are drawn below
        adapted = peft.get_peft_model(base, config)
    settings: Any = getattr(base, "config", None)
    if getattr(settings, "use_cache", False):
        settings.use_cache = False  # of use when texts are written, and not when gradients are taken
    _draw(adapted, np.random.default_rng(number))
    for module in adapted.modules():
        if type(module).__name__ == "ModulesToSaveWrapper":
            trained = module.modules_to_save[_ADAPTER].float()
            trained.register_forward_pre_hook(_in_float32)
    return adapted


def count_trained(model: nn.Module) -> int:
    """Return how many parameters of a module are trained: the d of its updates.

    Args:
        model: any module. Parameters with `requires_grad=False` are not trained.

    Example:
        >>> count_trained(torch.nn.Linear(3, 2))
        8

    """
    return TrainedParameters(model).d


def save_adapter(model: nn.Module, folder: str | Path, parameters: str | Path | Tensor | None = None) -> Path:
    """Write the adapters of a model, and its head if that is trained, to a folder. The base is not in it.

    `peft.PeftModel.from_pretrained(base, folder)` gives the model again.

    Args:
        model: of `fm.lora`, or `history.model` of a training; what wraps such a model will do.
        folder: where to; files of an earlier adapter in it are written over.
        parameters: other numbers than those that the model holds: a file that `fedmpdd replay --model` wrote, the
            checkpoint of a run, or a vector [d].

    Returns:
        The folder.

    Raises:
        ConfigError: the model has no adapters, or another d than the parameters.
        RunError: the file cannot be read or written, or was made with another base.

    Example:
        >>> fm.save_adapter(history.model, "adapters/sst2")  # doctest: +SKIP

    """
    peft = _peft("fm.save_adapter")
    adapted = _adapted_part(peft, model)
    folder = Path(folder)
    state = None
    if parameters is not None:
        state = _with_parameters(adapted, parameters)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Otherwise PEFT asks the hub whether the base has other embeddings there.
            adapted.save_pretrained(str(folder), save_embedding_layers=False, state_dict=state)
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(f"{folder} cannot be written: {words_of(error)}; choose another folder") from None
    return folder


def _adapted_part(peft: Any, model: Any) -> Any:
    """The model of PEFT that a module is, or that it wraps, as those of fm.text do."""
    parts = (
        [part for part in model.modules() if isinstance(part, peft.PeftModel)] if isinstance(model, nn.Module) else []
    )
    if len(parts) != 1:
        has = "without adapters" if not parts else f"with {len(parts)} models that have adapters"
        raise ConfigError(f"model = a {type(model).__name__} {has}; expected one of fm.lora")
    return parts[0]


def _peft(what: str) -> Any:
    try:
        import peft
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{what} needs the package {error.name}, which is missing; pip install 'fedmpdd[llm]'"
        ) from None
    return peft


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model = {quote(model)}: expected a model of transformers, like fm.load_pretrained(…).model")
    if any(hasattr(module, "lora_A") for module in model.modules()):
        raise ConfigError("the model has adapters already; give the base model, without them")
    half = [name for name, value in model.named_parameters() if value.dtype == torch.float16]
    if half:
        raise ConfigError(
            f"the model is in float16 ({half[0]} for one), where gradients overflow; load it with "
            "dtype=torch.bfloat16, or torch.float32"
        )


def _names(names: Any, key: str) -> list[str]:
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f'{key} = {quote(names)}: expected names of layers, like ("q_proj", "v_proj")')
    if not names and key == "targets":
        raise ConfigError("targets has no names; expected those of linear layers, or use a codec on the whole model")
    return list(dict.fromkeys(names))


def _seed(seed: Any) -> int:
    if seed is None:
        return int(torch.randint(2**31, ()))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed = {quote(seed)}: expected a whole number from 0 to below 2^63, or None")
    return int(seed)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"  # that of GPT-2, a matrix all the same


def _ends_with(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def _matching(model: nn.Module, targets: Sequence[str]) -> list[tuple[str, nn.Module]]:
    """The linear layers that targets name, in the order of the model."""
    linear = [(name, module) for name, module in model.named_modules() if _is_linear(module)]
    for target in targets:
        if not any(_ends_with(name, target) for name, _ in linear):
            kinds = list(dict.fromkeys(name.rpartition(".")[2] for name, _ in linear))
            some = ", ".join(kinds[:_MOST_NAMED]) + (", …" if len(kinds) > _MOST_NAMED else "")
            raise ConfigError(
                f"targets has {target!r}, and the model has no linear layer of that name; it has {some or 'none'}"
            )
    return [(name, module) for name, module in linear if any(_ends_with(name, target) for target in targets)]


def _outside(named: list[tuple[str, nn.Module]], heads: Sequence[str]) -> list[tuple[str, nn.Module]]:
    """The layers that are in no head, where they are trained whole."""
    left = [(name, layer) for name, layer in named if not any(f".{head}." in f".{name}." for head in heads)]
    if not left:
        raise ConfigError(
            f"all layers of targets are in head = {quote(tuple(heads))}, which is trained whole; name others"
        )
    return left


def _shortened(model: nn.Module, targets: Sequence[str], chosen: list[str]) -> list[str]:
    """The names by which PEFT finds the layers that were chosen, and no others: those of targets where that will do."""
    meant = [name for name, _ in model.named_modules() if any(_ends_with(name, target) for target in targets)]
    return list(targets) if meant == chosen else chosen


def _block_of(name: str) -> int | None:
    """The number of the block that a layer is in: the first one in its name."""
    return next((int(part) for part in name.split(".") if part.isascii() and part.isdigit()), None)


def _in_blocks(named: list[tuple[str, nn.Module]], layers: Any) -> list[tuple[str, nn.Module]]:
    if layers is None:
        return named
    blocks = sorted({block for name, _ in named if (block := _block_of(name)) is not None})
    if not blocks:
        raise ConfigError("layers came, and the layers of targets are in no numbered blocks; leave it out")
    count = blocks[-1] + 1
    chosen = _block_numbers(layers, count)
    missing = [block for block in chosen if block not in blocks]
    if missing:
        raise ConfigError(f"layers has block {missing[0]}, which has none of the layers of targets; leave it out")
    return [(name, module) for name, module in named if _block_of(name) in chosen]


def _block_numbers(layers: Any, count: int) -> set[int]:
    if isinstance(layers, int | np.integer) and not isinstance(layers, bool):
        if not 1 <= layers <= count:
            raise ConfigError(f"layers = {layers}: expected how many of the last blocks, from 1 to {count}")
        return set(range(count - int(layers), count))
    if isinstance(layers, str) or not isinstance(layers, Sequence) or not len(layers):
        raise ConfigError(f"layers = {quote(layers)}: expected a number of blocks, a list of their numbers, or None")
    for number in layers:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not -count <= number < count:
            raise ConfigError(
                f"layers has {quote(number)}: expected numbers of blocks, from 0 to {count - 1}, or from −{count} "
                "counted from the end"
            )
    return {int(number) % count for number in layers}


def _heads(model: nn.Module, names: Sequence[str]) -> list[str]:
    modules = [name for name, module in model.named_modules() if name and any(True for _ in module.parameters())]
    for name in names:
        if not any(_ends_with(module, name) for module in modules):
            top = [module for module, _ in model.named_children()]
            raise ConfigError(f"head has {name!r}, and the model has no such module; it has {', '.join(top)}")
    return list(names)


def _task_type(base: nn.Module, heads: Sequence[str]) -> str | None:
    """What PEFT calls the task, where that adds nothing to what is trained."""
    name = type(base).__name__
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "CAUSAL_LM"
    is_classified = any(head.rpartition(".")[2] in ("classifier", "score") for head in heads)  # PEFT trains both
    return "SEQ_CLS" if name.endswith("ForSequenceClassification") and is_classified else None


def _draw(adapted: nn.Module, generator: np.random.Generator) -> None:
    """Draw the first A as PEFT does, uniformly up to 1/√inputs, but from a generator that is the same everywhere."""
    with torch.no_grad():
        for _, parameter in _matrices(adapted, "lora_A"):
            bound = np.float32(1 / math.sqrt(parameter.shape[1]))
            numbers = generator.random(tuple(parameter.shape), dtype=np.float32)
            parameter.copy_(torch.from_numpy((2 * numbers - 1) * bound))


def _matrices(adapted: nn.Module, which: str) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in adapted.named_parameters():
        if f".{which}." in name:
            yield name, parameter


def _in_float32(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give a head float32, whatever the base before it computes in."""
    return tuple(one.float() if isinstance(one, Tensor) and one.is_floating_point() else one for one in inputs)


def _with_parameters(model: nn.Module, parameters: str | Path | Tensor) -> dict[str, Any]:
    """The state of a model with other numbers for what is trained."""
    trained = TrainedParameters(model)
    if isinstance(parameters, Tensor):
        flat, source = parameters, "parameters"
    else:
        flat, source = _read_parameters(Path(parameters), model), str(parameters)
    if flat.shape != (trained.d,) or flat.dtype != torch.float32:
        raise ConfigError(
            f"{source} holds {flat.dtype} {list(flat.shape)}, and the model trains {trained.d} parameters; make the "
            "model with the rank, targets, layers and head that it was trained with"
        )
    if not bool(torch.isfinite(flat).all()):
        raise ConfigError(f"{source} holds NaN or infinity; take those of an earlier round")
    state = copy.copy(model.state_dict())
    start = 0
    for name, parameter in zip(trained.names, trained.parameters, strict=True):
        state[name] = flat[start : start + parameter.numel()].reshape(parameter.shape).to(parameter.dtype)
        start += parameter.numel()
    return state


def _read_parameters(path: Path, model: nn.Module) -> Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
            if "model" not in file.keys():  # noqa: SIM118 - not a dict
                raise RunError(f"{path} holds no vector of that name: model; expected a file of fedmpdd replay --model")
            flat: Tensor = file.get_tensor("model")
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} cannot be read: {words_of(error)}; expected a file of fedmpdd replay --model") from None
    check_frozen(notes.get(FROZEN), frozen_sha256(model), str(path))
    return flat
