"""The same lists from NVIDIA's Triton, on the CPU: a numpy function behind its HTTP server and its dynamic batcher.

Started as a process by `serving.py` with the interpreter of an environment that has `nvidia-pytriton`, which brings the
server and needs another numpy than this project: `triton_server.py FOLDER`. Prints its address.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

_K = 20


def main() -> None:
    """Serve on a free port until a signal ends it."""
    folder = Path(sys.argv[1])
    users, items, indptr, indices = (
        np.load(folder / f"{name}.npy") for name in ("users", "items", "indptr", "indices")
    )

    def lists(user: Any) -> dict[str, Any]:
        codes = user[:, 0]
        scores = users[codes] @ items.T
        for row, code in zip(scores, codes, strict=True):
            row[indices[indptr[code] : indptr[code + 1]]] = -np.inf
        places = np.argpartition(-scores, _K, axis=1)[:, :_K]
        best = np.take_along_axis(scores, places, 1)
        order = np.argsort(-best, axis=1, kind="stable")
        return {"items": np.take_along_axis(places, order, 1), "scores": np.take_along_axis(best, order, 1)}

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = TritonConfig(http_address="127.0.0.1", http_port=port, allow_grpc=False, allow_metrics=False)
    with Triton(config=config) as server:
        server.bind(
            model_name="lists",
            infer_func=batch(lists),
            inputs=[Tensor(name="user", dtype=np.int64, shape=(1,))],
            outputs=[
                Tensor(name="items", dtype=np.int64, shape=(_K,)),
                Tensor(name="scores", dtype=np.float32, shape=(_K,)),
            ],
            # the calls of 1,000 users must fit; requests that wait together are one batch, and none waits for others
            config=ModelConfig(max_batch_size=1000, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
        )
        print(f"serving at http://127.0.0.1:{port}", file=sys.stderr, flush=True)
        server.serve()


if __name__ == "__main__":
    main()
