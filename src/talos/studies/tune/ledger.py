"""The books: which trials count, which is to run next, which was lost.

Every trial that is asked for is one *line* of attempts. A trial without `retry_of` begins a line; one that was lost
(its worker died) is followed by the trial that names it in `retry_of`, the first one if there are several. Only the
last of a line counts, so however workers die and whoever notices, a trial is neither lost nor counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["RETRIES", "Ledger", "balance"]

RETRIES = 3  # how often a trial whose worker died is run again


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Where a study stands; each trial stands for its line.

    Attributes:
        begun: how many lines there are, those beyond what is wanted included.
        waiting: to be run, in order.
        running: somewhere.
        finished: complete or pruned.
        failed: for good: with an error of their own, or lost too often.
        lost: whose worker died and which no trial follows yet.
    """

    begun: int
    waiting: tuple[FrozenTrial, ...]
    running: tuple[FrozenTrial, ...]
    finished: tuple[FrozenTrial, ...]
    failed: tuple[FrozenTrial, ...]
    lost: tuple[FrozenTrial, ...]

    @property
    def done(self) -> int:
        """How many lines have come to their end."""
        return len(self.finished) + len(self.failed)

    @property
    def open(self) -> int:
        """How many lines have not."""
        return len(self.waiting) + len(self.running) + len(self.lost)


def balance(trials: Sequence[FrozenTrial], wanted: int | None = None) -> Ledger:
    """The ledger of a study's trials; lines beyond the first `wanted` are left alone, whatever their state."""
    followers: dict[int, FrozenTrial] = {}
    heads = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        parent = trial.user_attrs.get("retry_of")
        if parent is None:
            heads.append(trial)
        else:
            followers.setdefault(int(parent), trial)
    found: dict[str, list[Any]] = {name: [] for name in ("waiting", "running", "finished", "failed", "lost")}
    for head in heads if wanted is None else heads[:wanted]:
        last = head
        while last.number in followers:
            last = followers[last.number]
        found[_standing(last)].append(last)
    return Ledger(begun=len(heads), **{name: tuple(ones) for name, ones in found.items()})


def _standing(trial: FrozenTrial) -> str:
    state = trial.state.name
    if state in ("WAITING", "RUNNING"):
        return state.lower()
    if state != "FAIL":
        return "finished"
    if "error" in trial.user_attrs:
        return "failed"
    again = bool(trial.user_attrs.get("interrupted")) or int(trial.user_attrs.get("attempt", 0)) < RETRIES
    return "lost" if again else "failed"
