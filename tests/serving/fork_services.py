"""Starts services, each forked from a process that has imported everything: a start takes milliseconds.

Settings are JSON lines on standard input: `{"settings": …, "log": path of its standard error}`; each is answered by
`{"pid": …, "url": …}` once the service can answer. Nothing is computed before a fork: the thread pools of polars and
torch do not survive one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

import torch

from talos.serving.server import serve
from talos.serving.settings import Settings


def serve_in_child(job: dict[str, Any]) -> None:
    """Be a service until a signal ends it; an empty line says that it could not start."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    answers = [os.dup(1)]
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)

    def started(url: str) -> None:
        answer = answers.pop()
        os.write(answer, json.dumps({"pid": os.getpid(), "url": url}).encode() + b"\n")
        os.close(answer)

    try:
        serve(Settings(**job["settings"]), started)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        if answers:
            os.write(answers[0], b"\n")
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Start services until the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that those who end leave nothing
    for line in sys.stdin:
        if os.fork() == 0:
            os.close(0)
            serve_in_child(json.loads(line))


if __name__ == "__main__":
    main()
