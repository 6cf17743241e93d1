"""`talos init`: look at the data, write a commented run.toml, print the command to run next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from talos.cli.options import Json, PathArgument, with_options
from talos.cli.output import print_facts, print_json, say
from talos.data.databases import without_password
from talos.data.options import SourceOptions
from talos.errors import ConfigError
from talos.progress import reading

if TYPE_CHECKING:
    from talos.config import NamedConfig, RunConfig

__all__ = ["init"]

_COMMENTS = {
    "k": "the list length to optimise for: what your users see",
    "seed": "the same seed gives the same model on the same machine",
    "device": "anything torch knows: cpu, cuda:0, mps",
    "negatives": "all items; shared:N, N drawn for a batch; N, drawn for each positive; or auto",
    "dim": "length of the vectors",
    "tau": "temperature: auto tries several on the validation set; a number from 0.05 to 0.3 fixes it",
    "effort": "what is tried for settings not given: quick (a formula), normal (a race), high (all, and longer)",
    "averaging": "weight of the newest epoch in the averaged weights; 1 keeps weights as they are",
    "weights": "how much an interaction counts: equal, rating, or repeats",
    "lr": "auto: 0.1 for cosine scores, 0.001 for dot products",
    "lr_decay": "the rate is multiplied by this after each epoch; or auto",
    "init": "where vectors start: random, als or svd (a quick factorisation first), or auto",
    "rows": "touched: update only the rows a step used (large tables); all: plain Adam; or auto",
    "epochs": "largest number; early stopping may end training before",
    "batch_size": "users, or positives if negatives are drawn for each; or auto",
    "reduction": "the loss is a mean over positives, or over users",
    "evaluate_every": "epochs between evaluations on the validation set",
    "patience": "early stopping: epochs without a better validation metric",
    "min_gain": "early stopping: the share by which a better one must be higher; .001 saves epochs that gain little",
    "metric": "validation metric for early stopping, at K",
}
# Not a key of the config: a refitted run has the config of a run on the joined data.
_REFIT = (
    "Training learns from train, and validation decides when it stops. With --refit it then fits once more, with",
    "the settings and the number of epochs that were chosen, on train and validation; with --refit all on the test",
    "part too, for deployment: that model has no test figure, and the run shows those of the one it was chosen from.",
)


@with_options
def init(
    path: PathArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("run.toml"),
    *,
    source: SourceOptions,
    json: Json = False,
) -> None:
    """Look at the data, write a commented run.toml, and print the command to run next."""
    from talos.config import RunConfig
    from talos.data.open import open_split
    from talos.files import replace_text
    from talos.studies.race import plan_of_run

    if out.exists():
        raise ConfigError("exists", where=f"--out {out}", expected="a new file")
    with reading() as progress:
        parts = open_split(path, source, notify=say, progress=progress)
    k = min(20, parts.train.num_items)
    config = RunConfig.from_dict(
        {"k": k, "backbone": {"name": "mf", "dim": 64}, "loss": {"name": "talos", "tau": "auto"}}
    )
    plan = plan_of_run(config, parts.train, parts.valid)
    notes = (*plan.notes, *([plan.raced] if plan.raced else []))
    remarks = ["What to train on. PATH and flags on the command line win over this section."]
    remarks += filter(None, [parts.train.provenance.guesses])
    data = [*(f"# {remark}" for remark in remarks), source.to_toml(path)]
    replace_text(out, "\n".join([commented(config, notes), *data]))
    run = Path(path).stem if "://" not in path else "database"
    place = without_password(path)  # PGPASSWORD or ~/.pgpass has the password
    command = f"talos train --config {shlex.quote(str(out))} --out {shlex.quote(f'runs/{run}')}"
    if json:
        print_json({"config": str(out), "next": command, "notes": list(notes), "data": parts.how})
        return
    rows = [(name, f"{len(part):,} interactions") for name, part in parts.parts.items()]
    print_facts([*rows, *(("auto means", note) for note in notes)], title=place)
    typer.echo(f"\nwrote {out}; now run\n\n    {command}\n")
    if parts.valid is not None:
        typer.echo("\n".join(_REFIT))


def commented(config: RunConfig, notes: tuple[str, ...]) -> str:
    """A run.toml with comments on the keys that people change."""
    from talos import registry

    comments = dict(_COMMENTS)
    kinds: tuple[tuple[registry.Kind, NamedConfig, str], ...] = (
        ("backbone", config.backbone, ""),
        ("loss", config.loss, ""),
        ("threshold", config.threshold, ", none, or auto"),
    )
    for kind, chosen, more in kinds:
        comments[f"[{kind}]"] = f"{', '.join(registry.names(kind))}, or module:Class{more}"
        if chosen.name not in ("auto", "none"):
            comments[f'name = "{chosen.name}"'] = registry.help_of(kind, chosen.name)
    lines = ["# A run of Talos: `talos train -c run.toml -o RUN` is the whole command."]
    lines += [f"# {line}" for line in ("A key that you delete falls back to its default.", *_REFIT)] + [""]
    lines += [f"# auto means here: {note}" for note in notes] + [""]
    for line in config.to_toml().splitlines():
        comment = comments.get(line, comments.get(line.split(" = ")[0]))
        lines.append(line if comment is None else f"{line:<28}  # {comment}")
    return "\n".join(lines) + "\n"
