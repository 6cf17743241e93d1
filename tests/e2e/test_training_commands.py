"""Training from the command line: a run directory, resuming after signals, kills and a full disk."""

from __future__ import annotations

import json
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
Written = Callable[[Path, subprocess.Popen[str]], None]


SMALL = ("--k", 5, "--dim", 8, "--set", "training.batch_size=8")


def test_from_clicks_to_recommendations(talos: Run, clicks: Path, tmp_path: Path) -> None:
    started = talos("init", clicks)
    assert started.returncode == 0, started.stderr
    assert "talos train --config run.toml --out runs/clicks" in started.stdout
    assert talos("init", clicks).returncode == 2  # never over an existing file

    trained = talos("train", "--config", "run.toml", "--out", "run", *SMALL, "--epochs", 10, "--json")
    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout)
    assert result["metrics"]["recall@5"] > result["baseline"]["popularity"]["recall@5"]
    files = {path.name for path in (tmp_path / "run").iterdir()}
    wanted = {
        "model.safetensors",
        "model.json",
        "users.parquet",
        "items.parquet",
        "history.jsonl",
        "checkpoint",
    }
    assert files == wanted
    facts = json.loads((tmp_path / "run" / "model.json").read_text())
    assert facts["metrics"] == result["metrics"]
    assert facts["format"] == 6

    measured = talos("evaluate", "run", "--k", "5", "--json")
    assert json.loads(measured.stdout)["metrics"]["recall@5"] == pytest.approx(result["metrics"]["recall@5"])
    paper = talos("evaluate", "run", "--k", "5", "--dialect", "paper", "--json")
    assert json.loads(paper.stdout)["metrics"] != json.loads(measured.stdout)["metrics"]

    lists = json.loads(
        talos("recommend", "run", "--user", "user00", "--user", "user01", "--k", 3, "--json").stdout
    )
    assert [(row["user_id"], row["rank"]) for row in lists] == [
        (f"user0{u}", r) for u in (0, 1) for r in (1, 2, 3)
    ]
    assert {"user_id", "item_id", "score", "rank"} == set(lists[0])
    assert "Title" in talos("recommend", "run", "--user", "user00").stdout


def test_a_second_file_with_columns_of_its_own(talos: Run, clicks: Path, tmp_path: Path) -> None:
    """`init` and `evaluate` read what `train` read: no column of it has a usual name."""
    text = clicks.read_text().replace("user,item,title", "who,what,name", 1)
    (tmp_path / "may.csv").write_text(text)
    header, *rows = text.splitlines()
    (tmp_path / "june.csv").write_text("\n".join([header, *rows[::3]]))
    (tmp_path / "july.csv").write_text("\n".join(["buyer,what,name", *rows[::3]]))
    columns = ("--user-column", "who", "--item-column", "what")

    assert talos("init", "may.csv").returncode == 2
    started = talos("init", "may.csv", *columns, "--test", 0.3, "--json")
    assert started.returncode == 0, started.stderr
    line = json.loads(started.stdout)["next"]
    assert line == "talos train --config run.toml --out runs/may"
    trained = talos(*shlex.split(line)[1:], *SMALL, "--epochs", 2)
    assert trained.returncode == 0, trained.stderr

    source = json.loads((tmp_path / "runs" / "may" / "model.json").read_text())["source"]
    assert (source["path"], source["columns"]["user"], source["split"]["test"]) == ("may.csv", "who", 0.3)
    june = talos("evaluate", "runs/may", "june.csv", "--k", 5, "--json")
    assert june.returncode == 0, june.stderr
    assert "no column 'who'" in talos("evaluate", "runs/may", "july.csv", "--k", 5).stderr
    july = talos("evaluate", "runs/may", "july.csv", "--user-column", "buyer", "--k", 5, "--json")
    assert json.loads(july.stdout) == json.loads(june.stdout)
    assert talos("report", "runs/may", "june.csv").returncode == 0

    lists = tmp_path / "lists.csv"
    lists.write_text("user_id,item_id,rank\nuser00,item00,1\n")
    measured = talos("evaluate", "--recs", lists, "--truth", "june.csv", *columns, "--json")
    assert measured.returncode == 0, measured.stderr


def test_ids_of_another_type_in_a_second_file(talos: Run) -> None:
    pairs = [(user, item) for user in range(1, 21) for item in range(1, 21) if (user + item) % 3]
    rows = [f"{user},{item}" for user, item in pairs]
    Path("numbers.csv").write_text("user,item\n" + "\n".join(rows))
    Path("strings.csv").write_text("user,item\nx0,y0\nx0,1\n" + "\n".join(rows))
    Path("test.csv").write_text(
        "user,item\n" + "\n".join(f"{user},{(-user) % 3 + 3}" for user in range(1, 21))
    )
    Path("names.csv").write_text("user,item\nann,tea\n")
    small = ("--dim", 4, "--epochs", 1, "--k", 3, "--seed", 0)
    for data, other in (("numbers", "strings"), ("strings", "numbers")):
        assert talos("train", f"{data}.csv", "--out", data, *small).returncode == 0
        measured = talos("evaluate", data, "test.csv", "--k", 3, "--json")
        assert measured.returncode == 0, measured.stderr
        assert json.loads(measured.stdout)["users"] == 20
        assert talos("evaluate", data, f"{other}.csv", "--k", 3).returncode == 0
    refused = talos("evaluate", "numbers", "names.csv", "--k", 3)
    assert refused.returncode == 2
    assert "names.csv: user ids are strings such as 'ann'; expected integers such as 1" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--loss", "talso"], "did you mean 'talos'"),
        (["--set", "training.epoch=3"], "training.epoch: no such key (did you mean 'epochs'?)"),
        (["--set", "training.epochs"], "KEY=VALUE"),
        (["--tau", "0"], "error: --tau: "),
        (["--tau", "hot"], "error: --tau: got 'hot'; expected a finite number above 0"),
        (["--tau", "auto", "--loss", "sl"], "error: --tau: 'auto'; expected a valid number"),
        (["--lr", "fast"], "error: --lr: 'fast'; expected a valid number"),
        (["--batch-size", "1.5"], "error: --batch-size: 1.5; expected a valid integer"),
        (["--k", "0"], "error: --k: 0"),
        (["--epochs", "0"], "error: --epochs: 0"),
        (["--set", "training.epochs=0"], "error: --set training.epochs: 0"),
        (["--k", "41"], "at most 40"),
        (
            ["--loss", "smoothi@k", "--negatives", "shared:8"],
            "error: --negatives: 'shared:8' with the loss 'smoothi@k'",
        ),
        (["--device", "quantum"], "error: --device: "),
        (["--config", "missing.toml"], "missing.toml: no such file"),
        (["--test", "2"], "error: --test: 2.0"),
        (["--los", "sl"], "--loss"),
    ],
)
def test_wrong_settings_leave_nothing_behind(
    talos: Run, clicks: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = talos("train", clicks, "--out", "run", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clicks.csv"]


def test_explain_says_what_would_be_done_and_does_nothing(talos: Run, clicks: Path, tmp_path: Path) -> None:
    plain = talos("train", clicks, "--explain", *SMALL)
    assert plain.returncode == 0, plain.stderr
    assert "steps per epoch" in plain.stdout
    facts = json.loads(talos("train", clicks, "--explain", *SMALL, "--json").stdout)
    assert facts["parameters"] == (40 + 40) * 8
    assert facts["config"]["negatives"] == "all"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clicks.csv"]


def test_flags_take_the_values_of_the_config(talos: Run, clicks: Path) -> None:
    plain = talos("train", clicks, "--explain", *SMALL, "--json")
    auto = ("--tau", "auto", "--lr", "auto", "--batch-size", "auto")
    same = talos("train", clicks, "--explain", *SMALL, *auto, "--json")
    assert same.returncode == 0, same.stderr
    assert json.loads(same.stdout)["config"] == json.loads(plain.stdout)["config"]
    given = talos("train", clicks, "--explain", *SMALL, "--tau", ".5", "--lr", "1e-2", "--json")
    config = json.loads(given.stdout)["config"]
    assert (config["loss"]["tau"], config["optimizer"]["lr"]) == (0.5, 0.01)


def test_a_finished_or_foreign_folder_is_not_overwritten(talos: Run, clicks: Path, tmp_path: Path) -> None:
    talos("train", clicks, "--out", "run", *SMALL, "--epochs", 2)
    again = talos("train", clicks, "--out", "run", *SMALL, "--epochs", 2)
    assert (again.returncode, "finished run" in again.stderr) == (2, True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    refused = talos("train", clicks, "--out", "mine", *SMALL)
    assert (refused.returncode, "not empty" in refused.stderr) == (2, True)


def test_unfinished_and_damaged_runs_are_explained(talos: Run, clicks: Path, tmp_path: Path) -> None:
    assert "no such run directory" in talos("recommend", "nowhere", "--user", "u").stderr
    talos("train", clicks, "--out", "run", *SMALL, "--epochs", 2)
    assert "no user 'nobody'" in talos("recommend", "run", "--user", "nobody").stderr
    vectors = tmp_path / "run" / "model.safetensors"
    vectors.write_bytes(vectors.read_bytes()[:-4])
    done = talos("recommend", "run", "--user", "user00")
    assert (done.returncode, "model.safetensors" in done.stderr) == (2, True)
    (tmp_path / "run" / "model.json").unlink()
    assert "--resume" in talos("evaluate", "run").stderr
    other = talos("train", clicks, "--out", "run", *SMALL, "--epochs", 2, "--dim", 3, "--resume")
    assert (other.returncode, "error: --resume: backbone differ" in other.stderr) == (2, True)
    unclear = talos("train", clicks, "--out", "new", "--set", "tau")
    assert "such as loss.tau=0.1" in unclear.stderr  # a key of the config is not a flag


LONG = (*SMALL, "--epochs", 200, "--patience", 200, "--set", "training.checkpoint_every=3")


def final_vectors(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_ctrl_c_saves_and_says_how_to_go_on(
    talos: Run, start: Start, written: Written, clicks: Path, tmp_path: Path
) -> None:
    whole = talos("train", clicks, "--out", "whole", *LONG)
    assert whole.returncode == 0, whole.stderr
    process = start("train", clicks, "--out", "part", *LONG)
    written(tmp_path / "part" / "history.jsonl", process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "--resume" in stderr
    assert talos("train", clicks, "--out", "part", *LONG).returncode == 2  # not without --resume
    resumed = talos("train", clicks, "--out", "part", *LONG, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert final_vectors(tmp_path / "part") == final_vectors(tmp_path / "whole")


@pytest.mark.parametrize(
    "moment", ["talos.studies.race.write_sealed", "talos.model.fitting.popularity_report"]
)
def test_ctrl_c_outside_of_training_says_how_to_go_on(
    talos: Run, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Between two candidates of a race, and in the evaluation at the end, when no step is there to be waited for."""

    def interrupted(*arguments: object, **options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    arguments = ("train", clicks, "--out", "part", *SMALL, "--epochs", 20)
    with monkeypatch.context() as patched:
        patched.setattr(moment, interrupted)
        stopped = talos(*arguments)
    assert (stopped.returncode, "same command and --resume" in stopped.stderr) == (130, True), stopped.stderr
    resumed = talos(*arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert talos("train", clicks, "--out", "whole", *SMALL, "--epochs", 20).returncode == 0
    assert final_vectors(tmp_path / "part") == final_vectors(tmp_path / "whole")


def kill_and_resume(talos: Run, start: Start, clicks: Path, folder: Path, delay: float) -> int:
    """Kill a run after `delay` seconds, then let it finish; 0 if it had finished before."""
    arguments = ("train", clicks, "--out", folder, *LONG)
    process = start(*arguments)
    time.sleep(delay)
    process.kill()
    process.wait(60)
    if (folder / "model.json").exists():
        return 0
    done = talos(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    return 1


def test_a_killed_run_goes_on_to_the_same_bytes(
    talos: Run, start: Start, written: Written, clicks: Path, tmp_path: Path
) -> None:
    assert talos("train", clicks, "--out", "whole", *LONG).returncode == 0
    killed = tmp_path / "killed"
    process = start("train", clicks, "--out", killed, *LONG)
    written(killed / "history.jsonl", process)
    process.kill()
    process.wait(60)
    assert not (killed / "model.json").exists()
    resumed = talos("train", clicks, "--out", killed, *LONG, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert final_vectors(tmp_path / "killed") == final_vectors(tmp_path / "whole")


@pytest.mark.slow
def test_twenty_kills_at_random_moments(talos: Run, start: Start, clicks: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    assert talos("train", clicks, "--out", "whole", *LONG).returncode == 0
    whole = time.monotonic() - began
    rng = random.Random(0)
    killed = tried = 0
    while killed < 20 and tried < 60:  # a run that was quicker than its killer does not count
        folder = tmp_path / f"killed{tried}"
        killed += kill_and_resume(talos, start, clicks, folder, rng.uniform(0.3, 0.9) * whole)
        tried += 1
        assert final_vectors(folder) == final_vectors(tmp_path / "whole"), tried
    assert killed == 20


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint_whole(
    talos: Run, start: Start, written: Written, clicks: Path, tmp_path: Path
) -> None:
    """A file size limit stands for a full disk: writing fails in the middle of a file."""
    process = start("train", clicks, "--out", "run", *LONG)
    written(tmp_path / "run" / "history.jsonl", process)
    time.sleep(1.0)
    process.kill()
    process.wait()
    before = sorted(
        path.name for path in (tmp_path / "run" / "checkpoint").iterdir() if not path.name.startswith(".")
    )
    limited = ("bash", "-c", 'ulimit -f 4; trap "" XFSZ; exec "$@"', "bash")
    cramped = start("train", clicks, "--out", "run", *LONG, "--resume", before=limited)
    _, said = cramped.communicate(timeout=300)
    assert cramped.returncode == 1, said
    assert "intact" in said
    after = sorted(
        path.name for path in (tmp_path / "run" / "checkpoint").iterdir() if not path.name.startswith(".")
    )
    assert after == before
    assert talos("train", clicks, "--out", "run", *LONG, "--resume").returncode == 0


def test_explain_starts_no_vectors_and_refuses_what_does_not_fit(talos: Run, clicks: Path) -> None:
    """Neither least squares nor a table is computed: a dimension beyond the memory is refused at once."""
    done = talos("train", clicks, "--explain", "--dim", 10**8)
    assert done.returncode == 2, done.stderr
    assert "--dim: training would take " in done.stderr
    assert "the memory of this machine" in done.stderr
    same = talos("train", clicks, "--out", "run", "--dim", 10**8)
    assert (same.returncode, "--dim: training would take " in same.stderr) == (2, True), same.stderr
    assert not (clicks.parent / "run").exists()


def test_few_events_are_said_and_few_items_shorten_the_list(talos: Run, tmp_path: Path) -> None:
    bought = [(f"u{user}", (user * step) % 9, 60 * user + step) for user in range(40) for step in (1, 2, 4)]
    bought += [(f"{kind}{user}", user % 7, 10**6) for kind in ("new", "u") for user in range(14)]
    rows = [f"{user},i{item},{1_600_000_000 + time}" for user, item, time in bought]
    (tmp_path / "shop.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]) + "\n")
    done = talos("train", "shop.csv", "--out", "run", "--by", "time", "--json", "--epochs", 3)
    assert done.returncode == 0, done.stderr
    assert "k = 9: all items, as there are fewer than 20" in done.stderr
    found = json.loads(done.stdout)
    assert found["config"]["k"] == 9
    said = [note for note in found["notes"] if note.startswith("test: 11 of 24 users")]
    assert said, found["notes"]
    assert said[0] in done.stderr
    assert any("11 of 24" in note and "ranked by popularity" in note for note in found["notes"])
    lists = talos("recommend", "run", "--user", "new13", "--k", 3)
    assert "1 of 1 users have no training events: ranked by popularity" in lists.stderr
    everybody = talos("recommend", "run", "--all", "--out", "recs.csv", "--json")
    assert json.loads(everybody.stdout)["users_without_events"] == 11
    single = "\n".join(["user_id,item_id", *(f"u{user},i{user % 9}" for user in range(50))])
    (tmp_path / "single.csv").write_text(single + "\n")
    refused = talos("train", "single.csv", "--out", "other")
    assert (refused.returncode, "no user has more than one interaction" in refused.stderr) == (2, True), (
        refused.stderr
    )
