"""Files that appear whole or not at all, and JSON that is checked before it is believed. No dependencies.

Every JSON text that comes from a file or from outside goes through `parse_json` or `read_json`. Python's own parser
raises RecursionError at deep brackets, ValueError at numbers of thousands of digits and UnicodeDecodeError at stray
bytes, and it takes memory of many times the text. Here all of that is one DocumentError.
"""

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedmpdd.errors import ConfigError, DocumentError, RunError

__all__ = ["parse_json", "read_json", "write_atomically", "write_json", "write_text"]

LARGEST_DOCUMENT = 2**24  # bytes; the parsed values take up to twenty times as much


def parse_json(text: str | bytes | bytearray, *, largest: int = LARGEST_DOCUMENT) -> Any:
    """Return the values of a JSON text, or raise DocumentError.

    text: a string, or bytes in UTF-8. largest: how long it may be.

        >>> parse_json('{"rounds": 3}')
        {'rounds': 3}
    """
    if len(text) > largest:
        raise DocumentError(f"the text has {len(text):,} characters, and at most {largest:,} are read")
    try:
        return json.loads(text)
    except RecursionError:
        raise DocumentError("brackets are nested too deeply for any document of this package") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise DocumentError(f"it is not JSON: {error}") from None


def parse_override(override: str) -> tuple[str, Any]:
    """Return key and value of a change to a config, or raise ConfigError.

    override: `key=value`, the value as in TOML; a bare word is a string.

        >>> parse_override("codec.m=400")
        ('codec.m', 400)
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r} is not an override: expected key=value, like codec.m=400")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key, text
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{override[:60]!r} … is not an override: {error}") from None


def check_number(name: str, value: object, low: float, high: float, expected: str) -> None:
    """Raise ConfigError unless a setting is a number from `low` to below `high`.

    name: of the setting. value: what came. low, high: its range. expected: the range in words.

        >>> check_number("lr", 0.1, 0.0, 1.0, "a number from 0 to below 1")
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value < high:
        raise ConfigError(f"{name} = {value!r}: expected {expected}")


def read_json(path: Path, remedy: str, *, largest: int = LARGEST_DOCUMENT) -> Any:
    """Return the values of a JSON file, or raise RunError that ends in `remedy`.

    path: the file. remedy: what to do about a damaged one, like "delete it and resume". largest: how many bytes the
    file may have; no more are ever read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
        return parse_json(data, largest=largest)
    except FileNotFoundError:
        raise RunError(f"{path} is missing; {remedy}") from None
    except (OSError, DocumentError) as error:
        raise RunError(f"{path} is damaged: {error}; {remedy}") from None


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Have `write` make a file beside `path`, then put it in place in one step."""
    partial = path.with_name(path.name + ".part")
    partial.unlink(missing_ok=True)  # in somebody's folder it may be a link, and its target would be written over
    try:
        write(partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # there only if something went wrong
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put a folder's entries on the disk: only then does a rename survive a power cut."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document in one step."""
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text in one step."""

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    write_atomically(path, write)


Expected = Mapping[str, tuple[Callable[[Any], bool], str]]  # by key: whether a value will do, and what would


def problem_in(table: Any, expected: Expected) -> str | None:
    """Say what is wrong in a table of a document, if anything is: what came and what was expected.

    >>> problem_in({"rounds": "x"}, {"rounds": (is_count, "a whole number")})
    "rounds = 'x', expected a whole number"
    """
    if not isinstance(table, dict):
        return f"{table!r:.40}, expected a table"
    for key, (is_right, what) in expected.items():
        if not is_right(table.get(key)):
            return f"{key} = {table.get(key)!r:.40}, expected {what}"
    return None


def is_count(value: Any) -> bool:
    """Whether a value is a whole number that can be counted with."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """Whether a value is a number that can be calculated with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
