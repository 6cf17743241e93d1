"""What options say, as values: times, keys of the config."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.errors import ConfigError

if TYPE_CHECKING:
    from talos.config import RunConfig

__all__ = ["config_from", "parse_budget", "parse_value"]

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> float:
    """Seconds in `90s`, `10m`, `1.5h` or a plain number of seconds.

    >>> parse_budget("10m")
    600.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds > 0:
        raise ConfigError(f"{text!r}", where="--budget", expected="a time such as 90s, 10m or 1h")
    return seconds


def parse_value(text: str) -> Any:
    """The value in KEY=VALUE: JSON, or else a bare word.

    >>> parse_value("0.1"), parse_value("true"), parse_value("shared:64")
    (0.1, True, 'shared:64')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def config_from(path: Path | None, given: dict[str, Any], assignments: list[str]) -> RunConfig:
    """The config of a file or the defaults, with what was given by options and by `--set` changed in it.

    >>> config_from(None, {"k": 10, "seed": None}, ["loss.tau=0.2"]).loss.options
    {'tau': 0.2}
    """
    from talos.config import RunConfig

    config = RunConfig() if path is None else RunConfig.from_toml(path)
    changes = {name: value for name, value in given.items() if value is not None}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{assignment!r}", where="--set", expected="KEY=VALUE, such as loss.tau=0.1")
        changes[name] = parse_value(text)
    return config.with_values(changes)
