"""Starting vectors that trials share: a factorisation of the data is computed by the first trial that needs it.

What a trial starts from follows from the data, the backbone, the kind of start and the seed, and not from what is
searched. It is kept beside the prepared data, and a trial that finds it there ends with the same bytes as one that
computed it.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from talos import registry
from talos.backbones import Backbone
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.errors import TalosError
from talos.files import digest_of, replace_file
from talos.training import Trainer

__all__ = ["keep_start", "shared_start"]


def shared_start(folder: Path, config: RunConfig, train: Interactions) -> Backbone | None:
    """The backbone of a config at its start, if an earlier trial left it in the folder."""
    path = folder / _name(config)
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        backbone = registry.make_backbone(config.backbone, train, generator=None)
        backbone.load_state_dict(tensors)
    except (SafetensorError, OSError, RuntimeError):  # damaged: it is computed anew
        return None
    return backbone


def keep_start(folder: Path, config: RunConfig, trainer: Trainer) -> None:
    """Leave the start of a trial to others, unless it is random, which costs nothing."""
    if trainer.config.training.init == "random":
        return
    tensors = {
        name: one.detach().cpu().contiguous() for name, one in trainer.objective.backbone.state_dict().items()
    }
    try:
        replace_file(folder / _name(config), lambda path: save_file(tensors, path))
    except TalosError:  # a full disk: the next trial computes its own
        return


def _name(config: RunConfig) -> str:
    """A file name for everything that decides a start, beside the data of the folder."""
    decides = {
        "backbone": config.backbone.model_dump(),
        "init": config.training.init,
        "negatives": config.as_dict()["negatives"],  # `auto` looks at them
        "seed": config.seed,
        "loss": [config.loss.name, config.loss.options.get("dim")],  # an adversary draws its vectors first
    }
    return f"start-{digest_of(decides)[:16]}.safetensors"
