"""Work on blocks of large arrays on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["in_threads"]


def in_threads(work: Callable[[int], None], over: range) -> None:
    """Call `work` for each number, on all cores if there are many: numpy lets go of the interpreter inside."""
    if len(over) < 8:
        for i in over:
            work(i)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(work, over):
                pass
