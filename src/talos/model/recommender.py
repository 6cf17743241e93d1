"""The recommender: fit, evaluate, recommend, save and load.

Modules that train are imported by the methods that need them, so that a program which loads a model and recommends
never imports a trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from talos import losses, registry
from talos.backbones import Backbone
from talos.baselines import Baseline
from talos.checks import describe, require
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.vocabulary import Ids
from talos.distributed import SINGLE_PROCESS, Group, current
from talos.errors import ArgumentError
from talos.evaluation.evaluate import DEFAULT_KS, Report, evaluate
from talos.evaluation.metrics import Dialect
from talos.model.attributes import Filter, align_items
from talos.model.explain import contributions
from talos.model.fitting import RefitOn, Run, fit, fit_run, own_part, refit
from talos.model.model import Model
from talos.model.query import FrameKind, OnUnknown, answer, list_frame, list_query, nearest_to, to_frame
from talos.model.store import load_model, lock_run, save_model
from talos.negatives import Negatives
from talos.thresholds import Threshold

if TYPE_CHECKING:
    from talos.data.splits import Split
    from talos.distributed.share import Share, SplitShare
    from talos.training import Callback

__all__ = ["Recommender"]


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
        choices: dict[registry.Kind, Any] = {
            "baseline": baseline,
            "loss": loss,
            "backbone": backbone,
            "negatives": negatives,
            "threshold": threshold,
        }
        self.config = registry.configured(config or RunConfig(), plain, choices, options)
        if options or any(choice is not None for choice in choices.values()):
            registry.check(self.config)
        # In a process of a group that does not have the result, or with settings chosen elsewhere, it has no scores.
        self.model: Model | None = None

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
        registry.check_imported(self.config, where=None if self.model is None else self.model.read_from)
        registry.check(self.config)
        train = _interactions("train", train)
        valid = None if valid is None else _interactions("valid", valid)
        self.config = self.config.for_catalogue(train.num_items)
        folder = None if run is None else Path(run)
        group = current() if group is None else group
        with ExitStack() as held:
            if folder is not None:
                together = SINGLE_PROCESS if self.config.training.parallel == "none" else group
                held.enter_context(lock_run(folder, "training", group=together))
            fitted = fit(
                self.config,
                train,
                valid,
                known,
                folder=folder,
                resume=resume,
                callbacks=callbacks,
                group=group,
            )
        return self._adopt(fitted)

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

        The config is that of the fit with every `auto` resolved, trained for as many epochs as its best epoch. After a
        race the loss changes at the same epochs as it did then. The result is that of fitting a config with these
        epochs to the joined interactions, to the bit. The metadata of the model say what it was trained on
        (`trained_on`) and keep the metrics of the model that it was chosen from (`chosen_from`). A baseline is computed
        once more from the joined interactions, in one go.

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
        before = (
            self.fitted_model() if self.model is None else self.model
        )  # without scores it has the settings
        before.check_imported()
        return self._adopt(
            refit(
                before,
                on,
                run=None if run is None else Path(run),
                resume=resume,
                callbacks=callbacks,
                group=group,
            )
        )

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
        chosen.model = Model(
            train=train,
            valid=valid,
            test=own_part(known, train)[0],
            metadata={
                "config": config.as_dict(),
                "trained_on": {"train": len(train)},
                "epoch": epoch,
                "epochs_from": epochs_from,
                "valid": dict(metrics or {}),
                **({"race": dict(race)} if race else {}),
            },
        )
        return chosen

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
        self.model = replace(model, later=aligned if model.later is None else aligned.union(model.later))
        return self

    def _adopt(self, fitted: Model) -> Recommender:
        """Take over the config and the model."""
        self.model = replace(fitted, read_from=None if self.model is None else self.model.read_from)
        self.config = self.model.config
        return self

    def fit_run(
        self,
        split: Split | SplitShare,
        out: str | Path,
        *,
        refit: RefitOn | None = None,
        resume: bool = False,
        items: pl.DataFrame | None = None,
        loggers: Sequence[str] = (),
        source: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        notify: Callable[[str], None] | None = None,
    ) -> Run | None:
        """Fit, refit, measure and save: the run directory that `talos train` writes; returns what was measured.

        Args:
            split: train, validation and test.
            out: the run directory.
            refit: fit again with the chosen settings and epochs on `train+valid`, or on `all`.
            resume: continue from the newest checkpoint in `out`, if there is one.
            items: a table of titles and attributes, see `add_items`.
            loggers: any of `tensorboard`, `mlflow`, `wandb`.
            source: what the run keeps about the origin of its data.
            callbacks: as in `fit`.
            notify: called with one line of text for each message.

        Returns:
            The metrics on the test part, of ranking by popularity too; None in processes that do not have the model.
            See `talos.model.fitting.Run`.

        >>> import tempfile
        >>> data = Interactions.from_ids([1, 1, 1, 1, 2, 2, 2, 2], [5, 6, 7, 8, 6, 7, 8, 9])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = Recommender(k=1, dim=4, epochs=2).fit_run(data.split(test=0.25, valid=0), f"{folder}/run")
        ...     run.report.num_users, Recommender.load(f"{folder}/run").evaluate().num_users
        (2, 2)
        """
        return fit_run(
            self,
            split,
            Path(out),
            refit=refit,
            resume=resume,
            items=items,
            loggers=loggers,
            source=source,
            callbacks=callbacks,
            notify=notify,
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
        from talos.model.update import update

        new = _interactions("new", new)
        self.model = update(self.fitted_model(), new, self.config, epochs=epochs, lr=lr)
        return self

    def evaluate(
        self,
        test: Interactions | Share | None = None,
        k: Sequence[int] | int | None = None,
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

        `save` stores the test part with the model, so that a loaded one can be measured without data: what `fit` got
        as `known`, or else what this was called with last.

        A process that has a part of the model evaluates its own users, and all processes of its group must call this
        together.

        Args:
            test: the test interactions; those of the model if None.
            k: list lengths; 10, 20 and 50 if None, as far as there are items.
            dialect: `standard` or `paper`, see `talos.evaluate`.
            group: the processes that evaluate together; None is the group that was started.
            options: further arguments of `talos.evaluate`.
        """
        model = self.fitted_model()
        group = SINGLE_PROCESS if model.users is None else current() if group is None else group
        measured, lost = model.test, int(model.metadata.get("test_left_out", 0))
        if test is not None:
            measured, _ = own_part(_interactions("test", test), model.train)
        fitted_on = "test" in model.trained_on and model.users is None and measured
        if measured is None or (fitted_on and not measured.difference(model.train)):
            raise no_test_part(model)
        if test is not None:
            found = group.all_gather_numbers([float(len(measured))])
            lost = len(test) - int(sum(count for (count,) in found))
            if measured is not model.test and (model.test is None or not model.test_is_known):
                model.metadata["test_left_out"] = lost
                self.model = model = replace(model, test=measured, test_is_known=False)
        possible = [one for one in DEFAULT_KS if one <= model.train.num_items] or [model.train.num_items]
        k = possible if k is None else [k] if isinstance(k, int | float | str) else k
        report = evaluate(
            model.scorer(),
            measured,
            group=group,
            seen=model.train if dialect == "paper" else model.seen,
            ks=k,
            dialect=dialect,
            **options,
        )
        if lost:
            report = report.with_note(f"{lost:,} test interactions of unknown users or items left out")
        cold = (measured.user_degrees > 0) & (model.train.user_degrees == 0)
        count = int(sum(own for (own,) in group.all_gather_numbers([float(cold.sum())])))
        note = f"{count:,} of {report.num_users:,} users have no training events: ranked by popularity"
        return report.with_note(note) if count else report

    def recommend(
        self,
        users: Ids | str | int | None = None,
        k: int | None = None,
        *,
        history: Ids | Interactions | None = None,
        candidates: Ids | None = None,
        exclude: Ids | None = None,
        filter: Filter | None = None,  # noqa: A002
        diversity: float = 0.0,
        popularity: float = 0.0,
        filter_seen: bool = True,
        for_test: bool = False,
        on_unknown: OnUnknown = "raise",
        frame: FrameKind = "polars",
    ) -> Any:
        """The best items for users: a frame with columns user_id, item_id, score, rank.

        A user without training events, and an empty history, get the most popular items; the score is then the
        popularity, 0 to 1. Items without training events come last. See `talos.evaluation.popularity`.

        Args:
            users: ids of users, or one id; all users of the model if neither users nor a history is given.
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
                (`talos.model.query.diversify`). Scores then need not descend.
            popularity: 0 (the model alone) to 1 (popularity alone): how much popularity counts
                (`talos.model.query.BlendedScores`). Scores are then the blend.
            filter_seen: leave out items that the user is known to have: those of training and validation, and what was
                given to `fit` as `known`.
            for_test: leave out the items of training and validation only, so that the lists can be measured on the
                test part, whose items are otherwise left out too.
            on_unknown: unknown users and items are an error (`raise`) or left out (`skip`); with `popular`, unknown
                users get the most popular items.
            frame: `polars` or `pandas`.
        """
        model = self.fitted_model()
        query, named = list_query(
            model,
            users,
            k=k,
            history=history,
            candidates=candidates,
            exclude=exclude,
            filter=filter,
            diversity=diversity,
            popularity=popularity,
            filter_seen=filter_seen,
            for_test=for_test,
            on_unknown=on_unknown,
        )
        return to_frame(list_frame(answer(model, query), named, model.train.item_ids), frame)

    def similar_items(self, item: str | int, k: int = 10, *, frame: FrameKind = "polars") -> Any:
        """The items nearest to an item by the cosine of their vectors: columns item_id, score, rank.

        With a baseline of weights between items, those that the item alone speaks for most.
        """
        return self._similar("item", item, k, frame)

    def similar_users(self, user: str | int, k: int = 10, *, frame: FrameKind = "polars") -> Any:
        """The users nearest to a user by the cosine of their vectors: columns user_id, score, rank."""
        return self._similar("user", user, k, frame)

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
        require(
            (user is None) != (history is None),
            "both or neither given",
            where="user, history",
            expected="one of them",
        )
        return to_frame(contributions(self.fitted_model(), user, item, history=history, k=k), frame)

    def add_items(self, items: str | Path | pl.DataFrame) -> Recommender:
        """Add titles and attributes of the items, for filters and for whoever shows lists; returns self.

        They are saved with the model and take the place of those it had. Items that are not in the table have none;
        rows about items that the model does not know are ignored.

        Args:
            items: a csv, tsv, parquet or JSON-lines file with a column of item ids, see
                `talos.data.items.read_items`; or a polars frame.

        >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
        >>> model = Recommender(k=1, dim=8, epochs=3).fit(data)
        >>> table = pl.DataFrame({"item_id": ["jam", "rye"], "category": ["sweet", "bread"]})
        >>> model.add_items(table).recommend(k=2, filter={"must": {"category": "bread"}})["user_id"].to_list()
        ['ann']
        """
        from talos.data.items import read_items

        model = self.fitted_model()
        where = "items" if isinstance(items, pl.DataFrame) else str(items)
        titles, attributes, _ = align_items(read_items(items), model.train.item_ids, where=where)
        parts = {"train": model.train, "valid": model.valid, "test": model.test, "later": model.later}
        named: dict[str, Any] = {
            name: part.with_titles(titles)
            for name, part in parts.items()
            if part is not None and titles is not None
        }
        self.model = replace(model, **named, attributes=attributes)
        return self

    def save(self, folder: str | Path, *, group: Group | None = None, **metadata: Any) -> None:
        """Write the run directory (see `talos.model.store`); `metadata` is added to `model.json`."""
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
        recommender = cls(config=model.config)
        recommender.model = model
        return recommender

    def fitted_model(self) -> Model:
        """The trained model; an error before `fit` or `load`."""
        if self.model is None or self.model.scored_by is None:
            raise ArgumentError("not fitted yet", where="Recommender", expected="fit or load first")
        return self.model

    # ------------------------------------------------------------------- helpers

    def _similar(self, kind: Literal["user", "item"], one: str | int, k: int, frame: FrameKind) -> Any:
        model = self.fitted_model()
        ids = model.train.user_ids if kind == "user" else model.train.item_ids
        rows = list_frame(nearest_to(model, kind, one, k), pl.Series([0]), ids)
        return to_frame(rows.drop("user_id").rename({"item_id": f"{kind}_id"}), frame)


def stored_test_part(model: Model) -> Interactions:
    """The test part that a model carries; an error if it has none."""
    if model.test is None:
        raise no_test_part(model)
    return model.test


def no_test_part(model: Model) -> ArgumentError:
    """The error about a model that has no interactions to be measured on."""
    if "test" in model.trained_on:
        return ArgumentError(
            "the model was fitted on these interactions",
            where="test",
            expected="others to measure it on",
            hint="`chosen_from` in the metadata has the metrics of the model it was chosen from",
        )
    return ArgumentError("the model has no test part", where="test", expected="interactions to measure it on")


def _interactions(name: str, value: Any) -> Any:
    """Interactions, or a share of them, as they are; a frame or a matrix is read. An error names the argument."""
    if hasattr(value, "fingerprint"):
        return value
    from talos.data.open import read

    expected = "interactions, or a frame, a table or a sparse matrix of them"
    require(not isinstance(value, str | Path), describe(value), where=name, expected=expected)
    try:
        return read(value)
    except ArgumentError:
        raise ArgumentError(describe(value), where=name, expected=expected) from None
