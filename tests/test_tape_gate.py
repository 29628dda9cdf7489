"""Whole passes on the tape, step by step beside a trace and beside real tensors on a CPU.

Each case is a small model drawn by its number (`drawn_passes.py`), with its prefill pass and some
decode steps.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial

from cuda_levels import common, witnessed
from drawn_passes import ONE, TWO, UNLIMITED, WINDOW, drawn
from sampling import named, sampled
from taped_passes import noted, taped
from traced_passes import traced

from dsocr_analyze.dtypes import BFLOAT16, FLOAT16
from dsocr_analyze.tape import Tape
from dsocr_analyze.tape.modules import ACTIVATIONS

SEEDS = range(240)
QUICK = (31, 36, 53)
"""One of each architecture, which run in a blink."""


def assert_same_steps(ours, theirs):
    for step, (one, other) in enumerate(itertools.zip_longest(ours, theirs)):
        assert one == other, f"step {step}"


@sampled("seed", SEEDS, named(*QUICK))
def test_a_pass_is_that_of_the_trace(seed):
    case = drawn(seed)
    for number, theirs in traced(case).items():
        ours = taped(case, number)
        assert_same_steps(ours.tape.levels, theirs.levels)
        figures = noted(ours)
        for name, figure in theirs.figures.items():
            assert figures[name] == figure, (number, name)


@sampled("seed", SEEDS, named(*QUICK))
def test_a_pass_holds_what_real_tensors_hold(seed):
    case = drawn(seed)
    if case.dtype is FLOAT16:  # of which CPUs have no fused softmax
        case = dataclasses.replace(case, dtype=BFLOAT16)
    for number, levels in witnessed(case).items():
        assert_same_steps(common(taped(case, number).tape.levels), common(levels))


@sampled("seed", SEEDS, lambda number, _: number < 3)
def test_copying_equal_calls_changes_no_figure(seed):
    case = drawn(seed)
    w = case.workload
    pages = (1, 2, 5) if w.local_views is None else (1,)
    for batch, count in itertools.product((1, 3), pages):
        tokens = w.visual_tokens // w.prompt_pages * count
        sizes = {"batch_size": batch, "prompt_pages": count, "visual_tokens": tokens}
        sized = dataclasses.replace(case, workload=dataclasses.replace(w, **sizes))
        whole, copied = noted(taped(sized)), taped(sized, kind=Tape)
        assert noted(copied) == whole
        assert taped(sized, kind=partial(Tape, records=False)).tape.peak == whole["peak"]
        assert len(copied.tape.kernels) <= whole["records"].total()


# --- what is drawn


def compared(size, other):
    return "equal to" if size == other else "above" if size > other else "below"


def features_of(case):
    """What a case has, in words."""
    c, w, sam = case.dimensions.decoder, case.workload, case.dimensions.sam
    views = [view.resolution // 16 for view in w.views]
    kinds = {c.is_moe(index) for index in range(c.layers)}
    is_plain, is_mixed, is_cut = not c.use_mla, True in kinds, w.local_views is not None
    is_dynamic = c.use_mla and c.rope_scaling == "dynamic"
    columns, rows = w.grid
    choices = w.batch_size * w.seq_len * c.num_experts_per_tok
    has = {
        "one head": is_plain and c.heads == 1,
        "one kv head": is_plain and c.heads > c.kv_heads == 1,
        "grouped heads": is_plain and c.heads > c.kv_heads > 1,
        "as many kv heads": is_plain and c.heads == c.kv_heads > 1,
        f"beyond trained {w.seq_len > c.max_position_embeddings}": is_dynamic,
        "dense and mixed layers": len(kinds) == 2,
        c.topk_method: is_mixed,
        c.scoring_func: is_mixed,
        f"shared {c.n_shared_experts}": is_mixed,
        f"norm {c.norm_topk_prob and c.num_experts_per_tok > 1}": is_mixed,
        "fewer choices than experts": is_mixed and choices < c.n_routed_experts,
        "one column": is_cut and columns == 1,
        "one row": is_cut and rows == 1 < columns,
        "several of both": is_cut and columns > 1 < rows,
        "local views of one token": is_cut and views[0] <= 4,
        "local views of several": is_cut and views[0] > 4,
        "window": c.sliding_window is not None,
    }
    return {
        *(case.architecture, case.dtype.name, f"batch {w.batch_size}", f"{w.prompt_pages} pages"),
        *(f"act {c.hidden_act}", f"bias {c.attention_bias}", f"tied {c.tie_word_embeddings}"),
        f"latent {c.use_mla}, flash {case.flash}, {c.rope_scaling}",
        f"projector {case.dimensions.projector.projector_type}",
        *(words for words, is_so in has.items() if is_so),
        *(
            f"{'global' if index in sam.global_attn_indexes else 'windowed'},"
            f" {compared(g, WINDOW)} window"
            for index, g in itertools.product(range(sam.layers), views)
        ),
        *(f"grid {compared(g, sam.image_size // sam.patch)} table" for g in views),
    }


EXPECTED = {
    *(ONE, TWO, UNLIMITED, "bfloat16", "float32", "float16", "batch 1", "batch 3"),
    *("1 pages", "2 pages", "3 pages", "window"),
    *("bias True", "bias False", "tied True", "tied False"),
    *("one head", "one kv head", "grouped heads", "as many kv heads"),
    *("dense and mixed layers", "fewer choices than experts"),
    *("greedy", "group_limited_greedy", "noaux_tc", "softmax", "sigmoid"),
    *("shared None", "shared 1", "norm True", "norm False"),
    *("beyond trained True", "beyond trained False"),
    *(f"latent True, flash {flash}, {kind}"
      for flash in (False, True) for kind in (None, "linear", "dynamic", "yarn")),
    *(f"latent False, flash {flash}, None" for flash in (False, True)),
    *(f"projector {kind}"
      for kind in ("identity", "linear", "mlp_gelu", "hybrid_split_feature_mlp_gelu")),
    *(f"{kind}, {size} window"
      for kind in ("global", "windowed") for size in ("above", "equal to", "below")),
    *("grid above table", "grid equal to table", "grid below table"),
    *("one column", "one row", "several of both"),
    *("local views of one token", "local views of several"),
}  # fmt: skip


def test_the_drawn_cases_have_all_that_differs():
    found = set().union(*(features_of(drawn(seed)) for seed in SEEDS))
    assert {*EXPECTED, *(f"act {name}" for name in ACTIVATIONS)} - found == set()
