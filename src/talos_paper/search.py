"""A search that goes from option to option: what each value does is seen with everything else at its best so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["OptionSearch", "Searched", "Setting", "Trial"]

Setting: TypeAlias = Mapping[str, Any]
Trial: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Searched:
    """What a search tried, in this order, what became of it, and the place of the best."""

    candidates: list[dict[str, Any]]
    trials: list[Trial]
    best: int


@dataclass(frozen=True, kw_only=True)
class OptionSearch:
    """Option by option: all values of one, the others at the best so far, then those of the next.

    Every value is trained for a few epochs, the two best and the best so far for some more, and the best of these is
    kept. After the last option the search goes round again, until it has tried `settings` of them or a whole round has
    nothing new. Values next to the best one on the grid come first, where not all can be tried any more.

    What a value of the first option, the learning rate, is worth shows late. So at the end, in addition, all its values
    are tried with what was found for the other options, and the best so far and the best of them are trained for longer
    still.

    Attributes:
        grid: option → its values, in order; the most influential options first.
        settings: how many different settings are tried at most before the end.
        epochs: after which all values of an option are compared, then the two best, and at the end those of the first.
    """

    grid: Mapping[str, Sequence[Any]]
    settings: int = 16
    epochs: tuple[int, int, int] = (5, 15, 40)

    def run(self, start: Setting, train: Callable[[Setting, int], tuple[float, Trial]]) -> Searched:
        """Search from a setting; `train` gives the figure of a setting after so many epochs, and what to keep of it.

        >>> peak = lambda one, epochs: (-abs(one["a"] - 3) - abs(one["b"] - 20), {"epochs": epochs})
        >>> found = OptionSearch(grid={"a": (1, 2, 3), "b": (10, 20)}).run({"a": 1, "b": 10}, peak)
        >>> found.candidates[found.best], len(found.candidates)
        ({'a': 3, 'b': 20}, 6)
        """
        best = {name: start[name] for name in self.grid}
        tried: list[dict[str, Any]] = [best]
        trials: dict[int, Trial] = {}

        def figure(one: dict[str, Any], leg: int) -> float:
            value, trial = train(one, self.epochs[leg])
            place = tried.index(one)
            if trials.get(place, {}).get("leg", 0) <= leg:
                trials[place] = {"leg": leg, **trial}
            return value

        def add(name: str, most: int) -> None:
            """Values of an option that are not tried yet, with the best of the others."""
            others = [{**best, name: value} for value in self._around(name, best[name])]
            tried.extend([one for one in others if one not in tried][: max(0, most - len(tried))])

        def ahead(name: str) -> list[dict[str, Any]]:
            """All tried values of an option, with the best of the others, from the best after a few epochs."""
            values = [one for one in tried if {**best, name: one[name]} == one]
            return sorted(values, key=lambda one: -figure(one, 0))

        before = 0
        while len(tried) > before:
            before = len(tried)
            for name in self.grid:
                add(name, self.settings)
                best = max([best, *ahead(name)[:2]], key=lambda one: figure(one, 1))
        first = next(iter(self.grid))
        add(first, len(tried) + len(self.grid[first]))
        other = [one for one in ahead(first) if one != best][:1]
        best = max([best, *other], key=lambda one: figure(one, 2))
        return Searched(tried, [trials[place] for place in range(len(tried))], tried.index(best))

    def _around(self, name: str, value: Any) -> list[Any]:
        """The other values of an option, the nearest on the grid first."""
        values = list(self.grid[name])
        if value in values:
            here = values.index(value)
        else:  # a number between two of the grid, or beyond it
            here = min(range(len(values)), key=lambda place: abs(values[place] - value))
        others = [place for place in range(len(values)) if values[place] != value]
        return [values[place] for place in sorted(others, key=lambda place: abs(place - here))]
