"""The README's commands with the installed wheel: `make smoke` runs this in a fresh environment without a compiler."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import files, version
from pathlib import Path
from urllib.request import urlopen

import talos

TALOS = str(Path(sys.executable).parent / "talos")
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "clang-cl", "cl")


def main() -> None:
    """Fail with an assertion or a non-zero command if anything is missing."""
    check_environment()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        use_the_commands()
        use_python()
        use_the_service()
    print(f"the wheel of talos {talos.__version__} works")


def check_environment() -> None:
    """The wheel alone is installed, with its compiled core, and there is no compiler."""
    assert not any(map(shutil.which, COMPILERS)), "there is a compiler on the path"
    assert Path(talos.__file__).is_relative_to(sys.prefix), f"{talos.__file__} is not the installed wheel"
    for module in ("talos_paper", "talos_benchmarks", "tests", "benchmarks"):
        assert importlib.util.find_spec(module) is None, f"{module} can be imported"
    tops = {path.parts[0] for path in files("talos-rec") or () if path.parts[0] != ".."}
    # auditwheel puts libraries that it had to copy into a folder of their own
    assert {name for name in tops if not name.endswith((".dist-info", ".libs"))} == {"talos"}, tops
    assert command("--version").split() == ["talos", talos.__version__] == ["talos", version("talos-rec")]
    assert "talos-rec-paper" in command("reproduce", "overall", code=2)
    found = command("doctor")
    print(found)
    assert "compiled core, " in found, "doctor does not show the compiled core"


def use_the_commands() -> None:
    """The commands of the README's section about a file of one's own."""
    random.seed(0)
    rows = {
        (f"u{user}", f"i{random.randrange(25) + 25 * (user % 2)}") for user in range(40) for _ in range(30)
    }
    Path("clicks.csv").write_text("\n".join(["user_id,item_id", *map(",".join, sorted(rows))]) + "\n")
    command("init", "clicks.csv")
    command("train", "clicks.csv", "--config", "run.toml", "--out", "runs/clicks", "--epochs", 2)
    metrics = json.loads(command("evaluate", "runs/clicks", "--k", "5,10", "--json"))["metrics"]
    assert 0 < metrics["recall@5"] <= metrics["recall@10"] <= 1, metrics
    listed = json.loads(command("recommend", "runs/clicks", "--user", "u0", "--k", 5, "--json"))
    assert [line["rank"] for line in listed] == [1, 2, 3, 4, 5], listed
    assert command("recommend", "runs/clicks", "--history", "i1,i7", "--k", 3)
    command("recommend", "runs/clicks", "--all", "--out", "recs.parquet", "--k", 5)
    assert Path("recs.parquet").stat().st_size > 0
    command("report", "runs/clicks")
    loaded = talos.Recommender.load("runs/clicks").recommend(["u0"], k=5)
    assert list(loaded["item_id"]) == [line["item_id"] for line in listed]


def use_python() -> None:
    """The README's Python."""
    split = talos.read("clicks.csv").split(test=0.2, valid=0.1, by="user", seed=0)
    model = talos.Recommender(k=20, loss="talos", backbone="mf", tau=0.1, epochs=2)
    model.fit(split.train, split.valid)
    print(model.evaluate(split.test, k=(10, 20)))
    assert len(model.recommend(["u0", "u1"], k=5)) == 10
    model.save("runs/python")


def use_the_service() -> None:
    """Start `talos serve`, ask it for a list, and stop it."""
    service = subprocess.Popen(
        [TALOS, "serve", "runs/clicks", "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert service.stderr is not None
        said = ""
        while " at http://" not in said:  # one line per step; an early end gives an empty one
            said = service.stderr.readline()
            assert said, f"talos serve ended with exit code {service.wait()}"
        address = said.split(" at ")[1].strip()
        with urlopen(f"{address}/v1/recommend/u0?k=3", timeout=60) as answer:
            print(f"{address} answers {answer.status}: {answer.read().decode()[:200]}")
            assert answer.status == 200
        with urlopen(address, timeout=60) as page:
            assert b"<html" in page.read(), "the service has no page"
    finally:
        service.terminate()
    code = service.wait(timeout=60)
    # uvicorn closes everything and then lets the signal take effect
    assert code in (0, -signal.SIGTERM), f"talos serve ended with exit code {code}"


def command(*arguments: object, code: int = 0) -> str:
    """What a command prints (its errors, if it should fail)."""
    done = subprocess.run([TALOS, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == code, f"talos {arguments[0]}: exit code {done.returncode}\n{done.stderr}"
    return done.stderr if code else done.stdout


if __name__ == "__main__":
    main()
