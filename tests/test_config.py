from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talos.config import RunConfig
from talos.errors import ConfigError


def test_toml_round_trip(tmp_path: Path) -> None:
    config = RunConfig().with_values(
        {
            "k": 7,
            "loss.name": "bsl",
            "loss.tau1": 0.1,
            "loss.tau2": 0.2,
            "negatives": "shared:8",
            "optimizer.lr": 0.3,
        }
    )
    path = tmp_path / "run.toml"
    path.write_text(config.to_toml())
    assert RunConfig.from_toml(path) == config


def test_what_init_writes_reads_back(tmp_path: Path) -> None:
    from talos.cli.init import commented

    path = tmp_path / "run.toml"
    path.write_text(commented(RunConfig(), ("a note",)))
    assert RunConfig.from_toml(path) == RunConfig()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"k": 0}, "k: 0; expected greater than or equal to 1"),
        ({"k": True}, "k: True; expected a valid integer"),
        ({"kk": 1}, r"kk: no such key \(did you mean 'k'\?\)"),
        ({"optimizer": {"lr": -1}}, "optimizer.lr: -1; expected greater than 0"),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr: nan; expected a finite number"),
        ({"training": {"epoch": 1}}, "training.epoch: no such key .*'epochs'"),
        ({"training": {"int": "als"}}, "training.int: no such key .*'init'"),
        ({"training": {"batch_size": "big"}}, "training.batch_size: 'big'"),
        ({"training": {"metric": "recal"}}, "training.metric: 'recal'; expected .*'recall'"),
        ({"loss": {}}, "loss.name: is missing"),
        ({"loss": "sl"}, "loss: 'sl'"),
        ({"seed": -1}, "seed: -1"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_dict(values)


@pytest.mark.parametrize("text", ["k = ", "\x00", "[loss\nname=1"])
def test_bad_files_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.toml: not TOML"):
        RunConfig.from_toml(path)
    with pytest.raises(ConfigError, match="no such file"):
        RunConfig.from_toml(tmp_path / "none.toml")


def test_it_is_frozen() -> None:
    config = RunConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.k = 3  # type: ignore[misc]


def test_a_new_name_drops_the_options_of_the_old_one() -> None:
    config = RunConfig().with_values({"loss.tau": 0.3})
    assert config.with_values({"loss.name": "talos"}).loss.options == {"tau": 0.3}
    assert config.with_values({"loss.name": "bpr"}).loss.options == {}
    assert config.with_values({"loss.tau": 0.2, "loss.name": "sl"}).loss.options == {"tau": 0.2}
    with pytest.raises(ConfigError, match="is a value, not a section"):
        config.with_values({"k.x": 1})


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    )
)
def test_anything_at_all_is_a_config_or_an_error_of_ours(value: Any) -> None:
    for values in ({"k": value}, {"loss": value}, {"training": value}, {"optimizer": {"lr": value}}):
        try:
            RunConfig.from_dict(values)
        except ConfigError:
            pass
