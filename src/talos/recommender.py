"""The front door: fit, evaluate, recommend, save, load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talos.artifact import Model, load_model, save_model
from talos.config import RunConfig
from talos.errors import ArgumentError, ConfigError
from talos.evaluation import DEFAULT_KS, Report, evaluate
from talos.interactions import Ids, Interactions
from talos.metrics import Dialect
from talos.ranking import DotScores, FixedScores, top_k
from talos.training import Callback, History, Trainer

__all__ = ["Recommender", "popularity_report"]


class Recommender:
    """A recommender trained for the top K.

    Args:
        k: list length to optimise for.
        loss: short name, such as `talos`, `sl`, `bpr`.
        backbone: `mf`, `lightgcn` or `xsimgcl`.
        negatives: `all`, `shared:N`, `N` per positive, or `auto`.
        threshold: `exact`, `regression`, `monte-carlo`, `fixed`, or `auto`.
        seed: of everything random.
        device: anything torch knows.
        config: a whole config, on which the other arguments build.
        options: hyperparameters by name: of the loss (`tau`), the backbone (`dim`, `layers`), the optimiser
            (`lr`, `weight_decay`) or the training (`epochs`, `batch_size`, …); dotted names work too, as a dict.

    >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
    >>> model = Recommender(k=1, tau=0.2, dim=8, epochs=3).fit(data)
    >>> model.recommend(["ann"], k=1)["item_id"].to_list()
    ['rye']
    """

    def __init__(
        self,
        *,
        k: int | None = None,
        loss: str | None = None,
        backbone: str | None = None,
        negatives: str | None = None,
        threshold: str | None = None,
        seed: int | None = None,
        device: str | None = None,
        config: RunConfig | None = None,
        **options: Any,
    ) -> None:
        named = {
            "k": k,
            "loss.name": loss,
            "backbone.name": backbone,
            "negatives": negatives,
            "threshold.name": threshold,
            "seed": seed,
            "device": device,
        }
        changes = {name: value for name, value in named.items() if value is not None}
        changes |= {_place_of(name): value for name, value in options.items()}
        self.config = (config or RunConfig()).with_values(changes)
        self.model: Model | None = None

    def fit(
        self,
        train: Interactions,
        valid: Interactions | None = None,
        *,
        run: str | Path | None = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> Recommender:
        """Train on `train`, stopping by `valid` where it is given; returns self.

        Args:
            train: what to learn from.
            valid: over the same vocabularies.
            run: a folder for history and checkpoints, so that an interrupted fit can go on.
            resume: go on from the newest checkpoint in `run`, if there is one.
            callbacks: what watches.
        """
        folder = None if run is None else Path(run)
        if folder is not None:
            callbacks = [History(folder / "history.jsonl"), *callbacks]
        trainer = Trainer(
            self.config,
            train,
            valid,
            folder=None if folder is None else folder / "checkpoint",
            callbacks=callbacks,
        )
        if resume:
            trainer.resume()
        trainer.fit()
        self.config = trainer.config
        self._adopt(trainer)
        return self

    def _adopt(self, trainer: Trainer) -> None:
        users, items = trainer.vectors()
        threshold = trainer.objective.threshold
        everybody = np.arange(trainer.train.num_users)
        facts: dict[str, Any] = {
            "config": trainer.config.as_dict(),
            "epoch": trainer.position.best_epoch or trainer.position.epoch,
            "valid": dict(trainer.position.best_metrics),
            "threshold_error": trainer.threshold_error(),
            "metrics": {},
        }
        self.model = Model(
            user_vectors=users,
            item_vectors=items,
            thresholds=None
            if threshold is None
            else threshold.value(trainer.index.degrees.new_tensor(everybody)),
            train=trainer.train,
            valid=trainer.valid,
            facts=facts,
        )

    def evaluate(
        self,
        test: Interactions,
        k: Sequence[int] | int = DEFAULT_KS,
        *,
        dialect: Dialect = "standard",
        **options: Any,
    ) -> Report:
        """Rank all items for the users of `test` and measure; further options as in `talos.evaluate`.

        What a user is known to have is masked: train and validation by the `standard` dialect, train alone by
        `paper`. A test set with its own vocabulary is matched by id; what the model does not know is left out
        and counted in the report's notes.
        """
        model = self._fitted()
        known, lost = test.aligned_to(model.train)
        report = evaluate(
            DotScores(model.user_vectors, model.item_vectors),
            known,
            seen=model.train if dialect == "paper" else model.seen,
            ks=[k] if isinstance(k, int) else k,
            dialect=dialect,
            **options,
        )
        return (
            report.with_note(f"{lost:,} test interactions of unknown users or items left out")
            if lost
            else report
        )

    def recommend(
        self, users: Ids | None = None, k: int | None = None, *, filter_seen: bool = True
    ) -> pl.DataFrame:
        """The best `k` items of each user: columns user_id, item_id, score, rank; all users if none are named."""
        model = self._fitted()
        k = self.config.k if k is None else k
        if users is None:
            codes = np.arange(model.train.num_users)
        else:
            codes = model.train.user_ids.encode(users)
            if (codes < 0).any():
                unknown = pl.Series(users).filter(pl.Series(codes < 0))[0]
                raise ArgumentError(
                    f"no user {unknown!r}", where="users", expected="users that were trained on"
                )
        seen = model.seen if filter_seen else None
        lists = top_k(DotScores(model.user_vectors, model.item_vectors), codes, k=k, seen=seen)
        rows, columns = np.nonzero(lists.items >= 0)
        frame = {
            "user_id": model.train.user_ids.decode(lists.users[rows]),
            "item_id": model.train.item_ids.decode(lists.items[rows, columns]),
            "score": lists.scores[rows, columns],
            "rank": columns + 1,
        }
        return pl.DataFrame(frame)

    def save(self, folder: str | Path, **facts: Any) -> None:
        """Write the run directory; `facts` are added to `model.json`."""
        model = self._fitted()
        model.facts.update(facts)
        save_model(model, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Recommender:
        """Read a run directory; the training data are not needed."""
        model = load_model(Path(folder))
        recommender = cls(
            config=RunConfig.from_dict(model.facts.get("config", {}), where=f"{folder}/model.json")
        )
        recommender.model = model
        return recommender

    def _fitted(self) -> Model:
        if self.model is None:
            raise ArgumentError("not fitted yet", where="Recommender", expected="fit or load before this")
        return self.model


def popularity_report(
    train: Interactions, test: Interactions, *, seen: Interactions, **options: Any
) -> Report:
    """What ranking by popularity in `train` reaches: the baseline that any model must beat."""
    import torch

    return evaluate(FixedScores(torch.tensor(train.item_degrees)), test, seen=seen, **options)


_OPTIMIZER = ("lr", "weight_decay", "lr_decay", "rows")
_TRAINING = (
    "epochs",
    "batch_size",
    "reduction",
    "evaluate_every",
    "patience",
    "metric",
    "checkpoint_every",
    "keep_checkpoints",
)
_BACKBONE = ("dim", "layers", "epsilon", "contrast_layer", "contrast_temperature", "contrast_weight")


def _place_of(name: str) -> str:
    """Where in the config an option given by its bare name belongs; hyperparameters of the loss are the rest."""
    for section, names in (("optimizer", _OPTIMIZER), ("training", _TRAINING), ("backbone", _BACKBONE)):
        if name in names:
            return f"{section}.{name}"
    if "." in name and name.split(".")[0] not in RunConfig.model_fields:
        raise ConfigError("no such section", where=name, expected="one of the config's sections")
    return name if "." in name else f"loss.{name}"
