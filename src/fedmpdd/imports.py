"""What a user names by import path: their own model, codec or function, in a module or in a file, and whom to trust.

    package.module:Name              of a module that Python finds
    folder/file.py:Name              of a file, relative to the current folder
    mynet.py:Net(width=32, depth=2)  called with these arguments, which are literals

Nothing but literals is evaluated in such a text. The code that it names runs when it is imported: a text from somebody
else's folder is imported after `check_trust` alone. Whatever is wrong with a path is one ConfigError, in one line.
"""

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import re
import sys
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from fedmpdd.errors import ConfigError, RunError

Trust = bool | str | Collection[str]  # anything, nothing, or these import paths; of a mapping each at its key alone

_TARGET = re.compile(r"(?P<target>[^(]+?\.py|[^:(]+):(?P<rest>.+)", re.DOTALL)
_NAMED, _IS_METRIC = re.compile(r"^[^=:(]+="), re.compile(r"(^|\.)metrics\.\d+$")  # name=path: what a metric is called
_LONGEST = 2_000  # characters of a path: nobody writes so many
_LONGEST_REASON = 200  # characters of what other people's code says
_LONGEST_VALUE = 60  # of a value in a message
_PACKAGE, _NOT_THEIRS = Path(__file__).parent, {"site-packages", "dist-packages"}
_PREFIX = "_fedmpdd_file_"  # of the names of modules that were loaded from files
_loading = threading.RLock()


@dataclass(frozen=True)
class ImportPath:
    """An import path, taken apart.

    target: a module, or a file. attribute: the name in it, with dots for what lies deeper. args, kwargs: what it is
    called with; None where it is not called.
    """

    text: str
    target: str
    attribute: str
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_file(self) -> bool:
        """Whether the target is a file."""
        return self.target.endswith(".py")

    @property
    def is_called(self) -> bool:
        """Whether there are arguments, be it none between two brackets."""
        return self.args is not None


def is_import_path(text: object) -> bool:
    """Return whether a text is meant as an import path: it has a colon, or ends as a Python file does.

    Args:
        text: a name in a config or on a command line.

    Example:
        >>> [is_import_path(text) for text in ("lenet", "mynet.py:Net(width=32)", "package.module:Net", "mynet.py")]
        [False, True, True, True]

    """
    return isinstance(text, str) and (":" in text or text.endswith(".py")) and not text.startswith(OBJECT)


def parse_import_path(text: str, key: str) -> ImportPath:
    """Take an import path apart, or raise ConfigError; nothing is imported.

    Args:
        text: the path.
        key: of the config that it stands at, for the message.

    Example:
        >>> parse_import_path("nets/mine.py:Net(width=32)", "model").kwargs
        {'width': 32}

    """
    matched = _TARGET.fullmatch(text) if len(text) <= _LONGEST else None
    if matched is None:
        is_file = text.endswith(".py")
        raise ConfigError(
            f"{key} = {text!r:.200} names a file, and nothing in it; expected {text}:Name"
            if is_file
            else f"{key} = {text!r:.200} is no import path; expected package.module:Name or folder/file.py:Name"
        )
    target, rest = matched["target"], matched["rest"]
    if not target.endswith(".py") and not all(part.isidentifier() for part in target.split(".")):
        raise ConfigError(
            f"{key} = {text!r} names neither a module nor a file that ends in .py; expected package.module:Name or "
            "folder/file.py:Name"
        )
    try:
        node = ast.parse(rest.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    call = node if isinstance(node, ast.Call) else None
    attribute = _dotted(call.func if call else node)
    if attribute is None:
        raise ConfigError(f"{key} = {text!r}: {rest!r} is no name; expected Name, or Name(width=32) with arguments")
    if call is None:
        return ImportPath(text, target, attribute)
    args, kwargs = _literals(call, f"{key} = {text!r}")
    return ImportPath(text, target, attribute, args, kwargs)


def import_object(text: str, key: str) -> Any:
    """Import what a path names, or raise ConfigError; where arguments are given, a functools.partial with them.

    A file is loaded once in a process: its classes are the same whenever it is named, be it as a file, as a module that
    is imported already, or as the script that runs. Loaded classes can be pickled within the process.

    Args:
        text: the path. Its code runs: see `check_trust` for paths of other people.
        key: of the config that it stands at, for the message.

    Example:
        >>> import_object("math:gcd", "codec.name")(12, 18)
        6
        >>> import_object("math:gcd(12)", "codec.name")(18)
        6

    """
    path = parse_import_path(text, key)
    try:
        value: Any = _load(path)
        for name in path.attribute.split("."):
            if not hasattr(value, name):
                raise _UnavailableError(_missing(value, name, path))
            value = getattr(value, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module runs when it is imported, and may even call exit
        raise ConfigError(f"{key} = {text!r} cannot be imported: {_reason(error, path)}") from None
    return value if path.args is None else functools.partial(value, *path.args, **path.kwargs)


def words_of(error: BaseException) -> str:
    """Return what an exception of other people's code says, in one line.

    Args:
        error: the exception, be it SystemExit.

    """
    if isinstance(error, SystemExit):
        return f"it called exit({error.code!r})"
    text = " ".join(str(error).split())
    text = text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def words_and_line_of(error: BaseException) -> str:
    """Return what an exception of other people's code says, and in which line of their file it was raised.

    Args:
        error: the exception. What is raised within an installed package has the line that called it.

    """
    frames = traceback.extract_tb(error.__traceback__)
    paths = [(frame, Path(frame.filename)) for frame in frames if not frame.filename.endswith(".pyx")]
    theirs = [frame for frame, path in paths if not set(path.parts) & _NOT_THEIRS and _PACKAGE not in path.parents]
    where = f", in line {theirs[-1].lineno} of {Path(theirs[-1].filename).name}" if theirs else ""
    return f"{words_of(error)}{where}"


def quote(value: Any) -> str:
    """Return a value as messages show it: one line, and a short one.

    Args:
        value: anything, be its `repr` long or of many lines.

    Example:
        >>> quote([1, 2])
        '[1, 2]'

    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # somebody else's class
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]} …"


def import_path_of(value: Any) -> str | None:
    """Return a path by which another process finds a class or function again, None where there is none.

    A class of a function's body has none, nor has one of a notebook.

    Args:
        value: the class or function.

    Example:
        >>> import_path_of(ImportPath)
        'fedmpdd.imports:ImportPath'

    """
    module = sys.modules.get(value.__module__)
    target: Any = module
    for name in value.__qualname__.split("."):
        target = getattr(target, name, None)  # "<locals>" is no attribute
    if module is None or target is not value:
        return None
    spec, is_main = getattr(module, "__spec__", None), value.__module__ in ("__main__", "__mp_main__")
    if is_main and spec is not None:  # python -m package.module
        return f"{spec.name}:{value.__qualname__}"
    if not is_main and not value.__module__.startswith(_PREFIX):
        return f"{value.__module__}:{value.__qualname__}"
    file = _file_of(module)
    return None if file is None else f"{_from_here(file)}:{value.__qualname__}"


# ---------------------------------------------------------------------------------------- what a config names


def import_paths(table: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Return every text of a config that is an import path, by its dotted key.

    Args:
        table: the config.
        above: the key of the table within a larger one.

    Example:
        >>> import_paths({"model": "mynet.py:Net", "codec": {"name": "package.codecs:Mine", "m": 3}, "rounds": 5})
        {'model': 'mynet.py:Net', 'codec.name': 'package.codecs:Mine'}

    """
    named = {key: _NAMED.sub("", text) if _IS_METRIC.search(key) else text for key, text in _texts(table, above)}
    return {key: text for key, text in named.items() if is_import_path(text)}


def check_trust(paths: Mapping[str, str], source: str, trust_imports: Trust) -> None:
    """Raise RunError if opening somebody's files would import code that nobody here asked for.

    Args:
        paths: the import paths that the files name, by key: see `import_paths`.
        source: what files, for the message.
        trust_imports: True to import whatever they name, or the import path, or paths, that may be imported; of a
            mapping each one at its key, which must name it.

    Example:
        >>> check_trust({"model": "mynet.py:Net"}, "runs/theirs", trust_imports="mynet.py:Net")

    """
    if trust_imports is True:
        return
    if isinstance(trust_imports, Mapping):
        refused = {key: text for key, text in paths.items() if trust_imports.get(key) != text}
    else:
        allowed = {trust_imports} if isinstance(trust_imports, str) else trust_imports or ()
        refused = {key: text for key, text in paths.items() if text not in allowed}
    if refused:
        named = " and ".join(f"{key} = {text!r}" for key, text in refused.items())
        given = " ".join(f"{key}={text}" for key, text in paths.items())
        raise RunError(
            f"{source} names {named}, and opening it would import and run that code; if you trust it, say so with "
            f"--trust-imports, or with {given} on the command line (in Python, trust_imports=True)"
        )
    for key, text in trust_imports.items() if isinstance(trust_imports, Mapping) else ():
        if key not in paths:
            raise RunError(f"{key}={text} was given to trust it, and {source} names no code at {key}; leave it out")


def sources_of(paths: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the file that each import path was loaded from, with the SHA-256 of its bytes; others are left out.

    Args:
        paths: that were imported, by key.

    Example:
        >>> sorted(sources_of({"model": "fedmpdd.imports:ImportPath"})["model"])
        ['file', 'path', 'sha256']

    """
    sources = {}
    for key, text in paths.items():
        path = parse_import_path(text, key)
        module = None if path.is_file else sys.modules.get(path.target)
        file = _file_named(path.target) if path.is_file else module and _file_of(module)
        if file and file.is_file():
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            sources[key] = {"path": text, "file": str(file), "sha256": digest}
    return sources


def blamed(error: BaseException, paths: Mapping[str, str]) -> str | None:
    """Return in one line what code that a config names has raised, and where; None where others raised it.

    Args:
        error: the exception.
        paths: the import paths, by key.

    """
    files = {source["file"] for source in sources_of(paths).values()}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{words_of(error)}, in line {frames[-1].lineno} of {frames[-1].filename}" if frames else None


# ------------------------------------------------------------------------------------------------------ parts


class _UnavailableError(Exception):
    """Why a path leads nowhere, in words."""


class _Uncached(importlib.machinery.SourceFileLoader):
    """A loader that always reads the source: bytecode goes by its time in seconds, and may be of an earlier text."""

    def path_stats(self, path: Any) -> Any:
        raise OSError


def _dotted(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return inner and f"{inner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _literals(call: ast.Call, where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def literal(node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise ConfigError(
                f"{where}: the argument {ast.unparse(node)} is no literal; expected numbers, texts, True, False, None, "
                "or lists and tables of these"
            ) from None

    kwargs: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ConfigError(f"{where}: **{ast.unparse(keyword.value)} is no argument; write each as name=value")
        kwargs[keyword.arg] = literal(keyword.value)
    return tuple(literal(node) for node in call.args), kwargs


def _texts(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, str):
        yield key, value
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, one in inner:
        yield from _texts(one, f"{key}.{name}".lstrip("."))


_elsewhere: dict[str, Path] = {}  # files that a run was trained with, by how its config calls them


def find_again(sources: Mapping[str, Mapping[str, str]]) -> None:
    """Have files that a run was trained with found from other folders too, where they are not in the current one.

    Args:
        sources: what `sources_of` returned when the run began. Nothing is imported, and trust is for others to check.

    Example:
        >>> find_again({"model": {"path": "mynet.py:Net", "file": "/home/me/mynet.py", "sha256": ""}})

    """
    for key, source in sources.items():
        path = parse_import_path(source["path"], key)
        if path.is_file:
            _elsewhere[path.target] = Path(source["file"])


def _file_named(target: str) -> Path:
    """The file that a path names: in the current folder, or else where a run found it."""
    file = Path(target).resolve()
    return file if file.is_file() else _elsewhere.get(target, file)


def _load(path: ImportPath) -> ModuleType:
    if path.is_file:
        file = _file_named(path.target)
        if not file.is_file():
            raise _UnavailableError(f"there is no file {path.target} in {Path.cwd()}, where paths begin")
        with _loading:
            return _loaded(file) or _load_file(file)
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if main is not None and spec is not None and spec.name == path.target:  # it runs as python -m package.module
        return main
    return importlib.import_module(path.target)


def _loaded(file: Path) -> ModuleType | None:
    """The module of this process that was made from a file: the script itself, one that was imported, or ours."""
    ours = sys.modules.get(_module_name(file))
    if ours is not None:
        return ours
    for module in list(sys.modules.values()):
        if _file_of(module, called=file.name) == file:
            return module
    return None


def _load_file(file: Path) -> ModuleType:
    name = _module_name(file)
    loader = _Uncached(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.parent)
    sys.modules[name] = module  # before it runs: dataclasses look for their module
    sys.path.insert(0, folder)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
    return module


def _module_name(file: Path) -> str:
    """A name that no module of a package has, and two files of one name do not share."""
    stem = re.sub(r"\W", "_", file.stem)
    return f"{_PREFIX}{hashlib.sha256(str(file).encode()).hexdigest()[:12]}_{stem}"


def _file_of(module: ModuleType, called: str = "") -> Path | None:
    """The source of a module, if it has one, and of that name."""
    name = getattr(module, "__dict__", {}).get("__file__")  # not getattr: some modules import others when asked
    return Path(name).resolve() if isinstance(name, str) and name.endswith(called or ".py") else None


def _from_here(file: Path) -> str:
    return file.relative_to(Path.cwd()).as_posix() if file.is_relative_to(Path.cwd()) else file.as_posix()


def _missing(value: Any, name: str, path: ImportPath) -> str:
    names = [other for other in vars(value) if not other.startswith("_")] if hasattr(value, "__dict__") else []
    close = difflib.get_close_matches(name, names, 1)
    where = path.target if isinstance(value, ModuleType) else getattr(value, "__qualname__", path.target)
    home = getattr(value, "__name__", None)
    local = [other for other in names if getattr(vars(value)[other], "__module__", None) == home][:8]
    hint = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(local)}" if local else ""
    return f"{where} has no {name}{hint}"


def _reason(error: BaseException, path: ImportPath) -> str:
    if isinstance(error, _UnavailableError):
        return str(error)
    text = words_of(error)
    if path.is_file and not isinstance(error, SyntaxError):  # which says it itself
        file = str(Path(path.target).resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        return f"{text}, in line {lines[-1]} of {path.target}" if lines else text
    if isinstance(error, ModuleNotFoundError) and error.name and f"{path.target}.".startswith(f"{error.name}."):
        return f"{text}; a module of your own must be on PYTHONPATH, or be named by its file, like mynet.py:Net"
    return text


# ------------------------------------------------------------------------------------- objects of this process

OBJECT = "object:"  # what the name of an object begins with that has no import path
_objects: dict[str, Any] = {}


def name_object(value: Any) -> str:
    """Return a name for an object of this process, by which configs can speak of it.

    The same object keeps its name; another one of that name gets a number. In another process the name leads nowhere,
    and says what it stood for.

    Args:
        value: any object.

    Example:
        >>> named_object(name_object(max), "metrics") is max
        True

    """
    name = base = f"{OBJECT}{getattr(value, '__name__', type(value).__name__)}"
    number = 1
    while name in _objects and _objects[name] is not value:
        number += 1
        name = f"{base}#{number}"
    _objects[name] = value
    return name


def is_named(text: str) -> bool:
    """Return whether a text names something of a user's: by an import path, or an object of this process.

    Args:
        text: a name in a config.

    Example:
        >>> is_named("adam"), is_named("torch.optim:AdamW")
        (False, True)

    """
    return text.startswith(OBJECT) or is_import_path(text)


def named_object(text: str, key: str) -> Any:
    """Return what a text names: an object of this process, or what an import path leads to; or raise ConfigError.

    Args:
        text: the name. See `import_object` for import paths.
        key: of the config that it stands at, for the message.

    Example:
        >>> named_object("math:gcd", "loss")(12, 18)
        6

    """
    if not text.startswith(OBJECT):
        return import_object(text, key)
    if text not in _objects:
        raise ConfigError(
            f"{key} = {text!r} is an object of the Python program that began this run, and not of this one; go on "
            "where it was begun, or name it by an import path such as mycode.py:Name"
        )
    return _objects[text]


def function_named(text: str, key: str) -> Any:
    """Return what a text names as something to call: of a class an object, made with the arguments of its path.

    Args:
        text: the name. See `named_object`.
        key: of the config that it stands at, for the message.

    Example:
        >>> function_named("operator:itemgetter(1)", "loss")("abc")
        'b'

    """
    value = named_object(text, key)
    if not isinstance(value.func if isinstance(value, functools.partial) else value, type):
        return value
    try:
        return value()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # somebody else's code, which may even call exit
        raise ConfigError(f"{key} = {text!r} cannot be made: {words_of(error)}") from None
