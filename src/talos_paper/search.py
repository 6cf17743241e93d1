"""A search that goes from option to option: what each value does is seen with everything else at its best so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["OptionSearch", "Searched"]

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

    Every value is trained for a few epochs, the two best of them for some more, and the better one is kept. After the
    last option the search goes round again, until it has tried `settings` of them or a whole round has nothing new.
    Values next to the best one on the grid come first, where not all can be tried any more. What a value of the first
    option, the learning rate, is worth shows late: so at the end its two best values are trained for longer still.

    Attributes:
        grid: option → its values, in order; the most influential options first.
        settings: how many different settings are tried at most.
        epochs: after which all values of an option are compared, then the two best, and at the end those of the first.
    """

    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
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

        def two_best(name: str) -> list[dict[str, Any]]:
            values = [one for one in tried if {**best, name: one[name]} == one]
            return sorted(values, key=lambda one: -figure(one, 0))[:2]

        before = 0
        while len(tried) > before:
            before = len(tried)
            for name in self.grid:
                others = [{**best, name: value} for value in self._around(name, best[name])]
                new = [one for one in others if one not in tried]
                tried += new[: self.settings - len(tried)]
                best = max(two_best(name), key=lambda one: figure(one, 1))
        best = max(two_best(next(iter(self.grid))), key=lambda one: figure(one, 2))
        return Searched(tried, [trials[place] for place in range(len(tried))], tried.index(best))

    def _around(self, name: str, value: Any) -> list[Any]:
        """The other values of an option, the nearest on the grid first."""
        values = list(self.grid[name])
        here = values.index(value) if value in values else 0
        others = [place for place in range(len(values)) if values[place] != value]
        return [values[place] for place in sorted(others, key=lambda place: abs(place - here))]

    def total_epochs(self, start: Setting) -> int:
        """Epochs of a search in which every new setting is a little worse than the ones before, all trained anew.

        >>> OptionSearch(grid={"a": (1, 2), "b": (1, 2)}, epochs=(5, 15, 40)).total_epochs({"a": 1, "b": 1})
        95
        """
        done: dict[tuple[Any, ...], int] = {}

        def train(one: Setting, epochs: int) -> tuple[float, Trial]:
            key = tuple(one.values())
            done[key] = max(epochs, done.get(key, 0))
            return -list(done).index(key), {}

        self.run(start, train)
        return sum(done.values())
