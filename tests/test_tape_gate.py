"""Whole passes on the tape, step by step beside a trace, and beside real tensors on a CPU.

Each case is a small model drawn by its number (`drawn_passes.py`), with its prefill pass and some
decode steps.
"""

import contextlib
import dataclasses
import itertools
import sys

from alive_tensors import held_by_prefill
from drawn_passes import ONE, TWO, UNLIMITED, WINDOW, drawn
from sampling import named, sampled
from taped_passes import noted, taped
from traced_passes import loaded, traced

from dsocr_analyze import cli, kernels
from dsocr_analyze.tape import modules

# --- whole passes ----------------------------------------------------------------------------


SEEDS = range(240)
QUICK = (36, 53, 124, 141, 142, 215)
"""Cases that run in a blink: of every architecture, with and without latent attention, experts,
FlashAttention, grouped heads, several prompts or pages, and with a window that fills up."""


@sampled("seed", SEEDS, named(*QUICK))
def test_a_pass_is_that_of_the_trace(seed):
    case = drawn(seed)
    for number, theirs in traced(case).items():
        ours = taped(case, number)
        levels = itertools.zip_longest(ours.tape.levels, theirs.levels)
        for step, (one, other) in enumerate(levels):
            assert one == other, f"step {step}"
        figures = noted(ours)
        for name, figure in theirs.figures.items():
            assert figures[name] == figure, (number, name)


@sampled("seed", SEEDS, named(*QUICK[:3]))
def test_a_prefill_pass_holds_as_much_as_real_tensors(seed):
    case = dataclasses.replace(drawn(seed), flash=False)  # of which CPUs have no kernel
    if case.dtype is kernels.FLOAT16:  # of which CPUs have no fused softmax
        case = dataclasses.replace(case, dtype=kernels.BFLOAT16)
    held = held_by_prefill(loaded(case, "cpu"), case.arch, case.workload)
    assert taped(case).tape.peak.nbytes == held


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
    assert {*EXPECTED, *(f"act {name}" for name in modules.ACTIVATIONS)} - found == set()


# --- where something keeps tensors, there are no figures ---------------------------------------


@contextlib.contextmanager
def frames_kept(frames, wanted):
    """Under a tracer that keeps frames, as a debugger or a profiler may."""

    def watch(frame, event, argument):
        if wanted(frame):
            frames.append(frame)
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)


def test_a_command_whose_frames_are_kept_ends_in_one_line(capsys):
    with frames_kept([], lambda frame: "ocr_family" in frame.f_code.co_filename):
        code = cli.main(["--engine", "analytic", "--page", "1111x2222"])  # not counted before
    output = capsys.readouterr()
    assert (code, output.out, output.err.count("\n")) == (70, "", 1)
    assert "still alive" in output.err
