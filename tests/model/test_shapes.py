"""Data sets of awkward shapes: the default is not behind the better of popularity and EASE (docs/cold-start.md)."""

from __future__ import annotations

import pytest
from talos_benchmarks import shapes

from talos.data.splits import SplitBy, split


@pytest.mark.parametrize("by", ["user", pytest.param("time", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", shapes.SHAPES)
def test_the_default_is_level_with_the_better_of_popularity_and_ease(shape: str, by: SplitBy) -> None:
    model, reports = shapes.measure(shape, by)
    name = f"recall@{model.config.k}"
    default, popularity, ease = (report.metrics[name] for report in reports.values())
    if shape == "noise":  # nothing to learn: every list is as good as chance
        train = split(shapes.make(shape), by=by).train
        chance = model.config.k / (train.num_items - train.user_degrees.mean())
        values = reports["default"].per_user[name]
        assert abs(default - chance) < 3 * values.std() / len(values) ** 0.5
    else:
        assert default >= 0.97 * max(popularity, ease)
