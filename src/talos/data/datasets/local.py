"""A user's own folder with data sets, one subfolder each: what `talos reproduce` and `talos bench` run on."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["VARIABLE", "local_copy"]

VARIABLE = "TALOS_DATA"
"""The environment variable that names the folder where none is given."""


def local_copy(name: str, folder: Path | None = None) -> Path | None:
    """The subfolder `name` of `folder` or else of the folder that TALOS_DATA names; None if neither has one."""
    from_environment = os.environ.get(VARIABLE)
    roots = [folder, Path(from_environment) if from_environment else None]
    return next((root / name for root in roots if root is not None and (root / name).is_dir()), None)
