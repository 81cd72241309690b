"""What two configs of one run may differ in, and how that is said: key: old → new."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmpdd.errors import RunError
from fedmpdd.imports import OBJECT
from fedmpdd.simulation.config import RunConfig, parse_config

__all__ = ["check_same_run"]

FREE_SETTINGS = ("rounds", "evaluate_every", "checkpoint_every", "device")  # change nothing that a round computes

Changes = dict[str, tuple[Any, Any]]  # by dotted key: what it was, what it is


def changes(then: RunConfig, now: RunConfig) -> Changes:
    """Return what differs between two configs."""
    old, new = (_flat(config.model_dump(mode="json")) for config in (then, now))
    keys = list(dict.fromkeys([*old, *new]))
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def breaking_changes(changed: Changes, free: Sequence[str] = FREE_SETTINGS) -> Changes:
    """Return those of some changes that make another run."""
    return {key: values for key, values in changed.items() if key not in free}


def describe(changed: Changes) -> str:
    """Return changes as one line."""
    return ", ".join(f"{key}: {_short(old)} → {_short(new)}" for key, (old, new) in changed.items())


def check_same_run(folder: Path, then: RunConfig, now: RunConfig, free: Sequence[str] = FREE_SETTINGS) -> None:
    """Raise RunError if a folder cannot be gone on with by a config, since it is of another run."""
    if other := breaking_changes(changes(then, now), free):
        raise RunError(
            f"{folder} was trained with other settings: {describe(other)}; choose another folder, or give the earlier "
            f"values (only {', '.join(free)} may differ)"
        )


def check_free(folder: Path, given: Mapping[str, Any]) -> None:
    """Raise RunError for a setting that makes another run than that of a folder."""
    for key, value in given.items():
        if key not in FREE_SETTINGS:
            raise RunError(
                f"{key} = {value!r:.60} cannot be given to {folder}: a run keeps its settings, and only "
                f"{', '.join(FREE_SETTINGS)} may change; leave it out, or start another run with it"
            )


def with_changes(folder: Path, config: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """Return the config of a run with some of its free settings changed, or raise RunError."""
    check_free(folder, given)
    return parse_config({**config.model_dump(mode="json"), **given}) if given else config


def config_record(config: RunConfig) -> dict[str, Any]:
    """Return what a start notes of its config, so that a later one can tell whether the file was changed."""
    table = config.model_dump(mode="json")
    return {"config_sha256": _sha256(table), "config": table}


def without_config_record(start: Mapping[str, Any]) -> dict[str, Any]:
    """Return a start's versions and machine alone."""
    return {key: value for key, value in start.items() if key not in ("config_sha256", "config", "task_sha256")}


def check_unchanged(path: Path, table: dict[str, Any], starts: Sequence[Mapping[str, Any]]) -> None:
    """Raise RunError if a config file is not what a start of its run noted; those of earlier versions noted nothing.

    It may be that of any start: the start notes new rounds before they are written into the file.
    """
    known = [start["config"] for start in starts if isinstance(start.get("config"), dict)]
    if not known or _sha256(table) in [start.get("config_sha256") for start in starts]:
        return
    then, now = (parse_config(values, follow_imports=False) for values in (known[-1], table))
    changed = changes(then, now)
    free = " ".join(f"{key}={new}" for key, (_, new) in changed.items() if key in FREE_SETTINGS)
    how = f"give {free} to fedmpdd run --resume {path.parent}" if free else "start another run for other settings"
    if changed:
        raise RunError(f"{path} was changed after the run began, {describe(changed)}; put back what it was, and {how}")


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: one for part in value for name, one in _flat(value[part], f"{key}.{part}".lstrip(".")).items()}
    if isinstance(value, list):
        return {key: [_flat(one) if isinstance(one, dict) else _flat(one)[""] for one in value]}
    # Objects of a process are numbered in the order in which they came, and another process counts anew.
    is_object = isinstance(value, str) and OBJECT in value
    return {key: re.sub(r"#\d+$", "", value) if is_object else value}


def _short(value: Any) -> str:
    return "none" if value is None else str(value) if len(str(value)) <= 60 else f"{str(value)[:60]}…"


def _sha256(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
