"""Print a pin for every dependency at the lowest version that pyproject.toml allows; `make test-lowest` installs them.

torch has the version of constraints.txt: there is no CPU build of its lower bound on PyPI.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FROM_CONSTRAINTS = {"torch"}
EXTRAS = ("pandas", "serve", "tune")  # of which the short pass uses something
REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(?P<extras>\[[\w,-]+\])?>=(?P<version>[\d.]+)")


def lowest_pins() -> list[str]:
    """One `name==version` for each dependency, in the order of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"]]
    lines += [line for name in EXTRAS for line in extras[name]]
    pins = []
    for line in lines:
        found = REQUIREMENT.fullmatch(line)
        if found is None:
            raise SystemExit(f"pyproject.toml: {line!r}; expected name>=version")
        if found["name"] in FROM_CONSTRAINTS:
            pins += [pin for pin in constraints if pin.startswith(f"{found['name']}==")]
        else:
            pins.append(f"{found['name']}{found['extras'] or ''}=={found['version']}")
    return pins


if __name__ == "__main__":
    print("\n".join(lowest_pins()))
