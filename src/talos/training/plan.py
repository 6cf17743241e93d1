"""The plan of a run: every `auto` of the config resolved, impossible combinations refused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import torch

from talos import registry
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.errors import ConfigError
from talos.kernels import library
from talos.losses import Needs

__all__ = ["EXACT_LIMIT", "Plan", "check_memory", "make_plan", "plan_for"]

# Scores per epoch (users × items) up to which `negatives = "auto"` takes all items, and how many items a sample has
# beyond. On Gowalla, with 1.2·10⁹ scores, both reach most qualities in the same time and all items end .6 % higher
# (docs/scale.md); at the limit an epoch over all items takes three times as long.
EXACT_LIMIT = 4_000_000_000
SHARED_NEGATIVES = 4096
# Scores per epoch from which `arithmetic = "auto"` takes bfloat16. Fewer are fast in float32 too, in which runs with
# several processes agree with those of one to more digits.
BFLOAT16_FROM = 20_000_000
# Learning-rate decay per epoch that `lr_decay = "auto"` takes for batches of users.
USER_BATCH_DECAY = 0.97
# Learning rate for dot products with batches of users.
DOT_USERS_LR = 0.01
# Numbers in the two tables up to which Adam over all rows costs next to nothing.
_SMALL_TABLES = 1 << 23
# Copies of the tables at the peak: values, gradients, Adam's two moments, averaged and best weights, unit vectors in
# training and in validation.
_TABLES = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a run will train."""

    config: RunConfig  # without any `auto`
    batches: Literal["users", "positives"]  # what a batch consists of
    steps_per_epoch: int
    parameters: int  # numbers in the tables of users and items
    memory: int  # bytes that training takes at its peak, beside the interactions
    notes: tuple[str, ...]  # what was chosen for each `auto`, and why; one line each
    sharding: str = ""  # one line that says what is divided among several processes; empty with one process


def plan_for(config: RunConfig, train: Interactions | Share) -> Plan:
    """The plan that a trainer of this config would follow, without making the trainer.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 7])
    >>> plan_for(RunConfig(k=1), data).batches
    'users'
    """
    loss = registry.make_loss(
        config.loss,
        k=config.k,
        num_users=train.num_users,
        num_items=train.num_items,
        generator=torch.Generator(),
    )
    return make_plan(config, loss.needs, train)


def make_plan(config: RunConfig, needs: Needs, train: Interactions | Share) -> Plan:
    """Resolve every `auto`; refuse, with the reason, choices that cannot run together."""
    name = config.loss.name
    notes: list[str] = []
    changes: dict[str, Any] = {}
    if config.k > train.num_items:
        raise ConfigError(
            f"{config.k}", where="k", expected=f"at most {train.num_items:,}, the number of items"
        )
    active = train.active_users
    if active == 0:
        raise ConfigError("no interactions", where="train", expected="at least one")

    source = config.negatives
    if source == "auto":
        scores = active * train.num_items
        compiled = config.device == "cpu" and library.available()
        over_all = needs.user_separable or ((needs.pairwise or needs.lists) and compiled)
        if over_all and scores <= EXACT_LIMIT:
            source, why = "all", f"{scores:,} scores an epoch are cheap"
        elif needs.negatives == "one":
            source, why = "1", f"the loss {name!r} compares with one item at a time"
        elif not needs.user_separable:
            source, why = "1024", f"the loss {name!r} pairs each positive with its negatives"
        elif train.num_items <= SHARED_NEGATIVES:
            source, why = "all", f"{train.num_items:,} items are no more than a sample would have"
        else:
            source, why = f"shared:{SHARED_NEGATIVES}", f"more than {EXACT_LIMIT:,} scores an epoch"
        changes["negatives"] = source
        notes.append(f"negatives = {source!r}: {why}")
    sampled = registry.make_negatives(source)
    source, per = str(sampled), sampled.per
    if per != "positive" and not (needs.user_separable or needs.pairwise or (needs.lists and per == "all")):
        expected = "a number of negatives per positive, because this loss pairs each positive with its own"
        if needs.lists:
            expected = "'all' or a number of negatives per positive, because this loss is one of whole lists"
        raise ConfigError(f"{source!r} with the loss {name!r}", where="negatives", expected=expected)
    if needs.negatives == "one" and per != "all" and getattr(sampled, "n", None) != 1:
        expected = "'1' or 'all'" if needs.pairwise else "'1'"
        raise ConfigError(f"{source!r} with the loss {name!r}", where="negatives", expected=expected)

    threshold = config.threshold.name
    if threshold == "auto":
        default = needs.default_threshold
        threshold = "none" if default is None else "exact" if per == "all" else default
        if threshold == "regression" and per == "batch":
            threshold = "running"  # for users who are seen once an epoch, not once for every positive
        changes["threshold.name"] = threshold
        if default is not None:
            notes.append(f"threshold = {threshold!r}")
    elif needs.threshold == (threshold == "none"):
        what = "needs a threshold" if needs.threshold else "uses no threshold"
        raise ConfigError(f"{threshold!r}", where="threshold", expected=f"'auto': the loss {name!r} {what}")

    for option, value in needs.chosen:
        changes[f"loss.{option}"] = value
        notes.append(f"{option} {value:.3g}: for {train.num_items:,} items")

    kind: Literal["users", "positives"] = "positives" if per == "positive" else "users"
    if config.optimizer.lr == "auto":
        # batches of users make fewer steps an epoch, with less noise
        of_dots = DOT_USERS_LR if kind == "users" else 0.001
        changes["optimizer.lr"] = 0.1 if needs.scores == "cosine" else of_dots
        notes.append(f"learning rate {changes['optimizer.lr']}: for {needs.scores} scores")
    dim = config.backbone.options.get(
        "dim", registry.options("backbone", config.backbone.name).get("dim", 64)
    )
    dim = dim if isinstance(dim, int) else 64
    if config.optimizer.rows == "auto":
        small = (train.num_users + train.num_items) * dim <= _SMALL_TABLES
        changes["optimizer.rows"] = "all" if small else "touched"

    total = len(train) if kind == "positives" else active
    # about thirty steps an epoch, so that small data are not trained by a handful of steps
    fitting = 1024 if kind == "positives" else min(512, max(32, active // 30))
    size = fitting if config.training.batch_size == "auto" else config.training.batch_size
    if config.training.batch_size == "auto":
        changes["training.batch_size"] = size
        notes.append(f"batches of {size:,} {kind}")
    by_users = kind == "users" and needs.scores == "cosine"
    if config.training.init == "auto":
        # least squares find at once what a random start learns in its first few hundred steps
        changes["training.init"] = "als" if kind == "users" else "random"
        if kind == "users":
            notes.append("vectors start from alternating least squares")
    if config.optimizer.lr_decay == "auto":
        changes["optimizer.lr_decay"] = USER_BATCH_DECAY if by_users else 1.0
    there = config.device == "cpu" and library.available() and library.has_bfloat16()
    usable = there and kind == "users" and needs.bfloat16
    if config.training.arithmetic == "auto":
        # errors stay below a hundredth of the product of the vectors' lengths, which rankings do not show
        scores = active * (train.num_items if per == "all" else int(getattr(sampled, "n", 0)))
        faster = usable and scores >= BFLOAT16_FROM
        changes["training.arithmetic"] = "bfloat16" if faster else "float32"
        if faster:
            notes.append("products of bfloat16 at twice the rate, sums of float32")
    elif config.training.arithmetic == "bfloat16" and not usable:
        notes.append(
            "products stay float32: bfloat16 needs batches of users, a loss whose kernel has it, and a core and a "
            "processor that have it"
        )
    resolved = config.with_values(changes)
    parameters = (train.num_users + train.num_items) * dim
    return Plan(
        config=resolved,
        batches=kind,
        steps_per_epoch=-(-total // size),
        parameters=parameters,
        # the start by least squares solves with matrices of dim × dim
        memory=4 * (_TABLES * parameters + (dim**2 if resolved.training.init == "als" else 0)),
        notes=tuple(notes),
    )


def check_memory(plan: Plan) -> None:
    """Refuse a plan that needs more memory than the machine has, before anything is allocated."""
    if plan.config.device != "cpu" or not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if plan.memory > there:
        raise ConfigError(
            f"training would take {plan.memory / 1e9:,.1f} GB",
            where="backbone.dim",
            expected=f"at most {there / 1e9:,.1f} GB, the memory of this machine",
            hint="a smaller dim takes less",
        )
