"""The run directory on disk: a trained model that loads without its training data.

`model.safetensors` (vectors, thresholds, seen items as CSR), `model.json` (config, metrics, versions, checksums,
format number), `users.parquet`, `items.parquet` (ids, titles). Each file is written under a temporary name and
renamed; `model.json` comes last, so a directory that has it is whole. Loading checks sizes, types and checksums
before anything is used, and nothing in it can run code.

Where several processes trained, and none of them has all users, what belongs to users A to B-1 is in a file
`users-A-B.safetensors` that the process which has them wrote; `model.json` lists these files (format 2).
"""

from __future__ import annotations

from talos.model.run_directory.layout import FORMAT, Model
from talos.model.run_directory.load import load_model
from talos.model.run_directory.save import save_model

__all__ = ["FORMAT", "Model", "load_model", "save_model"]
