"""The page of a search."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import pytest

from talos.report import tuning_report
from talos.report.studies import Axis


def trial(number: int, value: float | None, state: str = "complete", **parameters: Any) -> dict[str, Any]:
    curve = () if value is None else ((5, value * 0.9), (10, value))
    return {"number": number, "state": state, "value": value, "epoch": 10, "epochs": 20, "seconds": 1.5, "runs": 1,
            "parameters": parameters, "curve": curve, "error": "" if value is not None else "<b>broke</b>"}  # fmt: skip


def page(trials: list[dict[str, Any]], **options: Any) -> str:
    best = max((one for one in trials if one["value"] is not None), key=lambda one: one["value"])["number"]
    given = {"metric": "precision@20", "importance": {}, "settings": {"space.loss.tau": "low 0.1 high 0.2"}}
    return tuning_report(
        trials, best=best, config="[loss]\nname = '<i>'", peak_mb=400.0, **{**given, **options}
    )


def pictures(text: str) -> list[ElementTree.Element]:
    parts = text.split('<svg viewBox="0 0 330')[1:]
    return [
        ElementTree.fromstring('<svg viewBox="0 0 330' + part.split("</svg>")[0] + "</svg>") for part in parts
    ]


def test_a_page_shows_every_trial_and_escapes_what_is_not_ours() -> None:
    trials = [
        trial(
            i,
            0.01 * i + 0.1,
            "pruned" if i == 3 else "complete",
            **{"loss.tau": 0.1 + i / 50, "init": "<als>"},
        )
        for i in range(8)
    ]
    trials.append(trial(8, None, "failed", **{"loss.tau": 0.5, "init": "svd"}))
    text = page(
        trials, importance={"loss.tau": 0.8, "init": 0.2}, test={"precision@20": 0.5, "recall@20": 0.25}
    )
    assert "<als>" not in text
    assert "<b>broke" not in text
    assert "name = '<i>'" not in text
    assert "&lt;als&gt;" in text
    assert "8 complete" not in text
    assert "9 trials (7 complete, 1 pruned, 1 failed)" in text
    assert "was evaluated once" in text
    assert "0.2500" in text
    drawn = pictures(text)
    assert len(drawn) == 6  # history, learning, importance, parallel coordinates, one a parameter
    for picture in drawn:
        for element in picture.iter():
            for name in ("cx", "cy", "x1", "x2", "y1", "y2"):
                if name in element.attrib:
                    assert -1 <= float(element.attrib[name]) <= 331
    rings = [element for element in drawn[0].iter() if "ring" in element.attrib.get("class", "")]
    assert len(rings) == 1  # the pruned one


@pytest.mark.parametrize("count", [1, 2, 60])
def test_few_and_equal_trials_are_drawn(count: int) -> None:
    text = page([trial(i, 0.2, **{"optimizer.lr": 0.1}) for i in range(count)])
    assert "has not been evaluated" in text
    assert "nan" not in text.lower().replace("finance", "")
    assert len(pictures(text)) == 4


def test_axes_suit_their_values() -> None:
    wide = [10.0 ** (-place / 2) for place in range(9)]
    ratio = Axis.of("lr", wide)
    assert ratio.kind == "ratio"
    assert [ratio.fraction(value) for value in (1e-4, 1e-2, 1.0)] == [0, 0.5, 1]
    assert all(0 <= share <= 1 for share, _ in ratio.labels(5))
    assert Axis.of("dim", [32, 64, 96, 128, 160, 192, 224]).kind == "even"
    assert Axis.of("rows", ["all", "touched"]).kind == "named"
    assert Axis.of("decay", [0.0, 1e-8, 1e-4]).kind == "named"
    assert math.isclose(Axis.of("flag", [True, False]).fraction(False), 0.25)
