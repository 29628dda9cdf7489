"""Negative controls: edits of a forward's source that the comparison with a trace must notice."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import NamedTuple

import pytest
from drawn_passes import ONE, TWO, UNLIMITED, Case
from edited_forwards import drawn_as, noticed, run_as

from dsocr_analyze.architectures import deepseek_ocr_2
from dsocr_analyze.architectures.ocr_family import (
    attention,
    clip,
    decoder,
    passes,
    sam,
)
from dsocr_analyze.tape import modules


class Control(NamedTuple):
    """An edit.

    Attributes:
        module: Where it is made.
        edits: Texts that occur once, and what replaces each.
        is_wanted: A case that shows it.
        notices: What must differ; what else may is not said.
    """

    module: types.ModuleType
    edits: list[tuple[str, str]]
    is_wanted: Callable[[Case], bool]
    notices: set[str]


# --- which case shows it


def decoder_of(case):
    return case.dimensions.decoder


def is_batch(case):
    """Whether products copy what is not one batch of matrices."""
    return case.workload.batch_size > 1 and decoder_of(case).heads > 1 and not case.flash


def is_plain(case):
    return is_batch(case) and not decoder_of(case).use_mla


def is_grouped(case):
    return is_plain(case) and decoder_of(case).heads > decoder_of(case).kv_heads > 1


def is_shared(case):
    return is_plain(case) and decoder_of(case).kv_heads == 1


def is_plain_bf16(case):
    return is_plain(case) and case.dtype.name == "bfloat16"


def is_latent(case):
    return is_batch(case) and decoder_of(case).use_mla


def is_latent_flash(case):
    return decoder_of(case).use_mla and case.flash


def is_plain_flash(case):
    return case.flash and not decoder_of(case).use_mla


def is_yarn(case):
    return decoder_of(case).use_mla and decoder_of(case).rope_scaling == "yarn"


def is_mixed(case):
    return decoder_of(case).moe_layers > 0


def is_uneven(case):
    c, w = decoder_of(case), case.workload
    choices = w.batch_size * w.seq_len * c.num_experts_per_tok
    return is_mixed(case) and choices % (c.n_routed_experts or 1) > 0


def is_normed(case):
    c = decoder_of(case)
    return is_mixed(case) and c.norm_topk_prob and c.num_experts_per_tok > 1


def is_ranked(case):
    return is_mixed(case) and decoder_of(case).topk_method == "noaux_tc"


def has_window(case):
    return case.dimensions.decoder.sliding_window == 1


def has_clip(case):
    return case.architecture == ONE


def has_encoder(case):
    return case.architecture == TWO and case.workload.batch_size > 1


def has_pages(case):
    return case.architecture == UNLIMITED and case.workload.prompt_pages > 1


CONTROLS = {
    "a kept name is used in place": Control(
        modules,
        [
            ('    variance = t.reduce("mean", t.map("pow", wide), rows, d)\n', ""),
            (
                't.map("add", variance)',
                't.map("add", t.reduce("mean", t.map("pow", wide), rows, d))',
            ),
            ("t.hold(variance, wide)", "t.hold(wide)"),
        ],
        has_clip,
        {"levels"},
    ),
    "a product's copies are freed early": Control(
        attention,
        [
            ("    copy_of_a = None if", "    None if"),
            ("    copy_of_b = None if", "    None if"),
            ("    t.hold(copy_of_a, copy_of_b)\n", ""),
        ],
        is_plain,
        {"levels"},
    ),
    "scores are kept through softmax": Control(
        attention,
        [
            (
                "    weights = t.cast(t.softmax(weights, p.tokens * H, K), t.dtype)",
                "    x, weights = weights, t.cast(t.softmax(weights, p.tokens * H, K), t.dtype)",
            ),
        ],
        is_plain,
        {"levels"},
    ),
    "one more name is kept": Control(
        attention,
        [
            ('t.call("act_fn", ACTIVATIONS[act]', '(y := t.call("act_fn", ACTIVATIONS[act]'),
            ("linear, x, n, d, f)),", "linear, x, n, d, f))),"),
        ],
        has_clip,
        {"levels"},
    ),
    "a record reads the copy": Control(
        attention,
        [
            (
                't.product("matmul", gemm, a, b)',
                't.product("matmul", gemm, a, copy_of_b or copy_of_a or b)',
            ),
        ],
        is_shared,
        {"records"},
    ),
    "heads and those of keys are swapped": Control(
        attention,
        [
            ('t.call("k_proj", linear, x, n, d, kv * D', 't.call("k_proj", linear, x, n, d, H * D'),
        ],
        is_grouped,
        {"cache", "levels", "records", "weights"},
    ),
    "an expert gets a token too few": Control(
        decoder,
        [
            ("swiglu, x, n_longer, *sizes", "swiglu, x, share, *sizes"),
        ],
        is_uneven,
        {"levels", "records"},
    ),
    "a bias is left out": Control(
        sam,
        [
            ("c.width, f, bias=True", "c.width, f"),
        ],
        has_clip,
        {"records", "weights"},
    ),
    "the last prompt's tokens are kept": Control(
        passes,
        [
            ("        seen.tokens = None  # frees those of the last prompt first\n", ""),
        ],
        is_batch,
        {"levels"},
    ),
    "the last page's tokens are kept": Control(
        deepseek_ocr_2,
        [
            ("features.tokens = features.semantic", "pass"),
            ("projector, features.tokens, N", "projector, features.semantic, N"),
        ],
        has_encoder,
        {"levels"},
    ),
    "a mask is added under another name": Control(
        attention,
        [
            ('weights = t.map("add", weights, mask)', 'x = t.map("add", weights, mask)'),
            ("t.softmax(weights, p.tokens", "t.softmax(weights if mask is None else x, p.tokens"),
        ],
        is_plain,
        {"levels"},
    ),
    "a cast is left out": Control(
        attention,
        [
            (
                "t.cast(t.softmax(weights, p.tokens * H, K), t.dtype)",
                "t.softmax(weights, p.tokens * H, K)",
            ),
        ],
        is_plain_bf16,
        {"levels", "records"},
    ),
    "rotary tables are freed early": Control(
        attention,
        [
            (
                "rotated(t, k, cos, sin)\n",
                "rotated(t, k, cos, sin)\n    cos = sin = None\n",
            ),
        ],
        is_plain,
        {"levels"},
    ),
    "an operator has another's name": Control(
        decoder,
        [
            ('t.product("einsum"', 't.product("matmul"'),
        ],
        is_latent,
        {"levels", "records"},
    ),
    "a norm's fp32 input is kept under its name": Control(
        modules,
        [
            ('wide = t.map("mul", wide, t.map("rsqrt"', 'y = t.map("mul", wide, t.map("rsqrt"'),
            ("t.cast(wide, x.dtype), t.weight(d))", "t.cast(y, x.dtype), t.weight(d))"),
        ],
        is_plain_bf16,
        {"levels"},
    ),
    "attention's output is kept": Control(
        decoder,
        [
            ("    del attended\n", ""),
        ],
        is_plain,
        {"levels"},
    ),
    "the router's denominators are freed": Control(
        decoder,
        [
            ('        denominator = t.map("add", t.reduce("sum", weights, n, k))\n', ""),
            (
                't.map("div", weights, denominator)',
                't.map("div", weights, t.map("add", t.reduce("sum", weights, n, k)))',
            ),
            ("        t.hold(denominator)\n", ""),
        ],
        is_normed,
        {"levels"},
    ),
    "the chosen groups' scores are freed": Control(
        decoder,
        [
            ("    if k > 1 and c", "    ranking = ()\n    if k > 1 and c"),
        ],
        is_ranked,
        {"levels"},
    ),
    "a norm of features stored by channel copies nothing": Control(
        sam,
        [
            ('"norm2", layer_norm, x, n, d, channels_first=True', '"norm2", layer_norm, x, n, d'),
        ],
        has_clip,
        {"levels", "records"},
    ),
    "what a full window overwrites with is freed": Control(
        attention,
        [
            ("(k, v) if p.overwrites else ()", "()"),
        ],
        has_window,
        {"levels"},
    ),
    "the cache keeps another tensor": Control(
        decoder,
        [
            ("return out, k_pe, latent, *tables", "return out, k_pe, k_pe, *tables"),
        ],
        is_latent,
        {"cache", "levels"},
    ),
    "queries are freed once they are joined": Control(
        decoder,
        [
            ("    v: Operand = t.view", "    query = None\n    v: Operand = t.view"),
        ],
        is_latent_flash,
        {"levels"},
    ),
    "a frequency's inverse frees its operand": Control(
        decoder,
        [
            (
                "    kept = _inverse(t, _yarn_periods(t, half))",
                '    kept = t.map("mul", t.map("reciprocal", _yarn_periods(t, half)))',
            ),
        ],
        is_yarn,
        {"levels"},
    ),
    "a child is not called": Control(
        attention,
        [
            (
                't.call("act_fn", ACTIVATIONS[act], t.call("gate_proj", linear, x, n, d, f))',
                'ACTIVATIONS[act](t, t.call("gate_proj", linear, x, n, d, f))',
            ),
        ],
        has_clip,
        {"calls", "levels", "records"},
    ),
    "weights that never run are left out": Control(
        clip,
        [
            ('    t.idle("patch_embedding", methodcaller(', "    (("),
        ],
        has_clip,
        {"weights"},
    ),
    "a page's tokens are kept twice": Control(
        passes,
        [
            (
                "pages.append(seen.page)",
                'pages.append(t.move("clone", seen.page))',
            ),
        ],
        has_pages,
        {"levels", "records"},
    ),
    "differences of positions are kept": Control(
        attention,
        [
            (
                't.map("ge", t.map("sub", before, after), ',
                't.map("ge", x := t.map("sub", before, after), ',
            ),
        ],
        is_plain_flash,
        {"levels"},
    ),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_an_edit_is_noticed(name, monkeypatch):
    control = CONTROLS[name]
    case, theirs = drawn_as(control.is_wanted)
    source = inspect.getsource(control.module)
    for old, new in control.edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    assert not noticed(case, theirs)
    run_as(monkeypatch, control.module, source)
    assert noticed(case, theirs) >= control.notices
