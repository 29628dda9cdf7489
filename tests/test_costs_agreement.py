"""Agreement as a feature: what differs is named, what is left out is listed."""

import dataclasses

import pytest
from closed_forms import by_both_engines, small_directory

from dsocr_analyze.costs import NOT_MODELLED, compare_with_trace, page_costs
from dsocr_analyze.model.dimensions import ModelDimensions
from dsocr_analyze.model.stages import STAGES
from dsocr_analyze.work import Work


@pytest.fixture(scope="module")
def page():
    return by_both_engines(small_directory(), page=(900, 900), base_size=128, image_size=128)


def params_of(costs):
    return {stage: costs.stages[stage].params for stage in STAGES}


def changed(operators, stage, path, operator, **counts):
    """The traced work with an operator's counts exchanged."""
    copy = {s: {p: dict(o) for p, o in modules.items()} for s, modules in operators.items()}
    copy[stage][path][operator] = copy[stage][path].get(operator, Work())._replace(**counts)
    return copy


def test_all_quantities_are_reported_for_every_stage(page):
    agreement = compare_with_trace(
        page.costs,
        page.operators,
        params=params_of(page.costs),
        kv_cache_bytes=page.costs.kv_bytes(page.costs.workload.seq_len),
    )
    assert agreement.agrees
    assert agreement.warning is agreement.difference is None
    assert agreement.cache_agrees
    assert list(agreement.stages) == list(STAGES)
    for stage in agreement.stages.values():
        assert stage.agrees == dict.fromkeys(
            (
                "params",
                "macs",
                "matrix_flops",
                "activations",
                "vector_flops",
                "bytes_read",
                "bytes_written",
            ),
            True,
        )
        assert stage.left_out == ()


def test_what_was_not_given_is_not_compared(page):
    agreement = compare_with_trace(page.costs, page.operators)
    assert "params" not in agreement.stages["sam"].agrees
    assert agreement.cache_agrees is None


def test_the_first_difference_is_named_with_both_values(page):
    path = "model.vision_model.transformer.layers.3.mlp.fc1"
    right = page.operators["clip"][path]["linear"]
    operators = changed(page.operators, "clip", path, "linear", macs=right.macs + 1)
    agreement = compare_with_trace(page.costs, operators)
    assert not agreement.agrees
    clip = agreement.stages["clip"]
    assert [name for name, agrees in clip.agrees.items() if not agrees] == ["macs", "matrix_flops"]
    assert all(all(s.agrees.values()) for n, s in agreement.stages.items() if n != "clip")
    assert agreement.warning == (
        "trace and closed forms disagree; stage clip: macs of"
        f" '{path}' is {right.macs + 1} traced and {right.macs} by the closed forms"
    )


def test_the_model_itself_has_a_name(page):
    operators = changed(page.operators, "prefill", "", "_to_copy", bytes_read=1)
    assert (
        "bytes_read of the model itself is 1 traced"
        in compare_with_trace(page.costs, operators).warning
    )


def test_modules_that_only_one_side_has(page):
    operators = changed(page.operators, "sam", "model.sam_model.neck.0", "conv2d", macs=0)
    operators["sam"]["model.sam_model.extra"] = {"mm": Work(macs=5)}
    del operators["sam"]["model.sam_model.net_3"]
    agreement = compare_with_trace(page.costs, operators)
    assert agreement.difference.path == "model.sam_model.neck.0"
    del operators["sam"]["model.sam_model.neck.0"]
    assert compare_with_trace(page.costs, operators).difference.path == "model.sam_model.extra"
    del operators["sam"]["model.sam_model.extra"]
    first = compare_with_trace(page.costs, operators).difference
    assert first.path in ("model.sam_model.neck.0", "model.sam_model.net_3")
    assert first.traced == 0


def test_parameters_and_cache_that_differ(page):
    params = params_of(page.costs) | {"projector": 5}
    difference = compare_with_trace(page.costs, page.operators, params=params).difference
    assert (difference.stage, difference.quantity, difference.traced) == ("projector", "params", 5)
    agreement = compare_with_trace(page.costs, page.operators, kv_cache_bytes=7)
    assert not agreement.agrees
    assert agreement.difference is None
    assert "the KV cache has 7 bytes traced" in agreement.warning


def test_operators_not_modelled_are_listed_with_their_share(page):
    entry = NOT_MODELLED[0]
    path = "model.layers.1.self_attn.rotary_emb"
    operators = {s: {p: dict(o) for p, o in m.items()} for s, m in page.operators.items()}
    for operator in entry.operators:
        operators["prefill"][path][operator] = Work(vector_flops=3, bytes_read=16, bytes_written=8)
    agreement = compare_with_trace(page.costs, operators)
    assert agreement.agrees
    prefill = agreement.stages["prefill"]
    assert [left.entry for left in prefill.left_out] == [entry]
    assert prefill.left_out[0].work == Work(0, 12, 0, 64, 32)
    assert 0 < prefill.vector_flops_left_out < 0.001
    assert 0 < prefill.bytes_left_out < 0.001


def test_every_entry_not_modelled_gives_its_reason():
    assert all(entry.reason and entry.operators for entry in NOT_MODELLED)


def test_other_routing_than_uniform_still_agrees(page):
    """All tokens' choices on three experts of eight: other bytes, the same computation."""
    costs = page.costs
    name = "model.layers.2.mlp.experts"
    prefill = {p: dict(o) for p, o in page.operators["prefill"].items()}
    rows = {p: o for p, o in prefill.items() if p.startswith(name + ".")}
    assert len({path.split(".")[5] for path in rows}) == 8
    for path in rows:
        del prefill[path]
    decoder = costs.dimensions.decoder
    weights = 3 * decoder.hidden_size * decoder.moe_intermediate_size * costs.element_bytes
    total = Work()
    for operators in rows.values():
        for work in operators.values():
            total = total.plus(work)
    third = total._replace(bytes_read=total.bytes_read - 5 * weights)
    prefill[f"{name}.0.gate_proj"] = {"linear": third}
    for index in (4, 7):
        prefill[f"{name}.{index}.gate_proj"] = {"linear": Work()}
    operators = {**page.operators, "prefill": prefill}
    assert compare_with_trace(costs, operators).agrees
    prefill[f"{name}.0.gate_proj"] = {"linear": third._replace(bytes_read=third.bytes_read + 1)}
    assert compare_with_trace(costs, operators).difference.path == name


def test_another_model_disagrees(page):
    dimensions = ModelDimensions.from_config(small_directory(intermediate_size=601).config)
    costs = page_costs(dimensions, dataclasses.replace(page.costs.workload))
    difference = compare_with_trace(costs, page.operators).difference
    assert difference.path == "model.layers.0.mlp.gate_proj"
