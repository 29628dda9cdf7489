"""Agreement as a feature: what differs is named, what is left out is listed."""

import dataclasses

import pytest
from both_engines import by_both_engines, small_directory

from dsocr_analyze import agreement, analytic
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Elements, Kernel, Work, total_work

PAGE = {"page": (900, 900), "base_size": 128, "image_size": 128}
DIRECTORY = small_directory()
EXPERT_BYTES = 2 * DIRECTORY.dimensions().decoder.expert_params


@pytest.fixture(scope="module")
def page():
    return by_both_engines(DIRECTORY, **PAGE)


def compared(traced, composed):
    return agreement.compare(traced, composed, DEFAULT, expert_weights_bytes=EXPERT_BYTES)


def with_kernels(figures, stage, kernels):
    """The figures with other kernels in one stage."""
    changed = dataclasses.replace(figures.stages[stage], kernels=tuple(kernels))
    return dataclasses.replace(figures, stages={**figures.stages, stage: changed})


def with_counts(figures, stage, path, operator, **counts):
    """The figures with other counts of a module's operator."""
    kernels = [
        kernel._replace(work=kernel.work._replace(**counts))
        if (kernel.path, kernel.operator) == (path, operator)
        else kernel
        for kernel in figures.stages[stage].kernels
    ]
    assert kernels != list(figures.stages[stage].kernels)
    return with_kernels(figures, stage, kernels)


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


def test_the_first_difference_is_named_with_both_values(page):
    path = "model.vision_model.transformer.layers.1.mlp.fc1"
    traced = with_counts(page.traced, "clip", path, "linear", macs=7)
    right, wrong = (each.stages["clip"].own[path].macs for each in (page.analytic, traced))
    found = compared(traced, page.analytic)
    assert not found.agrees
    clip = found.stages["clip"]
    assert [name for name, agrees in clip.items() if not agrees] == ["macs", "matrix_flops"]
    assert all(all(s.values()) for n, s in found.stages.items() if n != "clip")
    assert found.warnings == [
        f"the two engines disagree; stage clip: macs of '{path}' is {wrong} traced and {right}"
        " analytic"
    ]


EXTRA = Kernel(
    "gemm", "mm", Elements(1), "bfloat16", "bfloat16", Work(macs=5), path="model.sam_model.extra"
)


@pytest.mark.parametrize(
    ("stage", "kernels", "params", "said"),
    [
        ("sam", lambda each: [*each, EXTRA], None, "macs of 'model.sam_model.extra' is 5 traced"),
        (
            "sam",
            lambda each: [kernel for kernel in each if kernel.path != "model.sam_model.net_3"],
            None,
            "of 'model.sam_model.net_3' is 0 traced",
        ),
        (
            "prefill",
            lambda each: [*each, EXTRA._replace(path="", work=Work(bytes_read=1))],
            None,
            "bytes_read of the model itself is ",
        ),
        ("projector", lambda each: each, 5, "params of the model itself is 5 "),
    ],
)
def test_what_one_side_alone_has_is_named(page, stage, kernels, params, said):
    own = page.traced.stages[stage]
    traced = with_kernels(page.traced, stage, kernels(own.kernels))
    changed = dataclasses.replace(traced.stages[stage], params=params or own.params)
    traced = dataclasses.replace(traced, stages={**traced.stages, stage: changed})
    found = compared(traced, page.analytic).first_difference
    assert found.startswith(f"stage {stage}: ")
    assert said in found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory": {"kv_cache_bytes": 7}}, "the KV cache differs in size"),
        ({"memory": {"prefill_cache_bytes": 7}}, "the KV cache differs in size"),
        ({"batch": {"macs": 3}}, "macs of the batch is 3 traced"),
        ({"memory": {"peak": Peak(7, "")}}, "peak activation is 7 bytes traced"),
    ],
)
def test_cache_batch_and_peak_that_differ(page, changes, said):
    [(name, values)] = changes.items()
    figure = getattr(page.traced, name)
    other = figure._replace(**values) if name == "batch" else dataclasses.replace(figure, **values)
    found = compared(dataclasses.replace(page.traced, **{name: other}), page.analytic)
    assert said in found.first_difference
    assert (found.agrees, found.batch) == (False, name != "batch")
    assert found.kv_cache_bytes == ("KV" not in said)
    assert found.peak_activation_bytes.agrees == ("peak" not in said)


def test_operators_not_modelled_are_listed_with_their_share(page):
    entry = DEFAULT.forms.not_modelled[0]
    path = "model.layers.1.self_attn.rotary_emb"
    more = [
        Kernel(
            "elementwise", operator, Elements(1), "int64", "int64", Work(0, 3, 0, 16, 8), path=path
        )
        for operator in entry.operators
    ]
    kernels = [*page.traced.stages["prefill"].kernels, *more]
    traced = with_kernels(page.traced, "prefill", kernels)
    found = compared(traced, page.analytic)
    assert (found.agrees, found.batch) == (True, None)
    assert compared(dataclasses.replace(traced, batch=Work(macs=3)), page.analytic) == found
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
    rows = [kernel for kernel in kernels if kernel.path.startswith(name + ".")]
    rest = [kernel for kernel in kernels if not kernel.path.startswith(name + ".")]
    assert len({kernel.path.split(".")[5] for kernel in rows}) == 8
    total = total_work(kernel.total for kernel in rows)
    third = total._replace(bytes_read=total.bytes_read - 5 * EXPERT_BYTES)

    def routed(first):
        experts = [
            rows[0]._replace(path=f"{name}.{index}.gate_proj", work=work, calls=1)
            for index, work in ((0, first), (4, Work()), (7, Work()))
        ]
        return compared(with_kernels(page.traced, "prefill", [*rest, *experts]), page.analytic)

    assert all(routed(third).stages["prefill"].values())
    wrong = routed(third._replace(bytes_read=third.bytes_read + 1))
    assert f"of '{name}' is" in wrong.first_difference


def test_another_model_disagrees(page):
    other = analytic.page_figures(small_directory(intermediate_size=601), page.workload)
    found = compared(page.traced, other)
    assert "stage prefill: params of the model itself" in str(found.warnings)
    assert [name for name, agrees in found.stages["prefill"].items() if agrees] == []
