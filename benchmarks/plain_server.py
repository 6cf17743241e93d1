"""What one writes in an afternoon: the lists of a run from a FastAPI handler that ranks with numpy, one user at a time.

Started as a process by `serving.py`: `plain_server.py FOLDER`, where FOLDER has `users.npy`, `items.npy`, `indptr.npy`,
`indices.npy`. Ids are positions. Prints its address.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Wanted(BaseModel):
    """Lists of some users."""

    users: list[int]
    k: int = 20


def application(folder: Path) -> FastAPI:
    """The handlers."""
    users, items, indptr, indices = (
        np.load(folder / f"{name}.npy") for name in ("users", "items", "indptr", "indices")
    )
    app = FastAPI()

    def best(user: int, k: int) -> dict[str, Any]:
        scores = items @ users[user]
        scores[indices[indptr[user] : indptr[user + 1]]] = -np.inf
        places = np.argpartition(-scores, k)[:k]
        places = places[np.argsort(-scores[places], kind="stable")]
        found = [{"item": int(place), "score": float(scores[place])} for place in places]
        return {"user": user, "items": found}

    @app.get("/v1/recommend/{user}")
    def one(user: int, k: int = 20) -> dict[str, Any]:
        return {"results": [best(user, k)]}

    @app.post("/v1/recommend")
    def several(wanted: Wanted) -> dict[str, Any]:
        return {"results": [best(user, wanted.k) for user in wanted.users]}

    return app


def main() -> None:
    """Serve on a free port until a signal ends it."""
    listening = socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # so that answers leave at once
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    config = uvicorn.Config(application(Path(sys.argv[1])), log_level="warning", access_log=False)
    print(f"serving at http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
