"""What a serving engine launches, against the model's own records."""

import dataclasses

import numpy as np
import pytest
from both_engines import PUBLISHED, dimensions_of, draw_decoder, small_directory
from hypothesis import given, settings
from hypothesis import strategies as st

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family import served as fused
from dsocr_analyze.architectures.ocr_family.served import FUSIONS
from dsocr_analyze.dtypes import BFLOAT16, FLOAT16, FLOAT32
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import Kernel, Work, total_work
from dsocr_analyze.tape import ArrayTape
from dsocr_analyze.timing.kernel_seconds import UNQUANTIZED
from dsocr_analyze.timing.runtimes import NATIVE, SERVERS, Precision
from dsocr_analyze.timing.serving import ServedModel
from dsocr_analyze.workload import ViewBatch

SERVED = DEFAULT.forms.served
REFERENCE = dimensions_of(PUBLISHED)
SMALL = dimensions_of(small_directory())


def planned(**page):
    sizes = {"page": (1000, 1400), "base_size": 256, "image_size": 192}
    return DEFAULT.plan(**{**sizes, **page})


def work_of(kernels) -> Work:
    return total_work(kernel.total for kernel in kernels)


def prompt(dimensions, workload, dtype=BFLOAT16, bits=16):
    T = workload.seq_len
    return SERVED.prompt(T, T, workload.visual_tokens, dimensions, dtype, bits)


@st.composite
def decoders(draw):
    """A small decoder that is served: MHA or GQA, dense or mixed, of any depth and width."""
    changes = draw_decoder(draw)
    if draw(st.booleans()):
        experts = draw(st.integers(2, 16))
        changes |= {
            "n_routed_experts": experts,
            "moe_intermediate_size": draw(st.integers(4, 200)),
            "n_shared_experts": draw(st.sampled_from([None, 1, 2])),
            "num_experts_per_tok": draw(st.integers(1, min(6, experts))),
            "norm_topk_prob": draw(st.booleans()),
            "first_k_dense_replace": draw(st.integers(0, 2)),
            "moe_layer_freq": draw(st.sampled_from([1, 2])),
        }
    return changes


def angles(decoder, tokens):
    """Multiply-accumulates of the angles that the model works out anew in every layer.

    A product of D/2 frequencies and as many positions as there are tokens; engines look them up.
    """
    return decoder.layers * decoder.head_dim // 2 * tokens


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=40)
@given(
    decoders(),
    st.integers(100, 900),
    st.sampled_from([BFLOAT16, FLOAT16, FLOAT32]),
    st.booleans(),
)
def test_a_prompt_does_that_of_the_model_but_for_logits_of_earlier_positions(
    changes, side, dtype, flash
):
    dimensions = dimensions_of(small_directory(**changes))
    workload = planned(page=(side, 900))
    own = DEFAULT.forms.compose(dimensions, workload, dtype, flash).stages["prefill"].work
    decoder, T = dimensions.decoder, workload.seq_len
    logits = (T - 1) * decoder.hidden_size * decoder.vocab_size
    spared = logits + angles(decoder, T)
    assert work_of(prompt(dimensions, workload, dtype)).macs == own.macs - spared


@settings(deadline=None, max_examples=40)
@given(decoders(), st.integers(1, 9), st.integers(1, 500), st.booleans())
def test_a_step_does_that_of_the_model(changes, sequences, cached, flash):
    dimensions = dimensions_of(small_directory(**changes))
    own = DEFAULT.forms.step_kernels(dimensions, sequences, cached, BFLOAT16, flash)
    step = SERVED.step(sequences, cached + 1, dimensions, BFLOAT16, 16)
    # The model works out the angles of every sequence, though all are at the same position.
    assert work_of(step).macs == work_of(own).macs - angles(dimensions.decoder, sequences)


def test_that_of_the_published_model_by_hand():
    """A step of one token over 100 keys.

    Attention: 12 x (1280 x 3840 + 1280 x 1280 + 2 x 100 x 1280) = 81 715 200.
    Dense layer: 3 x 1280 x 6848 = 26 296 320. Eleven others: 1280 x 64 for the router,
    3 x 1280 x 896 for each of 6 routed and 2 shared experts: 27 607 040 each.
    Head: 1280 x 129 280 = 165 478 400.
    """
    step = SERVED.step(1, 100, REFERENCE, BFLOAT16, 16)
    assert work_of(step).macs == 81_715_200 + 26_296_320 + 11 * 27_607_040 + 165_478_400


@pytest.mark.exhaustive
def test_vision_kernels_are_the_models_own_records():
    for workload in (planned(), planned(page=(100, 100)), planned(crop_mode=False)):
        composed = DEFAULT.forms.compose(REFERENCE, workload, BFLOAT16, False)
        for stage in ("sam", "clip", "projector"):
            launched = []
            for view in workload.views:
                views = SERVED.views(view.count, view.resolution, REFERENCE, BFLOAT16)
                launched += views[stage]
            assert calls_of(launched) == calls_of(composed.stages[stage].kernels)
            assert {kernel.stage for kernel in launched} == {stage}


def calls_of(kernels):
    """How often each kernel is launched, whichever module does it."""
    calls: dict[Kernel, int] = {}
    for kernel in kernels:
        alone = kernel._replace(calls=1, path="")
        calls[alone] = calls.get(alone, 0) + kernel.calls
    return calls


def test_every_operator_that_the_model_does_not_have_is_a_fusion_that_is_explained():
    kernels = prompt(REFERENCE, planned()) + SERVED.step(1, 100, REFERENCE, BFLOAT16, 16)
    served = {kernel.operator for kernel in kernels}
    composed = DEFAULT.forms.compose(REFERENCE, planned(), BFLOAT16, True)
    own = {kernel.operator for stage in composed.stages.values() for kernel in stage.kernels}
    assert (served - own, all(FUSIONS.values())) == (set(FUSIONS), True)
    assert served >= UNQUANTIZED, "what stays in 16 bits is launched"


def test_launches_of_the_published_model_by_hand():
    """A step: 1 lookup, 12 layers of 7 kernels, 1 dense MLP of 3, 11 mixtures of 6, 4 at last.

    A prompt places the features besides, in two kernels.
    """
    launched = SERVED.step(1, 100, REFERENCE, BFLOAT16, 16), prompt(REFERENCE, planned())
    step = 1 + 12 * 7 + 3 + 11 * 6 + 4
    assert [sum(each.calls for each in kernels) for kernels in launched] == [step, 2 + step]


def test_bytes_of_a_fused_norm_and_of_attention_by_hand():
    t = ArrayTape(BFLOAT16)
    fused.fused_add_rms_norm(t, t.input(10 * 8, BFLOAT16), 10, 8)
    # 3 sequences, 1 query over 50 keys, 4 query heads and 2 key heads of 16, keys in 8 bits.
    heads = dataclasses.replace(SMALL.decoder, heads=4, kv_heads=2, head_dim=16)
    fused._attention(t, t.input(3 * heads.hidden_size, BFLOAT16), 3, 1, 50, heads, 8)
    # Keys and values of 5 tokens, 64 elements each, from 16 to 4 bits, and their places.
    fused._attention(t, t.input(5 * heads.hidden_size, BFLOAT16), 5, 1, 50, heads, 4)
    norm, _, _, _, attention, _, _, _, write, _, _ = t.kernels
    assert norm.work.bytes_read == 2 * (10 * 8 * 2 + 8)
    assert norm.work.bytes_written == 2 * 10 * 8 * 2
    assert attention.work.bytes_read == 3 * 4 * 16 * 2 + 2 * 3 * 2 * 50 * 16
    assert attention.work.bytes_written == 3 * 4 * 16 * 2
    assert attention.work.macs == 2 * 3 * 4 * 50 * 16
    assert write.work.bytes_read == 5 * 64 * 2 + 5 * 8
    assert write.work.bytes_written == 5 * 64 // 2


def taken(kernels, shape, index):
    """Kernels of arrays as those of one of their elements."""

    def every(values):
        return type(values)(*(int(np.broadcast_to(each, shape)[index]) for each in values))

    return tuple(
        kernel._replace(dimensions=every(kernel.dimensions), work=every(kernel.work))
        for kernel in kernels
    )


def at_index(duration, index):
    """One workload of a duration of arrays."""
    return duration.mapped(lambda figure: figure[index] if np.ndim(figure) else figure)


def model_of(name="h100-sxm", precision=NATIVE, **changes):
    server = dataclasses.replace(SERVERS["vllm"], **changes)
    return ServedModel(DEFAULT, REFERENCE, BFLOAT16, device(name), server, precision)


def moved(model, sequences, keys):
    """Bytes of a step, were there no L2."""
    gpu = dataclasses.replace(model.device.gpu, l2_mb=0)
    bare = dataclasses.replace(model, device=dataclasses.replace(model.device, gpu=gpu))
    return bare.step(sequences, keys).least_memory * gpu.bandwidth_gb_s * 1e9


THREE = [1, 2, 64], [900, 100, 5000], [90, 50, 4000]


@pytest.mark.parametrize(
    ("kernels_of", "sizes"),
    [
        (lambda B, K: SERVED.step(B, K, SMALL, BFLOAT16, 8), THREE[:2]),
        (lambda B, K: SERVED.step(B, K, SMALL, BFLOAT16, 4), ([[1, 2, 64]], [[900], [5000]])),
        (lambda T, visual: SERVED.prompt(T, T, visual, SMALL, BFLOAT16, 16), THREE[1:]),
    ],
    ids=["steps", "steps that broadcast", "prompts"],
)
def test_kernels_of_arrays_are_those_of_each(kernels_of, sizes):
    arrays = [*map(np.array, sizes)]
    together, every = kernels_of(*arrays), np.broadcast_arrays(*arrays)
    for index in np.ndindex(every[0].shape):
        alone = kernels_of(*(int(each[index]) for each in every))
        assert taken(together, every[0].shape, index) == alone


def test_seconds_of_arrays_are_those_of_each():
    model, views = model_of(chunk_tokens=512), (ViewBatch(6, 640), ViewBatch(1, 1024))
    first, second = np.array([1, 500, 64]), np.array([100, 490, 4000])
    together, *alone = (
        {"step": model.step(B, K), **model.prefill(views, 9 * K, K)}
        for B, K in ((first, second), *zip(first.tolist(), second.tolist(), strict=True))
    )
    for index, spans in enumerate(alone):
        for name, span in spans.items():
            one = at_index(together[name], index)
            assert one.bound == span.bound
            assert [one.seconds, *one[3:-1]] == pytest.approx([span.seconds, *span[3:-1]])


def test_a_long_prompt_goes_through_in_equal_chunks():
    model = model_of(chunk_tokens=300)
    assert [model.chunks(T) for T in (1, 300, 301, 913)] == [1, 1, 2, 4]
    # 913 tokens in 4 chunks of 229, which see 229 x 5 / 2 keys on average.
    kernels = model.prompt_kernels(913, 903)
    [attention] = [each for each in kernels if each.operator == "paged_attention"]
    assert attention.dimensions[3:5] == (229, 573)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_mla": True, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 48,
          "v_head_dim": 40}, "'use_mla'"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'rope_scaling'"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_named_with_a_way_out(changes, named):
    dimensions = dimensions_of(small_directory(**changes))
    for served in (
        lambda: SERVED.check(dimensions),
        lambda: ServedModel(DEFAULT, dimensions, BFLOAT16, device("h100-sxm"), SERVERS["vllm"]),
    ):
        with pytest.raises(ConfigError, match=named) as refused:
            served()
        assert "runtime eager" in str(refused.value)


def test_the_cache_and_quantized_weights_by_hand():
    """A token: 12 layers x keys and values x 10 heads x 128 elements.

    Quantized are all weights but vision, embedding, head, norms and routers, with a scale of 16
    bits per 128: attention 12 x 4 x 1280^2, the dense layer 3 x 1280 x 6848, of each of eleven
    others 66 experts' worth of 3 x 1280 x 896.
    """
    assert SERVED.cache_elements(REFERENCE) == 12 * 2 * 1280
    quantized = 12 * 4 * 1280**2 + 3 * 1280 * 6848 + 11 * 66 * 3 * 1280 * 896
    assert SERVED.quantizable_params(REFERENCE) == quantized == 2_602_844_160
    rest, scales = 2 * (3_336_106_240 - quantized), 2 * quantized // 128
    eight, four = rest + quantized + scales, rest + quantized // 2 + scales
    expected = {None: (61_440, 6_672_212_480), "float8": (30_720, eight),
                "int8": (30_720, eight), "int4": (15_360, four)}  # fmt: skip
    for name, (cache, weights) in expected.items():
        model = model_of(precision=Precision(name, name))
        assert (model.page_bytes(1, 1), model.weights_bytes) == (cache, weights)


def test_bytes_of_a_step_by_hand():
    """Two sequences over 100 keys each, in 16 bits and with weights or cache of fewer.

    Routers and head keep their bytes, experts are the ones that two tokens are expected to
    touch, and a scale of two bytes belongs to 128 weights.
    """
    touched = 64 * (1 - (58 / 64) ** 2)
    quantized = 12 * 4 * 1280**2 + 3 * 1280 * 6848 + 11 * (touched + 2) * 3 * 1280 * 896
    records = SERVED.step(2, 100, REFERENCE, BFLOAT16, 16)
    native = work_of(records).bytes_moved + 2 * 11 * touched * 3 * 1280 * 896
    expected = {
        NATIVE: native,
        Precision("int8"): native - quantized * (2 - 1 - 1 / 64),
        Precision("int4"): native - quantized * (2 - 0.5 - 1 / 64),
        # 98 keys were there, one is read and written anew: 2 x 101 tokens of 12 layers.
        Precision(cache="int8"): native - 2 * (100 + 1) * 12 * 2560,
    }
    found = {each: moved(model_of(precision=each), 2, 100) for each in expected}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", ["h100-sxm", "l4", "rtx-4090", "a10"])
@pytest.mark.parametrize("weights", [None, "int8", "int4"])
def test_no_step_moves_more_than_the_memory_can(name, weights):
    model = model_of(name, Precision(weights))
    sizes = np.array([1, 8, 64]), 1000
    seconds, bandwidth = model.step(*sizes).seconds, 1e9 * model.device.gpu.bandwidth_gb_s
    assert (moved(model, *sizes) / seconds < bandwidth).all()


def test_an_engine_holds_no_logits_but_the_last():
    """Weights, SAM's biases and whatever else lives then, and the inputs of an A4 page."""
    served, page = model_of(), DEFAULT.plan(page=(1240, 1754))
    fixed = 6_672_212_480 + 536_865_280 + 21_059_897
    # A long prompt goes through in chunks: ids, masks and positions are longer, embeddings by
    # those of a whole chunk.
    longer = DEFAULT.plan(page=(1240, 1754), text_tokens=3010)
    more = 3000 * 25 + (2048 - 913) * 1280 * 2
    assert [served.fixed_bytes(each) for each in (page, longer)] == [fixed, fixed + more]
