"""Memory that ranks have in common, and what they do without it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talos.distributed import SINGLE_PROCESS
from talos.distributed import torch_group as module

Environment = Callable[..., dict[str, str]]

RANK = """
import json, os, sys
from pathlib import Path
from talos import distributed
group = distributed.start()
memory = group.shared_memory(int(sys.argv[1]))
found = None
if memory is not None:
    memory[group.rank] = group.rank + 1.0
    group.barrier()
    found = memory.tolist()
left = [path.name for path in Path("/dev/shm").glob("talos-*")]
mapped = [line.split()[-2:] for line in open("/proc/self/maps") if "talos-" in line]
print(json.dumps({"found": found, "named": [name for name, _ in mapped if Path(name).name in left]}))
distributed.stop()
"""


def ranks(environment: Environment, port: int, numbers: int, **refuses: str) -> list[dict[str, Any]]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(numbers)],
            env=environment(rank, 2, port, TALOS_SHARED_MEMORY=refuses.get(f"rank{rank}", "auto")),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [json.loads(process.communicate(timeout=100)[0]) for process in processes]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_what_one_writes_the_other_reads_and_no_file_keeps_its_name(
    environment: Environment, port: int
) -> None:
    for found in ranks(environment, port, 3):
        assert found == {"found": [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], "named": []}


@pytest.mark.parametrize(("numbers", "refuses"), [(3, {"rank0": "no"}), (3, {"rank1": "no"}), (1 << 50, {})])
def test_where_one_has_none_nobody_has(
    environment: Environment, port: int, numbers: int, refuses: dict[str, str]
) -> None:
    assert [found["found"] for found in ranks(environment, port, numbers, **refuses)] == [None, None]


def test_no_folder_is_no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_FOLDER", tmp_path / "absent")
    assert module.shared_memory(SINGLE_PROCESS, 3) is None
    assert SINGLE_PROCESS.shared_memory(3) is None
