"""Columns of Arrow tables as matrices and keys, without a copy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kohaku_ray.index.arrays import F32
from kohaku_ray.index.identity import KEY_BYTES, Keys, no_keys


def matrix_column(vectors: F32) -> pa.FixedSizeListArray:
    """Wrap a float32 matrix as an Arrow column of fixed-size lists."""
    flat = np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def column_matrix(column: pa.ChunkedArray) -> F32:
    """View a column of fixed-size lists as a float32 matrix; only several chunks are copied."""
    d = column.type.list_size
    parts = [chunk.flatten().to_numpy(zero_copy_only=True).reshape(-1, d) for chunk in column.chunks]
    if len(parts) == 1:
        only: F32 = parts[0]
        return only
    return np.concatenate([np.empty((0, d), dtype=np.float32), *parts])


def key_column(keys: Keys) -> pa.FixedSizeBinaryArray:
    """Wrap vector keys as an Arrow column of 16-byte strings."""
    data = pa.py_buffer(np.ascontiguousarray(keys))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), len(keys), [None, data])


def column_keys(column: pa.ChunkedArray) -> Keys:
    """Copy a column of 16-byte strings as vector keys."""
    parts = [
        np.frombuffer(chunk.buffers()[1], f"V{KEY_BYTES}")[chunk.offset :][: len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([no_keys(), *parts])
