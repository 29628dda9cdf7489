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


def other(stages=STAGES, weights_bytes=FIGURES.memory.weights_bytes, total=843):
    return report_of(replace(
        FIGURES, stages=stages, memory=replace(FIGURES.memory, weights_bytes=weights_bytes),
        parameters=replace(FIGURES.parameters, total=total),
    ))  # fmt: skip


EAR = replace(STAGES["eye"], name="ear")
DECODE = {"decode": STAGES["decode"]}
ROWS = [
    # The reports, a row, and its values, differences and ratios, all against the first.
    ((ONE, OF_THREE), "page_flops", (7228, 7228 / 3), (0, 7228 / 3 - 7228), (1, 7228 / 3 / 7228)),
    ((ONE, OF_THREE), "batch_flops", (7228, 7228), (0, 0), (1, 1)),
    ((ONE, OF_THREE), "batch_bytes", (401, 401), (0, 0), (1, 1)),
    ((ONE, other(weights_bytes=843)), "weights_bytes", (1686, 843), (0, -843), (1, 0.5)),
    # A quantity that is zero in the first has no ratio; a stage that is missing has nothing.
    ((other({**STAGES, "eye": replace(STAGES["eye"], kernels=())}), ONE), "eye_flops",
     (0, 4052), (0, 4052), (None, None)),
    ((ONE, other({"ear": EAR, **DECODE})), "eye_flops", (4052, None), (0, None), (1, None)),
    ((ONE, other({"ear": EAR, **DECODE})), "ear_flops", (None, 4052), (None, None), (None, None)),
    ((ONE, other(total=1000)), "params", (843, 1000), (0, 157), (1, 1000 / 843)),
]  # fmt: skip


@pytest.mark.parametrize(("reports", "key", "values", "differences", "ratios"), ROWS)
def test_differences_and_ratios_are_against_the_first(reports, key, values, differences, ratios):
    row = rows_of(*reports)[key]
    assert (row.values, row.differences, row.ratios) == (values, differences, ratios)
    assert "params" not in rows_of(ONE, ONE)  # which are compared where they differ


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


def test_stages_in_contradicting_orders_or_called_like_another_row_have_a_row():
    reports = [report_of(stages_of(*names, "decode")) for names in ("ab", "ba")]
    assert order_of(*reports) == ["a", "b", "decode_step"]
    assert rows_of(report_of(stages_of("batch", "decode")))["batch_flops"].values == (4052,)


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
    found = compare(list(reports.items()))
    own = [each.metadata.model.architecture for each in reports.values()]
    assert list(found.architectures) == own
    line = found.headline(with_page=with_page)
    assert line.startswith(first)
    assert middle in line
    assert line.endswith(last)


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


def test_tables_json_and_csv_show_differences_and_what_is_missing():
    comparison = compare(
        [("one", ONE), ("three", OF_THREE), ("ear", other({"ear": EAR, **DECODE}))]
    )
    [table] = comparison.tables()
    cells = {(row[0], row[1]): row[2:] for row in table.rows}
    assert table.columns == ("quantity", "unit", "one", "three", "ear")
    assert cells["page", "FLOPs"][:2] == ("7.228 k", "2.409 k\n(-4.819 k, 0.333 x)")
    assert cells["views", "views"] == ("1", "1\n(+0, 1.000 x)", "1\n(+0, 1.000 x)")
    assert cells["eye", "FLOPs"] == ("4.052 k", "4.052 k\n(+0, 1.000 x)", "-")
    assert cells["ear", "FLOPs"] == ("-", "-", "4.052 k")
    [eye] = [row for row in json.loads(dump_json(comparison))["rows"] if row["key"] == "eye_flops"]
    assert eye["values"] == [4052, 4052, None]
    assert eye["differences"] == [0, 0, None]
    assert eye["ratios"] == [1, 1, None]
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv())))
    assert len(lines) == 3 * len(comparison.rows)
    found = {(line["key"], line["report"]): line for line in lines}
    missing, page = found["eye_flops", "ear"], found["page_flops", "three"]
    assert [missing[key] for key in ("value", "difference", "ratio")] == [""] * 3
    assert (float(page["value"]), float(page["ratio"])) == (7228 / 3, 7228 / 3 / 7228)
    assert (page["quantity"], page["unit"]) == ("page", "FLOPs")
