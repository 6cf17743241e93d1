"""`talos serve`: lists of trained runs over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talos.cli.output import say
from talos.errors import MissingExtraError

__all__ = ["serve"]


def serve(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run directories; the first is the default model.")
    ],
    host: Annotated[
        str, typer.Option(help="The address; listening beyond loopback requires API keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for a free one.")] = 8080,
    feedback: Annotated[
        Path | None,
        typer.Option("--feedback", metavar="LOG", help="SQLite file for new events; created if absent."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Reload a run when it is saved anew.")] = False,
    read_key_file: Annotated[
        Path | None, typer.Option("--read-key-file", help="API key file for read requests.")
    ] = None,
    admin_key_file: Annotated[
        Path | None,
        typer.Option("--admin-key-file", help="API key file for feedback and reloading."),
    ] = None,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Listen on any address without keys.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="One JSON line on stderr for each request.")
    ] = False,
    max_k: Annotated[int, typer.Option("--max-k", help="Largest list length.")] = 1000,
    max_users: Annotated[int, typer.Option("--max-users", help="Most users of one call.")] = 1000,
    max_body: Annotated[int, typer.Option("--max-body", help="Largest body of a request, in bytes.")] = 1
    << 20,
    max_concurrency: Annotated[
        int, typer.Option("--max-concurrency", help="Requests at a time in a worker; others get 503 at once.")
    ] = 64,
    deadline: Annotated[float, typer.Option(help="Seconds until a request is given up.")] = 10.0,
) -> None:
    """Serve recommendations over HTTP."""
    try:
        from talos.serving.server import serve as run_service
        from talos.serving.settings import Settings
    except ImportError as error:
        if (error.name or "").startswith("talos"):
            raise
        raise MissingExtraError("talos serve", extra="serve") from None
    settings = Settings(
        runs=tuple(map(str, runs)),
        host=host,
        port=port,
        feedback=None if feedback is None else str(feedback),
        watch=watch,
        read_key_file=None if read_key_file is None else str(read_key_file),
        admin_key_file=None if admin_key_file is None else str(admin_key_file),
        without_keys=without_keys,
        workers=workers,
        access_log=access_log,
        max_k=max_k,
        max_users=max_users,
        max_body=max_body,
        max_concurrency=max_concurrency,
        deadline=deadline,
    )
    run_service(settings, lambda address: say(f"serving {', '.join(settings.runs)} at {address}"))
