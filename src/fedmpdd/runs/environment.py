"""Versions, machine, and what else the last bits of a training depend on."""

import os
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import fedmpdd
from fedmpdd.directions import backend

VARIABLES = (  # that choose instructions, and with them bits
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
CHANGE_BITS = (  # keys of `environment` whose values may change the last bits of gradients or of an initial model
    "torch",
    "cpu_capability",
    "torch_threads",
    "mkl",
    "onednn",
    "blas",
    "variables",
    "byte_order",
)


def environment() -> dict[str, Any]:
    """Return versions and machine, as they stand in environment.json."""
    return {
        "fedmpdd": fedmpdd.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "kernels": backend().isa,
        "threads": backend().threads,
        "torch_threads": torch.get_num_threads(),
        "byte_order": sys.byteorder,
        **{name: _version(name) for name in ("numpy", "torch", "pydantic", "safetensors")},
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": _built_with("Math Kernel Library"),
        "onednn": _built_with("MKL-DNN", "oneDNN"),
        "blas": _blas(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Say what may change bits and is not as it was, in words; what an earlier version did not note is left out."""
    files = {key: source["file"] for key, source in now.get("sources", {}).items()}
    changed = [key for key in files if _digest(before, key) not in (None, _digest(now, key))]
    return [
        f"{key} was {before[key]!r:.200}, is {now[key]!r:.200}"
        for key in CHANGE_BITS
        if key in before and before[key] != now[key]
    ] + [f"{files[key]}, which holds {key}, has other code" for key in changed]


def _digest(start: dict[str, Any], key: str) -> str | None:
    """The hash of the file that a key of the config was imported from, None where none was noted."""
    sources = start.get("sources")
    source = sources.get(key) if isinstance(sources, dict) else None
    return source.get("sha256") if isinstance(source, dict) else None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _built_with(*names: str) -> str | None:
    """The line of PyTorch's description of itself that names a library, its version included."""
    lines = (line.strip(" -") for line in torch.__config__.show().splitlines())
    return next((line for line in lines if any(name in line for name in names)), None)


def _blas() -> list[str] | None:
    """Every BLAS and OpenMP of the process with its version and threads; None where threadpoolctl is missing."""
    try:
        from threadpoolctl import threadpool_info
    except ModuleNotFoundError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about OpenMP twice in one process, which is not for us to say
        libraries = [info for info in threadpool_info() if not _is_of_others(Path(info["filepath"]))]
    keys = ("internal_api", "version", "architecture", "threading_layer", "num_threads")
    return sorted(" ".join(str(info[key]) for key in keys if info.get(key) is not None) for info in libraries)


def _is_of_others(library: Path) -> bool:
    """Whether a library came in the wheel of a package that no training uses, and is here by chance."""
    return library.parent.name.endswith(".libs") and library.parent.name not in ("numpy.libs", "torch.libs")
