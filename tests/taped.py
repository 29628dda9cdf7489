"""Forwards on tapes of their own: alone, beside a trace of a module, and on sizes as symbols."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import torch
from taped_passes import WholeTape
from traced_passes import levels_of
from tracing import meta

from dsocr_analyze.architectures.ocr_family.attention import attention
from dsocr_analyze.architectures.ocr_family.decoder import latent_attention
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import total_work
from dsocr_analyze.model.forward import running
from dsocr_analyze.tape import Tape
from dsocr_analyze.tape.polynomial import Polynomial, Values
from dsocr_analyze.trace.passes import recorded_flash_attention
from dsocr_analyze.trace.recorder import Recorder

DTYPES = (BFLOAT16, FLOAT16, FLOAT32)

# --- alone ---------------------------------------------------------------------------------------


def alone(forward, dtype=BFLOAT16, kind=Tape, root="", **options):
    """A tape of one call of a forward that takes nothing but the tape; nothing is left alive."""
    tape = kind(dtype, **options)
    output = tape.call(root, forward)
    del output
    tape.check_nothing_is_left()
    return tape


def features(tape, *shape):
    """An input of this shape in the tape's type, which is no activation."""
    n = 1
    for size in shape:
        n = size * n
    return tape.input(n, tape.dtype)


def summed(kernels):
    return total_work(kernel.total for kernel in kernels)


def own(tape, path=""):
    """Records of the module at `path` itself."""
    return [kernel for kernel in tape.kernels if kernel.path == path]


def params(tape):
    return sum(n for _, _, n in tape.weights)


# --- decoders ------------------------------------------------------------------------------------

CONFIG = {
    "hidden_size": 24,
    "vocab_size": 50,
    "num_hidden_layers": 1,
    "intermediate_size": 20,
    "moe_intermediate_size": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "attention_bias": False,
    "use_mla": False,
    "q_lora_rank": None,
    "kv_lora_rank": 6,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 5,
    "max_position_embeddings": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 0,
    "moe_layer_freq": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "n_group": 1,
    "topk_group": 1,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}


def of_config(**changes):
    return DecoderDimensions.from_config(CONFIG | changes)


def decoder(**fields):
    """Dimensions with any fields, also some that no config file gives."""
    return dataclasses.replace(of_config(), **fields)


def attend(t, c, p, forward=attention):
    """One pass of attention; a mask unless it is by flash."""
    mask = None if p.flash else features(t, p.tokens, p.keys)
    return forward(t, features(t, p.tokens, c.hidden_size), mask, p, c)


def latent(t, c, p):
    return attend(t, c, p, latent_attention)


# --- beside a trace ------------------------------------------------------------------------------


def of_type(dtype, *shape):
    """A tensor on `meta`."""
    return meta(*shape, dtype=getattr(torch, dtype.name))


def on_meta(build, *args, dtype, **kwargs):
    """What `build` makes, on `meta`; only parameters have the type, tables stay fp32."""
    with torch.device("meta"):
        module = build(*args, **kwargs).eval()
    for parameter in module.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype.name))
    return module


def expanded(kernels):
    """Records of single calls, each with its number."""
    numbers = Counter()
    for kernel in kernels:
        numbers[kernel._replace(calls=1)] += kernel.calls
    return numbers


def assert_same(module, inputs, dtype, forward, root="", **named):
    """A forward notes, step by step, what a trace of the module does, and owns its parameters.

    Args:
        module: The reference.
        inputs: Its inputs, on meta.
        dtype: Its type.
        forward: The forward, of a tape alone.
        root: Path at which the module stands.
        named: More inputs of the module, by name.
    """
    recorder = Recorder(module, with_levels=True)
    with running(torch.device("meta"), recorded_flash_attention(recorder)), recorder:
        trace = recorder.begin()
        module(*inputs, **named)
    assert not trace.unknown

    def full(path):
        return f"{root}.{path}" if root and path else root or path

    whole = alone(forward, dtype, WholeTape, root)
    traced = [level._replace(path=full(level.path)) for level in levels_of(trace)]
    for step, (ours, theirs) in enumerate(itertools.zip_longest(whole.levels, traced)):
        assert ours == theirs, step
    records = expanded(kernel._replace(path=full(kernel.path)) for kernel in trace.kernels)
    assert expanded(whole.kernels) == records
    if traced:
        highest = max(traced, key=lambda level: level.nbytes)
        assert whole.peak == Peak(highest.nbytes, highest.path)
    assert Counter(path for path, *_ in whole.calls) == Counter(map(full, trace.calls))

    owned = {f"{path}.{name}" if path else name: n for path, name, n in whole.weights}
    assert owned == {full(name): each.numel() for name, each in module.named_parameters()}

    copied = alone(forward, dtype, root=root)
    assert expanded(copied.kernels) == expanded(whole.kernels)
    for name in ("calls", "weights", "savings", "peak"):
        assert getattr(copied, name) == getattr(whole, name)


# --- on sizes as symbols -------------------------------------------------------------------------


class Unmeasured(Tape):
    """Follows no peak, since sizes may be symbols."""

    def allocated(self, nbytes):
        self.alive += nbytes


def assert_same_for_any(forward, **sizes):
    """One run on symbols yields the records of a run on these sizes, whose tape is returned.

    Args:
        forward: A forward of a tape and sizes by name.
        sizes: The sizes, at least 2 each.
    """
    symbols = {name: Polynomial.size(name, least=2) for name in sizes}
    symbolic = alone(lambda t: forward(t, **symbols), kind=Unmeasured)
    of = Values(sizes).of

    def evaluated(kernel):
        dimensions = type(kernel.dimensions)(*map(of, kernel.dimensions))
        work = type(kernel.work)(*map(of, kernel.work))
        return kernel._replace(dimensions=dimensions, work=work, calls=of(kernel.calls))

    tape = alone(lambda t: forward(t, **sizes))
    assert list(map(evaluated, symbolic.kernels)) == tape.kernels
    assert list(map(of, symbolic.savings)) == tape.savings
    assert symbolic.weights == tape.weights
    return tape
