"""An ONNX graph from users to their top-K lists, in which the items that a user has already are masked.

The graph stores these items as CSR. The rows of a batch are padded to the longest row of that batch and scattered into
the scores as -inf; the padding goes into one spare column after the items. So nothing of size users × items or
users × longest history is ever stored.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.errors import MissingExtraError
from talos.exports.folders import check_same_lists, plain_array, sample_users, write_ids
from talos.model.model import Model
from talos.model.query import ListQuery, answer

__all__ = ["write_onnx"]

_OPSET, _ML_OPSET, _IR = 17, 2, 8  # old enough for most runtimes, new enough for every operator used
_SAMPLE = 256
_LARGEST_FILE = 1 << 30  # a protobuf is at most 2 GiB: tensors of a larger graph go into a file of their own


def write_onnx(model: Model, path: Path, *, k: int | None = None, own_ids: bool = False) -> dict[str, Any]:
    """Write `model.onnx`, and `users.parquet`, `items.parquet`, whose rows are the graph's positions.

    Inputs: `users` int64 (batch,), and optionally `k` int64 (1,). Outputs: `items` int64 (batch, k) and `scores` float
    (batch, k), padded with -1 and -inf where fewer than k items are left. With `own_ids`, the input is `user_ids`
    (strings or int64, as in the model) instead of `users`, and a third output `item_ids` has the ids of `items`, padded
    with "" or -1; an unknown user gets padding only.

    onnxruntime must give the model's lists for a sample of users, or nothing is written.
    """
    k = model.list_length(k)
    try:
        onnx, runtime = import_module("onnx"), import_module("onnxruntime")
    except ImportError as error:
        raise MissingExtraError("an ONNX graph", extra="onnx") from error
    graph = _graph(onnx, model, k, own_ids)
    size, file = sum(len(one.raw_data) for one in graph.graph.initializer), str(path / "model.onnx")
    onnx.save_model(graph, file, save_as_external_data=size > _LARGEST_FILE, location="model.onnx.data")
    onnx.checker.check_model(file)
    write_ids(path, model)
    sample = sample_users(model, _SAMPLE)
    settings = runtime.SessionOptions()
    settings.log_severity_level = 3
    session = runtime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    ids = model.train.user_ids.decode(sample)
    asked = {"user_ids": np.array(ids.to_list(), _kind_of(ids))} if own_ids else {"users": sample}
    items, scores = session.run(["items", "scores"], asked)
    expected = answer(model, ListQuery(users=sample, k=k))
    return {
        "k": k,
        "opset": _OPSET,
        "verified_users": len(sample),
        "own_ids": own_ids,
        "identical_lists": check_same_lists(model, sample, expected, items, scores, what="the ONNX graph"),
    }


def _graph(onnx: Any, model: Model, k: int, own_ids: bool) -> Any:
    helper, kinds, seen = onnx.helper, onnx.TensorProto, model.known
    constants: dict[str, NDArray[Any]] = {
        "user_vectors": plain_array(model.dot_scores.user_vectors),
        "item_vectors": plain_array(model.dot_scores.item_vectors.T),
        "seen_start": seen.indptr[:-1],
        "seen_count": np.diff(seen.indptr),
        # one entry more, so that position 0 exists even without any interactions
        "seen_items": np.append(seen.indices, 0).astype(np.int32),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "zeros": np.zeros(1, np.int64),
        "ones": np.ones(1, np.int64),
        "nothing": np.array(-1, np.int64),
        "spare_column": np.array(model.train.num_items, np.int64),
        "pads": np.array([0, 0, 0, 1], np.int64),
        "minus_infinity": np.array(-np.inf, np.float32),
        "k": np.array([k], np.int64),
    }
    node, best = helper.make_node, "best" if own_ids else "scores"
    nodes = [
        node("Gather", ["user_vectors", "users"], ["wanted"]),
        node("MatMul", ["wanted", "item_vectors"], ["raw_scores"]),
        node("Pad", ["raw_scores", "pads", "minus_infinity"], ["wide_scores"]),
        # the positions in seen_items of each user's row, padded to the longest row of the batch
        node("Gather", ["seen_start", "users"], ["start"]),
        node("Gather", ["seen_count", "users"], ["count"]),
        node("Concat", ["zeros", "count"], ["count_or_zero"], axis=0),  # the batch may be empty
        node("ReduceMax", ["count_or_zero"], ["longest"], keepdims=0),
        node("Range", ["zero", "longest", "one"], ["step"]),
        node("Unsqueeze", ["start", "ones"], ["start_column"]),
        node("Unsqueeze", ["count", "ones"], ["count_column"]),
        node("Add", ["start_column", "step"], ["position"]),
        node("Less", ["step", "count_column"], ["in_row"]),
        node("Where", ["in_row", "position", "zero"], ["safe_position"]),
        node("Gather", ["seen_items", "safe_position"], ["row_items_32"]),
        node("Cast", ["row_items_32"], ["row_items"], to=kinds.INT64),
        node("Where", ["in_row", "row_items", "spare_column"], ["masked_items"]),
        node("Shape", ["masked_items"], ["mask_shape"]),
        node("Expand", ["minus_infinity", "mask_shape"], ["mask"]),
        node("ScatterElements", ["wide_scores", "masked_items", "mask"], ["masked_scores"], axis=1),
        node("TopK", ["masked_scores", "k"], [best, "places"], axis=1, largest=1, sorted=1),
        *([node("Where", ["known", "best", "minus_infinity"], ["scores"])] if own_ids else []),
        node("IsInf", ["scores"], ["missing"], detect_positive=0),
        node("Where", ["missing", "nothing", "places"], ["items"]),
    ]
    value = helper.make_tensor_value_info
    asked = value("users", kinds.INT64, ["batch"])
    lists = ["batch", "list"]
    given = [value("items", kinds.INT64, lists), value("scores", kinds.FLOAT, lists)]
    domains = [helper.make_opsetid("", _OPSET)]
    if own_ids:
        user_ids, item_ids = model.train.user_ids.ids, model.train.item_ids.ids
        keys = {"keys_strings" if user_ids.dtype == pl.String else "keys_int64s": user_ids.to_list()}
        values = {"values_int64s": list(range(len(user_ids))), "default_int64": -1}
        nodes = [
            node("LabelEncoder", ["user_ids"], ["position_or_none"], domain="ai.onnx.ml", **values, **keys),
            # an unknown user is scored as the first one and masked at the end
            node("GreaterOrEqual", ["position_or_none", "zero"], ["known_flat"]),
            node("Unsqueeze", ["known_flat", "ones"], ["known"]),
            node("Where", ["known_flat", "position_or_none", "zero"], ["users"]),
            *nodes,
            node("Gather", ["id_list", "items"], ["item_ids"]),
        ]
        # the last entry, which is also position -1, is the padding
        nothing: list[Any] = [""] if item_ids.dtype == pl.String else [-1]
        constants["id_list"] = np.array([*item_ids.to_list(), *nothing], _kind_of(item_ids))
        asked = value("user_ids", helper.np_dtype_to_tensor_dtype(np.dtype(_kind_of(user_ids))), ["batch"])
        given.append(value("item_ids", helper.np_dtype_to_tensor_dtype(np.dtype(_kind_of(item_ids))), lists))
        domains.append(helper.make_opsetid("ai.onnx.ml", _ML_OPSET))
    graph = helper.make_graph(
        nodes,
        "talos",
        # a constant of the same name is the default of the input `k`
        [asked, value("k", kinds.INT64, [1])],
        given,
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=domains, ir_version=_IR, producer_name="talos-rec")


def _kind_of(ids: pl.Series) -> type:
    """The numpy type of ids for onnx: strings are objects."""
    return object if ids.dtype == pl.String else np.int64
