"""The recommender: fit, evaluate, recommend, save and load.

Modules that train are imported by the methods that need them, so that a program which loads a model and recommends
never imports a trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from talos import losses, registry
from talos.backbones import Backbone
from talos.baselines import Baseline, VectorBaseline
from talos.checks import describe, positive_integer
from talos.config import RunConfig
from talos.data.event_weights import event_columns, event_weights
from talos.data.interactions import Interactions
from talos.data.vocabulary import Ids, Vocabulary, as_id_series
from talos.distributed import SINGLE_PROCESS, Group, current
from talos.errors import ArgumentError, ConfigError
from talos.evaluation.evaluate import DEFAULT_KS, Report, evaluate
from talos.evaluation.metrics import Dialect
from talos.evaluation.ranking import DotScores, FixedScores, Scorer, top_k
from talos.model.attributes import Filter, align_items, allowed_items
from talos.model.baseline import baseline_of, fit_baseline, scores_of_histories
from talos.model.explain import reasons
from talos.model.fold_in import fold_in
from talos.model.lists import FrameKind, OnUnknown, banned_items, list_frame, positions, to_frame
from talos.model.refit import Fitted, RefitOn, refit_data
from talos.model.rerank import check_share, lists_of
from talos.model.run_directory import ItemModel, Model, load_model, lock_run, save_model
from talos.negatives import Negatives
from talos.thresholds import Threshold

if TYPE_CHECKING:
    from talos.data.shards import Share
    from talos.training import Callback, Trainer

__all__ = ["Recommender", "place_of"]


class Recommender:
    """A recommender trained for the top K.

    Args:
        k: the list length to optimise for.
        loss: a short name such as `talos` (`talos.registry.names("loss")` lists them), `module:Class` for a class of
            your own, a class, or an object, whose options are stored in the config; a fit makes a new one from them.
        backbone: likewise; `mf` is matrix factorisation.
        negatives: likewise: `all`, `shared:N`, `N` per positive; or `auto`.
        threshold: likewise; or `auto`, or `none`.
        baseline: a model that is computed and not trained, such as `popularity`, `itemknn`, `ease`, `rp3beta` or `als`
            (see `talos.baselines`), in place of the four above.
        seed: the seed of every random generator.
        device: a torch device, such as `cpu` or `cuda:0`.
        config: a whole config; the other arguments change single values of it.
        options: hyperparameters by name: of the loss (`tau`), the backbone (`dim`, `layers`), the optimizer
            (`lr`, `weight_decay`), the training (`epochs`, `batch_size`, …) or the events (`half_life`, `weights`); or
            of the baseline. A dotted name says the section itself: `**{"threshold.lr": 0.1}`.

    >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
    >>> model = Recommender(k=1, tau=0.2, dim=8, epochs=3).fit(data)
    >>> model.recommend(["ann"], k=1)["item_id"].to_list()
    ['rye']
    """

    def __init__(
        self,
        *,
        k: int | None = None,
        loss: str | type[losses.Loss] | losses.Loss | None = None,
        backbone: str | type[Backbone] | Backbone | None = None,
        negatives: str | type[Negatives] | Negatives | None = None,
        threshold: str | type[Threshold] | Threshold | None = None,
        baseline: str | type[Baseline] | Baseline | None = None,
        seed: int | None = None,
        device: str | None = None,
        config: RunConfig | None = None,
        **options: Any,
    ) -> None:
        plain = {"k": k, "seed": seed, "device": device}
        given = {name: value for name, value in plain.items() if value is not None}
        self.config = _configured(
            (config or RunConfig()).with_values(given),
            {
                "baseline": baseline,
                "loss": loss,
                "backbone": backbone,
                "negatives": negatives,
                "threshold": threshold,
            },
            options,
        )
        self.model: Model | None = None
        self._read_from: str | None = None  # the file that the config is from, if it is somebody else's
        self._fitted: Fitted | None = None  # of the last fit, also in processes that do not have the model

    def fit(
        self,
        train: Interactions | Share,
        valid: Interactions | Share | None = None,
        *,
        known: Interactions | Share | None = None,
        run: str | Path | None = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
        group: Group | None = None,
    ) -> Recommender:
        """Train on `train`, with early stopping on `valid` if it is given; returns self.

        Args:
            train: the interactions to learn from.
            valid: validation interactions, matched to those of `train` by id.
            known: what users have beside that, such as the test part, matched by id. Nothing is learnt from it and
                metrics do not mask it, but no list offers it, and `refit("all")` fits on it too.
            run: a folder for the history and checkpoints, so that an interrupted fit can be resumed; another fit into
                it at the same time is refused.
            resume: continue from the newest checkpoint in `run`, if there is one.
            callbacks: called at the start, after each step, after each epoch and at the end.
            group: the processes that train together; None is the group that was started, see `talos.distributed`.

        If this process started a group (`talos.distributed.start`), all its processes train one model, which rank 0
        has afterwards. If each process was given its `Share` of the interactions, each has its own users' part of the
        model afterwards, and all of them must call `evaluate` and `save` together.

        A baseline is computed from all of `train` in one go: there is nothing to resume and no epoch to watch. Where
        there are fewer items than the default K, K is the number of items.
        """
        self._check_imported()
        registry.check(self.config)
        _check_interactions("train", train)
        if valid is not None:
            _check_interactions("valid", valid)
        self.config = self.config.for_catalogue(train.num_items)
        folder = None if run is None else Path(run)
        group = current() if group is None else group
        with ExitStack() as held:
            if folder is not None:
                together = SINGLE_PROCESS if self.config.training.parallel == "none" else group
                held.enter_context(lock_run(folder, "training", group=together))
            if self.config.baseline is not None:
                model = fit_baseline(self.config, train, valid)
                self.model = replace(model, held_out=_held_out(known, model.train, model.valid))
                return self
            from talos.studies.race import make_trainer
            from talos.training import History

            if folder is not None:
                callbacks = [History(folder / "history.jsonl"), *callbacks]
            trainer, race = make_trainer(
                self.config, train, valid, folder=folder, callbacks=callbacks, group=group, resume=resume
            )
            trainer.fit()
        facts: dict[str, Any] = {"trained_on": {"train": len(train)}, "epochs_from": _epochs_from(trainer)}
        if race.chosen:
            facts["race"] = race.as_dict()
        self._adopt(trainer, facts, _held_out(known, trainer.train, trainer.valid))
        return self

    def refit(
        self,
        on: RefitOn = "train+valid",
        *,
        run: str | Path | None = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
        group: Group | None = None,
    ) -> Recommender:
        """Fit once more from scratch on more data, with the settings and epochs that a fit has chosen; returns self.

        The config is that of the fit with every `auto` resolved, the number of epochs that of its best epoch
        (`talos.model.refit` says why epochs). After a race the loss changes at the same epochs as it did then. The
        result is that of fitting a config with these epochs to the joined interactions, to the bit. The metadata of
        the model say what it was trained on (`trained_on`) and keep the metrics of the model that it was chosen from
        (`chosen_from`). A baseline is computed once more from the joined interactions, in one go.

        Args:
            on: `train+valid`, or `all`: also what was given to `fit` as `known`, the test part. Then nothing is left to
                measure the model on.
            run: the folder that `fit` was given, so that an interrupted refit can be resumed.
            resume: continue from the newest checkpoint of a refit in `run`, if there is one.
            callbacks: as in `fit`.
            group: as in `fit`; every process needs all interactions.

        >>> data = Interactions.from_ids([1, 1, 1, 1, 2, 2, 2, 2], [5, 6, 7, 8, 6, 7, 8, 9])
        >>> train, valid, test = data.split(test=0.25, valid=0.25)
        >>> model = Recommender(k=1, dim=4, epochs=3).fit(train, valid, known=test)
        >>> model.refit("all").fitted_model().metadata["trained_on"]
        {'train': 5, 'valid': 1, 'test': 2}
        """
        self._check_imported()
        before = self._last_fit()
        data, trained_on = refit_data(before, on)
        held_out = None if on == "all" else before.held_out
        facts: dict[str, Any] = {"trained_on": trained_on, "chosen_from": before.as_origin()}
        attributes = None if self.model is None else self.model.attributes
        if self.config.baseline is not None:
            model = fit_baseline(self.config, data, facts=facts)
            self.model = replace(model, held_out=held_out, attributes=attributes)
            return self
        config = self.config.with_values({"training.epochs": int(before.facts["epoch"])})
        files = None
        if run is not None:
            files = Path(run) / "history-refit.jsonl", Path(run) / "checkpoint" / f"refit-{on}"
            files[1].mkdir(
                parents=True, exist_ok=True
            )  # before the first checkpoint, so that `on` is on record
        path = before.facts.get("race", {}).get("path", [])
        if self._read_from is not None:
            from talos.studies.race import check_path

            check_path(path, where=self._read_from)
        trainer = _trained(config, data, path, files, resume, callbacks, group)
        facts["epochs_from"] = "refit: the best epoch of the model it was chosen from"
        self._adopt(trainer, facts, held_out)
        if self.model is not None:  # the items are the same
            self.model = replace(self.model, attributes=attributes)
        return self

    @classmethod
    def from_choice(
        cls,
        config: RunConfig,
        train: Interactions,
        valid: Interactions | None = None,
        *,
        known: Interactions | None = None,
        epoch: int,
        epochs_from: str,
        metrics: Mapping[str, float] | None = None,
        race: Mapping[str, Any] | None = None,
    ) -> Recommender:
        """A recommender whose settings and number of epochs were chosen elsewhere, as by a search; `refit` fits it.

        Args:
            config: the chosen settings.
            train: the interactions they were chosen on.
            valid: those by which they were chosen, over the same vocabularies.
            known: as in `fit`.
            epoch: how many epochs are best; without effect on a baseline.
            epochs_from: how that was found, for the metadata.
            metrics: metrics on `valid` at that epoch.
            race: what the metadata of a model say about its race, if there was one: the refit follows its path.

        >>> data = Interactions.from_ids([1, 1, 2, 2], [5, 6, 6, 7])
        >>> train, valid = data.where(data.indices < 2), data.where(data.indices == 2)
        >>> config = RunConfig.from_dict({"k": 1, "backbone": {"name": "mf", "dim": 4}})
        >>> model = Recommender.from_choice(config, train, valid, epoch=2, epochs_from="a guess").refit()
        >>> len(model.fitted_model().train), model.config.training.epochs
        (4, 2)
        """
        chosen = cls(config=config)
        facts: dict[str, Any] = {"trained_on": {"train": len(train)}, "epoch": epoch}
        facts |= {"epochs_from": epochs_from} | ({"race": dict(race)} if race else {})
        chosen._fitted = Fitted(
            train=train,
            valid=valid,
            held_out=_held_out(known, train, valid),
            facts={**facts, "valid": dict(metrics or {})},
        )
        return chosen

    def _last_fit(self) -> Fitted:
        """What `fit`, or the fit of a loaded model, has settled."""
        if self.model is None and self._fitted is not None:  # rank 0 of the group has the model
            return self._fitted
        model = self.fitted_model()
        if model.users is not None:
            expected = "all interactions in every process, or one process"
            raise ArgumentError("a share of the interactions", where="refit", expected=expected)
        return Fitted(train=model.train, valid=model.valid, held_out=model.held_out, facts=model.metadata)

    def add_known(self, known: Interactions) -> Recommender:
        """Tell a fitted or loaded model what users have beside train and validation; returns self.

        No list offers it from now on, and `save` stores it. Interactions of users or items that the model does not know
        are left out. For models that were fitted without `known`, and for what has happened since.

        >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
        >>> model = Recommender(k=1, dim=8, epochs=3).fit(data)
        >>> len(model.add_known(Interactions.from_ids(["ann"], ["rye"])).recommend(["ann"], k=1))
        0
        """
        model = self.fitted_model()
        aligned, _ = known.aligned_to(model.train)
        both = aligned if model.held_out is None else aligned.union(model.held_out)
        self.model = replace(model, held_out=both.difference(model.seen))
        return self

    def _adopt(self, trainer: Trainer, facts: Mapping[str, Any], held_out: Interactions | None) -> None:
        """Take over the config and, if this process has them, the trained vectors."""
        self.config = trainer.config
        metadata: dict[str, Any] = {
            "config": trainer.config.as_dict(),
            "epoch": trainer.position.best_epoch or trainer.position.epoch,
            **facts,
            "valid": dict(trainer.position.best_metrics),
            "threshold_error": trainer.threshold_error(),
            "loss_state": {
                name: value.item()
                for name, value in trainer.objective.loss.named_parameters()
                if value.ndim == 0
            },
            "metrics": {},
        }
        train, valid = trainer.train, trainer.valid
        self._fitted = Fitted(train=train, valid=valid, held_out=held_out, facts=metadata)
        self.model = None
        results = trainer.results()
        if results is None:  # rank 0 of the group has the model
            return
        users, items, thresholds = results
        self.model = Model(
            user_vectors=users,
            item_vectors=items,
            thresholds=thresholds,
            train=_own(train),
            valid=None if valid is None else _own(valid),
            held_out=held_out,
            metadata=metadata,
            users=None if isinstance(train, Interactions) else train.users,
            all_item_degrees=None if isinstance(train, Interactions) else train.item_degrees,
        )

    def partial_fit(self, new: Interactions, *, epochs: int = 1, lr: float | None = None) -> Recommender:
        """Learn from new interactions, with new users and items, without training from scratch; returns self.

        Only the vectors of users with new interactions and of the items in them change; thresholds are computed anew
        (see `talos.model.update`). From now on validation interactions count as training interactions.

        Args:
            new: the interactions that have arrived since, with any ids of the model's type.
            epochs: passes over the users with new interactions.
            lr: learning rate; that of training if None.

        >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
        >>> model = Recommender(k=1, dim=8, epochs=3).fit(data)
        >>> model = model.partial_fit(Interactions.from_ids(["eve", "eve"], ["tea", "fig"]))
        >>> model.recommend(["eve"], k=3)["item_id"].sort().to_list()
        ['jam', 'rye']
        """
        from talos.model.update import num_items_after, update

        _check_interactions("new", new)
        model = self.fitted_model()
        loss = self._loss(
            num_items_after(model, new)
        )  # one with a table of items has a row for each new one too
        self.model = update(model, new, loss, self.config, epochs=epochs, lr=lr)
        return self

    def evaluate(
        self,
        test: Interactions | Share,
        k: Sequence[int] | int = DEFAULT_KS,
        *,
        dialect: Dialect = "standard",
        group: Group | None = None,
        **options: Any,
    ) -> Report:
        """Rank all items for the users of `test` and compute metrics.

        Items that a user has in training and validation are masked in the `standard` dialect, those of training alone
        in the `paper` dialect; what is only `known` never is. A test set with its own vocabularies is matched by id;
        users and items that the model does not know are left out, and a note of the report counts them. A test set on
        all of which the model was fitted (`refit("all")`) is an error.

        A process that has a part of the model evaluates its own users, and all processes of its group must call this
        together.

        Args:
            test: the test interactions.
            k: list lengths.
            dialect: `standard` or `paper`, see `talos.evaluate`.
            group: the processes that evaluate together; None is the group that was started.
            options: further arguments of `talos.evaluate`.
        """
        _check_interactions("test", test)
        model = self.fitted_model()
        group = SINGLE_PROCESS if model.users is None else current() if group is None else group
        known, _ = _own(test).aligned_to(model.train)
        if (
            model.users is None
            and len(known)
            and "test" in model.metadata.get("trained_on", {})
            and not len(known.difference(model.train))
        ):
            what, expected = "the model was fitted on these interactions", "others to measure it on"
            hint = "`chosen_from` in the metadata has the metrics of the model it was chosen from"
            raise ArgumentError(what, where="test", expected=expected, hint=hint)
        lost = len(test) - int(sum(count for (count,) in group.all_gather_numbers([float(len(known))])))
        report = evaluate(
            model.scorer(),
            known,
            group=group,
            seen=model.train if dialect == "paper" else model.seen,
            ks=[k] if isinstance(k, int | float | str) else k,
            dialect=dialect,
            **options,
        )
        if lost:
            report = report.with_note(f"{lost:,} test interactions of unknown users or items left out")
        cold = (known.user_degrees > 0) & (model.train.user_degrees == 0)
        count = int(sum(own for (own,) in group.all_gather_numbers([float(cold.sum())])))
        note = f"{count:,} of {report.num_users:,} users have no training events: ranked by popularity"
        return report.with_note(note) if count else report

    def recommend(
        self,
        users: Ids | None = None,
        k: int | None = None,
        *,
        history: Ids | Interactions | None = None,
        candidates: Ids | None = None,
        exclude: Ids | None = None,
        filter: Filter | None = None,  # noqa: A002
        diversity: float = 0.0,
        popularity: float = 0.0,
        filter_seen: bool = True,
        on_unknown: OnUnknown = "raise",
        frame: FrameKind = "polars",
    ) -> Any:
        """The best items for users: a frame with columns user_id, item_id, score, rank.

        A user without training events, and an empty history, get the most popular items; the score is then the
        popularity, 0 to 1. Items without training events come last. See `talos.evaluation.popularity`.

        Args:
            users: ids of users; all users of the model if neither users nor a history is given.
            k: list length; the K of training if not given. A list is shorter if fewer items are left.
            history: the items of one person whom the model does not know and who gets a vector by
                `talos.model.fold_in`, or by the baseline's own means; user_id is then `history`. Or the interactions
                of many such people, whose ids may be the same as those of users that the model knows; they count by
                age, rating or repeats if those of training did and they have the column.
            candidates: only these items may be recommended.
            exclude: these items may not.
            filter: conditions on the items' attributes: `{"must": {"category": ["tea", "jam"], "year": {"gte":
                1990}}, "must_not": {"brand": "x"}}`, see `talos.model.attributes.allowed_items`.
            diversity: 0 (the best scores) to 1: how much an item that is like those above it is put back
                (`talos.model.rerank.diversify`). Scores then need not descend.
            popularity: 0 (the model alone) to 1 (popularity alone): how much popularity counts
                (`talos.model.rerank.BlendedScores`). Scores are then the blend.
            filter_seen: leave out items that the user is known to have: those of training and validation, and what was
                given to `fit` as `known`.
            on_unknown: unknown users and items are an error (`raise`) or left out (`skip`); with `popular`, unknown
                users get the most popular items, with the popularity as the score.
            frame: `polars` or `pandas`.
        """
        model = self.fitted_model()
        if users is not None and history is not None:
            raise ArgumentError("both given", where="users, history", expected="one of them")
        k = self.config.k if k is None else positive_integer("k", k)
        item_ids = model.train.item_ids
        allowed = None if filter is None else allowed_items(model.attributes, model.train.item_titles, filter)
        banned = banned_items(item_ids, candidates, exclude, on_unknown, filtered=allowed)
        how: dict[str, Any] = {
            "banned": banned,
            "diversity": check_share("diversity", diversity),
            "popularity": check_share("popularity", popularity),
            "item_vectors": model.item_vectors if diversity else None,
            "item_degrees": model.item_degrees,
        }
        if history is not None:
            known = self._known(history, on_unknown)
            scores = self._scores_of(known)
            people = np.arange(known.num_users)
            lists = lists_of(scores, people, k=k, seen=known if filter_seen else None, **how)
            return to_frame(list_frame(lists, known.user_ids.ids, item_ids), frame)
        wanted = model.train.user_ids.ids if users is None else as_id_series(users, "users")
        codes = positions(model.train.user_ids, wanted, kind="user", where="users", on_unknown=on_unknown)
        known_users, unknown = wanted.filter(pl.Series(codes >= 0)), wanted.filter(pl.Series(codes < 0))
        seen = model.known if filter_seen else None
        lists = lists_of(model.scorer(), codes[codes >= 0], k=k, seen=seen, **how)
        found = list_frame(lists, known_users, item_ids)
        if len(unknown) and on_unknown == "popular":
            popular = FixedScores(torch.tensor(model.item_degrees))
            lists = top_k(popular, np.zeros(len(unknown), np.int64), k=k, banned=banned)
            found = pl.concat([found, list_frame(lists, unknown, item_ids)])
            asked = pl.DataFrame({"user_id": wanted.unique(maintain_order=True)}).with_row_index("asked")
            found = found.join(asked, on="user_id", maintain_order="left").sort("asked", "rank").drop("asked")
        return to_frame(found, frame)

    def similar_items(self, item: str | int, k: int = 10, *, frame: FrameKind = "polars") -> Any:
        """The items nearest to an item by the cosine of their vectors: columns item_id, score, rank.

        With a baseline of weights between items, those that the item alone speaks for most.
        """
        model = self.fitted_model()
        if isinstance(model, ItemModel):
            found = self.recommend(history=[item], k=k)
            return to_frame(found.drop("user_id"), frame)
        return self._similar("item", item, model.item_vectors, model.item_degrees, k, frame)

    def similar_users(self, user: str | int, k: int = 10, *, frame: FrameKind = "polars") -> Any:
        """The users nearest to a user by the cosine of their vectors: columns user_id, score, rank."""
        model = self.fitted_model()
        return self._similar("user", user, model.user_vectors, model.train.user_degrees, k, frame)

    def explain(
        self,
        user: str | int | None,
        item: str | int,
        *,
        history: Ids | None = None,
        k: int | None = None,
        frame: FrameKind = "polars",
    ) -> Any:
        """Which items of a user's history speak for an item: columns item_id, contribution, strongest first.

        An item of the history speaks for another one if it is more like that one than the items are that compete for
        the user's list (see `talos.model.explain`). The contribution is its share in all that speaks for the item:
        contributions add up to 1. The item itself does not count, and items that speak against it are left out, so
        the frame may be empty. With a baseline of weights between items the shares are those of these weights.

        Args:
            user: a user of the model, or None with `history`.
            item: the item to explain.
            history: the items of somebody the model does not know.
            k: how many items at most; all if None.
            frame: `polars` or `pandas`.
        """
        if (user is None) == (history is None):
            raise ArgumentError("both or neither given", where="user, history", expected="one of them")
        model = self.fitted_model()
        (target,) = positions(model.train.item_ids, [item], kind="item", where="item")
        if user is not None:
            (code,) = positions(model.train.user_ids, [user], kind="user", where="user")
            history = model.seen.items_of(user)
            if not model.train.user_degrees[code]:  # ranked by popularity, for which no item of theirs speaks
                history = history.clear()
        assert history is not None
        others = as_id_series(history, "history")
        codes = positions(model.train.item_ids, others, kind="item", where="history")
        codes = np.unique(codes[codes != target])
        past = torch.from_numpy(codes)
        if isinstance(model, ItemModel):
            weights = model.weights.column(int(target))[past].double().clamp(min=0)
            parts = (weights / weights.sum().clamp(min=1e-12)).numpy()
        else:
            if user is None:
                known = self._known(model.train.item_ids.decode(codes), "raise")
                vector = self._fold_in(known)[0]
            else:
                vector = model.user_vectors[int(model.train.user_ids.encode([user])[0])]
            wanted = torch.tensor([int(target)])
            shares = reasons(vector, model.item_vectors, past, wanted, self._loss(), k=self.config.k)
            parts = shares[:, 0].double().numpy()
        order = np.argsort(-parts, kind="stable")
        order = order[parts[order] > 0][:k]
        named = model.train.item_ids.decode(codes[order])
        return to_frame(pl.DataFrame({"item_id": named, "contribution": parts[order]}), frame)

    def add_items(self, items: str | Path | pl.DataFrame) -> Recommender:
        """Add titles and attributes of the items, for filters and for whoever shows lists; returns self.

        They are saved with the model and take the place of those it had. Items that are not in the table have none;
        rows about items that the model does not know are ignored.

        Args:
            items: a csv, tsv, parquet or JSON-lines file with a column of item ids, see
                `talos.data.readers.read_items`; or a polars frame.

        >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
        >>> model = Recommender(k=1, dim=8, epochs=3).fit(data)
        >>> table = pl.DataFrame({"item_id": ["jam", "rye"], "category": ["sweet", "bread"]})
        >>> model.add_items(table).recommend(k=2, filter={"must": {"category": "bread"}})["user_id"].to_list()
        ['ann']
        """
        from talos.data.readers import read_items

        model = self.fitted_model()
        where = "items" if isinstance(items, pl.DataFrame) else str(items)
        titles, attributes, _ = align_items(read_items(items), model.train.item_ids, where=where)
        parts = {"train": model.train, "valid": model.valid, "held_out": model.held_out}
        named: dict[str, Any] = {
            name: part.with_titles(titles)
            for name, part in parts.items()
            if part is not None and titles is not None
        }
        self.model = replace(model, **named, attributes=attributes)
        return self

    def save(self, folder: str | Path, *, group: Group | None = None, **metadata: Any) -> None:
        """Write the run directory (see `talos.model.run_directory`); `metadata` is added to `model.json`."""
        model = self.fitted_model()
        model.metadata.update(metadata)
        group = SINGLE_PROCESS if model.users is None else current() if group is None else group
        save_model(model, Path(folder), group=group)

    @classmethod
    def load(cls, folder: str | Path, *, group: Group = SINGLE_PROCESS) -> Recommender:
        """Read a run directory; neither the training data nor a trainer is needed.

        In a group of several processes, each gets its own users' part of the model.
        """
        model = load_model(Path(folder), group=group)
        config = model.metadata.get("config", {})
        place = f"{folder}/model.json"
        recommender = cls(config=RunConfig.from_dict(config, where=place))
        recommender.model, recommender._read_from = model, place
        return recommender

    def fitted_model(self) -> Model:
        """The trained model; an error before `fit` or `load`."""
        if self.model is None:
            raise ArgumentError("not fitted yet", where="Recommender", expected="fit or load first")
        return self.model

    # ------------------------------------------------------------------- helpers

    def _loss(self, num_items: int | None = None) -> losses.Loss:
        """The loss the model was trained with, its learnt scalars included; an error for a baseline.

        `num_items` is how many items it is for, if not those of the model.
        """
        model, config = self.fitted_model(), self.config
        if config.baseline is not None:
            raise ArgumentError(
                f"the baseline {config.baseline.name!r} was not trained and has no loss",
                where="Recommender",
                expected="a trained model for this",
                hint="a baseline is quick to fit again on all interactions",
            )
        self._check_imported()
        num_items = model.train.num_items if num_items is None else num_items
        loss = registry.make_loss(config.loss, k=config.k, num_users=1, num_items=num_items)
        with torch.no_grad():
            for name, parameter in loss.named_parameters():
                # an adversary's tables are not stored: with zeros every negative is equally hard
                parameter.fill_(float(model.metadata.get("loss_state", {}).get(name, 0.0)))
        return loss

    def _check_imported(self) -> None:
        """The config of a run that was loaded does not choose what is imported: see `registry.check_imported`."""
        if self._read_from is not None:
            registry.check_imported(self.config, where=self._read_from)

    def _known(self, history: Ids | Interactions, on_unknown: OnUnknown) -> Interactions:
        """Histories as interactions with the model's items."""
        model = self.fitted_model()
        columns: dict[str, Any] = {}
        if isinstance(history, Interactions):
            people, rows = history.user_ids, history.rows
            items = history.item_ids.decode(history.indices)
            columns = {name: getattr(history, name) for name in event_columns(self.config.events)}
        else:
            items = as_id_series(history, "history")
            people, rows = Vocabulary.of(["history"]), np.zeros(len(items), np.int32)
        codes = positions(model.train.item_ids, items, kind="item", where="history", on_unknown=on_unknown)
        found = codes >= 0
        columns = {name: values[found] for name, values in columns.items() if values is not None}
        return Interactions.from_codes(
            rows[found], codes[found], user_ids=people, item_ids=model.train.item_ids, **columns
        )

    def _scores_of(self, known: Interactions) -> Scorer:
        """The scores of people whom the model does not know."""
        model = self.fitted_model()
        if self.config.baseline is not None:
            return scores_of_histories(model, baseline_of(self.config), known)
        return model.prior_scores.of(self._fold_in(known), known.user_degrees)

    def _fold_in(self, known: Interactions) -> torch.Tensor:
        """A vector for each history, by the loss of training; its items count as in training, if it says how much."""
        model, events = self.fitted_model(), self.config.events
        ends, places = torch.tensor(known.indptr), torch.tensor(known.indices, dtype=torch.int64)
        complete = all(getattr(known, name) is not None for name in event_columns(events))
        weights = event_weights(known, events) if complete else None
        return fold_in(
            model.item_vectors,
            ends,
            places,
            self._loss(),
            k=self.config.k,
            mean=model.mean_item,
            weights=None if weights is None else torch.from_numpy(weights),
        )

    def _similar(
        self,
        kind: Literal["user", "item"],
        one: str | int,
        vectors: torch.Tensor,
        degrees: NDArray[np.int64],
        k: int,
        frame: FrameKind,
    ) -> Any:
        train = self.fitted_model().train
        ids = train.user_ids if kind == "user" else train.item_ids
        baseline = None if self.config.baseline is None else baseline_of(self.config)
        if isinstance(baseline, VectorBaseline) and not baseline.compares_items:
            what = f"the vectors of {type(baseline).__name__} say nothing about similar {kind}s"
            raise ArgumentError(what, where=f"similar_{kind}s", expected="another model")
        positive_integer("k", k)
        (code,) = positions(ids, [one], kind=kind, where=kind)
        if not degrees[code]:
            what = f"{kind} {one!r} has no training events"
            raise ArgumentError(what, where=kind, expected=f"a {kind} that was trained on")
        units = F.normalize(vectors)
        banned = np.union1d(np.flatnonzero(degrees == 0), [code])
        lists = top_k(DotScores(units[int(code)].unsqueeze(0), units), k=k, banned=banned)
        rows = list_frame(lists, pl.Series([one]), ids)
        return to_frame(rows.drop("user_id").rename({"item_id": f"{kind}_id"}), frame)


def _trained(
    config: RunConfig,
    train: Interactions,
    path: Sequence[Mapping[str, Any]],
    files: tuple[Path, Path] | None,
    resume: bool,
    callbacks: Sequence[Callback],
    group: Group | None,
) -> Trainer:
    """A trainer that has finished without validation.

    `path` has the losses of its first epochs, `files` are its history and the folder of its checkpoints.
    """
    from talos.training import History, Trainer

    trainer = Trainer(
        config,
        train,
        earlier=path,
        folder=None if files is None else files[1],
        callbacks=callbacks if files is None else [History(files[0]), *callbacks],
        group=current() if group is None else group,
    )
    if resume:
        trainer.resume()
    trainer.fit()
    return trainer


def _epochs_from(trainer: Trainer) -> str:
    """How the number of epochs was chosen."""
    if trainer.position.best_epoch == 0:
        return "the settings: no validation part"
    watched = f"{trainer.config.training.metric}@{trainer.config.k}"
    return f"early stopping: the best validation {watched} of {trainer.position.epoch} epochs"


def _held_out(
    known: Interactions | Share | None, train: Interactions | Share, valid: Interactions | Share | None
) -> Interactions | None:
    """What is known beside train and validation, over the vocabularies of train; None if there is nothing.

    A process that has a share stores it even if its own is empty: the others may have some.
    """
    if known is None:
        return None
    seen = _own(train)
    rest = _own(known).aligned_to(seen)[0].difference(seen)
    rest = rest if valid is None else rest.difference(_own(valid))
    return rest if len(rest) or not isinstance(train, Interactions) else None


def _check_interactions(name: str, value: object) -> None:
    """Raise an error that names the argument unless it is interactions or a process's share of them."""
    if not hasattr(value, "fingerprint"):
        expected = "interactions, as `talos.read` returns them"
        raise ArgumentError(describe(value), where=name, expected=expected)


def _own(interactions: Interactions | Share) -> Interactions:
    """The interactions that this process has."""
    return interactions if isinstance(interactions, Interactions) else interactions.own


def _configured(
    config: RunConfig, choices: Mapping[registry.Kind, Any], options: Mapping[str, Any]
) -> RunConfig:
    """A config with other choices (names, classes or objects; None leaves one as it is) and options.

    An object sets all its options, also those at their defaults; a name keeps what the config has for it.
    """
    changes: dict[str, Any] = {}
    for kind, choice in choices.items():
        if choice is None:
            continue
        held = registry.config_of(kind, choice)
        changes[kind if kind == "negatives" or isinstance(held, dict) else f"{kind}.name"] = held
        k = getattr(choice, "k", None)
        if isinstance(held, dict) and "k" in choice.context and k not in (None, config.k):
            raise ArgumentError(f"was made with k={k}", where=kind, expected=f"k={config.k}, that of the run")
    config = config.with_values(changes)
    return config.with_values({place_of(name, config): value for name, value in options.items()})


def place_of(name: str, config: RunConfig) -> str:
    """Where in a config an option given by its bare name belongs.

    The first that has the option among the optimiser, the training, the events, the chosen backbone and the loss; the
    loss also gets a name that nobody has, and refuses it when it is made. If there is a baseline, it gets all of them.
    Dotted names are places already.

    >>> [place_of(name, RunConfig()) for name in ("epochs", "half_life", "tau", "threshold.lr")]
    ['training.epochs', 'events.half_life', 'loss.tau', 'threshold.lr']
    """
    if "." in name:
        if name.split(".")[0] not in RunConfig.model_fields:
            raise ConfigError("no such section", where=name, expected="one of the config's sections")
        return name
    if config.baseline is not None:
        return f"training.{name}" if name == "metric" else f"baseline.{name}"
    options = {"optimizer": config.optimizer, "training": config.training, "events": config.events}
    for section, held in options.items():
        if name in type(held).model_fields:
            return f"{section}.{name}"
    section = "backbone" if name in registry.options("backbone", config.backbone.name) else "loss"
    return f"{section}.{name}"
