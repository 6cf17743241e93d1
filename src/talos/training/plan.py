"""The plan of a run: every `auto` of the config resolved, impossible combinations refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import torch

from talos import registry
from talos.checks import require, require_memory
from talos.config import NamedConfig, RunConfig
from talos.data.interactions import Interactions
from talos.distributed.share import Share
from talos.errors import ConfigError
from talos.kernels import core
from talos.losses import Loss

__all__ = ["EXACT_LIMIT", "Plan", "check_memory", "loss_for", "make_plan", "plan_for"]

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
# Copies that every further candidate of a race holds at the same time.
_TABLES_OF_A_CANDIDATE = 6


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a run will train."""

    config: RunConfig  # without any `auto`, but for options of the loss that a race will decide
    batches: Literal["users", "positives"]  # what a batch consists of
    steps_per_epoch: int
    parameters: int  # numbers in the tables of users and items
    memory: int  # bytes that training takes at its peak, beside the interactions, in all processes together
    notes: tuple[str, ...]  # what was chosen for each `auto`, and why; one line each
    divisible: bool = True  # whether several processes divide that memory
    sharding: str = ""  # one line that says what is divided among several processes; empty with one process
    raced: str = ""  # one line about a setting that a race will decide; empty without a race


def plan_for(
    config: RunConfig,
    train: Interactions | Share,
    *,
    raced: Mapping[str, tuple[float, float]] | None = None,
    candidates: int = 1,
) -> Plan:
    """The plan that a trainer of this config would follow, without making the trainer or anything large.

    `raced` and `candidates` are as in `make_plan`.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 7])
    >>> plan_for(RunConfig(k=1), data).batches
    'users'
    """
    with torch.device("meta"):  # a loss may have tables
        loss = loss_for(config.loss, config.k, train)
    return make_plan(config, loss, train, raced=raced, candidates=candidates)


def loss_for(
    loss: NamedConfig, k: int, train: Interactions | Share, generator: torch.Generator | None = None
) -> Loss:
    """The loss that a config names, for the number of users and items of these data."""
    return registry.make_loss(
        loss,
        k=k,
        num_users=train.num_users,
        num_items=train.num_items,
        generator=generator or torch.Generator(),
    )


def make_plan(
    config: RunConfig,
    loss: Loss,
    train: Interactions | Share,
    *,
    raced: Mapping[str, tuple[float, float]] | None = None,
    candidates: int = 1,
) -> Plan:
    """Resolve every `auto`; refuse, with the reason, choices that cannot run together.

    An option of the loss in `raced` stays open: a race will start with values from the lowest to the highest given,
    and has so many `candidates` in memory.
    """
    name, needs, raced = config.loss.name, loss.needs, raced or {}
    notes: list[str] = []
    changes: dict[str, Any] = {}

    def choose(setting: str, value: Any, note: str = "") -> Any:
        """The setting of the config; if that is `auto`, this value, with a note."""
        given = attrgetter(setting)(config)
        if given != "auto":
            return given
        changes[setting] = value
        notes.extend([note] if note else [])
        return value

    require(
        config.k <= train.num_items,
        f"{config.k}",
        where="k",
        expected=f"at most {train.num_items:,}, the number of items",
        error=ConfigError,
    )
    active = train.active_users
    require(active > 0, "no interactions", where="train", expected="at least one", error=ConfigError)

    scores = active * train.num_items
    compiled = config.device == "cpu" and core.available()
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
    source = choose("negatives", source, f"negatives = {source!r}: {why}")
    sampled = registry.make_negatives(source)
    source, per = str(sampled), sampled.per
    require(
        per == "positive" or needs.user_separable or needs.pairwise or (needs.lists and per == "all"),
        f"{source!r} with the loss {name!r}",
        where="negatives",
        expected="'all' or a number of negatives per positive, because this loss is one of whole lists"
        if needs.lists
        else "a number of negatives per positive, because this loss pairs each positive with its own",
        error=ConfigError,
    )
    require(
        needs.negatives != "one" or per == "all" or getattr(sampled, "n", None) == 1,
        f"{source!r} with the loss {name!r}",
        where="negatives",
        expected="'1' or 'all'" if needs.pairwise else "'1'",
        error=ConfigError,
    )
    power = getattr(loss, "positive_power", 0.0)
    require(
        power <= 0 or per != "positive",
        f"{power:g} with {source!r} negatives per positive",
        where="loss.positive_power",
        expected="0, or negatives = 'all' or 'shared:N': it needs all positives of a user at once",
        error=ConfigError,
    )

    default = needs.default_threshold
    estimator = "none" if default is None else "exact" if per == "all" else default
    if estimator == "regression" and per == "batch":
        estimator = "running"  # for users who are seen once an epoch, not once for every positive
    threshold = choose("threshold.name", estimator, f"threshold = {estimator!r}" if default else "")
    require(
        config.threshold.name == "auto" or needs.threshold == (threshold != "none"),
        f"{threshold!r}",
        where="threshold",
        expected=f"'auto': the loss {name!r} {'needs a' if needs.threshold else 'uses no'} threshold",
        error=ConfigError,
    )

    for option, value in needs.chosen:
        changes[f"loss.{option}"] = "auto" if option in raced else value
        if option not in raced:
            notes.append(f"{option} {value:.3g}: for {train.num_items:,} items")

    kind: Literal["users", "positives"] = "positives" if per == "positive" else "users"
    # batches of users make fewer steps an epoch, with less noise
    rate = 0.1 if needs.scores == "cosine" else DOT_USERS_LR if kind == "users" else 0.001
    choose("optimizer.lr", rate, f"learning rate {rate}: for {needs.scores} scores")
    dim = config.backbone.options.get(
        "dim", registry.options("backbone", config.backbone.name).get("dim", 64)
    )
    dim = dim if isinstance(dim, int) else 64
    parameters = (train.num_users + train.num_items) * dim
    choose("optimizer.rows", "all" if parameters <= _SMALL_TABLES else "touched")

    of_users = registry.resolve("backbone", config.backbone.name).rows == "users"
    # a user's first interaction has no history
    total = len(train) - active if not of_users else len(train) if kind == "positives" else active
    require(
        total > 0,
        f"no user with two interactions for the backbone {config.backbone.name!r}",
        where="train",
        expected="histories",
        error=ConfigError,
    )
    # about thirty steps an epoch, so that small data are not trained by a handful of steps
    size = 1024 if kind == "positives" else min(512, max(32, total // 30))
    size = choose("training.batch_size", size, f"batches of {size:,} {kind if of_users else 'positions'}")
    # least squares find at once what a random start learns in its first few hundred steps
    als = kind == "users" and of_users
    init = choose(
        "training.init",
        "als" if als else "random",
        "vectors start from alternating least squares" if als else "",
    )
    choose("optimizer.lr_decay", USER_BATCH_DECAY if kind == "users" and needs.scores == "cosine" else 1.0)
    there = config.device == "cpu" and core.available() and core.has_bfloat16()
    usable = there and kind == "users" and needs.bfloat16
    # errors stay below a hundredth of the product of the vectors' lengths, which rankings do not show
    scores = active * (train.num_items if per == "all" else int(getattr(sampled, "n", 0)))
    faster = usable and scores >= BFLOAT16_FROM
    choose(
        "training.arithmetic",
        "bfloat16" if faster else "float32",
        "products of bfloat16 at twice the rate, sums of float32" if faster else "",
    )
    if config.training.arithmetic == "bfloat16" and not usable:
        notes.append(
            "products stay float32: bfloat16 needs batches of users, a loss whose kernel has it, and a core and a "
            "processor that have it"
        )
    # a loss's own tables have gradients and moments like those of users and items
    numbers = parameters + sum(one.numel() for one in loss.parameters())
    copies = _TABLES + _TABLES_OF_A_CANDIDATE * (candidates - 1)
    return Plan(
        config=config.with_values(changes),
        batches=kind,
        steps_per_epoch=-(-total // size),
        parameters=parameters,
        # the start by least squares solves with matrices of dim × dim
        memory=4 * (copies * numbers + (dim**2 if init == "als" else 0)),
        divisible=registry.resolve("backbone", config.backbone.name).divisible,
        notes=tuple(notes),
        raced="; ".join(
            f"{option}: raced on validation, starting from {low:g} to {high:g}"
            for option, (low, high) in raced.items()
        ),
    )


def check_memory(plan: Plan, processes: int = 1) -> None:
    """Refuse a plan that needs more memory than the machine has, before anything is allocated."""
    if plan.config.device == "cpu":
        needed = plan.memory / (processes if plan.divisible else 1)
        require_memory(needed, "training", where="backbone.dim", hint="a smaller dim takes less")
