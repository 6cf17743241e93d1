"""Losses, backbones, thresholds, sources of negatives and baselines by name.

Wherever one of them is chosen (Python, config, command line), it is given as a short name (`talos`), as
`module:Class` for a class that Python can import, or, in Python, as a class or an object. A class describes itself:

- `short_name`: its name, if it has a short one;
- the arguments of its constructor are its options, except those that `context` lists, which come from the run;
- `search_space`: what `talos tune` searches by default, option → values or range (losses, backbones, baselines);
- the first line of its docstring: its line of help;
- `constructor_options()`: the values of those options that an object does not keep in an attribute of the same name.

>>> names("backbone")
('mf', 'lightgcn', 'xsimgcl')
>>> resolve("loss", "sl")
<class 'talos.losses.softmax.Softmax'>
>>> options("backbone", "lightgcn")
{'dim': 64, 'layers': 2}
>>> make_loss("sl", tau=0.2)
Softmax(tau=0.2, ...)
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

from talos import backbones, baselines, losses, negatives, thresholds
from talos.checks import of_type
from talos.config import NamedConfig, RunConfig
from talos.data.interactions import Interactions
from talos.errors import ArgumentError, ConfigError, TalosError, first_line, nearest

if TYPE_CHECKING:
    from talos.distributed.share import Share

__all__ = [
    "Kind",
    "check",
    "check_device",
    "check_imported",
    "config_of",
    "configured",
    "failure_of_own_class",
    "help_of",
    "import_asked",
    "import_module",
    "kind_of",
    "make_backbone",
    "make_baseline",
    "make_loss",
    "make_negatives",
    "make_threshold",
    "names",
    "options",
    "place_of",
    "resolve",
    "search_space",
]

Kind: TypeAlias = Literal["loss", "backbone", "threshold", "negatives", "baseline"]

_KINDS: Mapping[str, tuple[ModuleType, type[Any]]] = {
    "loss": (losses, losses.Loss),
    "backbone": (backbones, backbones.Backbone),
    "threshold": (thresholds, thresholds.Threshold),
    "negatives": (negatives, negatives.Negatives),
    "baseline": (baselines, baselines.Baseline),
}


def _known(kind: Kind) -> dict[str, type[Any]]:
    """Short name → class: those among the public names of the kind's package."""
    package, base = _KINDS[kind]
    public = [getattr(package, name) for name in package.__all__]
    classes: list[Any] = [one for one in public if isinstance(one, type) and issubclass(one, base)]
    return {one.short_name: one for one in classes if one.short_name}


def names(kind: Kind) -> tuple[str, ...]:
    """The short names of a kind; those of negatives are forms, such as `shared:N`.

    >>> names("negatives")
    ('all', 'shared:N', 'N')
    """
    return tuple(_known(kind))


def kind_of(made: object) -> Kind | None:
    """The kind of an object, None if it is of none.

    >>> kind_of(losses.Softmax()), kind_of("sl")
    ('loss', None)
    """
    return next((cast(Kind, kind) for kind, (_, base) in _KINDS.items() if isinstance(made, base)), None)


def resolve(kind: Kind, choice: str | type[Any], *, where: str | None = None) -> type[Any]:
    """The class of a short name, of `module:Class`, or the class itself; errors name `where`, by default the kind.

    Raises:
        ArgumentError: an unknown name, with the nearest one; a module that cannot be imported, with the reason; a
            class of another kind.

    >>> resolve("loss", "talso")
    Traceback (most recent call last):
    talos.errors.ArgumentError: loss: 'talso' is not known; expected a short name ... (did you mean 'talos'?)
    >>> resolve("loss", "talos.backbones:MF")
    Traceback (most recent call last):
    talos.errors.ArgumentError: loss: 'talos.backbones:MF' is no loss; expected a subclass of talos.losses.Loss
    """
    package, base = _KINDS[kind]
    where = kind if where is None else where
    known = _known(kind)
    found: Any
    if isinstance(choice, type):
        found = choice
    elif choice in known:
        found = known[choice]
    elif kind == "negatives" and negatives.is_short_form(choice):
        found = type(negatives.parse(choice))
    elif ":" in choice:
        found = _imported(choice, where)
    else:
        expected = "a short name or module:Class"
        raise ArgumentError(
            f"{choice!r} is not known", where=where, expected=expected, hint=nearest(choice, known)
        )
    if not isinstance(found, type) or not issubclass(found, base) or found is base:
        name = choice if isinstance(choice, str) else choice.__qualname__
        expected = f"a subclass of {package.__name__}.{base.__name__}"
        what = "source of negatives" if kind == "negatives" else kind
        raise ArgumentError(f"{name!r} is no {what}", where=where, expected=expected)
    return found


def import_module(name: str, *, where: str, of: str = "") -> ModuleType:
    """A module from Python's ordinary search path; an error names `where` and, if given, what the module is part `of`.

    >>> import_module("no_such", where="--import")
    Traceback (most recent call last):
    talos.errors.ArgumentError: --import: cannot import the module 'no_such' (ModuleNotFoundError: ...
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the module's own code raises while it is imported
        reason = " ".join(str(error).split())
        raise ArgumentError(
            f"cannot import the module {name!r}{of and f' of {of!r}'} ({type(error).__name__}: {reason})",
            where=where,
            expected="a module on Python's search path, such as one in a folder of PYTHONPATH",
        ) from error


def import_asked(names: Sequence[str], *, where: str) -> None:
    """Import modules whose classes a config from a file may name, in processes that this one starts too."""
    for name in names:
        import_module(name, where=where)
    known = [name for name in os.environ.get("TALOS_IMPORT", "").split(",") if name]
    os.environ["TALOS_IMPORT"] = ",".join([*known, *names])


def _imported(path: str, where: str) -> Any:
    """What `module:Class` names, imported from Python's ordinary search path."""
    module, _, attributes = path.partition(":")
    found: Any = import_module(module, where=where, of=path)
    for name in attributes.split("."):
        if not hasattr(found, name):
            hint = nearest(name, [one for one in vars(found) if not one.startswith("_")])
            raise ArgumentError(f"the module {module!r} has no {attributes!r}", where=where, hint=hint)
        found = getattr(found, name)
    return found


def failure_of_own_class(error: BaseException) -> str | None:
    """Which loss, backbone, … from outside the library raised an error, what and where; None if none did."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        made, package = frame.f_locals.get("self"), str(frame.f_globals.get("__name__")).partition(".")[0]
        kind = kind_of(made)
        if kind is not None and package not in ("talos", "torch"):
            place = f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}"
            name = f"{type(made).__module__}:{type(made).__qualname__}"
            found = f"the {kind} {name} raised {type(error).__name__}: {first_line(error)} ({place})"
    return found


def check_imported(config: RunConfig | NamedConfig, *, where: str | None) -> None:
    """Refuse a config out of a file, such as a run, that names a class whose module nobody has asked for.

    Importing a module runs its code, and a file that somebody else wrote must not choose which. A module counts as
    asked for if it is imported already, or if the environment variable TALOS_IMPORT lists it (`talos --import`, which
    may be given more than once, adds to it).

    Args:
        config: as it was read.
        where: the file, for the message; None for a config of the program itself, which may name any class.

    Raises:
        ConfigError: a class in a module that was neither imported nor asked for.

    >>> check_imported(RunConfig(), where="run/model.json")
    >>> config = RunConfig.from_dict({"loss": {"name": "somebodys_module:Loss"}})
    >>> check_imported(config, where="run/model.json")
    Traceback (most recent call last):
    talos.errors.ConfigError: run/model.json: names the class 'somebodys_module:Loss', and the module ...
    """
    chosen = [config] if isinstance(config, NamedConfig) else [getattr(config, kind) for kind in _KINDS]
    asked = os.environ.get("TALOS_IMPORT", "").split(",")
    for one in chosen:
        name = one.name if isinstance(one, NamedConfig) else str(one)
        module, colon, _ = name.partition(":")
        known = (
            module in sys.modules or module in asked or (one is not None and negatives.is_short_form(name))
        )
        if where is not None and colon and not known:
            raise ConfigError(
                f"names the class {name!r}, and the module {module!r} is not imported",
                where=where,
                expected="classes of this library, or of modules that you import yourself",
                hint=f"if you trust that module: `talos --import {module} …`, or `import {module}` in Python",
            )


def _parameters(cls: type[Any]) -> dict[str, inspect.Parameter]:
    ordinary = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: one for name, one in inspect.signature(cls).parameters.items() if one.kind in ordinary}


def options(kind: Kind, choice: str | type[Any]) -> dict[str, Any]:
    """The options of a choice with their defaults; `inspect.Parameter.empty` for one that must be given."""
    cls = resolve(kind, choice)
    return {name: one.default for name, one in _parameters(cls).items() if name not in cls.context}


def search_space(kind: Literal["loss", "backbone", "baseline"], choice: str | type[Any]) -> dict[str, Any]:
    """What `talos tune` searches by default: option → list of values or range.

    >>> search_space("backbone", "lightgcn")
    {'layers': [1, 2, 3]}
    """
    return dict(resolve(kind, choice).search_space)


def help_of(kind: Kind, choice: str | type[Any]) -> str:
    """The first line of a choice's docstring.

    >>> help_of("backbone", "mf")
    'Matrix factorisation: two free tables of vectors, drawn from N(0, 1).'
    """
    return (resolve(kind, choice).__doc__ or "").strip().partition("\n")[0]


# -------------------------------------------------------------------- objects to configs


def config_of(kind: Kind, choice: Any) -> str | dict[str, Any]:
    """How a config holds a choice: the name of a string or class; name and options of an object.

    Negatives of this library are held as their short form. Of an object, the options that differ from their defaults
    are held; neither what comes from the run (`context`: sizes, K, generators) nor weights: a fit makes a new object.

    Raises:
        ArgumentError: a class that cannot be imported by name, an option that cannot be read back, another kind.

    >>> config_of("loss", losses.Softmax(tau=0.2)), config_of("loss", losses.Softmax)
    ({'name': 'sl', 'tau': 0.2}, 'sl')
    >>> config_of("negatives", negatives.SharedNegatives(64))
    'shared:64'
    """
    if isinstance(choice, str):
        return choice
    cls = resolve(kind, choice if isinstance(choice, type) else type(choice))
    name = _name_of(kind, cls)
    if isinstance(choice, type):
        return name
    if kind == "negatives" and name in names(kind):
        return str(choice)
    return {"name": name, **_read_back(kind, choice, cls)}


def _name_of(kind: Kind, cls: type[Any]) -> str:
    if _known(kind).get(cls.short_name) is cls:
        return str(cls.short_name)
    path = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise ArgumentError(
            f"{cls.__qualname__!r} of {cls.__module__!r} cannot be imported by other processes",
            where=kind,
            expected="a class at the top level of a module of its own, so that a saved run can name it",
        )
    if resolve(kind, path) is not cls:
        expected = "the class that has this name in its module"
        raise ArgumentError(f"{path!r} is another class", where=kind, expected=expected)
    return path


def _read_back(kind: Kind, made: Any, cls: type[Any]) -> dict[str, Any]:
    """The options that make an equal object, without those at their defaults."""
    stated = made.constructor_options() if hasattr(made, "constructor_options") else {}
    changed = {}
    for name, default in options(kind, cls).items():
        value = stated[name] if name in stated else getattr(made, name, inspect.Parameter.empty)
        if value is inspect.Parameter.empty or inspect.ismethod(value):
            raise ArgumentError(
                f"{cls.__qualname__!r} has no attribute with the value of its argument {name!r}",
                where=kind,
                expected=f"`self.{name}`, or a method `constructor_options` that returns it",
            )
        if value is default or (_is_plain(value) and value == default):
            continue
        if name == "name" or not _is_plain(value):
            raise ArgumentError(
                f"the argument {name!r} of {cls.__qualname__!r} is {value!r}",
                where=kind,
                expected="a number, a string, a flag or a list of them, and no argument called 'name': "
                "a config holds nothing else",
            )
        changed[name] = list(value) if isinstance(value, tuple) else value  # JSON and TOML have lists only
    return changed


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float)


def configured(
    config: RunConfig, plain: Mapping[str, Any], choices: Mapping[Kind, Any], options: Mapping[str, Any]
) -> RunConfig:
    """A config with other plain values, choices (names, classes or objects) and options; None leaves a value as it is.

    An object sets all its options, also those at their defaults; a name keeps what the config has for it.
    """
    config = config.with_values({name: value for name, value in plain.items() if value is not None})
    changes: dict[str, Any] = {}
    for kind, choice in choices.items():
        if choice is None:
            continue
        held = config_of(kind, choice)
        changes[kind if kind == "negatives" or isinstance(held, dict) else f"{kind}.name"] = held
        k = getattr(choice, "k", None)
        if isinstance(held, dict) and "k" in choice.context and k not in (None, config.k):
            raise ArgumentError(f"was made with k={k}", where=kind, expected=f"k={config.k}, that of the run")
    config = config.with_values(changes)
    return config.with_values({place_of(name, config): value for name, value in options.items()})


# What other libraries call some options.
_ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "step_size"), "lr"),
    **dict.fromkeys(("embedding_dim", "embedding_size", "factors", "n_factors", "rank"), "dim"),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "iterations"), "epochs"),
    **dict.fromkeys(("l2", "reg", "reg_weight", "regularization"), "weight_decay"),
    "temperature": "tau",
    "train_batch_size": "batch_size",
}


def place_of(name: str, config: RunConfig) -> str:
    """Where in a config an option given by its bare name belongs; an error that suggests a name if nothing has it.

    The first that has the option among the optimiser, the training, the events, the chosen backbone and the loss, or
    the baseline if there is one. Dotted names are places already.

    >>> [place_of(name, RunConfig()) for name in ("epochs", "half_life", "tau", "threshold.lr")]
    ['training.epochs', 'events.half_life', 'loss.tau', 'threshold.lr']
    >>> place_of("learning_rate", RunConfig())
    Traceback (most recent call last):
    talos.errors.ConfigError: learning_rate: no such option (did you mean 'lr'?)
    """
    if "." in name:
        if name.split(".")[0] not in RunConfig.model_fields:
            raise ConfigError("no such section", where=name, expected="one of the config's sections")
        return name
    if config.baseline is not None:
        sections = {"training": ["metric"], "baseline": options("baseline", config.baseline.name)}
    else:
        held = {"optimizer": config.optimizer, "training": config.training, "events": config.events}
        sections = {section: list(type(one).model_fields) for section, one in held.items()}
        sections["backbone"] = options("backbone", config.backbone.name)
        sections["loss"] = options("loss", config.loss.name)
    for section, held_there in sections.items():
        if name in held_there:
            return f"{section}.{name}"
    known = [one for held_there in sections.values() for one in held_there]
    other = _ELSEWHERE.get(name)
    hint = f"did you mean {other!r}?" if other in known else nearest(name, known)
    raise ConfigError("no such option", where=name, hint=hint)


# --------------------------------------------------------------------------- making


def make_loss(
    choice: str | type[Any] | NamedConfig,
    *,
    k: int | None = None,
    num_users: int | None = None,
    num_items: int | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> losses.Loss:
    """Make a loss; `k`, the sizes and the generator go to those that take them.

    >>> make_loss("rs@k", k=20)
    RecallSurrogate(k=20, tau1=0.1, tau2=1.0, user_power=1.0)
    >>> make_loss("sl", tua=0.2)
    Traceback (most recent call last):
    talos.errors.ArgumentError: tua: the loss 'sl' has no such option (did you mean 'tau'?)
    """
    run = {"k": k, "num_users": num_users, "num_items": num_items, "generator": generator}
    given = {name: value for name, value in run.items() if value is not None}
    return cast(losses.Loss, _make("loss", choice, given, options))


def make_threshold(
    choice: str | type[Any] | NamedConfig,
    *,
    num_users: int,
    k: int,
    num_items: int,
    num_positives: Tensor | None = None,
    **options: Any,
) -> thresholds.Threshold:
    """Make an estimator of thresholds.

    >>> make_threshold("regression", num_users=3, k=2, num_items=10, lr=0.01)
    QuantileRegression(3, k=2, num_items=10)
    """
    run = {"num_users": num_users, "k": k, "num_items": num_items, "num_positives": num_positives}
    return cast(thresholds.Threshold, _make("threshold", choice, run, options))


def make_backbone(
    choice: str | type[Any] | NamedConfig,
    train: Interactions | Share,
    *,
    generator: torch.Generator | None,
    users: range | None = None,
    items: range | None = None,
    **options: Any,
) -> backbones.Backbone:
    """Make a backbone for the users, items and (if its constructor takes a graph) edges of `train`.

    `generator` draws the starting values. `users` and `items` are the rows that this process holds of a divisible
    backbone's tables; all if None.

    >>> train = Interactions.from_ids([1, 2], [7, 8])
    >>> make_backbone("mf", train, dim=2, generator=None)
    MF(num_users=2, num_items=2, dim=2)
    """
    name, cls, _ = _chosen("backbone", choice)
    run: dict[str, Any] = {"num_users": train.num_users, "num_items": train.num_items}
    run |= {"generator": generator, "users": users, "items": items}
    if "graph" in _parameters(cls):
        if not isinstance(train, Interactions):
            what, expected = f"the backbone {name!r} without all interactions", "'mf', or all of them"
            raise ArgumentError(what, where="train", expected=expected)
        run["graph"] = backbones.BipartiteGraph.from_interactions(train)
    return cast(backbones.Backbone, _make("backbone", choice, run, options))


def make_negatives(choice: str | int | NamedConfig) -> negatives.Negatives:
    """Make a source of negatives from its short form, `module:Class` or the section of a config.

    >>> make_negatives("shared:64")
    SharedNegatives(n=64, users=64)
    """
    if not isinstance(choice, NamedConfig):
        if negatives.is_short_form(str(choice)):
            return negatives.parse(choice)
        choice = str(choice)
    return cast(negatives.Negatives, _make("negatives", choice, {}, {}))


def make_baseline(choice: str | type[Any] | NamedConfig, **options: Any) -> baselines.Baseline:
    """Make a baseline.

    >>> make_baseline("itemknn", neighbours=50)
    ItemKNN(neighbours=50, shrinkage=20.0, max_pairs=4000000000.0)
    """
    return cast(baselines.Baseline, _make("baseline", choice, {}, options))


def check(config: RunConfig) -> None:
    """Refuse what can be known to be wrong with a config before any data are read: names, options, types and ranges.

    Each of the four choices is made once, for two users and two items; or the baseline, if there is one.

    Raises:
        ArgumentError, ConfigError: about the first mistake, by the name of its key or option.

    >>> from talos.config import RunConfig
    >>> check(RunConfig())
    >>> check(RunConfig().with_values({"backbone.dim": True}))
    Traceback (most recent call last):
    talos.errors.ArgumentError: dim: True; expected a valid integer
    """
    check_device(config.device)
    if config.baseline is None and config.negatives != "auto":
        make_negatives(config.negatives)
    toy = Interactions.from_ids([1, 1, 2], [1, 2, 2])
    generator = torch.Generator()
    makers: dict[Kind, Callable[..., object]] = {
        # the size of the tables is a matter of memory, and not of what a config may say
        "backbone": lambda chosen: make_backbone(_of_dim_2(chosen), toy, generator=generator),
        "loss": lambda chosen: make_loss(chosen, k=config.k, num_users=2, num_items=2, generator=generator),
        "threshold": lambda chosen: make_threshold(
            chosen, num_users=2, k=1, num_items=2, num_positives=torch.tensor([2, 1])
        ),
    }
    if config.baseline is not None:
        makers = {"baseline": make_baseline}
    for kind, make in makers.items():
        chosen: NamedConfig = getattr(config, kind)
        if kind == "threshold" and chosen.name in ("auto", "none"):
            continue
        name, cls, given = _chosen(kind, chosen)
        _check_options(kind, name, cls, given)
        if name not in _known(kind) and kind != "baseline":
            continue  # a class of the user's own may need more than two users
        try:
            make(chosen)
        except TalosError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"cannot be made ({first_line(error)})", where=f"{kind} {name!r}") from error


def _of_dim_2(chosen: NamedConfig) -> NamedConfig:
    dim = chosen.options.get("dim")
    if isinstance(dim, int) and dim > 2:
        return NamedConfig(name=chosen.name, **{**chosen.options, "dim": 2})
    return chosen


def check_device(name: str) -> torch.device:
    """The device of that name, if a model can be trained on it.

    >>> check_device("meta")
    Traceback (most recent call last):
    talos.errors.ConfigError: device: 'meta' cannot be used (it holds no numbers); expected cpu, cuda:0, …
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        reason = "it holds no numbers" if name.startswith("meta") else first_line(error)
        raise ConfigError(
            f"{name!r} cannot be used ({reason})", where="device", expected="cpu, cuda:0, …"
        ) from None
    return device


def _check_options(kind: Kind, name: str, cls: type[Any], given: Mapping[str, Any]) -> None:
    """Refuse unknown options, and those whose value is not of the plain type that the constructor's annotation says."""
    accepted = options(kind, cls)
    for option in given:
        if option not in accepted:
            raise ArgumentError(
                f"the {kind} {name!r} has no such option", where=option, hint=nearest(option, accepted)
            )
    try:
        hints = typing.get_type_hints(cls.__init__)
    except Exception:  # annotations of a user's own class may name what exists for type checkers alone
        return
    for option in given.keys() & hints.keys():
        hint = hints[option]
        allowed = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
        if {*allowed} <= {int, float, bool, str, type(None)}:
            of_type(option, given[option], hint)


def _chosen(kind: Kind, choice: str | type[Any] | NamedConfig) -> tuple[str, type[Any], dict[str, Any]]:
    """Name for errors, class and options of a choice."""
    if isinstance(choice, NamedConfig):
        return choice.name, resolve(kind, choice.name), choice.options
    return choice if isinstance(choice, str) else choice.__qualname__, resolve(kind, choice), {}


def _make(
    kind: Kind, choice: str | type[Any] | NamedConfig, run: Mapping[str, Any], more: Mapping[str, Any]
) -> Any:
    """Make an object from the options of a choice and what its constructor takes of `run`."""
    name, cls, given = _chosen(kind, choice)
    given |= more
    _check_options(kind, name, cls, given)
    parameters = _parameters(cls)
    given |= {argument: value for argument, value in run.items() if argument in parameters}
    for argument, one in parameters.items():
        if one.default is one.empty and argument not in given:
            raise ArgumentError("is missing", where=argument, expected=f"a value, for the {kind} {name!r}")
    return cls(**given)
