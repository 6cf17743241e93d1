"""Train, evaluate, recommend and load with the installed wheel: `make smoke` runs this in a fresh environment."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import tempfile
from importlib.metadata import files
from pathlib import Path

import talos

TALOS = str(Path(sys.executable).parent / "talos")


def main() -> None:
    """Fail with an assertion or a non-zero command if anything is missing."""
    assert Path(talos.__file__).is_relative_to(sys.prefix), f"{talos.__file__} is not the installed wheel"
    for module in ("talos_paper", "talos_benchmarks", "tests", "benchmarks"):
        assert importlib.util.find_spec(module) is None, f"{module} can be imported"
    tops = {path.parts[0] for path in files("talos-rec") or () if path.parts[0] != ".."}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"talos"}, tops

    with tempfile.TemporaryDirectory() as folder:
        random.seed(0)
        rows = {
            (f"u{user}", f"i{random.randrange(25) + 25 * (user % 2)}")
            for user in range(40)
            for _ in range(30)
        }
        clicks, run = Path(folder, "clicks.csv"), Path(folder, "run")
        clicks.write_text("\n".join(["user_id,item_id", *(",".join(row) for row in sorted(rows))]) + "\n")
        command("train", clicks, "--out", run, "--epochs", 2, "--k", 5)
        metrics = json.loads(command("evaluate", run, "--k", 5, "--json"))["metrics"]
        assert 0 < metrics["recall@5"] <= 1, metrics
        listed = json.loads(command("recommend", run, "--user", "u0", "--k", 5, "--json"))
        assert [line["rank"] for line in listed] == [1, 2, 3, 4, 5], listed
        loaded = talos.Recommender.load(run).recommend(["u0"], k=5)
        assert list(loaded["item_id"]) == [line["item_id"] for line in listed]
    assert "talos-rec-paper" in command("reproduce", "overall", code=2)
    print(command("doctor"))
    print(f"the wheel works: recall@5 {metrics['recall@5']:.3f} after two epochs")


def command(*arguments: object, code: int = 0) -> str:
    """What a command prints (its errors, if it should fail)."""
    done = subprocess.run([TALOS, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == code, f"talos {arguments[0]}: exit code {done.returncode}\n{done.stderr}"
    return done.stderr if code else done.stdout


if __name__ == "__main__":
    main()
