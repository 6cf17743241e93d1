"""`talos doctor`: what is installed, and which device, kernel and threads would be used."""

from __future__ import annotations

import platform
from importlib import metadata

from talos.cli.options import Json
from talos.cli.output import print_facts, print_json

__all__ = ["doctor"]

_PACKAGES = ("talos-rec", "torch", "numpy", "scipy", "polars", "safetensors", "pydantic")
_OPTIONAL = {
    "pandas": "pandas",
    "pyarrow": "pandas",
    "psycopg": "postgres",
    "tensorboard": "tensorboard",
    "mlflow-skinny": "mlflow",
    "wandb": "wandb",
    "faiss-cpu": "faiss",
    "onnxruntime": "onnx",
}


def doctor(json: Json = False) -> None:
    """Show what is installed, which device and kernel would be used, and how many threads."""
    import torch

    from talos import kernels

    facts = {
        "python": platform.python_version(),
        **{name: _version(name, "missing") for name in _PACKAGES},
        **{name: _version(name, f"not installed (extra `{extra}`)") for name, extra in _OPTIONAL.items()},
        "devices": ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]),
        "threads": str(torch.get_num_threads()),
        "kernel": kernels.status(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
    }
    if json:
        print_json(facts)
    else:
        print_facts(list(facts.items()), title="Talos and its dependencies")


def _version(package: str, otherwise: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return otherwise
