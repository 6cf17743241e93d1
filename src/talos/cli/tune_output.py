"""The results of `talos tune`: printed, and written as an HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from talos.cli.output import print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from talos.studies.tune import FinalResult, Tuned, TuneSettings

__all__ = ["print_final", "print_tuned", "shown", "write_report"]


def write_report(tuned: Tuned, settings: TuneSettings, out: Path, final: FinalResult | None = None) -> Path:
    """Write the page of a study into its folder; returns its place."""
    from talos.cli.report import write_page
    from talos.report import tuning_report

    summary = tuned.summary
    text = tuning_report(
        [vars(row) for row in summary.rows],
        metric=summary.metric,
        best=summary.best.number,
        importance=summary.importance,
        settings=_flat(settings.as_dict()),
        config=summary.config.to_toml(),
        peak_mb=summary.peak_mb,
        test=None if final is None else final.facts["metrics"],
        title=f"Tuning {out.resolve().name}",
    )
    return write_page(text, out / "report.html")


def print_tuned(
    tuned: Tuned, settings: TuneSettings, out: Path, page: Path, workers: int, json: bool
) -> None:
    """Print the best trial, the cost of the search and the next command."""
    summary = tuned.summary
    best, first = summary.best, summary.rows[0]
    dashboard = _dashboard(out)
    if json:
        print_json(
            {
                "out": str(out),
                "report": str(page),
                "metric": summary.metric,
                "best": vars(replace(best, curve=())),
                "trials": summary.counts,
                "open": summary.open,
                "importance": summary.importance,
                "peak_mb": summary.peak_mb,
                "config": summary.config.as_dict(),
                "dashboard": dashboard,
            }
        )
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in summary.counts.items() if count)
    facts = [(f"validation {summary.metric}", f"{best.value:.5f} (trial {best.number}, epoch {best.epoch})")]
    if first.number == 0 and first.value is not None and _is_default(first.parameters, settings):
        facts.append(("with the defaults", f"{first.value:.5f} (trial 0)"))
    facts += [(key, shown(value)) for key, value in best.parameters.items()]
    if summary.importance:
        ranked = sorted(summary.importance.items(), key=lambda pair: -pair[1])
        facts.append(("importance", ", ".join(f"{key} {share:.0%}" for key, share in ranked)))
    facts.append(("trials", counts + (f"; {summary.open:,} not finished" if summary.open else "")))
    facts.append(("memory", f"{summary.peak_mb:,.0f} MB a worker at most ({workers} at once)"))
    print_facts(facts, title="the best trial")
    typer.echo(f"\nwritten to {out}: run.toml, trials.csv, report.html")
    say(f"all trials in a browser: {dashboard}")
    say(
        f"next: talos tune --out {shlex.quote(str(out))} --finalize   (measures the best config on test, once)"
    )


def print_final(final: FinalResult, out: Path) -> None:
    """Print the metrics of the winner, the best trial's config, on the test part beside those of popularity."""
    facts = final.facts
    metrics, popular = facts["metrics"], facts["baseline"]["popularity"]
    names = [name for name in metrics if name.endswith(f"@{facts['config']['k']}")]
    rows = [[name, f"{metrics[name]:.4f}", f"{popular[name]:.4f}"] for name in names if name in popular]
    print_table(["test", "winner", "popularity"], rows)
    watched, value = next(iter(facts["validation"].items()))
    typer.echo(
        f"\ntrial {facts['trial']} of {facts['trials']} (validation {watched} {value:.5f}), fitted on train and "
        f"validation for {facts['epochs']} epochs; written to {out / 'final'}"
    )
    if not final.fresh:
        say(f"this is the stored result of {facts['date']}: the test part is opened only once")


def _is_default(parameters: Mapping[str, Any], settings: TuneSettings) -> bool:
    from talos.studies.tune import default_point

    return default_point(settings.space, settings.config) == dict(parameters)


def _dashboard(out: Path) -> str:
    from talos.studies.tune import read_folder

    return f"optuna-dashboard {shlex.quote(str(read_folder(out)[1]['storage']))}"


def shown(value: Any) -> str:
    """A parameter's value in at most four digits.

    >>> shown(0.123456), shown("auto")
    ('0.1235', 'auto')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        ranged = isinstance(value, Mapping) and "low" in value
        if isinstance(value, Mapping) and not ranged:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = (
                " ".join(f"{name} {number}" for name, number in value.items()) if ranged else str(value)
            )
    return found
