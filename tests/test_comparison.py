"""Reports side by side: which rows there are, and what they hold."""

import csv
import io
import json
from dataclasses import replace

import pytest
from hand_built import CREATED, FIGURES, STAGES, batch_of, traced
from msgspec import structs

from dsocr_analyze.report.comparison import compare, config_differences
from dsocr_analyze.report.document import build_report
from dsocr_analyze.report.opening import dump_json


def report_of(figures):
    return build_report(figures, None, CREATED)


ONE = report_of(FIGURES)
OF_THREE = report_of(batch_of(3))


def rows_of(*reports):
    comparison = compare([(str(index), report) for index, report in enumerate(reports)])
    return {row.key: row for row in comparison.rows}


def test_every_quantity_has_a_key_a_name_and_a_unit():
    rows = [(row.key, row.quantity, row.unit, row.values[0]) for row in rows_of(ONE).values()]
    assert rows == [
        ("visual_tokens", "visual tokens", "tokens", 73),
        ("seq_len", "prompt", "tokens", 83),
        ("views", "views", "views", 1),
        ("eye_flops", "eye", "FLOPs", 4052),
        ("prefill_flops", "prefill", "FLOPs", 2812),
        ("decode_step_flops", "decode step", "FLOPs", 181),
        ("prefill_pass_flops", "prefill pass", "FLOPs", 6864),
        ("prefill_pass_matrix_flops", "prefill pass, matrix", "FLOPs", 6800),
        ("page_flops", "page", "FLOPs", 7228),
        ("prefill_pass_bytes", "prefill pass", "bytes", 4 * 34 + 6 * 60),
        ("decode_step_bytes", "decode step", "bytes", 34),
        ("page_bytes", "page", "bytes", 401),
        ("weights_bytes", "weights", "bytes", 1686),
        ("kv_cache_bytes", "KV cache at the end", "bytes", 1700),
        ("peak_activation_bytes", "peak activation", "bytes", 5000),
        ("max_new_tokens", "new tokens", "tokens", 3),
    ]


def test_a_page_is_one_page_and_a_batch_a_row_of_its_own():
    rows = rows_of(ONE, OF_THREE)
    assert rows["page_flops"].values == (7228, 7228 / 3)
    assert rows["batch_flops"].values == (7228, 7228)
    assert rows["batch_bytes"].values == (401, 401)


def test_differences_and_ratios_are_against_the_first():
    other = report_of(replace(FIGURES, parameters=replace(FIGURES.parameters, total=1000),
                              memory=replace(FIGURES.memory, weights_bytes=843)))  # fmt: skip
    row = rows_of(ONE, other)["weights_bytes"]
    assert row.differences == (0, -843)
    assert row.ratios == (1, 0.5)


def test_a_quantity_that_is_zero_in_the_first_has_no_ratio():
    still = replace(STAGES["eye"], kernels=())
    zeroed = report_of(replace(FIGURES, stages={**STAGES, "eye": still}))
    row = rows_of(zeroed, ONE)["eye_flops"]
    assert (row.differences, row.ratios) == ((0, 4052), (None, None))


def test_stages_of_several_architectures_stand_where_they_run():
    ear = replace(STAGES["eye"], name="ear")
    one = {"eye": STAGES["eye"], "prefill": STAGES["prefill"], "decode": STAGES["decode"]}
    other = {"eye": STAGES["eye"], "ear": ear, "decode": STAGES["decode"]}
    rows = rows_of(*(report_of(replace(FIGURES, stages=stages)) for stages in (one, other)))
    assert [key for key in rows if key.endswith("_flops")][:4] == [
        "eye_flops", "ear_flops", "prefill_flops", "decode_step_flops",
    ]  # fmt: skip
    assert rows["ear_flops"].values == (None, 4052)
    assert (rows["ear_flops"].differences, rows["ear_flops"].ratios) == ((None, None),) * 2
    prefill = rows["prefill_flops"]
    assert (prefill.differences, prefill.ratios) == ((0, None), (1, None))


def stages_of(*names):
    """Figures with stages of these names, of which the last is the decode step."""
    *others, decode = names
    made = {name: replace(STAGES["eye"], name=name) for name in others}
    return replace(FIGURES, stages={**made, decode: replace(STAGES["decode"], name=decode)})


def order_of(*reports):
    keys = [key for key, row in rows_of(*reports).items() if row.unit == "FLOPs"]
    return [key.removesuffix("_flops") for key in keys[: keys.index("prefill_pass_flops")]]


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        ("sam clip projector prefill decode", "sam encoder projector prefill decode",
         "sam clip encoder projector prefill decode_step"),
        ("vision prefill decode", "prefill decode", "vision prefill decode_step"),
        ("a b c prefill decode", "x prefill decode", "a b c x prefill decode_step"),
        ("eye prefill decode", "eye llm generate", "eye llm prefill decode_step generate_step"),
    ],
)  # fmt: skip
def test_the_order_of_stages_is_the_same_whichever_report_stands_first(one, other, merged):
    reports = [report_of(stages_of(*names.split())) for names in (one, other)]
    assert order_of(*reports) == merged.split()
    assert order_of(*reversed(reports)) == merged.split()


def test_stages_in_contradicting_orders_all_have_a_row():
    reports = [report_of(stages_of(*names, "decode")) for names in ("ab", "ba")]
    assert order_of(*reports) == ["a", "b", "decode_step"]


def test_a_stage_may_be_called_like_another_row():
    assert rows_of(report_of(stages_of("batch", "decode")))["batch_flops"].values == (4052,)


def test_parameters_are_compared_where_they_differ():
    other = report_of(replace(FIGURES, parameters=replace(FIGURES.parameters, total=1000)))
    assert rows_of(ONE, other)["params"].values == (843, 1000)
    assert "params" not in rows_of(ONE, ONE)


def test_names_that_are_given_twice_are_numbered():
    names = compare([(name, ONE) for name in ("a", "a", "a (2)", "b", "a")]).names
    assert names == ("a", "a (2)", "a (2) (2)", "b", "a (3)")


def of_architecture(name, **workload):
    model = structs.replace(FIGURES.provenance.model, architecture=name, code_digest=str(name) * 12)
    provenance = structs.replace(FIGURES.provenance, model=model)
    changed = replace(FIGURES.workload, **workload)
    return report_of(replace(FIGURES, provenance=provenance, workload=changed))


OTHER_PAGE = {"page": (20, 30), "base_size": 1024, "crop_mode": True}


@pytest.mark.parametrize(
    ("reports", "with_page", "first", "middle", "last"),
    [
        ({"x.json": of_architecture("one"), "two:base": of_architecture("two")}, False,
         "Ran: x.json: one: model directory my-model", "; two:base: model directory my-model",
         " attention; page 600 x 500 pixels, 512 (no crops)"),
        ({"one": of_architecture("one"), "two": of_architecture("two", **OTHER_PAGE)}, False,
         "Ran: one: model", "; two: model", " attention; pages 600 x 500, 20 x 30 pixels"),
        ({"a": of_architecture("one"), "b": of_architecture(None)}, False, "Ran: a: ", "; b: ",
         "by the analytic engine, bfloat16, eager attention"),
        ({"a": of_architecture("one"), "b": of_architecture(None)}, True, "Ran: a: ", "; b: ",
         "attention; page 600 x 500 pixels, 512 (no crops)"),
        ({"a": ONE, "b": OF_THREE}, False, "Ran: model directory my-model", "",
         "by the analytic engine, bfloat16, eager attention"),
        ({"a": ONE, "b": report_of(traced())}, False, "Ran: a: model directory my-model",
         "; b: model directory my-model", ""),
    ],
)  # fmt: skip
def test_the_first_line_says_what_names_leave_out(reports, with_page, first, middle, last):
    line = compare(list(reports.items())).headline(with_page=with_page)
    assert line.startswith(first)
    assert middle in line
    assert line.endswith(last)


def test_architectures_are_named():
    pair = [(name, of_architecture(name)) for name in ("one", "two")]
    assert compare(pair).architectures == ("one", "two")


CONFIGS = {
    "a": {"layers": 2, "same": [1, 2], "text": {"heads": 4, "rope": None}, "on": True},
    "b": {"layers": 3, "same": [1, 2], "text": {"heads": 4}, "on": 1},
}
TWO = [("a", ONE), ("b", ONE)]


def test_keys_that_differ_are_named_with_every_value():
    comparison = compare(TWO, CONFIGS)
    _, table = comparison.tables(("a", "b"))
    assert table.columns == ("key", "a", "b")
    assert table.rows == (
        ("layers", "2", "3"), ("text.rope", "null", "-"), ("on", "true", "1"),
    )  # fmt: skip
    assert json.loads(dump_json(comparison))["config_differences"] == [
        {"key": "layers", "values": {"a": 2, "b": 3}},
        {"key": "text.rope", "values": {"a": None}},
        {"key": "on", "values": {"a": True, "b": 1}},
    ]
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv(("a", "b")))))
    of_configs = [line for line in lines if line["unit"] == "config"]
    assert [(line["key"], line["report"], line["value"]) for line in of_configs] == [
        ("config.layers", "a", "2"), ("config.layers", "b", "3"),
        ("config.text.rope", "a", "null"), ("config.text.rope", "b", ""),
        ("config.on", "a", "true"), ("config.on", "b", "1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("configs", "differ"),
    [
        ([{"a": {"b": 1, "c": 2}}, {}], ["a.b", "a.c"]),
        ([{"a": {}}, {}], ["a"]),
        ([{"a": {}}, {"a": {"b": 1}}], ["a.b"]),
        ([{"a": {"b": 1}}, {"a": 1}], ["a"]),
        ([{"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}], ["a"]),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], []),
        ([{"a": 1}, {"a": 1}, {"a": 2}], ["a"]),
        ([{"a": 1}, {"a": 1.0}, {"a": "1"}], ["a"]),
        ([{}, {}], []),
    ],
)
def test_objects_are_compared_key_by_key_and_lists_as_a_whole(configs, differ):
    named = dict(zip("abc", configs, strict=False))
    assert [key.key for key in config_differences(named)] == differ


def test_configs_without_a_difference_say_so_and_one_config_says_nothing():
    _, keys = compare(TWO, {"a": {}, "b": {}}).tables(("a", "b"))
    assert keys.title == "Configs: no key differs"
    assert compare(TWO, {"a": {"x": 1}}).config_differences == ()
    assert len(compare(TWO).tables()) == 1


def test_the_table_shows_a_difference_below_each_value():
    [table] = compare([("one", ONE), ("three", OF_THREE)]).tables()
    cells = {(row[0], row[1]): row[2:] for row in table.rows}
    assert table.columns == ("quantity", "unit", "one", "three")
    assert cells["page", "FLOPs"] == ("7.228 k", "2.409 k\n(-4.819 k, 0.333 x)")
    assert cells["views", "views"] == ("1", "1\n(+0, 1.000 x)")


def test_a_value_that_is_missing_is_a_dash_null_or_empty():
    ear = {**STAGES, "eye": replace(STAGES["eye"], name="ear")}
    other = report_of(replace(FIGURES, stages={"ear": ear["eye"], "decode": STAGES["decode"]}))
    comparison = compare([("one", ONE), ("other", other)])
    cells = {row[0]: row[2:] for row in comparison.tables()[0].rows if row[1] == "FLOPs"}
    assert cells["eye"] == ("4.052 k", "-")
    assert cells["ear"] == ("-", "4.052 k")
    rows = {row["key"]: row for row in json.loads(dump_json(comparison))["rows"]}
    assert rows["eye_flops"]["values"] == [4052, None]
    assert rows["eye_flops"]["differences"] == [0, None]
    assert rows["eye_flops"]["ratios"] == [1, None]
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv())))
    [line] = [line for line in lines if (line["key"], line["report"]) == ("eye_flops", "other")]
    assert (line["value"], line["difference"], line["ratio"]) == ("", "", "")


def test_csv_has_a_line_for_each_quantity_and_report():
    comparison = compare([("one", ONE), ("three", OF_THREE)])
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv())))
    assert len(lines) == 2 * len(comparison.rows)
    [line] = [line for line in lines if (line["key"], line["report"]) == ("page_flops", "three")]
    assert float(line["value"]) == 7228 / 3
    assert float(line["ratio"]) == 7228 / 3 / 7228
    assert (line["quantity"], line["unit"]) == ("page", "FLOPs")
