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
    Values next to the best one on the grid come first, where not all can be tried any more.

    Attributes:
        grid: option → its values, in order; the most influential options first.
        settings: how many different settings are tried at most.
        epochs: after which all values of an option are compared, and then the two best.
    """

    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    settings: int = 16
    epochs: tuple[int, int] = (5, 15)

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

        new = True
        while new:
            new = False
            for name in self.grid:
                values = [best]
                for value in self._around(name, best[name]):
                    one = {**best, name: value}
                    if one not in tried and len(tried) < self.settings:
                        tried.append(one)
                        new = True
                    if one in tried:
                        values.append(one)
                ahead = sorted(values, key=lambda one: -figure(one, 0))[:2]
                best = max(ahead, key=lambda one: figure(one, 1))
        return Searched(tried, [trials[place] for place in range(len(tried))], tried.index(best))

    def _around(self, name: str, value: Any) -> list[Any]:
        """The other values of an option, the nearest on the grid first."""
        values = list(self.grid[name])
        here = values.index(value) if value in values else 0
        others = [place for place in range(len(values)) if values[place] != value]
        return [values[place] for place in sorted(others, key=lambda place: abs(place - here))]

    def total_epochs(self, start: Setting) -> int:
        """Epochs of a search in which every new setting is a little worse than the ones before, all trained anew.

        >>> OptionSearch(grid={"a": (1, 2)}, epochs=(5, 15)).total_epochs({"a": 1})
        30
        """
        done: dict[tuple[Any, ...], int] = {}

        def train(one: Setting, epochs: int) -> tuple[float, Trial]:
            key = tuple(one.values())
            done[key] = max(epochs, done.get(key, 0))
            return -list(done).index(key), {}

        self.run(start, train)
        return sum(done.values())
