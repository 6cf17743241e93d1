"""Flags that several commands share: each is one field of a dataclass, with one type, default and line of help.

A command takes the dataclass as a parameter, and `with_options` turns that parameter into the flags:

    @with_options
    def describe(path: PathArgument, *, source: SourceOptions, json: Json = False) -> None: ...

`Annotated[SourceOptions, "columns", "raw"]` makes flags of some fields only; a section stands for all its fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from talos.data.options import SourceOptions, read_source
from talos.errors import ConfigError, nearest

if TYPE_CHECKING:
    from talos.config import RunConfig

__all__ = [
    "Command",
    "DataOption",
    "Json",
    "PathArgument",
    "RunArgument",
    "StudyOptions",
    "TestArgument",
    "TrainingOptions",
    "UnsplitOptions",
    "missing",
    "parse_budget",
    "with_bare_flags",
    "with_options",
]

PathArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="PATH", help="A file, a folder, a dataset's name or a database URL.")
]
TestArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[PATH]",
        help="A test set, read like the run's own data unless options differ; the run's test part if not given.",
    ),
]
DataOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Where the training data is now: check it against the run and measure its test part.",
    ),
]
RunArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

UnsplitOptions: TypeAlias = Annotated[
    SourceOptions, "columns", "format", "query", "ids", "on_bad_row", "clean"
]
"""How a PATH is read and cleaned where it is not split."""

# Flags that may stand without a value → the values they take; the first is meant where there is none.
_BARE = {"--refit": ("train+valid", "all")}

# What to do where an argument is missing, by the name that the help gives it: commands, and what each does.
_BEGINNINGS = {
    "PATH": (
        ("talos demo", "MovieLens-100K end to end, nothing to prepare"),
        ("talos init clicks.csv", "looks at a file of yours, writes run.toml, prints the next command"),
        ("talos train clicks.csv -o runs/clicks", "trains on it at once, with the defaults"),
        ("talos data list", "data sets by name, for `talos train NAME -o RUN`"),
    ),
    "RUN": (
        ("talos demo", "trains one on MovieLens-100K: runs/demo"),
        ("talos train clicks.csv -o runs/clicks", "trains one on a file of yours: runs/clicks"),
    ),
}


class Command(TyperCommand):
    """A Typer command with optional-value flags, one form of message for what is missing, and first steps in it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a line after giving each bare flag its value; `ctx` is kept for messages about what fails later."""
        if ctx.obj is not None:
            ctx.obj["context"] = ctx
        try:
            return super().parse_args(ctx, with_bare_flags(args))
        except typer.BadParameter as error:
            parameter: Any = getattr(error, "param", None)
            if type(error).__name__ != "MissingParameter" or parameter is None:
                raise
            argument = parameter.param_type_name == "argument"
            name = parameter.metavar or parameter.name.upper() if argument else parameter.opts[0]
            raise missing(name.strip("[]…"), parameter.help or "a value") from None


def missing(name: str, help: str) -> ConfigError:  # noqa: A002
    """The error for an argument or flag that is not given, with what it is and, for a PATH or RUN, the first steps.

    >>> raise missing("--out", "The run directory to write.")
    Traceback (most recent call last):
    talos.errors.ConfigError: --out: is missing; expected the run directory to write
    """
    expected = f"{help[:1].lower()}{help[1:]}".rstrip(".")
    return ConfigError("is missing", where=name, expected=expected, commands=_BEGINNINGS.get(name, ()))


def with_bare_flags(arguments: Sequence[str]) -> list[str]:
    """A line on which every flag that may stand alone has a value; what follows it is its value if it can be.

    Raises:
        ConfigError: a value that is mistyped; upper case counts as lower case.

    >>> with_bare_flags(["--refit", "clicks.csv", "--out", "run"])
    ['--refit=train+valid', 'clicks.csv', '--out', 'run']
    >>> with_bare_flags(["clicks.csv", "--refit", "ALL"])
    ['clicks.csv', '--refit=all']
    >>> with_bare_flags(["clicks.csv", "--refit", "al"])
    Traceback (most recent call last):
    talos.errors.ConfigError: --refit: 'al'; expected train+valid or all
    """
    line: list[str] = []
    for one in arguments:
        values = _BARE.get(line[-1], ()) if line else ()
        mistyped = nearest(one, values).startswith("did you mean") and not Path(one).exists()
        if one.lower() in values or mistyped:
            line[-1] += f"={one}"
        else:
            line.append(one)
    for place, one in enumerate(line):
        flag, _, value = one.partition("=")
        if flag in _BARE:
            line[place] = f"{flag}={(value or _BARE[flag][0]).lower()}"
            if value and value.lower() not in _BARE[flag]:
                raise ConfigError(repr(value), where=flag, expected=" or ".join(_BARE[flag]))
    return line


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass by one flag for each of its fields.

    >>> @with_options
    ... def describe(path: str, *, source: Annotated[SourceOptions, "user"]) -> None:
    ...     print(path, source.columns.user)
    >>> describe(path="clicks.csv", user="who")
    clicks.csv who
    >>> list(inspect.signature(describe).parameters)
    ['path', 'user']
    """
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    hints = _types(command)
    for name, parameter in inspect.signature(command).parameters.items():
        annotated = get_origin(hints[name]) is Annotated
        kind, *chosen = get_args(hints[name]) if annotated else (hints[name],)
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        flags = [flag for home, flag in _flags(kind) if not chosen or {home, flag.name} & {*chosen}]
        groups[name] = kind, [flag.name for flag in flags]
        parameters += flags

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, (kind, flags) in groups.items():
            given = {flag: values.pop(flag) for flag in flags if flag in values}
            values[name] = getattr(kind, "of", kind)(**given)
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@functools.cache  # they are evaluated from text, which takes a while
def _types(of: Any) -> dict[str, Any]:
    return get_type_hints(of, include_extras=True)


def _flags(kind: Any, section: str = "") -> Iterator[tuple[str, inspect.Parameter]]:
    """A flag for each field of a dataclass and of the dataclasses in it, with its section or, without one, its name."""
    types = _types(kind)
    for one in dataclasses.fields(kind):
        if dataclasses.is_dataclass(types[one.name]):
            yield from _flags(types[one.name], one.name)
            continue
        flag, described = one.metadata.get("flag"), one.metadata.get("help")
        # hidden without help, so that a run.toml may still set it
        made = typer.Option(flag or f"--{one.name.replace('_', '-')}", help=described, hidden=not described)
        option = one.metadata.get("option", made)
        how: dict[str, Any] = {"default": one.default, "annotation": Annotated[types[one.name], option]}
        yield section or one.name, inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, **how)


# ------------------------------------------------------------------------------------------------ training


_NUMBER_OR_AUTO = "NUMBER|auto"  # the metavar of flags whose text is parsed like that of --set


def _option(key: str | None, help: str, *flags: str, **more: Any) -> Any:  # noqa: A002
    """A field that sets `key` of the config where it is given; the flag is the field's name if none is named."""
    return field(default=None, metadata={"key": key, "option": typer.Option(*flags, help=help, **more)})


def _take_defaults(ctx: typer.Context, config: Path | None) -> Path | None:
    """Let the section `[data]` of a config give PATH and the options that the line does not."""
    if config is not None:
        ctx.params["config"] = config  # for the message if it cannot be read
        path, options = read_source(config)
        place = {} if path is None else {"path": path, "paths": [path]}
        ctx.default_map = {**place, **options.given()}
    return config


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What is trained, and how: a config file or the defaults, and what is changed in it."""

    config: Path | None = _option(  # noqa: RUF009  # a field, not a shared default
        None,
        "A run.toml to start from, as `talos init` writes it; it may name PATH too.",
        *("--config", "-c"),
        callback=_take_defaults,
        is_eager=True,
    )
    k: int | None = _option("k", "List length to optimise for.", "--k", "-k")
    loss: str | None = _option("loss.name", "Short name, such as talos or sl, or module:Class.")
    backbone: str | None = _option("backbone.name", "Short name, such as mf, or module:Class.")
    baseline: str | None = _option(
        "baseline.name",
        "Instead of loss and backbone: popularity, itemknn, ease, rp3beta, als, or module:Class.",
    )
    tau: str | None = _option("loss.tau", "Temperature of the loss.", metavar=_NUMBER_OR_AUTO)
    effort: str | None = _option(
        "training.effort", "What is tried for settings not given: quick (a formula), normal (a race), high."
    )
    negatives: str | None = _option("negatives", "all, shared:N, N per positive, or auto.")
    threshold: str | None = _option(
        "threshold.name", "Short name, such as exact, or module:Class; none or auto."
    )
    dim: int | None = _option("backbone.dim", "Length of the vectors.")
    lr: str | None = _option("optimizer.lr", "Learning rate.", metavar=_NUMBER_OR_AUTO)
    weight_decay: float | None = _option(
        "optimizer.weight_decay", "L2 penalty on all parameters, added to the gradient."
    )
    epochs: int | None = _option("training.epochs", "Largest number of epochs.")
    init: str | None = _option("training.init", "How vectors are initialised: als, svd, random, or auto.")
    batch_size: str | None = _option(
        "training.batch_size", "Users or positives in a mini-batch.", metavar=_NUMBER_OR_AUTO
    )
    patience: int | None = _option(
        "training.patience", "Early stopping: epochs without a better validation metric."
    )
    half_life: str | None = _option(
        "events.half_life", "Age after which an interaction counts half, such as 30d; needs timestamps."
    )
    weights: str | None = _option(
        "events.weights",
        "How much an interaction counts: equal, rating (in proportion to it) or repeats (1 + log of their number).",
    )
    seed: int | None = _option("seed", "Seed of everything random in training.")
    device: str | None = _option("device", "Any device of torch, such as cpu or cuda:0.")
    parallel: str | None = _option(
        "training.parallel", "What the processes of torchrun divide: users, items (and users), or auto."
    )
    assignments: list[str] | None = _option(  # noqa: RUF009
        None, "Any key of the config, such as loss.tau=0.1; may be repeated.", "--set", metavar="KEY=VALUE"
    )

    def run_config(self) -> RunConfig:
        """The config of the file or the defaults, changed by the options that were given, then by `--set`.

        >>> TrainingOptions(k=10, assignments=["loss.tau=0.2"]).run_config().loss.options
        {'tau': 0.2}
        """
        from talos.config import RunConfig, parse_assignment, parse_value
        from talos.registry import check

        config = RunConfig() if self.config is None else RunConfig.from_toml(self.config)
        changes: dict[str, Any] = {}
        for one in dataclasses.fields(self):
            key, value = one.metadata["key"], getattr(self, one.name)
            if key is not None and value is not None:
                text = one.metadata["option"].metavar == _NUMBER_OR_AUTO
                changes[key] = parse_value(value) if text else value
        changes |= dict(map(parse_assignment, self.assignments or []))
        config = config.with_values(changes)
        check(config)  # before any data are read
        return config


@dataclass(frozen=True, kw_only=True)
class StudyOptions(TrainingOptions):
    """What the trials of a study train, and the metric that they are compared by."""

    metric: str | None = _option(
        "training.metric", "Validation metric at K: precision, recall, ndcg, mrr, hit_rate, map."
    )


# -------------------------------------------------------------------------------------------------- values

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> float:
    """Seconds in `90s`, `10m`, `1.5h` or a plain number of seconds.

    >>> parse_budget("10m")
    600.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds > 0:
        raise ConfigError(f"{text!r}", where="--budget", expected="a time such as 90s, 10m or 1h")
    return seconds
