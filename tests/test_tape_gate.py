"""Whole passes on the tape, step by step beside a trace and beside real tensors on a CPU.

Each case is a small model drawn by its number (`drawn_passes.py`), with its prefill pass and some
decode steps.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

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


def with_sizes(case, batch, pages):
    """The case with another batch, and as many pages per prompt."""
    w = case.workload
    tokens = w.visual_tokens // w.prompt_pages * pages
    w = dataclasses.replace(w, batch_size=batch, prompt_pages=pages, visual_tokens=tokens)
    return dataclasses.replace(case, workload=w)


@sampled("seed", SEEDS, lambda number, _: number < 6)
def test_copying_equal_calls_changes_no_figure(seed):
    case = drawn(seed)
    pages = (1, 2, 3, 5) if case.workload.local_views is None else (1,)
    for batch, count in itertools.product((1, 2, 5), pages):
        sized = with_sizes(case, batch, count)
        whole, copied = noted(taped(sized)), taped(sized, kind=Tape)
        assert noted(copied) == whole
        assert taped(sized, kind=_of_memory_alone).tape.peak == whole["peak"]
        assert len(copied.tape.kernels) <= whole["records"].total()


def _of_memory_alone(*args):
    return Tape(*args, records=False)


# --- what is drawn


def compared(size, other):
    return "equal to" if size == other else "above" if size > other else "below"


def features_of(case):
    """What a case has, in words."""
    c, w = case.dimensions, case.workload
    decoder, sam, views = c.decoder, c.sam, [view.resolution // 16 for view in w.views]
    kinds = {decoder.is_moe(index) for index in range(decoder.layers)}
    found = {
        case.architecture,
        case.dtype.name,
        f"batch {w.batch_size}",
        f"{w.prompt_pages} pages",
        f"act {decoder.hidden_act}",
        f"bias {decoder.attention_bias}",
        f"tied {decoder.tie_word_embeddings}",
        f"latent {decoder.use_mla}, flash {case.flash}, {decoder.rope_scaling}",
        f"projector {c.projector.projector_type}",
    }
    heads, kv = decoder.heads, decoder.kv_heads
    if not decoder.use_mla:
        found.add("one head" if heads == 1 else "one kv head" if kv == 1 else
                  "grouped heads" if kv < heads else "as many kv heads")  # fmt: skip
    elif decoder.rope_scaling == "dynamic":
        found.add(f"beyond trained {w.seq_len > decoder.max_position_embeddings}")
    if len(kinds) == 2:
        found.add("dense and mixed layers")
    if True in kinds:
        found |= {decoder.topk_method, decoder.scoring_func, f"shared {decoder.n_shared_experts}"}
        found.add(f"norm {decoder.norm_topk_prob and decoder.num_experts_per_tok > 1}")
        choices = w.batch_size * w.seq_len * decoder.num_experts_per_tok
        if choices < decoder.n_routed_experts:
            found.add("fewer choices than experts")
    for index in range(sam.layers):
        kind = "global" if index in sam.global_attn_indexes else "windowed"
        for g in views:
            found |= {
                f"{kind}, {compared(g, WINDOW)} window",
                f"grid {compared(g, sam.image_size // sam.patch)} table",
            }
    if w.local_views is not None:
        columns, rows = w.grid
        found.add("one column" if columns == 1 else "one row" if rows == 1 else "several of both")
        found.add("local views of one token" if views[0] <= 4 else "local views of several")
    if c.decoder.sliding_window is not None:
        found.add("window")
    return found


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
    drawn_features = [features_of(drawn(seed)) for seed in SEEDS]
    counts = Counter(itertools.chain.from_iterable(drawn_features))
    lacking = {f"act {name}" for name in ACTIVATIONS} | EXPECTED
    assert not lacking - counts.keys()
