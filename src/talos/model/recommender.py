"""A recommender, from data to lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F

from talos import losses
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.data.vocabulary import Ids, Vocabulary, as_id_series
from talos.distributed import ALONE, Group, current
from talos.errors import ArgumentError
from talos.evaluation.evaluate import DEFAULT_KS, Report, evaluate
from talos.evaluation.metrics import Dialect
from talos.evaluation.ranking import DotScores, FixedScores, top_k
from talos.model.fold_in import fold_in, pull_of_history
from talos.model.frames import FrameKind, rows_of, to_frame
from talos.model.lookup import OnUnknown, banned_items, known_codes, look_up
from talos.model.options import place_of
from talos.model.run_directory import Model, load_model, save_model
from talos.model.update import update
from talos.training import Callback, History, Trainer

__all__ = ["Recommender"]


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
        changes |= {place_of(name): value for name, value in options.items()}
        self.config = (config or RunConfig()).with_values(changes)
        self.model: Model | None = None

    def fit(
        self,
        train: Interactions | Share,
        valid: Interactions | Share | None = None,
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

        Where this process started a group (`talos.distributed.start`), all its processes train one model, and
        rank 0 has it afterwards. If each was given its `Share` of the interactions, each has its users' part of the
        model, and `evaluate` and `save` are things that they do together.
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
            group=current(),
        )
        if resume:
            trainer.resume()
        trainer.fit()
        self.config = trainer.config
        self._adopt(trainer)
        return self

    def _adopt(self, trainer: Trainer) -> None:
        facts: dict[str, Any] = {
            "config": trainer.config.as_dict(),
            "epoch": trainer.position.best_epoch or trainer.position.epoch,
            "valid": dict(trainer.position.best_metrics),
            "threshold_error": trainer.threshold_error(),
            "loss_state": {
                name: value.item()
                for name, value in trainer.objective.loss.named_parameters()
                if value.ndim == 0
            },
            "metrics": {},
        }
        results = trainer.results()
        if results is None:  # rank 0 of the group has the model
            return
        users, items, thresholds = results
        train, valid = trainer.train, trainer.valid
        self.model = Model(
            user_vectors=users,
            item_vectors=items,
            thresholds=thresholds,
            train=train.own if isinstance(train, Share) else train,
            valid=valid.own if isinstance(valid, Share) else valid,
            facts=facts,
            users=train.users if isinstance(train, Share) else None,
        )

    def partial_fit(self, new: Interactions, *, epochs: int = 1, lr: float | None = None) -> Recommender:
        """Take in new interactions, users and items without starting over; returns self.

        See `talos.model.update`: only users with something new and the items of that move; thresholds are
        brought up to date. Validation interactions count as known from now on.

        >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
        >>> model = Recommender(k=1, dim=8, epochs=3).fit(data)
        >>> model = model.partial_fit(Interactions.from_ids(["eve", "eve"], ["tea", "fig"]))
        >>> model.recommend(["eve"], k=3)["item_id"].sort().to_list()
        ['jam', 'rye']
        """
        model = self._fitted()
        updated = update(
            model.user_vectors,
            model.item_vectors,
            model.seen,
            new,
            self._loss(),
            self.config,
            epochs=epochs,
            lr=lr,
        )
        facts = {**model.facts, "updates": model.facts.get("updates", 0) + 1}
        self.model = Model(
            user_vectors=updated.user_vectors,
            item_vectors=updated.item_vectors,
            thresholds=updated.thresholds,
            train=updated.train,
            valid=None,
            facts=facts,
        )
        return self

    def evaluate(
        self,
        test: Interactions | Share,
        k: Sequence[int] | int = DEFAULT_KS,
        *,
        dialect: Dialect = "standard",
        **options: Any,
    ) -> Report:
        """Rank all items for the users of `test` and measure; further options as in `talos.evaluate`.

        What a user is known to have is masked: train and validation by the `standard` dialect, train alone by
        `paper`. A test set with its own vocabulary is matched by id; what the model does not know is left out
        and counted in the report's notes.

        Where this process has a part of the model, all processes of its group measure together, each its own users.
        """
        model = self._fitted()
        group = ALONE if model.users is None else current()
        known, _ = (test.own if isinstance(test, Share) else test).aligned_to(model.train)
        lost = len(test) - int(sum(count for (count,) in group.exchange([float(len(known))])))
        report = evaluate(
            DotScores(model.user_vectors, model.item_vectors),
            known,
            group=group,
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
        self,
        users: Ids | None = None,
        k: int | None = None,
        *,
        history: Ids | Interactions | None = None,
        candidates: Ids | None = None,
        exclude: Ids | None = None,
        filter_seen: bool = True,
        on_unknown: OnUnknown = "raise",
        frame: FrameKind = "polars",
    ) -> Any:
        """The best items of users: a frame with columns user_id, item_id, score, rank.

        Args:
            users: whom for; everybody the model knows, if neither users nor a history are given.
            k: list length; the K the model was trained for, if not given.
            history: items of one person the model never saw, who gets a vector by `talos.model.fold_in`;
                the column user_id then says `history`. Or the interactions of many such people, who need
                not differ in name from those the model knows.
            candidates: only these items may be recommended.
            exclude: none of these may.
            filter_seen: whether items that a user is known to have are left out.
            on_unknown: unknown users and items are an error (`raise`), left out (`skip`), or, for users, given
                the most popular items, with their popularity as the score (`popular`).
            frame: `polars` or `pandas`.

        A list is shorter than `k` where fewer items are left.
        """
        model = self._fitted()
        if users is not None and history is not None:
            raise ArgumentError("both given", where="users, history", expected="one of them")
        k = self.config.k if k is None else k
        item_ids = model.train.item_ids
        banned = banned_items(item_ids, candidates, exclude, on_unknown)
        if history is not None:
            vectors, known = self._fold_in(history, on_unknown)
            scores = DotScores(vectors, model.item_vectors)
            lists = top_k(scores, k=k, seen=known if filter_seen else None, banned=banned)
            return to_frame(rows_of(lists, known.user_ids.ids, item_ids), frame)
        wanted = model.train.user_ids.ids if users is None else as_id_series(users, "users")
        codes = model.train.user_ids.encode(wanted)
        known_users, unknown = wanted.filter(pl.Series(codes >= 0)), wanted.filter(pl.Series(codes < 0))
        if len(unknown) and on_unknown == "raise":
            raise ArgumentError(
                f"no user {unknown[0]!r}", where="users", expected="users that were trained on"
            )
        seen = model.seen if filter_seen else None
        scores = DotScores(model.user_vectors, model.item_vectors)
        found = rows_of(
            top_k(scores, codes[codes >= 0], k=k, seen=seen, banned=banned), known_users, item_ids
        )
        if len(unknown) and on_unknown == "popular":
            popular = FixedScores(torch.tensor(model.train.item_degrees))
            lists = top_k(popular, np.zeros(len(unknown), np.int64), k=k, banned=banned)
            found = pl.concat([found, rows_of(lists, unknown, item_ids)])
            asked = pl.DataFrame({"user_id": wanted.unique(maintain_order=True)}).with_row_index("asked")
            found = found.join(asked, on="user_id", maintain_order="left").sort("asked", "rank").drop("asked")
        return to_frame(found, frame)

    def similar_items(self, item: str | int, k: int = 10, *, frame: FrameKind = "polars") -> Any:
        """The items whose vectors point most nearly the same way: columns item_id, score (cosine), rank."""
        model = self._fitted()
        return self._similar(model.item_vectors, model.train.item_ids, item, "item", k, frame)

    def similar_users(self, user: str | int, k: int = 10, *, frame: FrameKind = "polars") -> Any:
        """The users whose vectors point most nearly the same way: columns user_id, score (cosine), rank."""
        model = self._fitted()
        return self._similar(model.user_vectors, model.train.user_ids, user, "user", k, frame)

    def explain(self, user: str | int, item: str | int, *, frame: FrameKind = "polars") -> Any:
        """Which items of a user's history pull the score of an item up: columns item_id, contribution.

        The user is folded in from the history, to a vector at which the pull of the history and the push of all
        other items are in balance: û ∝ Σ_h a_h v_h - Σ_j w_j v_j. The score û·v is then the sum of what each
        a_h v_h adds and of a rest, what the other items take away (item_id null, last). Largest first.
        """
        model = self._fitted()
        (item_code,) = known_codes(model.train.item_ids, [item], "item", "raise")
        known_codes(model.train.user_ids, [user], "user", "raise")
        history = model.seen.items_of(user)
        vectors, known = self._fold_in(history, "raise")
        places = torch.tensor(known.indices, dtype=torch.int64)
        pulls = pull_of_history(vectors[0], model.item_vectors, places, self._loss(), k=self.config.k)
        target = model.item_vectors[int(item_code)]
        parts, score = pulls @ target, float(vectors[0] @ target)
        order = torch.argsort(parts, descending=True, stable=True).numpy()
        named = model.train.item_ids.decode(known.indices).gather(order)
        table = pl.DataFrame({"item_id": named, "contribution": parts.double().numpy()[order]})
        rest = pl.DataFrame(
            {"item_id": [None], "contribution": [score - float(parts.sum())]}, schema=table.schema
        )
        return to_frame(pl.concat([table, rest]), frame)

    def save(self, folder: str | Path, **facts: Any) -> None:
        """Write the run directory; `facts` are added to `model.json`."""
        model = self._fitted()
        model.facts.update(facts)
        save_model(model, Path(folder), group=ALONE if model.users is None else current())

    @classmethod
    def load(cls, folder: str | Path, *, group: Group = ALONE) -> Recommender:
        """Read a run directory; the training data are not needed.

        In a group of several, each process gets its own users' part of the model.
        """
        model = load_model(Path(folder), group=group)
        recommender = cls(
            config=RunConfig.from_dict(model.facts.get("config", {}), where=f"{folder}/model.json")
        )
        recommender.model = model
        return recommender

    # ------------------------------------------------------------------- helpers

    def _loss(self) -> losses.Loss:
        """The loss the model was trained with, its learnt scalars included."""
        model, config = self._fitted(), self.config
        loss = losses.by_name(
            config.loss.name, k=config.k, num_users=1, num_items=model.train.num_items, **config.loss.options
        )
        with torch.no_grad():
            for name, parameter in loss.named_parameters():
                # an adversary's table knows nothing of somebody new: zeros, which prefer no negative
                parameter.fill_(float(model.facts.get("loss_state", {}).get(name, 0.0)))
        return loss

    def _fold_in(
        self, history: Ids | Interactions, on_unknown: OnUnknown
    ) -> tuple[torch.Tensor, Interactions]:
        """A vector for each history, and the histories over the model's items."""
        model = self._fitted()
        if isinstance(history, Interactions):
            people, rows = history.user_ids, history.rows
            items = history.item_ids.decode(history.indices)
        else:
            items = as_id_series(history, "history")
            people, rows = Vocabulary.of(["history"]), np.zeros(len(items), np.int32)
        codes = look_up(model.train.item_ids, items, "history", on_unknown)
        known = Interactions.from_codes(
            rows[codes >= 0], codes[codes >= 0], user_ids=people, item_ids=model.train.item_ids
        )
        ends, places = torch.tensor(known.indptr), torch.tensor(known.indices, dtype=torch.int64)
        vectors = fold_in(model.item_vectors, ends, places, self._loss(), k=self.config.k)
        return vectors, known

    def _similar(
        self, vectors: torch.Tensor, ids: Vocabulary, one: str | int, kind: str, k: int, frame: FrameKind
    ) -> Any:
        (code,) = known_codes(ids, [one], kind, "raise")
        units = F.normalize(vectors)
        lists = top_k(DotScores(units[int(code)].unsqueeze(0), units), k=k, banned=np.array([code]))
        rows = rows_of(lists, pl.Series([one]), ids)
        return to_frame(rows.drop("user_id").rename({"item_id": f"{kind}_id"}), frame)

    def _fitted(self) -> Model:
        if self.model is None:
            raise ArgumentError("not fitted yet", where="Recommender", expected="fit or load before this")
        return self.model
