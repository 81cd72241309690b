"""All codecs by name, those of this package and those that others register.

A codec of this package is a file in this folder, and nothing else has to know of it. One of somebody else's is named by
its import path, or registered under its own name:

    @register
    @dataclass(frozen=True)
    class Mine(Codec):
        name: ClassVar[str] = "mine"
        ...

Messages of a network, such as Flower's, name codecs by their registered names alone: what comes from outside never
imports anything.
"""

import difflib
import importlib
import inspect
import pkgutil
import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedmpdd.codecs.base import Codec
from fedmpdd.errors import CodecError, InputError
from fedmpdd.imports import import_path_of, is_named, name_object, named_object, quote, words_of

C = TypeVar("C", bound=type[Codec])

CODECS: dict[str, type[Codec]] = {}
USER_CODES = range(128, 256)  # numbers on the wire that this package never takes


def register(codec: C) -> C:
    """Make a codec known by its name, and by its number on the wire if it has one. A decorator of its class.

    Example:
        >>> register(MPDD) is MPDD
        True

    """
    if not isinstance(codec, type) or not issubclass(codec, Codec):
        raise CodecError(f"register came with {quote(codec)}; expected a class that derives from fedmpdd.Codec")
    name, code = getattr(codec, "name", None), codec.code
    if not isinstance(code, int) or isinstance(code, bool):
        raise CodecError(f"{codec.__name__} has number {code!r} on the wire; expected 128 to 255, or 0 for none")
    if inspect.isabstract(codec):
        missing = ", ".join(sorted(codec.__abstractmethods__))
        raise CodecError(f"{codec.__name__} lacks {missing}; every codec has these: see fedmpdd.codecs.base")
    if not isinstance(name, str) or not name or set(name) & set(":=, "):
        raise CodecError(f"{codec.__name__} has name = {name!r}; expected a word without colon, comma, = and space")
    if not is_dataclass(codec) or codec.__hash__ is None:
        raise CodecError(
            f"{codec.__name__} is no frozen dataclass; write @dataclass(frozen=True) right above its class"
        )
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
    return {codec.code: codec for codec in CODECS.values() if codec.fits_header()}


def parameter_names(codec: type[Codec]) -> list[str]:
    """Return the names of a codec's parameters; shapes are none, they come from the model."""
    # Codecs are dataclasses, which their base class cannot say.
    return [field.name for field in fields(codec) if field.init and field.name != "shapes"]  # type: ignore[arg-type]


def default_values(codec: type[Codec]) -> dict[str, Any]:
    """Return what a codec's parameters are where nobody says so; those that must be given are left out."""
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(codec)  # type: ignore[arg-type]
        if field.default is not MISSING or field.default_factory is not MISSING
    }


def make_codec(name: str, parameters: dict[str, Any]) -> Codec:
    """Return a codec by its registered name and parameters, as configs and messages have them; nothing is imported."""
    codec = _registered(name)
    known = parameter_names(codec)
    for key in parameters:
        if key not in known:
            raise CodecError(f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}")
    missing = [key for key in known if key not in {**default_values(codec), **parameters}]
    if missing:
        raise CodecError(
            f"{name} needs {' and '.join(missing)}; write {':'.join([name, *(f'{key}=…' for key in missing)])}"
        )
    # Configs and messages have lists where Python has tuples.
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in parameters.items()}
    try:
        return codec(**values)
    except (InputError, TypeError) as error:
        raise CodecError(str(error).replace(f"{codec.__name__}.__init__()", name)) from None
    except Exception as error:  # of somebody else's class
        raise CodecError(f"{name} cannot be made: {words_of(error)}") from None


def codec_named(name: str) -> type[Codec]:
    """Return the class that a config names, registered; an import path is followed, and its code runs.

    Args:
        name: a registered name, or an import path without arguments such as mycodec.py:Mine.

    """
    if not is_named(name):
        return _registered(name)
    value = named_object(name, "codec.name")
    if not inspect.isclass(value) or not issubclass(value, Codec):
        raise CodecError(f"name = {name!r} is {value!r:.60}; expected a class that derives from fedmpdd.Codec")
    return register(value)


def config_name_of(codec: type[Codec]) -> str:
    """Return the name by which configs speak of a codec: of one of somebody's own, a path that leads to its class.

    A registered name would be of no use where nobody has imported the file that registers it.
    """
    if codec.__module__.startswith("fedmpdd.") and CODECS.get(codec.name) is codec:
        return codec.name
    return import_path_of(codec) or name_object(codec)


def check_is_codec(value: Any) -> Codec:
    """Return a codec, or raise CodecError for what is none: its class, or its name.

    Args:
        value: what came.

    """
    if isinstance(value, Codec):
        return value
    example = "MPDD(m=400)"
    if isinstance(value, type) and issubclass(value, Codec):
        needed = [key for key in parameter_names(value) if key not in default_values(value)]
        example = f"{value.__name__}({', '.join(f'{key}=…' for key in needed)})"
        raise CodecError(f"codec = {value.__name__} is a class; expected an object of it, {example}")
    raise CodecError(f"codec = {quote(value)}: expected an object of a codec, like {example}")


def _registered(name: str) -> type[Codec]:
    if name in CODECS:
        return CODECS[name]
    word, *parameters = re.split(r"[(:, ]", name.lower(), maxsplit=1)
    close = difflib.get_close_matches(word, CODECS, 1)
    meant = close[0] if close else ""
    known = parameter_names(CODECS[meant]) if close and parameters else []
    meant += f":{known[0]}={'400' if known[0] == 'm' else '…'}" if known else ""
    # Those of others are left out: their number has no bound, and whoever registered them knows their names.
    ours = ", ".join(word for word, codec in CODECS.items() if codec.__module__.startswith("fedmpdd."))
    raise CodecError(
        f"name = {name!r} is unknown; {meant and f'did you mean {meant}? '}use one of {ours}, or of your "
        "own the import path, like mycodec.py:Mine, or the name once the module that registers it was imported"
    )


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
