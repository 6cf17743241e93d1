"""The console sessions and the Python of the documentation, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def sessions(page: Path) -> list[tuple[str, list[str]]]:
    """(command, lines of expected output) of every `$` in the console blocks of a page."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            # a command goes on until its quotes are closed
            end = next(i for i in range(1, len(lines) + 1) if "\n".join(lines[:i]).count('"') % 2 == 0)
            found.append(("\n".join(lines[:end]), lines[end:]))
    return found


def matches(expected: list[str], output: str) -> bool:
    """Lines in order; `...` alone stands for any lines, within a line for any text; numbers may differ."""
    pattern = ""
    for line in expected:
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            piece = re.escape(line.rstrip()).replace(re.escape("..."), ".*")
            pattern += re.sub(r"\d+(?:\\\.\d+)?", r"[\\d.,]+", piece) + r"\s*\n"
    return re.fullmatch(pattern + r"(?:.*\n)*", output + "\n") is not None


def programs(page: Path) -> list[tuple[str, list[str]]]:
    """(code, lines of expected output) of every Python block of a page; output stands in a text block after it."""
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", page.read_text(), flags=re.DOTALL)
    return [(code, output.splitlines()) for code, output in blocks]


def without_numbers(lines: list[str]) -> str:
    """What is left of lines when numbers, rules and spacing are taken out: they differ from run to run."""
    plain = [re.sub(r"[-+]?\d[\d.,/]*(e-?\d+)?", "0", line) for line in lines]
    bare = [" ".join(re.sub(r"[─═┌┐└┘┬┴╞╡╪-]{2,}", " ", line).split()) for line in plain]
    return "\n".join(line for line in bare if line)


@pytest.mark.parametrize("page", ["quickstart.md", "tuning.md", "recommend.md"])
def test_the_page_is_true(page: str, tmp_path: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    commands = sessions(DOCS / page)
    assert len(commands) >= 5
    for command, expected in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        assert matches(expected, done.stdout), (command, done.stdout)
    if page == "recommend.md":
        check_programs(DOCS / page, tmp_path)


def test_the_examples_on_data_are_true(tmp_path: Path) -> None:
    """Blocks without output are not run: they name files of the reader's own or need the network."""
    check_programs(DOCS / "data.md", tmp_path, only_with_output=True)


def check_programs(page: Path, folder: Path, *, only_with_output: bool = False) -> None:
    """Run the Python blocks of a page one after the other, as one program, and compare what each prints."""
    found = [program for program in programs(page) if program[1] or not only_with_output]
    assert found
    mark = "--- end of a block ---"
    code = f"\nprint({mark!r})\n".join(block for block, _ in found)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (block, expected), printed in zip(found, done.stdout.split(f"{mark}\n"), strict=True):
        wanted, output = without_numbers(expected), without_numbers(printed.splitlines())
        pieces = [re.escape(piece.strip("\n")) for piece in re.split(r"^\.\.\.$", wanted, flags=re.MULTILINE)]
        assert re.fullmatch(r"(?:.|\n)*".join(pieces), output), (block, printed)
