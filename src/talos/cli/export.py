"""`talos export`: write a run in formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from talos.cli.options import Json, RunArgument
from talos.cli.output import print_facts, print_json

__all__ = ["export"]


def export(
    run: RunArgument,
    format: Annotated[  # noqa: A002
        str, typer.Option("--format", help="parquet or npz (vectors), faiss or onnx.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write; for npz, the file.")],
    index: Annotated[str | None, typer.Option(help="For faiss: flat (if not given), hnsw or ivf.")] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k", "-k", help="List length, for onnx and for the check of faiss; the run's K if not given."
        ),
    ] = None,
    own_ids: Annotated[
        bool,
        typer.Option("--own-ids", help="For onnx: the graph takes and returns ids instead of positions."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    json: Json = False,
) -> None:
    """Write the vectors, a Faiss index or an ONNX graph of a trained model."""
    options: dict[str, Any] = {"index": index, "k": k, "own_ids": own_ids or None}
    options = {name: value for name, value in options.items() if value is not None}
    from talos import exports
    from talos.model.recommender import Recommender

    done = exports.export(Recommender.load(run), format, out, overwrite=overwrite, **options)
    if json:
        print_json(done)
        return
    facts = [(name.replace("_", " "), _text(value)) for name, value in done.items() if name != "out"]
    print_facts(facts, title=f"written to {done['out']}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else str(value)
    )
