"""What crosses the border to the compiled core: its structs, field by field as core/sweep.h has them."""

from __future__ import annotations

import ctypes

__all__ = ["LeastSquares", "Positives", "Rows", "Task", "Team"]

_F32 = ctypes.c_void_p
_I64 = ctypes.c_void_p


class Team(ctypes.Structure):
    """`talos::Team` of core/sweep.h."""

    _fields_ = (("parallel", ctypes.c_void_p), ("size", ctypes.c_void_p))


class Rows(ctypes.Structure):
    """`talos::Rows` of core/sweep.h, field by field."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("team", Team),
        ("rows", _F32),
        ("unit", _F32),
        ("lengths", _F32),
    )


class Task(ctypes.Structure):
    """`talos::Task` of core/sweep.h, field by field."""

    _fields_ = (
        ("users", ctypes.c_int64),
        ("items", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("user_vectors", _F32),
        ("item_vectors", _F32),
        ("excluded_start", _I64),
        ("excluded", _I64),
        ("thresholds", _F32),
        ("coefficients", _F32),
        ("kind", ctypes.c_int32),
        ("params", ctypes.c_float * 5),
        ("scale", ctypes.c_float),
        ("bfloat16", ctypes.c_int32),
        ("k", ctypes.c_int64),
        ("kth_is_threshold", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("users_per_block", ctypes.c_int64),
        ("team", Team),
        ("workspace", _F32),
        ("negative", _F32),
        ("normalizer", _F32),
        ("user_gradient", _F32),
        ("item_gradient", _F32),
        ("kth", _F32),
        ("best", _F32),
        ("excluded_scores", _F32),
        ("moments", _F32),
    )


class Positives(ctypes.Structure):
    """`talos::Positives` of core/sweep.h, field by field."""

    _fields_ = (
        ("users", ctypes.c_int64),
        ("items", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("team", Team),
        ("start", _I64),
        ("items_of", _I64),
        ("slopes", _F32),
        ("user_vectors", _F32),
        ("item_vectors", _F32),
        ("lengths", _F32),
        ("user_gradient", _F32),
        ("item_gradient", _F32),
    )


class LeastSquares(ctypes.Structure):
    """`talos::LeastSquares` of core/sweep.h, field by field."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("team", Team),
        ("start", _I64),
        ("items_of", _I64),
        ("fixed", _F32),
        ("gram", _F32),
        ("weight", ctypes.c_float),
        ("solution", _F32),
    )
