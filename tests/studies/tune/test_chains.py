"""Chains of attempts: whichever workers die and in whatever order, each trial that is wanted ends once."""

from __future__ import annotations

import optuna
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState

from talos.studies.tune.storage import RETRIES, count_trials


def enqueue_again(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    attempt = trial.user_attrs.get("attempt", 0)
    if not trial.user_attrs.get("interrupted"):
        attempt += 1
    study.enqueue_trial({}, user_attrs={"retry_of": trial.number, "attempt": attempt})


@given(
    wanted=st.integers(1, 5),
    surplus=st.integers(0, 3),
    events=st.lists(st.tuples(st.sampled_from(["finish", "die", "stop", "fail", "requeue", "requeue twice"]),
                              st.integers(0, 9)), max_size=60),
)  # fmt: skip
def test_every_chain_ends_once(wanted: int, surplus: int, events: list[tuple[str, int]]) -> None:
    """Two machines may requeue the same lost trial at once, and queue more trials than are wanted."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    for _ in range(wanted + surplus):
        study.enqueue_trial({})
    storage = study._storage

    def counts():
        return count_trials(study.get_trials(deepcopy=False), wanted)

    def end(event: str, which: int) -> None:
        now = counts()
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

    def requeue(times: int) -> None:
        for trial in counts().lost * times:
            enqueue_again(study, trial)

    for event, which in events:
        if event.startswith("requeue"):
            requeue(2 if event.endswith("twice") else 1)
        else:
            end(event, which)
        now = counts()
        assert len(now.ended) + now.open == wanted
    while counts().open:
        requeue(1)
        end("finish", 0)
    now = counts()
    assert len(now.ended) == wanted
    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE]
    assert len(complete) == len(now.finished)  # nothing was run to its end and not counted
    assert max((trial.user_attrs.get("attempt", 0) for trial in study.trials), default=0) <= RETRIES


def test_a_trial_that_dies_again_and_again_is_run_four_times_in_all() -> None:
    study = optuna.create_study()
    study.enqueue_trial({})
    runs = 0
    while True:
        now = count_trials(study.get_trials(deepcopy=False), 1)
        if now.failed:
            break
        for trial in now.lost:
            enqueue_again(study, trial)
        for trial in now.waiting:
            study._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
            study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            runs += 1
    assert runs == 1 + RETRIES == 4
