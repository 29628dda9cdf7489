"""The advice for a page: geometry by hand and by Pillow, costs, published figures, requirements."""

import json
import re
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from dsocr_analyze import analyze, archive
from dsocr_analyze.architectures import ARCHITECTURES, PageRequest
from dsocr_analyze.architectures.page_pixels import page_in_views
from dsocr_analyze.archive.advice import AdviceRequest, advise
from dsocr_analyze.archive.advice_document import published_accuracy
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.hardware.fit import memory_need
from dsocr_analyze.model.directory import ModelDirectory

A4_AT_200 = (1654, 2339)


def directory(name="deepseek-ocr"):
    return ModelDirectory.read(ARCHITECTURES[name].reference)


def planned(name, mode, page):
    architecture = ARCHITECTURES[name]
    sizes = architecture.modes[mode]
    return architecture.plan(
        page=page, base_size=sizes.base_size, image_size=sizes.image_size,
        crop_mode=sizes.crop_mode,
    )  # fmt: skip


def shown(name, mode, page):
    return [
        (each.views, each.resolution, each.content, each.tokens)
        for each in page_in_views(ARCHITECTURES[name].crop, planned(name, mode, page))
    ]


class TestGeometry:
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
    def test_views_show_the_page_as_infer_makes_them(self, name, mode, page, expected):
        assert shown(name, mode, page) == expected

    @given(st.tuples(st.integers(1, 900), st.integers(1, 900)))
    def test_padded_views_are_those_of_pillow(self, page):
        ((_, side, content, _),) = shown("deepseek-ocr", "base", page)
        contained = ImageOps.contain(Image.new("1", page), (side, side)).size
        assert content == tuple(max(1, length) for length in contained)

    @given(
        st.sampled_from([(name, mode) for name, each in ARCHITECTURES.items()
                         for mode in each.modes]),
        st.tuples(st.integers(1, 9000), st.integers(1, 9000)),
    )  # fmt: skip
    def test_views_and_tokens_are_those_of_the_workload(self, named, page):
        workload = planned(*named, page)
        found = page_in_views(ARCHITECTURES[named[0]].crop, workload)
        assert [(each.views, each.resolution) for each in found] == [
            (each.count, each.resolution) for each in workload.views
        ]
        # Newlines and separators come on top of what the encoder yields.
        assert sum(each.tokens for each in found) < workload.visual_tokens
        for each in found:
            assert max(each.content) <= each.views * each.resolution


def of(modes, page=A4_AT_200, dpi=200, name="deepseek-ocr", **given):
    names = ("holds", "kind", "minimum_dpi", "maximum_compression")
    asked = {each: given.pop(each) for each in names if each in given}
    request = PageRequest(architecture=ARCHITECTURES[name], page=page, **given)
    dpi = None if dpi is None else Fraction(dpi)
    return advise(
        directory(name), AdviceRequest(request, dpi, **asked),
        [ARCHITECTURES[name].modes[mode] for mode in modes],
    )  # fmt: skip


class TestResolution:
    def test_dpi_is_the_page_s_own_times_the_scale(self):
        tiny, gundam = of(["tiny", "gundam"]).modes
        (whole,) = tiny.seen
        assert whole.horizontal_dpi == pytest.approx(200 * 512 / 1654)
        assert tiny.effective_dpi == whole.vertical_dpi == pytest.approx(200 * 512 / 2339)
        tiles, whole = gundam.seen
        assert tiles.horizontal_dpi == pytest.approx(200 * 1280 / 1654)
        assert tiles.vertical_dpi == pytest.approx(200 * 1920 / 2339)
        assert gundam.effective_dpi == tiles.horizontal_dpi

    def test_enlarging_adds_no_detail(self):
        (base,) = of(["base"], page=(300, 200), dpi=72).modes
        assert base.seen[0].horizontal_scale == pytest.approx(1024 / 300)
        assert (base.effective_scale, base.effective_dpi) == (1.0, 72.0)

    def test_without_the_page_s_resolution_there_are_scales_and_no_dpi(self):
        advice = of(["base"], dpi=None)
        (base,) = advice.modes
        assert advice.page_dpi is base.effective_dpi is base.seen[0].vertical_dpi is None
        assert base.effective_scale == pytest.approx(724 / 1654)
        with pytest.raises(WorkloadError, match="minimum_dpi needs the page's own resolution"):
            of(["base"], dpi=None, minimum_dpi=100)


class TestCost:
    def test_costs_are_those_of_the_report_and_of_fit(self):
        (gundam,) = of(["gundam"], batch_size=3, max_new_tokens=50).modes
        report = analyze(
            mode="gundam", page=A4_AT_200, batch_size=3, max_new_tokens=50, engine="analytic"
        )
        cost, model = gundam.cost, directory()
        assert cost.prefill_pass_flops == report.total.flops
        assert cost.page_flops == report.total.page.flops
        assert cost.page_bytes == report.total.page.bytes_moved
        assert cost.kv_cache_bytes == report.memory.kv_cache_bytes
        assert gundam.visual_tokens == report.workload.visual_tokens
        workload = model.architecture.plan(page=A4_AT_200, batch_size=3, max_new_tokens=50)
        need = memory_need(
            model.architecture, model.dimensions(), workload, dtype=dtype_named("bfloat16"),
            flash_attention=False,
        )  # fmt: skip
        assert cost.memory_bytes == need.total_bytes


POSITION_BYTES = 12 * 2 * 10 * 128 * 2
"""Of the KV cache: layers, keys and values, heads, head size, bytes of bfloat16."""


class TestTextOfThePage:
    def test_the_model_writes_out_every_text_token_and_the_end_token(self):
        advice = of(["base"], holds=(6000, 4000))
        (base,) = advice.modes
        found = [(text.text_tokens, text.max_new_tokens) for text in base.by_text_tokens]
        assert found == [(6000, 6001), (4000, 4001)]
        # The prompt has 273 visual and 10 text tokens; the last new token is not cached.
        caches = [text.cost.kv_cache_bytes for text in base.by_text_tokens]
        assert caches == [POSITION_BYTES * (283 + 6000), POSITION_BYTES * (283 + 4000)]
        assert base.cost == base.by_text_tokens[0].cost
        assert advice.max_new_tokens == 6001

    @pytest.mark.parametrize(
        ("name", "mode", "prompt", "positions"),
        [
            ("deepseek-ocr", "tiny", 83, 8192),
            ("deepseek-ocr", "gundam-m", 2015, 8192),
            ("unlimited-ocr", "base", 278, 32768),
        ],
    )
    def test_no_more_than_the_context_leaves(self, name, mode, prompt, positions):
        (found,) = of([mode], holds=(40_000, 100), name=name).modes
        assert found.seq_len == prompt
        most = positions - prompt + 1
        assert [text.max_new_tokens for text in found.by_text_tokens] == [most, 101]
        exactly = of([mode], holds=(most - 1, most), name=name).modes[0].by_text_tokens
        assert [text.max_new_tokens for text in exactly] == [most, most]

    def test_a_prompt_beyond_the_positions_still_gives_the_prefill_passs_token(self):
        (base,) = of(["base"], holds=(100,), text_tokens=9000).modes
        assert base.by_text_tokens[0].max_new_tokens == 1
        assert any("longer than the decoder's" in note for note in base.notes)

    @pytest.mark.parametrize("given", [{}, {"holds": (4000,), "max_new_tokens": 1024}])
    def test_without_text_tokens_or_with_new_tokens_the_text_does_not_matter(self, given):
        advice = of(["base"], **given)
        (base,) = advice.modes
        assert advice.max_new_tokens == 1024
        assert base.by_text_tokens == ()
        assert base.cost.kv_cache_bytes == POSITION_BYTES * (283 + 1023)

    def test_new_tokens_beyond_the_positions_are_noted(self):
        (base,) = of(["base"], max_new_tokens=8000).modes
        assert any("at most 7910 new tokens fit" in note for note in base.notes)


class TestCompression:
    @pytest.mark.exhaustive
    def test_it_is_text_tokens_per_token_of_the_encoder(self):
        (small,) = of(["small"], holds=(1000, 640)).modes
        first, second = small.densities
        assert (first.compression, second.compression) == (10.0, 6.4)
        assert first.prompt_compression == 1000 / 111  # 10 x (10 + 1) + 1

    @pytest.mark.parametrize(
        ("mode", "tokens", "percent"),
        [
            ("tiny", 600, 96.5), ("tiny", 699, 96.5), ("tiny", 700, 93.8), ("tiny", 1300, 59.1),
            ("small", 650, 98.5), ("small", 850, 96.8), ("small", 1299, 87.1),
            ("tiny", 599, None), ("tiny", 1301, None), ("base", 650, None), ("gundam", 650, None),
        ],
    )  # fmt: skip
    def test_precision_is_quoted_where_it_was_measured_and_nowhere_else(
        self, mode, tokens, percent
    ):
        ((density,),) = (each.densities for each in of([mode], holds=(tokens,)).modes)
        if percent is None:
            assert density.published is None
            assert density.lack.startswith("none ")
        else:
            assert density.published.precision_percent == percent
            assert density.lack == ""

    @pytest.mark.parametrize("name", ["deepseek-ocr-2", "unlimited-ocr"])
    def test_of_other_models_nothing_is_quoted(self, name):
        advice = of(["base"], name=name)
        (base,) = advice.modes
        assert advice.published is base.edit_distances is None
        assert {each.lack for each in base.densities} == {"none for this model"}
        assert any("no published accuracy" in note for note in advice.notes)


class TestPublished:
    def test_the_pages_of_the_table_are_those_that_the_paper_names(self):
        published = published_accuracy("deepseek-ocr")
        for mode, tokens in (("tiny", 64), ("small", 100)):
            rows = [row for row in published.precision.rows if row.mode == mode]
            assert sum(row.pages for row in rows) == 100
            assert [row.text_tokens for row in rows] == [
                (low, low + 100) for low in range(600, 1300, 100)
            ]
            # A compression as printed is a mean over pages whose lengths lie in the range.
            for row in rows:
                low, high = row.text_tokens
                assert row.vision_tokens == tokens
                assert (low - 5) / tokens < row.compression < (high + 5) / tokens
                assert 50 < row.precision_percent < 100

    def test_every_mode_of_the_model_has_edit_distances(self):
        distances = published_accuracy("deepseek-ocr").edit_distance.modes
        assert list(distances) == list(ARCHITECTURES["deepseek-ocr"].modes)
        for each in distances.values():
            assert len(each.kinds) == 10
        base = distances["base"]
        assert (base.english.overall, base.chinese.overall) == (0.137, 0.24)
        assert distances["gundam-m"].kinds["newspaper"] == 0.099

    def test_a_kind_is_named_in_any_case_with_hyphens_or_spaces(self):
        for name in ("financial report", "Financial-Report", "FINANCIAL_REPORT"):
            assert of(["base"], kind=name).kind == "financial report"
        assert of(["base"]).kind is None

    @pytest.mark.parametrize(
        ("name", "kind", "message"),
        [
            (
                "deepseek-ocr",
                "newspapers",
                "did you mean newspaper\\? give book, slides, financial",
            ),
            ("deepseek-ocr", "overall", "kind 'overall' is unknown; give book"),
            ("deepseek-ocr-2", "newspaper", "no effect: no published figures .* DeepSeek-OCR-2"),
        ],
    )
    def test_a_kind_without_figures_is_refused(self, name, kind, message):
        with pytest.raises(WorkloadError, match=message):
            of(["base"], name=name, kind=kind)

    def test_every_table_has_its_source_and_limits(self):
        file = Path(archive.__file__).parent / "published.toml"
        for name, model in tomllib.loads(file.read_text()).items():
            assert name in ARCHITECTURES
            assert model["source"].startswith("arXiv:")
            assert model["precision"]["limits"]
            assert model["edit_distance"]["limits"]


class TestRequirements:
    def meeting(self, **given):
        return list(of(ARCHITECTURES["deepseek-ocr"].modes, **given).modes_that_meet)

    @pytest.mark.exhaustive
    def test_modes_that_meet_are_named_and_a_bound_is_met_by_itself(self):
        assert self.meeting(minimum_dpi=100) == ["large", "gundam", "gundam-m"]
        exactly = 200 * 1280 / 1654
        assert self.meeting(minimum_dpi=exactly) == ["gundam", "gundam-m"]
        assert self.meeting(minimum_dpi=exactly + 1e-9) == ["gundam-m"]
        assert self.meeting(minimum_dpi=201) == []

    @pytest.mark.exhaustive
    def test_compression_holds_at_the_most_text_tokens(self):
        assert self.meeting(maximum_compression=10.0, holds=(100, 1000))[0] == "small"
        assert self.meeting(maximum_compression=10.0, holds=(100, 1001))[0] == "base"

    def test_without_requirements_nothing_is_judged(self):
        advice = of(["base"])
        assert advice.requirements is advice.modes_that_meet is advice.modes[0].verdict is None


def cells(out):
    """The cells of every row of a table, in the terminal or in Markdown."""
    rows = (line.strip("| ") for line in out.splitlines())
    return [re.split(r" \| |  +", row) for row in rows]


class TestCommand:
    def test_the_json_is_the_document(self, capsys):
        code, out, _ = run(capsys, "advise", "--page", "a4@200", "--json", "-", "--mode", "base")
        assert code == 0
        document = json.loads(out)
        assert document["schema_version"] == "2"
        assert document["page"] == [1654, 2339]
        assert document["page_dpi"] == 200
        (base,) = document["modes"]
        assert base["seen"][0]["content"] == [724, 1024]
        assert document["published"]["source"] == "arXiv:2510.18234v1"
        assert (
            run(capsys, "advise", "--page", "a4@200", "--format", "json", "--mode", "base")[1]
            == out
        )

    @pytest.mark.parametrize("output_format", ["table", "markdown"])
    def test_kinds_are_side_by_side_or_one_is_beside_all(self, capsys, output_format):
        asked = ("advise", "--mode", "base,gundam", "--format", output_format)
        whole = cells(run(capsys, *asked)[1])
        assert ["newspaper", "0.645", "0.122"] in whole
        assert ["financial report", "0.027", "0.289"] in whole
        assert ["all kinds", "0.156", "0.083"] in whole
        out = run(capsys, *asked, "--kind", "Newspaper")[1]
        one = cells(out)
        assert ["base", "256 (182 valid)", "0.645", "0.156"] in one
        assert ["gundam", "795", "0.122", "0.083"] in one
        assert not any("0.289" in row for row in one)
        assert "Published edit distance for newspaper: 0.122 (gundam) to 0.645 (base)" in out

    def test_the_kind_is_in_the_json(self, capsys):
        document = json.loads(
            run(capsys, "advise", "--mode", "base", "--kind", "exam-paper", "--json", "-")[1]
        )
        assert document["kind"] == "exam paper"
        assert document["modes"][0]["edit_distances"]["kinds"]["exam paper"] == 0.13

    def test_what_is_not_published_has_no_kinds(self, capsys):
        assert "by kind of document" not in run(capsys, "advise", "--mode", "512")[1]
        assert (
            "512   none published"
            in run(capsys, "advise", "--mode", "512,base", "--kind", "book")[1]
        )

    @pytest.mark.parametrize("output_format", ["table", "markdown"])
    def test_costs_are_shown_for_each_text_and_say_where_it_does_not_fit(
        self, capsys, output_format
    ):
        asked = ("advise", "--mode", "tiny,base", "--page-text-tokens", "4000,10000")
        out = run(capsys, *asked, "--format", output_format)[1]
        assert (
            "for 10,000 text tokens only what the context leaves: 8,110 in tiny, 7,910 in base"
            in " ".join(out.replace("\\", " ").split())
        )
        rows = {tuple(row[:2]): row[-2] for row in cells(out) if len(row) == 7}
        assert rows["base", "4,000"] == "263.1 MB"
        assert rows["base", "7,910 of 10,000"] == "503.3 MB"

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("given", "tokens"),
        [
            (("--page-text-tokens", "4000"), ("--max-new-tokens", "4001")),
            (("--page-text-tokens", "4000", "--max-new-tokens", "7"), ("--max-new-tokens", "7")),
            (("--page-text-tokens", "4000", "--mean-new-tokens", "300"),
             ("--mean-new-tokens", "300")),
            ((), ()),
        ],
    )  # fmt: skip
    def test_seconds_follow_the_text_unless_lengths_are_given(self, capsys, given, tokens):
        common = ("--mode", "gundam", "--price", "2", "--concurrency", "16", "--format", "json")
        advice = json.loads(run(capsys, "advise", "--gpu", "h100-sxm", *common, *given)[1])
        alone = json.loads(run(capsys, "time", "h100-sxm", *common, *tokens)[1])
        assert advice["modes"][0]["time"] == alone["time"]

    @pytest.mark.exhaustive
    def test_assumptions_do_not_contradict_each_other(self, capsys):
        asked = ("advise", "--mode", "base", "--gpu", "l4", "--page-text-tokens")
        assert "every page generates" not in run(capsys, *asked, "100,200")[1]
        assert (
            "every page generates 7 tokens"
            in run(capsys, *asked, "100,200", "--max-new-tokens", "7")[1]
        )

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("output_format", ["table", "markdown"])
    def test_what_is_printed_quotes_the_limits_and_says_where_there_is_nothing(
        self, capsys, output_format
    ):
        code, out, _ = run(capsys, "advise", "--format", output_format)
        assert code == 0
        assert "96.5 % at 10.5x" in out
        assert "none for this mode" in out
        assert "Fox" in out
        assert "arXiv:2510.18234v1" in out

    def test_no_mode_that_meets_is_a_no(self, capsys):
        code, out, _ = run(capsys, "advise", "--page", "a4@100", "--minimum-dpi", "150")
        assert code == 1
        assert "With at least 150 dpi: no mode" in out

    @pytest.mark.exhaustive
    def test_seconds_are_those_of_the_time_command(self, capsys):
        common = ("--mode", "base", "--page", "a4@200", "--concurrency", "1", "--format", "json")
        advice = json.loads(run(capsys, "advise", "--gpu", "h100-sxm", *common)[1])
        alone = json.loads(run(capsys, "time", "h100-sxm", *common)[1])
        assert advice["modes"][0]["time"] == alone["time"]

    def test_seconds_are_a_table_of_their_own(self, capsys):
        given = ("advise", "--mode", "tiny", "--gpu", "h100-sxm")
        assert "Predicted seconds" in run(capsys, *given)[1]
        assert "Predicted seconds" not in run(capsys, *given[:3])[1]

    @pytest.mark.exhaustive
    def test_an_image_has_the_resolution_that_is_said(self, capsys, tmp_path):
        Image.new("L", (1000, 500)).save(tmp_path / "a.png")
        asked = ("advise", "--image", tmp_path / "a.png", "--format", "json")
        assert json.loads(run(capsys, *asked)[1])["page_dpi"] is None
        assert json.loads(run(capsys, *asked, "--page-dpi", "72.5")[1])["page_dpi"] == 72.5

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--page", "a4@200", "--page-dpi", "150"), "--page a4@200 is a paper at 200 dpi"),
            (("--page", "100x100", "--minimum-dpi", "9"), "--page-dpi"),
            (("--page-dpi", "x"), "--page-dpi 'x' is invalid"),
            (("--minimum-dpi", "-3"), "--minimum-dpi '-3' is invalid"),
            (("--maximum-compression", "nan"), "is invalid"),
            (("--mode", "huge"), "huge"),
            (("--page-text-tokens", "0"), "--page-text-tokens"),
            (("--page-text-tokens", "1:99"), "99 values"),
            (("--format", "xml"), "--format 'xml' is unknown"),
            (("--price", "2"), "give --gpu too"),
            (("--kind", "newspapre"), "--kind 'newspapre' is unknown; did you mean newspaper?"),
            (("--kind", "notes", "--arch", "deepseek-ocr-2"), "--kind 'notes' has no effect"),
            (("--max-new-tokens", "0", "--page-text-tokens", "9"), "--max-new-tokens 0"),
        ],
    )
    def test_what_is_not_possible_is_one_line_and_exit_2(self, capsys, arguments, message):
        code, out, err = run(capsys, "advise", *arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert message in err
