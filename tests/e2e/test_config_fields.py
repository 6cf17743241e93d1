"""Every field of the config with a wrong type, out of range or misspelt is refused before data are opened."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from talos import registry
from talos.cli import main
from talos.cli.options import TrainingOptions
from talos.config import EventsConfig, OptimizerConfig, RunConfig, TrainingConfig
from talos.errors import InputError

SECTIONS: dict[str, Any] = {
    "": RunConfig,
    "events.": EventsConfig,
    "optimizer.": OptimizerConfig,
    "training.": TrainingConfig,
}
CHOICES = ("backbone", "loss", "threshold", "baseline")


def plain_fields() -> dict[str, Any]:
    """Dotted key → default of every field that is no section."""
    return {
        f"{prefix}{name}": field.default
        for prefix, section in SECTIONS.items()
        for name, field in section.model_fields.items()
        if name not in (*CHOICES, "negatives", "events", "optimizer", "training")
    }


def options() -> Iterator[tuple[str, str, str, Any]]:
    """Kind, name, option and default of every option of every choice of the library."""
    for kind in CHOICES:
        for name in registry.names(kind):
            for option, default in registry.options(kind, name).items():
                yield kind, name, option, default


def wrong_values(default: Any) -> list[Any]:
    if isinstance(default, bool):
        return ["yes", 2, None, [True]]
    if isinstance(default, int):
        return [True, "8", 1.5, -1, [1], {}]
    if isinstance(default, float):
        return [True, "0.1", -1.0, [0.1], {}]
    return [[1], {}, 7.5, "no such word"]


def test_there_are_fields_to_try() -> None:
    assert {"k", "seed", "device", "optimizer.lr", "training.epochs", "training.metric"} <= set(
        plain_fields()
    )
    assert {("backbone", "mf", "dim"), ("loss", "talos", "tau")} <= {(a, b, c) for a, b, c, _ in options()}


def refused(key: str, value: Any, *before: str) -> InputError:
    with pytest.raises(InputError) as caught:
        TrainingOptions(assignments=[*before, f"{key}={json.dumps(value)}"]).run_config()
    return caught.value


@pytest.mark.parametrize("key", plain_fields())
def test_wrong_types_and_ranges(key: str) -> None:
    values = wrong_values(plain_fields()[key])
    if key.startswith("optimizer.lr") or key == "training.prior":
        values = [True, "0.1", "no such word", -1, [0.1], {}]
    if plain_fields()[key] is not None:
        values.append(None)
    for value in values:
        assert refused(key, value).where == key, value


@pytest.mark.parametrize(
    "key", [*plain_fields(), "loss.name", "backbone.name", "threshold.name", "negatives"]
)
def test_misspelt_names_suggest_the_nearest(key: str) -> None:
    prefix, _, name = key.rpartition(".")
    if len(name) > 3 and name != "name":
        misspelt = name[:-2] + name[-1]
        error = refused(f"{prefix}.{misspelt}" if prefix else misspelt, 1)
        assert repr(name) in str(error.hint), error
    if prefix:
        error = refused(f"{prefix[:-1]}.{name}", 1)
        assert repr(prefix) in str(error.hint), error


@pytest.mark.parametrize(("kind", "name", "option", "default"), list(options()))
def test_options_of_every_choice(kind: str, name: str, option: str, default: Any) -> None:
    chosen = f"{kind}.name={name}"
    values = wrong_values(default) if isinstance(default, bool | int | float) else [[[1]], {"a": 1}]
    for value in values:
        if value == -1.0 or value == -1:
            continue  # some options may be negative; those that may not are checked by their class
        error = refused(f"{kind}.{option}", value, chosen)
        assert option in str(error), (value, error)
    error = refused(f"{kind}.{option}x", 1, chosen)
    assert repr(option) in str(error.hint)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k", 0), ("k", 2**60), ("seed", 2**63), ("optimizer.lr", 0), ("optimizer.lr_decay", 1.5),
        ("optimizer.weight_decay", -0.1), ("backbone.dim", 0), ("backbone.dim", -3), ("loss.tau", 0),
        ("loss.tau", 1e999), ("training.epochs", 0), ("negatives", "shared:0"), ("negatives", "-1"),
        ("negatives", "shared:99999999999999"), ("negatives", "99999999999999"), ("device", "meta"),
        ("loss.name", "talso"), ("backbone.name", "fm"), ("threshold.name", "exat"), ("negatives", "al"),
    ],
)  # fmt: skip
def test_ranges(key: str, value: Any) -> None:
    error = refused(key, value)
    assert error.where in (key, key.rpartition(".")[2], key.partition(".")[0]), error


def test_the_command_says_so_before_it_opens_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("train", "tune", "compare"):
        more = ["--losses", "sl"] if command == "compare" else []
        for text, message in (
            ("lss.tau=1", "--set lss.tau"),
            ("training.epoch=1", "--set training.epoch: no such key (did you mean 'epochs'?)"),
            ("backbone.dim=true", "dim: True; expected a valid integer"),
        ):
            line = [
                "talos",
                command,
                "/dev/null/clicks.csv",
                "--out",
                str(tmp_path / "out"),
                *more,
                "--set",
                text,
            ]
            monkeypatch.setattr(sys, "argv", line)
            with pytest.raises(SystemExit) as ended:
                main()
            said = capsys.readouterr().err
            assert ended.value.code == 2
            assert message in said, (line, said)
    assert not (tmp_path / "out").exists()
