"""Reports side by side: which rows there are, and what they hold."""

import csv
import io
import json
from dataclasses import replace

from hand_built import CREATED, FIGURES, STAGES, batch_of, traced

from dsocr_analyze.report.build import build_report
from dsocr_analyze.report.comparison import compare


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
    assert [row.difference(index) for index in (0, 1)] == [0, -843]
    assert [row.ratio(index) for index in (0, 1)] == [1, 0.5]


def test_a_quantity_that_is_zero_in_the_first_has_no_ratio():
    still = replace(STAGES["eye"], kernels=())
    zeroed = report_of(replace(FIGURES, stages={**STAGES, "eye": still}))
    row = rows_of(zeroed, ONE)["eye_flops"]
    assert (row.difference(1), row.ratio(1)) == (4052, None)


def test_stages_of_several_architectures_stand_where_they_run():
    ear = replace(STAGES["eye"], name="ear")
    one = {"eye": STAGES["eye"], "prefill": STAGES["prefill"], "decode": STAGES["decode"]}
    other = {"eye": STAGES["eye"], "ear": ear, "decode": STAGES["decode"]}
    rows = rows_of(*(report_of(replace(FIGURES, stages=stages)) for stages in (one, other)))
    assert [key for key in rows if key.endswith("_flops")][:4] == [
        "eye_flops", "ear_flops", "prefill_flops", "decode_step_flops",
    ]  # fmt: skip
    assert rows["ear_flops"].values == (None, 4052)
    assert (rows["ear_flops"].difference(1), rows["ear_flops"].ratio(1)) == (None, None)
    assert (rows["prefill_flops"].difference(1), rows["prefill_flops"].ratio(1)) == (None, None)


def test_the_table_shows_a_difference_below_each_value():
    table = compare([("one", ONE), ("three", OF_THREE)]).table()
    cells = {(row[0], row[1]): row[2:] for row in table.rows}
    assert table.columns == ("quantity", "unit", "one", "three")
    assert cells["page", "FLOPs"] == ("7.228 k", "2.409 k\n(-4.819 k, 0.333 x)")
    assert cells["views", "views"] == ("1", "1\n(+0, 1.000 x)")


def test_a_value_that_is_missing_is_a_dash_null_or_empty():
    ear = {**STAGES, "eye": replace(STAGES["eye"], name="ear")}
    other = report_of(replace(FIGURES, stages={"ear": ear["eye"], "decode": STAGES["decode"]}))
    comparison = compare([("one", ONE), ("other", other)])
    cells = {row[0]: row[2:] for row in comparison.table().rows if row[1] == "FLOPs"}
    assert cells["eye"] == ("4.052 k", "-")
    assert cells["ear"] == ("-", "4.052 k")
    rows = {row["key"]: row for row in json.loads(comparison.as_json())["rows"]}
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


def test_the_first_line_tells_models_apart():
    same = compare([("a", ONE), ("b", OF_THREE)]).headline()
    assert same.startswith("Ran: model directory my-model")
    assert same.endswith("by the analytic engine, bfloat16, eager attention")
    both = compare([("a", ONE), ("b", report_of(traced()))]).headline()
    assert both.startswith("Ran: a: model directory my-model")
    assert "; b: model directory my-model" in both
