"""The advice for a page: geometry by hand and by Pillow, costs, published figures, requirements."""

import json
from fractions import Fraction

import msgspec
import pytest
from command_line import run
from hypothesis import given, settings, strategies as st
from PIL import Image, ImageOps
from relatives import FAMILY
from sampling import first, sampled

from dsocr_analyze import analyze, errors, kernels
from dsocr_analyze.architectures import ARCHITECTURES, PageRequest
from dsocr_analyze.archive.advice import AdviceRequest, advise
from dsocr_analyze.archive.advice_document import Requirements, published_figures
from dsocr_analyze.hardware.fit import memory_need
from dsocr_analyze.model.directory import ModelDirectory

A4_AT_200 = (1654, 2339)


def planned(name, mode, page):
    """A page's workload in a mode, and what its views show of it."""
    architecture = ARCHITECTURES[name]
    sizes = architecture.modes[mode]
    workload = architecture.plan(
        page=page, base_size=sizes.base_size, image_size=sizes.image_size,
        crop_mode=sizes.crop_mode,
    )  # fmt: skip
    return workload, architecture.page_rule.page_in_views(workload)


@pytest.mark.parametrize(
    ("name", "mode", "page", "expected"),
    [
        # 1654 x 2339: 640 / 2339 of it would be 452.6 wide, but small squeezes.
        ("deepseek-ocr", "small", A4_AT_200, [(1, 640, (640, 640), 100)]),
        ("deepseek-ocr", "tiny", A4_AT_200, [(1, 512, (512, 512), 64)]),
        # 1654 / 2339 * 1024 = 724.1 and * 1280 = 905.1
        ("deepseek-ocr", "base", A4_AT_200, [(1, 1024, (724, 1024), 256)]),
        ("deepseek-ocr", "large", A4_AT_200, [(1, 1280, (905, 1280), 400)]),
        ("deepseek-ocr", "gundam", A4_AT_200,
         [(6, 640, (1280, 1920), 600), (1, 1024, (724, 1024), 256)]),
        ("deepseek-ocr", "gundam-m", A4_AT_200,
         [(6, 1024, (2048, 3072), 1536), (1, 1280, (905, 1280), 400)]),
        # At most a tile: not cut, but padded to the global view.
        ("deepseek-ocr", "gundam", (640, 320), [(1, 1024, (1024, 512), 256)]),
        ("deepseek-ocr-2", "small", A4_AT_200, [(1, 768, (768, 768), 144)]),
        ("deepseek-ocr-2", "dynamic", A4_AT_200,
         [(6, 768, (1536, 2304), 864), (1, 1024, (724, 1024), 256)]),
        ("unlimited-ocr", "base", (2000, 1000), [(1, 1024, (1024, 512), 256)]),
    ],
)  # fmt: skip
def test_views_show_the_page_as_infer_makes_them(name, mode, page, expected):
    assert [
        (each.views, each.resolution, each.content, each.tokens)
        for each in planned(name, mode, page)[1]
    ] == expected


@settings(max_examples=30, deadline=None)
@given(st.tuples(st.integers(1, 900), st.integers(1, 900)))
def test_padded_views_are_those_of_pillow(page):
    [shown] = planned("deepseek-ocr", "base", page)[1]
    contained = ImageOps.contain(Image.new("1", page), (shown.resolution,) * 2).size
    assert shown.content == tuple(max(1, length) for length in contained)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(name, mode) for name, each in FAMILY.items()
                     for mode in each.modes]),
    st.tuples(st.integers(1, 9000), st.integers(1, 9000)),
)  # fmt: skip
def test_views_and_tokens_are_those_of_the_workload(named, page):
    workload, found = planned(*named, page)
    assert [(each.views, each.resolution) for each in found] == [
        (each.count, each.resolution) for each in workload.views
    ]
    # Newlines and separators come on top of what the encoder yields.
    assert sum(each.tokens for each in found) < workload.visual_tokens
    assert all(max(each.content) <= each.views * each.resolution for each in found)


SMALL = {"n_routed_experts": 8, "num_hidden_layers": 2}
"""Less of it, which takes less time."""


def of(modes, page=A4_AT_200, dpi=200, name="deepseek-ocr", config=SMALL, **given):
    """The document on some modes, as JSON has it."""
    wanted = {each: given.pop(each, None) for each in ("minimum_dpi", "maximum_compression")}
    asked = {each: given.pop(each) for each in ("holds", "kind", "writes_text") if each in given}
    architecture = ARCHITECTURES[name]
    model = ModelDirectory.read(architecture.reference)
    found = advise(
        model.with_config({**model.config, **config}),
        AdviceRequest(
            PageRequest(architecture=architecture, page=page, **given),
            dpi and Fraction(dpi),
            wanted=Requirements(**wanted) if any(wanted.values()) else None,
            **asked,
        ),
        [architecture.modes[mode] for mode in modes.split()],
    )
    return json.loads(msgspec.json.encode(found))


def at(document, path):
    """The value at a path like `modes 0 seen`; of `*`, the values of every entry."""
    for number, step in enumerate(names := path.split()):
        if step == "*":
            return [at(each, " ".join(names[number + 1 :])) for each in document]
        document = document[int(step) if step.isdecimal() else step]
    return document


POSITION_BYTES = 2 * 2 * 10 * 128 * 2
"""Of the KV cache: layers, keys and values, heads, head size, bytes of bfloat16."""

near = pytest.approx
TEXT, TEXTS = "modes 0 by_text_tokens", "modes 0 by_text_tokens * max_new_tokens"
NAMES = list(ARCHITECTURES["deepseek-ocr"].modes)
MEET, COARSE, FINE = "modes_that_meet", "tiny small base", "large gundam gundam-m"
CACHE = "cost kv_cache_bytes"
EXACTLY = 200 * 1280 / 1654
"""The dpi of mode gundam."""

ADVICE = [
    # The page's own resolution times the scale; enlarging adds no detail.
    ("tiny", {}, {"modes 0 seen 0 horizontal_dpi": near(200 * 512 / 1654),
                  "modes 0 seen 0 vertical_dpi": near(200 * 512 / 2339),
                  "modes 0 effective_dpi": near(200 * 512 / 2339)}),
    ("gundam", {}, {"modes 0 seen 0 horizontal_dpi": EXACTLY, "modes 0 effective_dpi": EXACTLY,
                    "modes 0 seen 0 vertical_dpi": near(200 * 1920 / 2339)}),
    ("base", {"page": (300, 200), "dpi": 72},
     {"modes 0 seen 0 horizontal_scale": near(1024 / 300), "modes 0 effective_scale": 1.0,
      "modes 0 effective_dpi": 72.0}),
    ("base", {"dpi": None},
     {"page_dpi": None, "modes 0 effective_dpi": None, "modes 0 seen 0 vertical_dpi": None,
      "modes 0 effective_scale": near(724 / 1654)}),
    # Every text token is written out, and the end token; the last new token is not cached. The
    # prompt has 273 visual and 10 text tokens.
    ("base", {"holds": (6000, 4000)},
     {f"{TEXT} * text_tokens": [6000, 4000], TEXTS: [6001, 4001], "max_new_tokens": 6001,
      f"{TEXT} * {CACHE}": [POSITION_BYTES * (283 + 6000), POSITION_BYTES * (283 + 4000)],
      f"modes 0 {CACHE}": POSITION_BYTES * (283 + 6000)}),
    # No more than the context leaves, of 8,192 or 32,768 positions.
    ("tiny", {"holds": (40_000, 100)}, {"modes 0 seq_len": 83, TEXTS: [8192 - 82, 101]}),
    ("tiny", {"holds": (8109, 8110)}, {TEXTS: [8110, 8110]}),
    ("gundam-m", {"holds": (40_000, 100)}, {"modes 0 seq_len": 2015, TEXTS: [8192 - 2014, 101]}),
    ("base", {"name": "unlimited-ocr", "holds": (40_000, 100)},
     {"modes 0 seq_len": 278, TEXTS: [32768 - 277, 101]}),
    ("base", {"holds": (100,), "text_tokens": 9000},
     {TEXTS: [1], "modes 0 notes": "longer than the decoder's"}),
    ("base", {"max_new_tokens": 8000}, {"modes 0 notes": "at most 7910 new tokens fit"}),
    # Without text tokens, or with lengths of outputs, the text does not matter; a limit caps it.
    ("base", {}, {"max_new_tokens": 1024, TEXT: [],
                  f"modes 0 {CACHE}": POSITION_BYTES * (283 + 1023)}),
    ("base", {"holds": (4000,), "max_new_tokens": 1024, "writes_text": False},
     {"max_new_tokens": 1024, TEXT: [], f"modes 0 {CACHE}": POSITION_BYTES * (283 + 1023)}),
    ("base", {"holds": (400, 4000), "max_new_tokens": 1024},
     {TEXTS: [401, 1024], f"modes 0 {CACHE}": POSITION_BYTES * (283 + 1023)}),
    # The middle of what is published of the kind, unless the text is given.
    ("base", {"kind": "newspaper"}, {TEXTS: [4501], "notes": "newspaper hold 4,000 to 5,000"}),
    ("base", {"kind": "newspaper", "holds": (50,)}, {TEXTS: [51]}),
    ("base", {"kind": "book"}, {TEXT: [], "max_new_tokens": 1024}),
    # Text tokens per token of the encoder, and per visual token: 10 x (10 + 1) + 1.
    ("small", {"holds": (1000, 640)},
     {"modes 0 densities * compression": [10.0, 6.4],
      "modes 0 densities 0 prompt_compression": 1000 / 111}),
    # Of other models nothing is quoted.
    *((mode, {"name": name}, {"published": None, "modes 0 edit_distances": None,
                              "modes 0 densities * published": [None] * 4,
                              "notes": "no published accuracy"})
      for name, mode in (("deepseek-ocr-2", "base"), ("unlimited-ocr", "base"))),
    *(("base", {"kind": kind}, {"kind": "financial report"})
      for kind in ("financial report", "Financial-Report", "FINANCIAL_REPORT")),
    # A bound is met by itself; compression holds at the most text tokens.
    ("base", {}, {"kind": None, "requirements": None, MEET: None, "modes 0 verdict": None}),
    (f"base {FINE}", {"minimum_dpi": 100}, {MEET: ["large", "gundam", "gundam-m"]}),
    (FINE, {"minimum_dpi": EXACTLY}, {MEET: ["gundam", "gundam-m"]}),
    (FINE, {"minimum_dpi": EXACTLY + 1e-9}, {MEET: ["gundam-m"]}),
    ("gundam-m", {"minimum_dpi": 201}, {MEET: []}),
    (COARSE, {"maximum_compression": 10.0, "holds": (100, 1000)}, {MEET: ["small", "base"]}),
    (COARSE, {"maximum_compression": 10.0, "holds": (100, 1001)}, {MEET: ["base"]}),
]  # fmt: skip


def test_advice_on_an_a4_page_at_200_dpi():
    """Expected by path; of notes, something that one of them says."""
    for modes, asked, expected in ADVICE:
        found = of(modes, **asked)
        for path, value in expected.items():
            is_said = path.endswith("notes") and value in " ".join(at(found, path))
            assert is_said or at(found, path) == value, (modes, asked, path)


def test_costs_are_those_of_the_report_and_of_fit():
    [gundam] = of("gundam", config={}, batch_size=3, max_new_tokens=50)["modes"]
    report = analyze(
        mode="gundam", page=A4_AT_200, batch_size=3, max_new_tokens=50, engine="analytic"
    )
    model = ModelDirectory.read(ARCHITECTURES["deepseek-ocr"].reference)
    workload = model.architecture.plan(page=A4_AT_200, batch_size=3, max_new_tokens=50)
    need = memory_need(model.architecture, model.dimensions(), workload, flash_attention=False,
                       dtype=kernels.dtype_named("bfloat16"))  # fmt: skip
    memory = report.memory
    assert gundam["visual_tokens"] == report.workload.visual_tokens
    assert gundam["cost"] == {
        "prefill_pass_flops": report.total.flops,
        "page_flops": report.total.page.flops,
        "page_bytes": report.total.page.bytes_moved,
        "weights_bytes": memory.weights_bytes,
        "kv_cache_bytes": memory.kv_cache_bytes,
        "peak_activation_bytes": memory.peak_activation_bytes,
        "memory_bytes": need.total_bytes,
    }


QUOTED = [
    ("tiny", 600, 96.5), ("tiny", 699, 96.5), ("tiny", 700, 93.8), ("tiny", 1300, 59.1),
    ("small", 650, 98.5), ("small", 850, 96.8), ("small", 1299, 87.1),
    ("tiny", 599, None), ("tiny", 1301, None), ("base", 650, None), ("gundam", 650, None),
]  # fmt: skip


def test_precision_is_quoted_where_it_was_measured_and_nowhere_else():
    precision = published_figures()["deepseek-ocr"].precision
    for mode, tokens, percent in QUOTED:
        row = precision.at(mode, tokens)
        assert (row and row.precision_percent) == percent, (mode, tokens)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("deepseek-ocr", {"kind": "newspapers"},
         "did you mean newspaper\\? give book, slides, financial"),
        ("deepseek-ocr", {"kind": "overall"}, "kind 'overall' is unknown; give book"),
        ("deepseek-ocr-2", {"kind": "newspapers"}, "did you mean newspaper\\?"),
        ("deepseek-ocr", {"dpi": None, "minimum_dpi": 100},
         "minimum_dpi needs the page's own resolution"),
    ],
)  # fmt: skip
def test_an_unknown_kind_and_a_dpi_without_the_pages_are_refused(name, given, message):
    with pytest.raises(errors.WorkloadError, match=message):
        of("base", name=name, **given)


def test_the_pages_of_the_table_are_those_that_the_paper_names():
    published, lows = published_figures()["deepseek-ocr"].precision.rows, range(600, 1300, 100)
    for mode, tokens in (("tiny", 64), ("small", 100)):
        rows = [row for row in published if row.mode == mode]
        assert sum(row.pages for row in rows) == 100
        assert [(row.text_tokens, row.vision_tokens) for row in rows] == [
            ((low, low + 100), tokens) for low in lows
        ]
        # A compression as printed is a mean over pages whose lengths lie in the range.
        for row, low in zip(rows, lows, strict=True):
            assert (low - 5) / tokens < row.compression < (low + 105) / tokens
            assert 50 < row.precision_percent < 100


def test_every_mode_of_the_model_has_edit_distances():
    distances = published_figures()["deepseek-ocr"].edit_distance.modes
    assert {name: len(each.kinds) for name, each in distances.items()} == dict.fromkeys(NAMES, 10)
    base, finest = distances["base"], distances["gundam-m"].kinds["newspaper"]
    assert (base.english["overall"], base.chinese["overall"], finest) == (0.137, 0.24, 0.099)


def test_every_table_has_its_source_and_limits():
    published = published_figures()
    for each in published.values():
        assert each.source.startswith("arXiv:")
        assert all((each.precision.limits, each.edit_distance.limits))
    assert len(published) == 1


# The command -------------------------------------------------------------------------------------


def json_of(capsys, *arguments):
    return json.loads(run(capsys, *arguments, "--format", "json")[1])


SAID = [
    # Options, the exit code, how the output begins, what else is said (columns and lines apart),
    # and what is not.
    ("--mode base,gundam", 0, "Recommended: it depends on the kind of document. base for financial"
     " report; gundam for exam paper, newspaper; base, the cheapest within 0.03 of the best, for",
     ["By edit distance on OmniDocBench, Tables 3 and 4 of arXiv:2510.18234v1: financial report"
      " [base 0.027, gundam 0.289]; exam paper [gundam 0.094, base 0.130]; newspaper [gundam 0.122,"
      " base 0.645].",
      "pages base gundam", "financial report 0.027 0.289", "all kinds 0.156 0.083"],
     ["magazine 0."]),
    ("--kind Newspaper", 0, "Recommended for newspaper: gundam; it gets 0.122 of a page wrong, tiny"
     " 0.940, small 0.744, base 0.645, large 0.353, gundam-m 0.099 (edit distance", [
        "as good within 0.03, but dearer: gundam-m. A page in gundam costs", "4,500 text tokens",
        "newspaper 0.940 0.744", "4,000 to 5,000 text tokens"], ["0.289"]),
    ("--kind newspaper --mode gundam,gundam-m", 0, "Recommended for newspaper: gundam, the"
     " cheapest; the published figures do not decide, as all are within 0.03; it gets 0.122", [
        "Effective dpi: gundam 150.0"], []),
    ("--mode 512", 0, "Recommended: 512; no other mode is compared.", ["DeepSeek-OCR as a whole"],
     ["Predicted seconds", "Published edit"]),
    ("--mode 512,base --kind book", 0,
     "Recommended: none; no published figures compare 512, base for book.", ["book 0.037"], []),
    ("--arch got-ocr2", 0, "Recommended: native;", [], []),
    ("--arch deepseek-ocr-2 --kind notes", 0, "Recommended: none; no published figures compare"
     " small, base, dynamic for notes. Published for DeepSeek-OCR-2 as a whole", [
        "OmniDocBench v1.5 ?89.17", "A page in small costs 0."], []),
    ("--mode tiny,base --page-text-tokens 4000,10000", 0, "Recommended for every kind", [
        "a page of 10,000 text tokens is cut off after 8,110 in tiny, 7,910 in base",
        "base 4,000 283 1.479 T 6.645 T 263.1 MB", "base 7,910 of 10,000 283"], []),
    ("--mode tiny,base", 0, "Recommended for every kind of document: base; it gets 0.156", [
        "9.4x, 96.5 % 15.6x, 79.3 % 31.2x", "Fox", "arXiv:2510.18234v1"], []),
    ("--mode gundam --page a4@100 --minimum-dpi 150", 1,
     "Recommended: none; no mode meets the limits. Within the limits,", ["page: no mode"], []),
    ("--page a4@200 --minimum-dpi 80 --kind financial-report", 0,
     "Recommended for financial report: base; it gets 0.027 of a page wrong, large 0.022,",
     ["page: base, large, gundam, gundam-m"], []),
    ("--mode base --gpu l4 --page-text-tokens 100,200 --price 0.01", 0,
     "Recommended for every kind of document: base; no other mode is left to compare; it gets", [
        "base, 100 text tokens: ", "base 100 l4, serving, vllm 1", "vllm offers gundam only"],
     ["every page generates", "0.00 "]),
    ("--mode base --gpu l4 --page-text-tokens 100,200 --max-new-tokens 150", 0, "Recommended",
     ["base 100 l4", "base 150 of 200 l4", "cut off after 150 in base"], []),
    ("--mode base --gpu l4 --page-text-tokens 9 --mean-new-tokens 50", 0, "Recommended",
     ["every page generates 50 tokens"], ["base 9 l4"]),
]  # fmt: skip


@sampled("output_format", ["table", "markdown"], first(1))
def test_what_is_printed(capsys, output_format):
    for options, code, begins, said, unsaid in SAID:
        found, out, _ = run(
            capsys, "advise", *options.split(), "--format", output_format, "--assumptions"
        )
        text = " ".join(out.replace("|", " ").replace("\\", "").split())
        missing = [each for each in said if each not in text]
        assert text.startswith(begins), (options, text[:500])
        assert (found, missing, [each for each in unsaid if each in text]) == (code, [], []), (
            options
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ((), ()),
        (("--page-text-tokens", "4000"), ("--max-new-tokens", "4001")),
        (("--page-text-tokens", "4000", "--max-new-tokens", "7"), ("--max-new-tokens", "7")),
        (("--kind", "newspaper"), ("--max-new-tokens", "4501")),
        (("--page-text-tokens", "4000", "--mean-new-tokens", "300"), ("--mean-new-tokens", "300")),
    ],
)
def test_seconds_are_those_of_time_and_follow_the_text_unless_lengths_are_given(
    capsys, given, tokens
):
    common = ("--mode", "gundam", "--page", "a4@200", "--price", "2", "--concurrency", "16")
    advice = json_of(capsys, "advise", "--gpu", "h100-sxm", *common, *given)
    assert (
        advice["modes"][0]["time"] == json_of(capsys, "time", "h100-sxm", *common, *tokens)["time"]
    )


def test_the_json_is_the_document(capsys, tmp_path):
    asked = ("advise", "--page", "a4@200", "--mode", "base", "--kind", "exam-paper")
    document = json_of(capsys, *asked)
    own = dict.fromkeys(("metadata", "model", "options"))
    assert document == json.loads(run(capsys, *asked, "--json", "-")[1]) | {
        "options": document["options"]
    }
    assert document | own == of("base", kind="exam paper", config={}) | own
    Image.new("L", (1000, 500)).save(tmp_path / "a.png")
    for more, dpi in (((), None), (("--page-dpi", "72.5"), 72.5)):
        found = json_of(capsys, "advise", "--image", tmp_path / "a.png", "--mode", "base", *more)
        assert found["page_dpi"] == dpi
