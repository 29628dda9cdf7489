"""Measured kernel times of `aiconfigurator-core`, as columns ready for the formulas."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as parquet
from kernel_fits import MeasuredRows, held_out_groups, predicted
from numpy.typing import NDArray

from dsocr_analyze.hardware.machine import Floats

__all__ = [
    "KINDS",
    "OTHERS",
    "SYSTEMS",
    "MeasuredRows",
    "data_directory",
    "predicted",
    "read_rows",
    "weight_only_rows",
]

_BACKENDS: Final = {
    "attention": ("fa3", "trtllm_mha", "flashinfer", "flash_attention"), "moe": ("triton",)
}  # fmt: skip
"""SGLang's default kernels: by GPU the first one that is there, and for experts the runner that it
takes where neither the model nor a quantization asks for another. Models of other head sizes and
those that name a runner were measured with others."""
_OTHER_ATTENTION: Final = "triton_attn"
"""vLLM's kernel for heads of 192 where no library has one: none of a page has such heads."""
SYSTEMS: Final = {
    "a100-80gb-sxm": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "l40s": "l40s",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""The table's name of each GPU."""

KINDS: Final = (
    "gemm", "encoder_attention", "context_attention", "generation_attention", "experts", "movement",
)  # fmt: skip
_TABLES: Final = {
    "gemm": ("gemm", "gemm_perf"),
    "encoder_attention": ("encoder_attention", "encoder_attention_perf"),
    "context_attention": ("attention", "context_attention_perf"),
    "generation_attention": ("attention", "generation_attention_perf"),
    "experts": ("moe", "moe_perf"),
    "movement": ("quantize", "scale_matrix_perf"),
}
"""Folder and file of each kind. Elementwise kernels stand for all that only move bytes: elements of
16 bits are read, scaled, and written in 8."""
OTHERS: Final = 5.0
"""Weights beside its own that a product was measured with in turn: none is in L2 unless all are
(`collect_gemm.py` of ai-dynamo/aiconfigurator, `outside_loop_count`)."""
_DTYPES: Final = {"bfloat16": "bfloat16", "float8": "fp8"}
_FEWEST: Final = 50
"""Rows that make a table of integer weights worth a look."""
_ALIGNED: Final = 16
_UNGATED: Final = ((2688, 1856), (2048, 5120), (1024, 2688), (8192, 5120))
"""Hidden and inner sizes of models whose experts have no gate, so two matrices instead of three.

The tables do not say so. With three, these alone would have been read at 1.2 to 1.4 times the
bandwidth of every GPU, and all others at 0.8 to 0.96 of it.
"""
_TUNED: Final[dict[str, dict[int, tuple[int, ...]]]] = {
    "a100-80gb-sxm": {8: (1792, 2048, 3584, 4096, 7168)},
    "h100-sxm": {8: (1792, 2048, 3584, 4096, 7168), 16: (1024, 2048),
                 128: (192, 352, 384, 512, 704, 768), 512: (64, 128, 336, 672, 1344, 2688)},
    "h200-sxm": {8: (1792, 2048, 3584, 4096, 7168, 14336), 16: (1024,), 128: (192, 384, 704, 768),
                 512: (64, 128, 256)},
    "l40s": {8: (3584,), 128: (928, 1856)},
    "b200": {16: (1024, 2048), 128: (352, 704), 256: (256, 512)},
    "rtx-pro-6000": {256: (512,)},
}  # fmt: skip
"""Inner sizes of experts by their number that run a tile tuned for this GPU, which the wheel of
SGLang 0.5.14 ships (`configs/*/E=8,N=1792,device_name=...json`). All others, 64 experts of 896
among them, take its default tile, which alone is fitted."""


def data_directory(given: Path | None) -> Path:
    """Folder of the tables: `given`, or that of the installed package."""
    if given is not None:
        return given
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("aiconfigurator-core is not installed; install the extra `profiles`")
    return Path(found.submodule_search_locations[0]) / "systems" / "data"


def read_rows(
    data: Path, gpu: str, kind: str, dtype: str, engine: str = "vllm"
) -> MeasuredRows | None:
    """Rows of a GPU, kind and data type under a serving engine; None where there are none.

    They are of the last version with a table.
    """
    room, name = _TABLES[kind]
    found = sorted((data / SYSTEMS[gpu] / room / engine).glob(f"*/{name}.parquet"), key=_version)
    if not found:
        return None
    table = parquet.read_table(found[-1])
    columns = {
        each: table.column(each).to_numpy(zero_copy_only=False) for each in table.column_names
    }
    chosen = _chosen(columns, kind, _DTYPES[dtype])
    if engine == "sglang" and room in _BACKENDS:
        sources = [str(source) for source in columns["kernel_source"]]
        default = next(each for each in _BACKENDS[room] if any(each in name for name in sources))
        chosen &= np.array([default in source for source in sources])
    elif kind.endswith("attention"):
        chosen &= np.array([_OTHER_ATTENTION not in str(each) for each in columns["kernel_source"]])
    columns = {each: values[chosen] for each, values in columns.items()}
    if not chosen.any():
        return None
    sizes, keys, within = _sizes(columns, kind)
    if engine == "vllm" and kind == "experts":
        sizes["touched"] = touched(sizes, in_bfloat16)
    if engine == "sglang" and kind == "experts":
        # But on L40S, every expert had a gate: 2688 x 1856, too, takes three matrices' time.
        sizes["gated"] = sizes["gated"] if gpu == "l40s" else np.ones(len(within))
        # Weights of other inner sizes, which Triton loads element by element, no page has.
        within = sizes["inter"] % _ALIGNED == 0
    group = np.stack([np.asarray(columns[key], dtype=np.int64) for key in keys], axis=1)
    held_out = held_out_groups([tuple(map(int, row)) for row in group])
    seconds = np.asarray(columns["latency"], dtype=float) / 1e3
    version = f"{engine} {found[-1].parent.name}"
    rows = MeasuredRows(sizes, seconds, held_out, within, group, version)
    if engine == "sglang" and kind == "experts":
        tuned = {(number, inter) for number, each in _TUNED.get(gpu, {}).items() for inter in each}
        shapes = zip(sizes["experts"], sizes["inter"], strict=True)
        rows = rows.taken(np.array([shape not in tuned for shape in shapes]))
    return rows


def in_bfloat16(values: Floats) -> Floats:
    """Values rounded to the nearest ones of bfloat16, of two the even one."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(float)


def touched(sizes: dict[str, Floats], as_type: Callable[[Floats], Floats] = np.copy) -> Floats:
    """Experts with a token where choices are balanced, by `balanced_logits` of the collectors.

    A token's choices are a stride apart, and tokens step evenly through it. Where they are fewer
    than it is long, numbers of experts are of a type: in vLLM's collector, of bfloat16, which has
    only every second number from 256, so that up to a quarter of 512 experts fewer have a token.
    """
    names = ("tokens", "experts", "top_k")
    every = np.stack([sizes[name] for name in names], axis=1)
    unique, where = np.unique(every, axis=0, return_inverse=True)
    found = []
    for tokens, experts, top_k in unique:
        stride = np.ceil(experts / top_k)
        steps = as_type(as_type(np.arange(tokens) * stride) / tokens)
        starts = as_type(stride * np.arange(top_k))
        chosen = as_type(np.add.outer(steps, starts)) % experts
        found.append(experts if tokens >= stride else len(np.unique(chosen.astype(int))))
    return np.array(found, dtype=float)[where.ravel()]


def _version(path: Path) -> list[int]:
    """Numbers of a table's version: 0.5.14 comes after 0.5.6.post2."""
    return [int(number) for number in re.findall(r"\d+", path.parent.name)]


def weight_only_rows(data: Path, gpu: str, kind: str, weights: str) -> MeasuredRows | None:
    """Rows of 16-bit products with integer weights, of the last table that has any; None for none.

    No fit reads them; they tell what deriving their times from 16-bit weights misses.
    """
    room, name = _TABLES[kind]
    found = None
    for path in sorted((data / SYSTEMS[gpu] / room).glob(f"*/*/{name}.parquet"), key=_version):
        table = parquet.read_table(path)
        columns = {
            each: table.column(each).to_numpy(zero_copy_only=False) for each in table.column_names
        }
        chosen = _chosen(columns, kind, f"{weights}_wo")
        if chosen.sum() < _FEWEST:
            continue
        columns = {each: values[chosen] for each, values in columns.items()}
        sizes, keys, within = _sizes(columns, kind)
        group = np.stack([np.asarray(columns[key], dtype=np.int64) for key in keys], axis=1)
        seconds = np.asarray(columns["latency"], dtype=float) / 1e3
        version = f"{path.parent.parent.name} {path.parent.name}"
        found = MeasuredRows(
            sizes, seconds, np.ones(len(within), dtype=bool), within, group, version
        )
    return found


def _chosen(columns: dict[str, Any], kind: str, dtype: str) -> NDArray[np.bool_]:
    if kind == "gemm":
        return np.asarray(
            (columns["gemm_dtype"] == dtype) & (columns["m"] <= 16384)
            & (columns["n"] >= 256) & (columns["k"] >= 256)
        )  # fmt: skip
    if kind == "experts":
        return np.asarray(
            (columns["moe_dtype"] == dtype) & (columns["distribution"] == "balanced")
            & (columns["moe_ep_size"] == 1)
        )  # fmt: skip
    if kind == "movement":
        is_timed = columns["latency"] > 0
        return np.asarray(is_timed & (columns["k"] <= 16384) & (dtype == "bfloat16"))
    chosen = columns["attn_dtype"] == "bfloat16"
    if "kv_cache_dtype" in columns:
        chosen = chosen & (columns["kv_cache_dtype"] == dtype)
    if "window_size" in columns:
        chosen = chosen & (columns["window_size"] == 0)
    return np.asarray(chosen & (columns["head_dim"] <= 256))


def _sizes(
    columns: dict[str, Any], kind: str
) -> tuple[dict[str, Floats], tuple[str, ...], NDArray[np.bool_]]:
    """Columns of the formula, those that make a group, and where errors are stated."""
    names: dict[str, str]
    if kind == "gemm":
        sizes = {name: columns[name].astype(float) for name in ("m", "n", "k")}
        sizes["others"] = np.full(len(sizes["m"]), OTHERS)
        return sizes, ("n", "k"), (sizes["n"] <= 16384) & (sizes["k"] <= 16384)
    if kind == "experts":
        names = {"tokens": "num_tokens", "hidden": "hidden_size", "experts": "num_experts",
                 "top_k": "topk", "inter": "inter_size"}  # fmt: skip
        sizes = {name: columns[key].astype(float) for name, key in names.items()}
        whole = zip(sizes["hidden"], sizes["inter"], strict=True)
        sizes["gated"] = np.array([pair not in _UNGATED for pair in whole], dtype=float)
        sizes["inter"] = sizes["inter"] / columns["moe_tp_size"]
        sizes["touched"] = touched(sizes)
        second = np.array(["cutlass" in str(name) for name in columns["kernel_source"]])
        sizes["fallback"] = (second & ~second.all()).astype(float)
        keys = ("hidden_size", "inter_size", "topk", "num_experts")
        # Errors are those of the kernel that a page runs.
        return sizes, keys, sizes["fallback"] == 0
    if kind == "movement":
        rows, width = columns["m"].astype(float), columns["k"].astype(float)
        sizes = {"moved": 3 * rows * width, "rows": rows, "width": width}
        return sizes, ("m", "k"), np.ones(len(rows), dtype=bool)
    heads = "num_heads"
    kv_heads = "num_key_value_heads" if "num_key_value_heads" in columns else heads
    names = {"batch": "batch_size", "queries": "isl", "heads": heads, "head_dim": "head_dim",
             "kv_heads": kv_heads}  # fmt: skip
    sizes = {name: columns[key].astype(float) for name, key in names.items()}
    sizes["keys"] = sizes["queries"] + columns.get("step", 0)
    return sizes, (heads, "head_dim", kv_heads), np.ones(len(sizes["keys"]), dtype=bool)
