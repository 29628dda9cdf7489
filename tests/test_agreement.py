"""Both engines: what differs is named, what is left out is listed, and peaks are what is alive."""

from dataclasses import replace

import pytest
import torch
from both_engines import LATENT, by_both_engines, small_directory

from dsocr_analyze import agreement, analytic
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Elements, Kernel, Work, total_work
from dsocr_analyze.session import DeepSeekOCRSession

PAGE = {"page": (900, 900), "base_size": 128, "image_size": 128}
DIRECTORY = small_directory()
EXPERT_BYTES = 2 * DIRECTORY.dimensions().decoder.expert_params


@pytest.fixture(scope="module")
def page():
    return by_both_engines(DIRECTORY, **PAGE)


def compared(traced, composed):
    return agreement.compare(traced, composed, DEFAULT, expert_weights_bytes=EXPERT_BYTES)


def with_stage(figures, stage, **changes):
    """The figures with another stage of this name."""
    changed = replace(figures.stages[stage], **changes)
    return replace(figures, stages={**figures.stages, stage: changed})


def test_all_quantities_are_reported_for_every_stage(page):
    found = compared(page.traced, page.analytic)
    peak = page.analytic.memory.peak.nbytes
    quantities = ("params", "macs", "matrix_flops", "activations", "vector_flops", "bytes_read",
                  "bytes_written")  # fmt: skip
    assert found == agreement.Agreement(
        agrees=True,
        stages=dict.fromkeys(DEFAULT.stage_names, dict.fromkeys(quantities, True)),
        kv_cache_bytes=True,
        batch=True,
        peak_activation_bytes=agreement.PeakAgreement(traced=peak, analytic=peak, agrees=True),
        first_difference=None,
        not_modelled=(),
        not_modelled_share={},
    )
    assert found.warnings == []


FC1 = "model.vision_model.transformer.layers.1.mlp.fc1"


def test_the_first_difference_is_named_with_both_values(page):
    kernels = page.traced.stages["clip"].kernels
    linears = [each for each in kernels if (each.path, each.operator) == (FC1, "linear")]
    wrong = (each._replace(work=each.work._replace(macs=7)) for each in linears)
    others = (each for each in kernels if each not in linears)
    found = compared(with_stage(page.traced, "clip", kernels=(*wrong, *others)), page.analytic)
    stages = {name: [*each.values()].count(False) for name, each in found.stages.items()}
    assert stages == dict.fromkeys(DEFAULT.stage_names, 0) | {"clip": 2}
    clip = found.stages["clip"]
    assert found.agrees is clip["macs"] is clip["matrix_flops"] is False
    traced, right = (
        sum(7 * each.calls for each in linears),
        sum(each.total.macs for each in linears),
    )
    told = f"macs of '{FC1}' is {traced} traced and {right} analytic"
    assert found.warnings == [f"the two engines disagree; stage clip: {told}"]


EXTRA = Kernel(
    "gemm", "mm", Elements(1), "bfloat16", "bfloat16", Work(macs=5), path="model.sam_model.extra"
)


@pytest.mark.parametrize(
    ("stage", "changed", "said"),
    [
        (
            "sam", lambda own: {"kernels": (*own.kernels, EXTRA)},
            "macs of 'model.sam_model.extra' is 5 traced",
        ),
        (
            "sam",
            lambda own: {
                "kernels": tuple(
                    each for each in own.kernels if each.path != "model.sam_model.net_3"
                )
            },
            "of 'model.sam_model.net_3' is 0 traced",
        ),
        (
            "prefill",
            lambda own: {
                "kernels": (*own.kernels, EXTRA._replace(path="", work=Work(bytes_read=1)))
            },
            "bytes_read of the model itself is ",
        ),
        ("projector", lambda own: {"params": 5}, "params of the model itself is 5 "),
    ],
)  # fmt: skip
def test_what_one_side_alone_has_is_named(page, stage, changed, said):
    traced = with_stage(page.traced, stage, **changed(page.traced.stages[stage]))
    found = compared(traced, page.analytic).first_difference
    assert found.startswith(f"stage {stage}: ")
    assert said in found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda it: {"memory": replace(it.memory, kv_cache_bytes=7)}, "the KV cache differs in"),
        (lambda it: {"memory": replace(it.memory, prefill_cache_bytes=7)}, "the KV cache differs"),
        (lambda it: {"batch": it.batch._replace(macs=3)}, "macs of the batch is 3 traced"),
        (
            lambda it: {"memory": replace(it.memory, peak=Peak(7, ""))},
            "peak activation is 7 bytes traced",
        ),
    ],
)
def test_cache_batch_and_peak_that_differ(page, changed, said):
    found = compared(replace(page.traced, **changed(page.traced)), page.analytic)
    assert said in found.first_difference
    assert (found.agrees, found.batch) == (False, "batch" not in said)
    assert found.kv_cache_bytes == ("KV" not in said)
    assert found.peak_activation_bytes.agrees == ("peak" not in said)


def test_operators_not_modelled_are_listed_with_their_share(page):
    entry = DEFAULT.forms.model.not_modelled[0]
    path, work = "model.layers.1.self_attn.rotary_emb", Work(0, 3, 0, 16, 8)
    more = (
        Kernel("elementwise", operator, Elements(1), "int64", "int64", work, path=path)
        for operator in entry.operators
    )
    kernels = (*page.traced.stages["prefill"].kernels, *more)
    traced = with_stage(page.traced, "prefill", kernels=kernels)
    found = compared(traced, page.analytic)
    assert (found.agrees, found.batch) == (True, None)
    assert compared(replace(traced, batch=Work(macs=3)), page.analytic) == found
    [left] = found.not_modelled
    assert (left.stage, left.reason) == ("prefill", entry.reason)
    assert (left.macs, left.vector_flops, left.bytes_read, left.bytes_written) == (0, 12, 64, 32)
    [(stage, share)] = found.not_modelled_share.items()
    assert stage == "prefill"
    assert 0 < max(share.vector_flops, share.bytes) < 0.001


def test_other_routing_than_uniform_still_agrees(page):
    """All tokens' choices on three experts of eight: other bytes, the same computation."""
    name = "model.layers.2.mlp.experts"
    kernels = page.traced.stages["prefill"].kernels
    rows, rest = (
        [each for each in kernels if each.path.startswith(name + ".") == is_expert]
        for is_expert in (True, False)
    )
    assert len({kernel.path.split(".")[5] for kernel in rows}) == 8
    total = total_work(kernel.total for kernel in rows)
    third = total._replace(bytes_read=total.bytes_read - 5 * EXPERT_BYTES)

    def routed(first):
        experts = (
            rows[0]._replace(path=f"{name}.{index}.gate_proj", work=work, calls=1)
            for index, work in ((0, first), (4, Work()), (7, Work()))
        )
        traced = with_stage(page.traced, "prefill", kernels=(*rest, *experts))
        return compared(traced, page.analytic)

    assert all(routed(third).stages["prefill"].values())
    wrong = routed(third._replace(bytes_read=third.bytes_read + 1))
    assert f"of '{name}' is" in wrong.first_difference


def test_another_model_disagrees(page):
    other = analytic.page_figures(small_directory(intermediate_size=601), page.workload)
    found = compared(page.traced, other)
    assert "stage prefill: params of the model itself" in str(found.warnings)
    assert [name for name, agrees in found.stages["prefill"].items() if agrees] == []


TOLERANCE = {"float32": 0.02, "bfloat16": 0.05}

ONE_VIEW = {"page": (600, 500), "image_size": 256, "base_size": 256, "crop_mode": False}
CUT = {"page": (700, 900), "base_size": 256, "image_size": 192}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
SHARED = {"num_attention_heads": 5, "num_key_value_heads": 1}
MANY_WORDS = {"vocab_size": 20_000}

CASES = [
    pytest.param({}, {**ONE_VIEW, "text_tokens": 10}, id="short"),
    pytest.param({}, {**ONE_VIEW, "text_tokens": 900}, id="long"),
    pytest.param({}, {**ONE_VIEW, "text_tokens": 400, "batch_size": 3}, id="batch"),
    pytest.param({}, {**CUT, "text_tokens": 10}, id="cut"),
    pytest.param({}, {**CUT, "text_tokens": 200, "batch_size": 2}, id="cut-batch"),
    pytest.param(GROUPED, {**ONE_VIEW, "text_tokens": 500, "batch_size": 2}, id="grouped"),
    pytest.param(SHARED, {**ONE_VIEW, "text_tokens": 500, "batch_size": 2}, id="shared"),
    pytest.param(LATENT, {**ONE_VIEW, "text_tokens": 600}, id="latent"),
    pytest.param(LATENT, {**ONE_VIEW, "text_tokens": 300, "batch_size": 2}, id="latent-batch"),
    pytest.param(MANY_WORDS, {**ONE_VIEW, "text_tokens": 300}, id="logits"),
    pytest.param({"n_routed_experts": None}, {**CUT, "text_tokens": 50}, id="dense"),
    pytest.param({}, {**CUT, "base_size": 384, "text_tokens": 10}, id="large-view"),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("model", "page"), CASES)
def test_on_cuda(model, page, dtype):
    directory = small_directory(**model)
    session = DeepSeekOCRSession.from_directory(directory, device="cuda:0", dtype=dtype)
    workload = session.plan(max_new_tokens=1, **page)
    figures, agreement = session.figures(workload)  # also warms up: workspaces are there now
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    session.trace(workload)
    allocated = torch.cuda.max_memory_allocated() - before - figures.memory.inputs_bytes
    assert agreement.peak_activation_bytes.traced == pytest.approx(allocated, rel=TOLERANCE[dtype])
    assert agreement.peak_activation_bytes.analytic == pytest.approx(
        allocated, rel=TOLERANCE[dtype]
    )
