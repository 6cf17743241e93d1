"""One rank of a test: runs the command lines that a JSON file lists, and leaves what each printed or raised."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

from talos import distributed
from talos.cli import app
from talos.errors import TalosError

if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    group = distributed.start()
    leave, distributed.stop = distributed.stop, lambda: None  # one group for all commands
    found = []
    for arguments in plan["commands"]:
        printed = io.StringIO()
        error = None
        try:
            with contextlib.redirect_stdout(printed):
                app(arguments, standalone_mode=False)
        except TalosError as problem:
            error = [problem.exit_code, str(problem)]
        found.append({"out": printed.getvalue(), "error": error})
    Path(plan["out"], f"rank{group.rank}.json").write_text(json.dumps(found))
    leave()
