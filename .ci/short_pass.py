"""The main commands, end to end, with the talos-rec of the interpreter that runs this script.

Works in a temporary folder with relative paths and takes about half a minute. Optional packages are used if they
are installed. `--without-torch` runs only the commands that need no torch, and makes `import torch` fail.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import talos

TALOS = str(Path(sys.executable).parent / "talos")
COMMAND_SECONDS = 120  # a command takes one to three on an idle machine
TOTAL_SECONDS = 600
BASELINES = ("itemknn", "rp3beta", "ease", "als")


def main() -> None:
    """Run the pass; exit code 1 and one message if anything fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-torch", action="store_true", help="only commands that need no torch")
    without_torch = parser.parse_args().without_torch
    print(f"python {platform.python_version()}, {installed_versions()}")
    started = time.monotonic()
    commands = data_commands if without_torch else all_commands
    try:
        run_in_temporary_folder(commands, block_torch=without_torch)
    except AssertionError as error:
        sys.exit(f"short pass failed: {error}")
    scope = "commands that need no torch" if without_torch else "all commands"
    print(f"short pass: {scope} work, {time.monotonic() - started:.0f} s")


def run_in_temporary_folder(commands, *, block_torch: bool = False) -> None:
    """Call `commands` in an empty folder, within a time limit."""
    faulthandler.dump_traceback_later(TOTAL_SECONDS, exit=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the data are too small for more
    start = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_clicks()
            if block_torch:
                block_import_of_torch()
            commands()
        finally:
            os.chdir(start)  # Windows does not remove the current folder
            faulthandler.cancel_dump_traceback_later()


def all_commands() -> None:
    """Everything below that the installed packages allow."""
    data_commands()
    model_commands()
    baseline_commands()
    extra_commands()
    use_python()
    if find_spec("fastapi"):
        use_the_service()


def data_commands() -> None:
    """Describe, split and generate; these need no torch, except for the metrics of `talos data generate`."""
    rows = len(Path("clicks.csv").read_text().splitlines()) - 1
    described = json.loads(command("data", "describe", "clicks.csv", "--json"))
    check(described["interactions"] == rows, f"data describe: {described}")
    command("data", "split", "clicks.csv", "--out", "tsv")
    command("data", "split", "clicks.csv", "--out", "shards", "--shards", 2)
    parts = [Path("tsv", f"{part}.tsv") for part in ("train", "valid", "test")]
    lines = sum(len(path.read_text().splitlines()) - 1 for path in parts)
    check(lines == rows, f"data split: {lines} rows in the parts, {rows} in the file")
    check(Path("shards", "shard-0001", "train.parquet").exists(), "data split --shards: no second shard")
    sizes = {"users": 50, "items": 40, "events": 500}
    if find_torch():
        command("data", "generate", "--out", "generated", *(f"--{name}={n}" for name, n in sizes.items()))
    else:
        from talos.data.datasets import PlantedTastes, write_planted

        write_planted(PlantedTastes(**sizes), Path("generated"))
    described = json.loads(command("data", "describe", "generated", "--json"))
    check(described["interactions"] == sizes["events"], f"data generate: {described}")


def model_commands() -> None:
    """The README's commands for a file of one's own, and the other commands on that run."""
    run = "runs/clicks"
    command("init", "clicks.csv")
    command("train", "clicks.csv", "--config", "run.toml", "--out", run, "--epochs", 2)
    Path("new.csv").write_text("user_id,item_id\nu0,i30\nnew,i1\nnew,i3\n")
    measured, listed, history, *_ = together(
        ("evaluate", run, "--k", "5,10", "--json"),
        ("recommend", run, "--user", "u0", "--k", 5, "--json"),
        ("recommend", run, "--history", "i1,i7", "--k", 3, "--json"),
        ("recommend", run, "--all", "--out", "recs.parquet", "--k", 5),
        ("report", run),
        ("card", run),
        ("export", run, "--format", "parquet", "--out", "vectors"),
        ("update", run, "new.csv", "--out", "runs/updated"),
        ("train", "shards", "--out", "runs/shards", "--epochs", 1, "--tau", 0.2),
    )
    metrics = json.loads(measured)["metrics"]
    check(0 < metrics["recall@5"] <= metrics["recall@10"] <= 1, f"evaluate: {metrics}")
    lines = json.loads(listed)
    check([line["rank"] for line in lines] == [1, 2, 3, 4, 5], f"recommend: {lines}")
    check(len(json.loads(history)) == 3, f"recommend --history: {history}")
    loaded = talos.Recommender.load(run).recommend(["u0"], k=5)
    same = list(loaded["item_id"]) == [line["item_id"] for line in lines]
    check(same, f"recommend in Python gives {loaded}, the command {lines}")
    check(len(json.loads(command("recommend", "runs/updated", "--user", "new", "--json"))) > 0, "update")
    for path in ("recs.parquet", f"{run}/report.html", f"{run}/README.md", "vectors/items.parquet"):
        check(Path(path).stat().st_size > 0, f"{path} is empty")


def baseline_commands() -> None:
    """Train every baseline on the split files and recommend with one."""
    together(*(("train", "tsv", "--baseline", name, "--out", f"runs/{name}") for name in BASELINES))
    command("recommend", f"runs/{BASELINES[0]}", "--user", "u0", "--k", 5)


def extra_commands() -> None:
    """Commands that need an extra, where it is installed."""
    calls = {
        "faiss": ("export", "runs/clicks", "--format", "faiss", "--out", "faiss"),
        "onnxruntime": ("export", "runs/clicks", "--format", "onnx", "--out", "onnx"),
        "optuna": ("tune", "clicks.csv", "--out", "study", "--trials", 2, "--epochs", 1),
    }
    together(*(call for module, call in calls.items() if find_spec(module)))
    if find_spec("pandas"):
        import pandas

        rows = pandas.read_csv("clicks.csv")
        check(len(talos.read(rows)) == len(rows), "reading a pandas frame")
        frame = talos.Recommender.load("runs/clicks").recommend(["u0"], k=5, frame="pandas")
        check(
            isinstance(frame, pandas.DataFrame) and len(frame) == 5, f"recommend as a pandas frame: {frame}"
        )


def use_python() -> None:
    """The README's Python."""
    split = talos.read("clicks.csv").split(test=0.2, valid=0.1, by="user", seed=0)
    model = talos.Recommender(k=20, loss="talos", backbone="mf", tau=0.1, epochs=2)
    model.fit(split.train, split.valid)
    print(model.evaluate(split.test, k=(10, 20)))
    check(len(model.recommend(["u0", "u1"], k=5)) == 10, "recommend in Python")
    model.save("runs/python")


def use_the_service() -> None:
    """Start `talos serve`, ask it for a list and its page, and stop it."""
    service = subprocess.Popen(
        [TALOS, "serve", "runs/clicks", "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    limit = threading.Timer(COMMAND_SECONDS, service.kill)  # ends the wait for a line below
    limit.start()
    try:
        assert service.stderr is not None
        said = [service.stderr.readline()]
        while " at http://" not in said[-1]:  # one line per step; an early end gives an empty one
            check(
                said[-1] != "", f"talos serve: exit code {service.poll()} before it listens\n{''.join(said)}"
            )
            said.append(service.stderr.readline())
        address = said[-1].split(" at ")[1].strip()
        with urlopen(f"{address}/v1/recommend/u0?k=3", timeout=60) as answer:
            print(f"talos serve answers {answer.status}: {answer.read().decode()[:100]}")
        with urlopen(address, timeout=60) as page:
            check(b"<html" in page.read(), "the service has no page")
    except OSError as error:  # no answer, or one with an error status
        raise AssertionError(f"talos serve: {error}") from error
    finally:
        limit.cancel()
        service.terminate()
        try:
            code = service.wait(timeout=60)
        except subprocess.TimeoutExpired:
            service.kill()
            raise
    # uvicorn closes everything and then lets the signal take effect
    check(code in (0, -signal.SIGTERM), f"talos serve: exit code {code} after SIGTERM")


def write_clicks() -> None:
    """A small file of clicks, `clicks.csv`: two halves of the users like different halves of the items."""
    draw = random.Random(0)
    rows = {(f"u{user}", f"i{draw.randrange(25) + 25 * (user % 2)}") for user in range(40) for _ in range(30)}
    Path("clicks.csv").write_text("\n".join(["user_id,item_id", *map(",".join, sorted(rows))]) + "\n")


def command(*arguments: object, code: int = 0) -> str:
    """Output of a command: stdout, or stderr for a command that is expected to fail."""
    words = ["talos", *map(str, arguments)]
    started = time.monotonic()
    try:
        done = subprocess.run(
            [TALOS, *words[1:]], capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{' '.join(words)}: no end after {COMMAND_SECONDS} s") from error
    check(done.returncode == code, f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    print(f"{time.monotonic() - started:5.1f} s  {' '.join(words)}", flush=True)
    return done.stderr if code else done.stdout


def together(*commands: Sequence[object]) -> list[str]:
    """Output of independent commands, two of which run at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda arguments: command(*arguments), commands))


def block_import_of_torch() -> None:
    """Let `import torch` fail, here and in commands, so that the result does not depend on what is installed."""
    Path("blocked").mkdir()
    Path("blocked", "torch.py").write_text("raise ModuleNotFoundError('torch is blocked', name='torch')\n")
    os.environ["PYTHONPATH"] = str(Path("blocked").absolute())
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's way of making an import fail


def find_torch() -> bool:
    """Whether torch can be imported."""
    return "torch" not in sys.modules or sys.modules["torch"] is not None


def installed_versions() -> str:
    """Versions of talos-rec and of its direct dependencies, extras included, that are installed."""
    names = ["talos-rec"]
    for line in requires("talos-rec") or ():
        name = line.replace("[", " ").replace(">", " ").replace(";", " ").split()[0]
        if name not in names and "'dev'" not in line and '"dev"' not in line:
            names.append(name)
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def check(passed: bool, message: str) -> None:
    """End the pass with a message unless `passed`."""
    if not passed:
        raise AssertionError(message)


if __name__ == "__main__":
    main()
