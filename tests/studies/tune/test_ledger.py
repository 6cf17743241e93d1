"""The books: whatever dies in whatever order, each trial asked for ends once."""

from __future__ import annotations

import optuna
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState

from talos.studies.tune.ledger import RETRIES, balance


def enqueue_again(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    attempt = trial.user_attrs.get("attempt", 0)
    if not trial.user_attrs.get("interrupted"):
        attempt += 1
    study.enqueue_trial({}, user_attrs={"retry_of": trial.number, "attempt": attempt})


@given(
    wanted=st.integers(1, 5),
    surplus=st.integers(0, 3),
    events=st.lists(st.tuples(st.sampled_from(["finish", "die", "stop", "fail", "books", "books twice"]),
                              st.integers(0, 9)), max_size=60),
)  # fmt: skip
def test_every_line_ends_once(wanted: int, surplus: int, events: list[tuple[str, int]]) -> None:
    """Two bookkeepers may ask for the same lost trial at once, and two machines for more than is wanted."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    for _ in range(wanted + surplus):
        study.enqueue_trial({})
    storage = study._storage

    def ledger():
        return balance(study.get_trials(deepcopy=False), wanted)

    def end(event: str, which: int) -> None:
        now = ledger()
        if not now.waiting:
            return
        trial = now.waiting[which % len(now.waiting)]
        storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        if event == "finish":
            storage.set_trial_state_values(trial._trial_id, TrialState.COMPLETE, [1.0])
            return
        mark = {"stop": "interrupted", "fail": "error"}.get(event)
        if mark:
            storage.set_trial_user_attr(trial._trial_id, mark, "x")
        storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    def books(times: int) -> None:
        for trial in ledger().lost * times:
            enqueue_again(study, trial)

    for event, which in events:
        if event.startswith("books"):
            books(2 if event.endswith("twice") else 1)
        else:
            end(event, which)
        now = ledger()
        assert now.done + now.open == wanted
    while ledger().open:
        books(1)
        end("finish", 0)
    now = ledger()
    assert now.done == wanted
    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE]
    assert len(complete) == len(now.finished)  # nothing was run to its end and not counted
    assert max((trial.user_attrs.get("attempt", 0) for trial in study.trials), default=0) <= RETRIES


def test_a_trial_that_dies_again_and_again_is_run_four_times_in_all() -> None:
    study = optuna.create_study()
    study.enqueue_trial({})
    runs = 0
    while True:
        now = balance(study.get_trials(deepcopy=False), 1)
        if now.failed:
            break
        for trial in now.lost:
            enqueue_again(study, trial)
        for trial in now.waiting:
            study._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
            study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            runs += 1
    assert runs == 1 + RETRIES == 4
