"""What many tables of settings have in common, once, and where they differ."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmpdd.pages.words import NOTHING, flatten
from fedmpdd.simulation.config import RunConfig


@dataclass(frozen=True)
class Differences:
    """Settings by dotted key: those that all tables share, and the others with one value per table."""

    common: dict[str, str]
    keys: list[str]
    rows: list[list[str]]  # in the order of the tables; a value per key


def differences(tables: Sequence[dict[str, Any]]) -> Differences:
    """Split tables of settings; a key that some of them lack is a difference."""
    flat = [flatten(table) for table in tables]
    keys = list(dict.fromkeys(key for table in flat for key in table))
    same = [key for key in keys if all(table.get(key, NOTHING) == flat[0].get(key, NOTHING) for table in flat)]
    differing = [key for key in keys if key not in same]
    return Differences(
        {key: flat[0][key] for key in same if flat[0][key] != NOTHING},
        differing,
        [[table.get(key, NOTHING) for key in differing] for table in flat],
    )


def identity(config: RunConfig, **changed: Any) -> str:
    """A text that two configs share when they say the same, in whatever order their keys came."""
    return json.dumps(config.model_dump(mode="json") | changed, sort_keys=True)
