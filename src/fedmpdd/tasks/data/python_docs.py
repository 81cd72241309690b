"""Text that comes with every Python, byte by byte: its help topics and the documentation strings of its library.

Another release of Python has other texts. `text_sha256` says which ones a result was measured on.
"""

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from fedmpdd.errors import DataError
from fedmpdd.tasks.data.base import Dataset, Examples, Source

WINDOW = 256  # bytes of an example; its label is the byte that follows, at every position
EVERY = 20  # one window in so many is for testing
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
_SMALLEST = 1_000_000  # bytes; a Python whose library was stripped has less


def load(folder: Path | None = None) -> Dataset:
    """Return windows of text and the bytes that follow each of theirs; they need no folder."""
    values = np.frombuffer(_text(), np.uint8)
    count = (values.size - 1) // WINDOW
    windows = values[: count * WINDOW].reshape(count, 1, 1, WINDOW)
    following = values[1 : count * WINDOW + 1].reshape(count, WINDOW).astype(np.int64)
    tested = np.arange(count) % EVERY == 0
    train, test = (Examples(windows[chosen], following[chosen]) for chosen in (~tested, tested))
    return Dataset("python-docs", train, test, 256, (0.0,), (1.0,))


def text_sha256() -> str:
    """Return the hash of the whole text on this machine."""
    return hashlib.sha256(_text()).hexdigest()


@cache
def _text() -> bytes:
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [*_topics(), *(doc for path in _sources(library) for doc in _docs(path))]
    text = "\n\n".join(texts).encode()
    if len(text) < _SMALLEST:
        raise DataError(
            f"{library} holds {len(text):,} bytes of documentation strings; expected {_SMALLEST:,} at least: this "
            "Python came without the sources of its library; use one that has them"
        )
    return text


def _topics() -> list[str]:
    """What `help("topics")` offers."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    return [topics[name] for name in sorted(topics)]


def _sources(library: Path) -> Iterator[Path]:
    for path in sorted(library.rglob("*.py")):
        if not _LEFT_OUT & set(path.relative_to(library).parts):
            yield path


def _docs(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # templates, say
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            if doc:
                yield doc


SOURCE = Source("python-docs", load)
