"""All codecs by name, those of this package and those that others register.

A codec of this package is a file in this folder, and nothing else has to know of it. One of somebody else's is named by
its import path, or registered under its own name:

    @register
    @dataclass(frozen=True)
    class Mine(Codec):
        name: ClassVar[str] = "mine"
        ...
"""

import importlib
import inspect
import pkgutil
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from fedmpdd.codecs.base import Codec
from fedmpdd.errors import CodecError, InputError

C = TypeVar("C", bound=type[Codec])

CODECS: dict[str, type[Codec]] = {}
USER_CODES = range(128, 256)  # numbers on the wire that this package never takes


def register(codec: C) -> C:
    """Make a codec known by its name, and by its number on the wire if it has one. A decorator of its class.

    Example:
        >>> register(MPDD) is MPDD
        True

    """
    name, code = getattr(codec, "name", None), codec.code
    if not isinstance(name, str) or not name or set(name) & set(":=, "):
        raise CodecError(f"{codec.__name__} has name = {name!r}; expected a word without colon, comma, = and space")
    for other in CODECS.values():
        if other.__qualname__ == codec.__qualname__ and other.__module__ == codec.__module__:
            continue  # the same class, imported anew
        if other.name == name or (code and other.code == code):
            raise CodecError(
                f"{codec.__name__} has name {name!r} and number {code}, as {other.__name__} has; change it"
            )
    if code and not codec.__module__.startswith("fedmpdd.") and code not in USER_CODES:
        raise CodecError(
            f"{codec.__name__} has number {code} on the wire; those of users are 128 to 255, or 0 for none"
        )
    CODECS[name] = codec
    return codec


def self_contained_codecs() -> dict[int, type[Codec]]:
    """Return the codecs that a frame's header can name, by their numbers."""
    return {codec.code: codec for codec in CODECS.values() if codec.self_contained}


def make_codec(name: str, parameters: dict[str, Any]) -> Codec:
    """Return a codec by its name and parameters, as configs and messages have them."""
    if name not in CODECS:
        raise CodecError(f"name = {name!r} is unknown; use one of {', '.join(CODECS)}")
    codec = CODECS[name]
    # Codecs are dataclasses, which their base class cannot say; shapes come from the model.
    known = [field.name for field in fields(codec) if field.name != "shapes"]  # type: ignore[arg-type]
    for key in parameters:
        if key not in known:
            raise CodecError(f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}")
    try:
        return codec(**parameters)
    except (InputError, TypeError) as error:
        raise CodecError(str(error).replace(f"{codec.__name__}.__init__()", name)) from None


def _discover() -> None:
    """Register the codecs of all modules in this folder, in the order of their numbers."""
    classes = set()
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name in ("device", "registry"):  # needs PyTorch; is this one
            continue
        for value in vars(importlib.import_module(f"fedmpdd.codecs.{module.name}")).values():
            if inspect.isclass(value) and issubclass(value, Codec) and value.code and not inspect.isabstract(value):
                classes.add(value)
    for codec in sorted(classes, key=lambda codec: codec.code):
        register(codec)


_discover()
