"""Which weights of interactions a race tries."""

from __future__ import annotations

from talos.config import EventsConfig
from talos.data.interactions import Interactions
from talos.studies.event_candidates import event_candidates

DAY = 86_400


def rated_events(*ratings: float) -> Interactions:
    return Interactions.from_ids(list(range(len(ratings))), [0] * len(ratings), ratings=list(ratings))


def test_what_validation_can_choose_between() -> None:
    train = Interactions.from_ids(["a", "a", "b"], [1, 2, 2], timestamps=[0, 80 * DAY, 4 * DAY])
    later = Interactions.from_ids(["a", "b"], [1, 1], timestamps=[81 * DAY, 5 * DAY])
    lives = [{"half_life": life} for life in ("40d", "20d", "10d")]
    assert event_candidates(train, later, EventsConfig()) == lives
    assert event_candidates(train, later, EventsConfig(half_life="9d")) == []  # it is given
    drawn = Interactions.from_ids(["a", "b"], [1, 1], timestamps=[DAY, 5 * DAY])
    assert event_candidates(train, drawn, EventsConfig()) == []  # half of it is older than its user's newest
    assert event_candidates(train, Interactions.from_ids(["a"], [1]), EventsConfig()) == []
    strangers = Interactions.from_ids(["c"], [1], timestamps=[90 * DAY])
    assert event_candidates(train, strangers, EventsConfig()) == []
    at_once = Interactions.from_ids(["a", "b"], [1, 2], timestamps=[7, 7])
    assert event_candidates(at_once, later, EventsConfig()) == []
    unknown = Interactions.from_ids(["a", "b"], [1, 2], timestamps=[-1, -1])
    assert event_candidates(unknown, later, EventsConfig()) == []
    rated = rated_events(1.0, 4.0)
    assert event_candidates(rated, rated, EventsConfig()) == [{"weights": "rating"}]
    for ratings in ([4.0, 4.0], [0.0, 4.0]):  # they say nothing, or cannot be weights
        assert event_candidates(rated_events(*ratings), rated, EventsConfig()) == []
    often = Interactions.from_ids(["a", "a", "b"], [1, 1, 1])
    assert event_candidates(often, often, EventsConfig()) == [{"weights": "repeats"}]
    assert event_candidates(often, often, EventsConfig(weights="repeats")) == []
