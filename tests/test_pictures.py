"""Pictures: bars as high as the numbers say, every fixed setting named, every text readable."""

import csv
import gzip
import io
import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from command_line import run
from drawn import assert_readable, heading_of, kept_pictures, values_of
from hand_built import CREATED, FIGURES
from msgspec.structs import replace

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.cli import main
from dsocr_analyze.model.directory import read_config
from dsocr_analyze.pictures.picture import HATCHES, MARKERS, Picture, drawing
from dsocr_analyze.pictures.settings import fixed_line, varying
from dsocr_analyze.pictures.stage_chart import MOST_BARS, ChartedReport, stage_picture
from dsocr_analyze.pictures.values import Scale, scale_of
from dsocr_analyze.report.document import build_report
from dsocr_analyze.report.reading import load_report
from dsocr_analyze.report.table import percent_text, scaled
from dsocr_analyze.report.tables import OUTSIDE, stage_colours

pytest.importorskip("matplotlib", reason="the optional extra 'plot'")

DATA = Path(__file__).parent / "data"
STAGES = ("sam", "clip", "projector", "prefill", "decode")


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    file = tmp_path_factory.mktemp("pictures") / "report.json"
    assert main(["--engine", "analytic", "-q", "--json", str(file), "--mode", "tiny"]) == 0
    return load_report(file)


@pytest.fixture
def draw(capsys, monkeypatch):
    """Runs a command with --plot; returns the picture and what was printed."""
    kept = kept_pictures(monkeypatch)

    def run_and_keep(*arguments):
        code, out, err = run(capsys, *arguments, "--plot", "drawn.png")
        assert code == 0, err
        assert_readable(kept[-1])
        return kept[-1], out

    return run_and_keep


def stacks_of(picture):
    """Heights of each bar's segments, from the bottom up."""
    return list(zip(*(
        [patch.get_height() for patch in container] for container in picture.axes.containers
    ), strict=True))  # fmt: skip


def legend_of(picture):
    return [text.get_text() for legend in picture.figure.legends for text in legend.get_texts()]


def ticks_of(picture):
    return [label.get_text() for label in picture.axes.get_xticklabels()]


def save_config(name):
    Path(name).write_text(json.dumps(dict(read_config(DEFAULT.reference / "config.json"))))


class TestSettings:
    """What is fixed: the rule of all pictures."""

    def test_one_value_is_fixed_several_are_not(self):
        settings = {"dtype": ["bfloat16"] * 2, "attention": ["eager", "flash_attention_2"]}
        assert fixed_line(settings) == "bfloat16"
        assert varying(settings) == ["attention"]

    def test_what_an_axis_shows_needs_no_words(self):
        assert fixed_line({"dtype": ["bfloat16"], "batch_size": [4]}, ("dtype",)) == "batch of 4"

    def test_what_is_missing_is_not_said(self):
        assert fixed_line({"prompt_pages": [None, None], "max_new_tokens": [1]}) == "1 new token"

    def test_of_a_page_that_varies_in_one_side_the_other_is_fixed(self):
        page = {"page": ["1 x 9", "2 x 9"], "page_width": [1, 2], "page_height": [9, 9]}
        assert fixed_line(page, ("page_width",)) == "page height 9 pixels"
        assert varying(page) == ["page"]

    def test_of_a_fixed_page_the_sides_are_not_said_again(self):
        page = {"page": ["1 x 9"], "page_width": [1], "page_height": [9]}
        assert fixed_line(page) == "page of 1 x 9 pixels"
        assert fixed_line(page, ("page_width",)) == "page height 9 pixels"


class TestScale:
    def test_digits_are_those_of_tables(self):
        for value in (1, 999, 1000, 5_858_123_456_789, 44.12e9, 7_460_000_000):
            scale = scale_of(value, "FLOPs")
            assert scale.text(value) == scaled(value).split()[0]

    def test_smaller_values_have_as_many_digits_in_the_same_unit(self):
        assert Scale(10**12, "TFLOPs").text(612_345_678_901) == "0.6123"
        assert Scale(1, "pages").text(1234) == "1,234"
        assert Scale(10**6, "million pages").text(12_345_678) == "12.35"
        assert Scale(1, "s").text(0.087421) == "0.08742"
        assert Scale(10**12, "TB").text(0) == "0.000"


class TestTexts:
    @pytest.mark.parametrize(
        ("text", "widest", "lines"),
        [
            ("one, two, three", "one, two,", ["one, two,", "three"]),
            ("alpha beta, gamma", "gamma", ["alpha", "beta,", "gamma"]),
            ("page of 640 x 900", "640 x 900", ["page of", "640 x 900"]),
            ("alpha-beta/gamma", "alpha-beta/", ["alpha-beta/", "gamma"]),
            ("abababababab", "abababa \u2026", ["abababa \u2026"]),
        ],
    )
    def test_lines_break_after_commas_then_words_then_parts_of_words(self, text, widest, lines):
        with drawing():
            measure = Picture("", "").measure
            assert measure.wrapped(text, measure.width(widest, 8), 8) == lines


class TestStages:
    """compare --plot."""

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("quantity", ["flops", "bytes"])
    def test_segments_are_the_numbers_of_the_json(self, draw, quantity):
        arguments = (
            "compare",
            "tiny",
            "gundam",
            "--format",
            "json",
            "--page",
            "a4@150",
            "--max-new-tokens",
            "300",
        )
        picture, out = draw(*arguments, "--quantity", quantity)
        columns = json.loads(out)["columns"]
        for column, stack in zip(columns, stacks_of(picture), strict=True):
            figures = column["figures"]
            whole, passed = (figures[f"{name}_{quantity}"] for name in ("page", "prefill_pass"))
            assert stack[-1] == whole - passed
            assert sum(stack[:-1]) == passed
            if quantity == "flops":
                assert list(stack[:-1]) == [figures[f"{name}_flops"] for name in STAGES[:-1]]
        totals = [column["figures"][f"page_{quantity}"] for column in columns]
        scale = scale_of(max(totals), {"flops": "FLOPs", "bytes": "B"}[quantity])
        assert values_of(picture)[: len(totals)] == list(map(scale.text, totals))
        assert picture.axes.get_ylabel().endswith(f"[{scale.unit}]")
        assert ticks_of(picture) == ["tiny", "gundam"]
        assert legend_of(picture) == [*STAGES[:-1], "decode (299 steps)"]

    @pytest.mark.exhaustive
    def test_a_page_is_its_share_of_the_batch(self, draw):
        picture, out = draw("compare", "tiny", "--batch-size", "7", "--format", "json")
        [stack] = stacks_of(picture)
        [column] = json.loads(out)["columns"]
        assert sum(stack) == pytest.approx(column["figures"]["page_flops"], rel=1e-15)
        assert "batch of 7" in heading_of(picture)

    @pytest.mark.exhaustive
    def test_shares_stand_in_segments_that_have_room(self, draw):
        picture, _ = draw("compare", "gundam", "base")
        for index, stack in enumerate(stacks_of(picture)):
            inside = [
                text for text in picture.axes.texts[2:] if round(text.get_position()[0]) == index
            ]
            shares = [percent_text(part / sum(stack)) for part in stack]
            written = [text.get_text().replace("(", "").replace(")", "") for text in inside]
            assert len(written) >= 2
            for said in written:
                assert any(said.endswith(share) for share in shares)
            assert not any(said.endswith(shares[STAGES.index("projector")]) for said in written)

    @pytest.mark.exhaustive
    def test_seconds_are_those_of_the_page_alone(self, draw):
        picture, out = draw("compare", "tiny", "gundam", "--gpu", "h100,l4", "--quantity",
                            "seconds", "--format", "json")  # fmt: skip
        figures = [column["figures"] for column in json.loads(out)["columns"]]
        expected = [figures[mode][f"{gpu}_serving_page_seconds"]
                    for mode in (0, 1) for gpu in ("h100_sxm", "l4")]  # fmt: skip
        assert [sum(stack) for stack in stacks_of(picture)] == pytest.approx(expected, rel=1e-12)
        assert values_of(picture)[:4] == [f"{each:#.4g}" for each in expected]
        assert ticks_of(picture) == ["tiny\nh100-sxm", "tiny\nl4", "gundam\nh100-sxm", "gundam\nl4"]
        assert legend_of(picture)[-1] == OUTSIDE
        assert "serving by vllm" in heading_of(picture)
        assert "batch" not in heading_of(picture)

    @pytest.mark.exhaustive
    def test_every_fixed_setting_is_named(self, draw):
        Path("slim.json").write_text(
            json.dumps(dict(read_config(DEFAULT.reference / "config.json")))
        )
        picture, _ = draw("compare", "base", "tiny", "--config", "slim.json", "--dtype", "float16",
                          "--use-flash-attn", "1", "--batch-size", "3", "--page", "700x900",
                          "--text-tokens", "77", "--max-new-tokens", "5")  # fmt: skip
        assert heading_of(picture) == (
            "DeepSeek-OCR, config slim.json, page of 700 x 900 pixels, pages not cut, 77 text"
            " tokens, 5 new tokens, batch of 3, float16, flash_attention_2 attention"
        )
        assert picture.axes.get_xlabel() == "mode"

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("arguments", "labels", "axis"),
        [
            ("base --dtype bfloat16,float32", ["bfloat16", "float32"], "data type"),
            ("base --use-flash-attn 0,1", ["eager", "flash_attention_2"], "attention"),
            ("tiny base", ["tiny", "base"], "mode"),
        ],
    )
    def test_bars_are_named_by_what_differs(self, draw, arguments, labels, axis):
        picture, _ = draw("compare", *arguments.split())
        assert ticks_of(picture) == labels
        assert picture.axes.get_xlabel() == axis

    @pytest.mark.exhaustive
    def test_saved_reports_say_what_their_names_do_not(self, draw, capsys):
        for page in ("a4", "a5"):
            run(capsys, "--engine", "analytic", "-q", "--json", f"{page}.json", "--page", page)
        picture, _ = draw("compare", "a4.json", "a5.json")
        pages = [label.replace("\n", " ") for label in ticks_of(picture)]
        assert pages == ["a4.json page of 1240 x 1754 pixels", "a5.json page of 874 x 1240 pixels"]

    @pytest.mark.exhaustive
    def test_stages_of_several_architectures_keep_their_colours(self, draw):
        picture, _ = draw("compare", *ARCHITECTURES)
        names = [label.split(" ")[0] for label in legend_of(picture)]
        assert names == ["sam", "clip", "encoder", "projector", "prefill", "decode"]
        colours = stage_colours(names)
        marks = set()
        for name, container in zip(names, picture.axes.containers, strict=True):
            for patch in container:
                assert to_hex(patch.get_facecolor()) == colours[name]
            marks.add(container[0].get_hatch())
        assert len(marks) == len(names)

    @pytest.mark.exhaustive
    def test_models_that_read_no_pages_have_prompts(self):
        report = build_report(FIGURES, None, CREATED)
        none = dict.fromkeys(("page", "base_size", "image_size", "crop_mode", "grid", "views"))
        prompt = replace(report.workload, **none, prompt_pages=None)
        picture = stage_picture([ChartedReport("_mine", replace(report, workload=prompt))], "flops")
        assert_readable(picture)
        assert picture.title == "FLOPs of one prompt, stage by stage"
        assert [label.split(" ")[0] for label in legend_of(picture)] == list(report.stages)
        assert f"{prompt.seq_len:,} prompt tokens" in heading_of(picture)
        assert "page" not in heading_of(picture)

    @pytest.mark.exhaustive
    def test_reports_of_version_1_are_drawn(self):
        packed = (DATA / "report_v1_trace_batch3.json.gz").read_bytes()
        Path("old.json").write_bytes(gzip.decompress(packed))
        report = load_report(Path("old.json"))
        picture = stage_picture([ChartedReport("old", report)], "bytes")
        assert_readable(picture)
        [stack] = stacks_of(picture)
        assert sum(stack) == pytest.approx(report.total.page.bytes_moved)

    @pytest.mark.exhaustive
    def test_json_stays_alone_on_stdout(self, draw):
        _, out = draw("compare", "tiny", "--format", "json")
        json.loads(out)
        _, out = draw("compare", "tiny")
        assert out.endswith("wrote drawn.png\n")

    @pytest.mark.parametrize(("count", "inches"), [(2, 8.0), (12, 1.2 + 12 * 0.75), (24, 16.0)])
    def test_more_bars_make_a_wider_picture(self, report, count, inches):
        compared = [ChartedReport(f"base ({index})", report) for index in range(count)]
        picture = stage_picture(compared, "flops")
        assert picture.axes.figure.get_figwidth() == pytest.approx(inches)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", ["base", "a-long-name/of some/folder, with words.json", "64"])
    @pytest.mark.parametrize("count", [1, 2, 9, MOST_BARS])
    def test_few_and_many_bars_are_readable(self, report, name, count):
        compared = [ChartedReport(f"{name} ({index})", report) for index in range(count)]
        picture = stage_picture(compared, "flops")
        assert_readable(picture)
        assert len(stacks_of(picture)) == count
        assert values_of(picture)[:count] == ["1.579"] * count

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            ("--plot p.gif", 2, "give a name that ends in .png or .svg"),
            ("--plot gone/p.png", 74, "no folder 'gone'"),
            ("--plot p.png --quantity joules", 2, "--quantity 'joules' is unknown; use flops"),
            ("--plot p.png --quantity flop", 2, "unknown; did you mean flops?"),
            ("--quantity bytes", 2, "--quantity bytes is for a picture; give --plot FILE too"),
            ("--plot p.png --quantity seconds", 2,
             "--quantity seconds needs predicted seconds; give --gpu too"),
            (f"--plot p.png --mode 64:{64 * 25}:64", 2,
             "a plot of 25 bars is not readable; compare fewer, for at most 24"),
            ("tiny base gundam --plot p.png --gpu h100,a100,l4,l40s,h200 --runtime eager,serving"
             " --quantity seconds", 2, "a plot of 30 bars is not readable"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_drawn_is_refused(self, capsys, arguments, code, said):
        found, out, err = run(capsys, "compare", *arguments.split())
        assert (found, out) == (code, "")
        assert said in err
        assert err.count("\n") == 1
        assert not list(Path().iterdir())

    @pytest.mark.exhaustive
    def test_a_report_without_seconds_is_named(self, capsys):
        run(capsys, "--engine", "analytic", "-q", "--json", "plain.json")
        code, _, err = run(capsys, "compare", "plain.json", "tiny", "--gpu", "h100", "--plot",
                           "p.png", "--quantity", "seconds")  # fmt: skip
        assert code == 2
        assert "'plain.json' has none; save it with --gpu" in err


def to_hex(colour):
    from matplotlib.colors import to_hex

    return to_hex(colour)


class TestSweep:
    """sweep --plot."""

    def rows(self, capsys, arguments):
        _, out, _ = run(capsys, "sweep", *arguments)
        return list(csv.DictReader(io.StringIO(out)))

    @pytest.mark.exhaustive
    def test_bars_are_the_rows_and_say_their_values(self, draw, capsys):
        arguments = ("--mode", "all", "--dtype", "bfloat16,float32", "--x", "mode")
        picture, _ = draw("sweep", *arguments, "--quantity", "page_bytes_read")
        rows = self.rows(capsys, arguments[:-2])
        expected = [float(row["page_bytes_read"]) for row in rows]
        found = [patch.get_height() for bars in picture.axes.containers for patch in bars]
        assert found == expected
        assert values_of(picture) == [Scale(10**12, "TB").text(value) for value in expected]
        assert len({bars[0].get_hatch() for bars in picture.axes.containers}) == 2

    @pytest.mark.exhaustive
    def test_a_plot_over_width_says_the_height(self, draw):
        picture, _ = draw("sweep", "--page", "400:2000:400x1754")
        assert heading_of(picture).split(", ")[2:] == [
            "page height 1754 pixels", "gundam mode", "10 text tokens", "1,024 new tokens",
            "batch of 1", "bfloat16", "eager attention",
        ]  # fmt: skip

    def test_lines_are_told_apart_without_colour(self, draw):
        picture, _ = draw("sweep", "--max-new-tokens", "1:200", "--mode", "all")
        lines = picture.axes.get_lines()
        assert len({(line.get_marker(), str(line.get_linestyle())) for line in lines}) == 6
        assert len({line.get_marker() for line in lines}) == 6
        assert legend_of(picture) == [f"{mode} mode" for mode in DEFAULT.modes]

    def test_the_model_is_named_by_its_config(self, draw):
        Path("slim.json").write_text(
            json.dumps(dict(read_config(DEFAULT.reference / "config.json")))
        )
        picture, _ = draw("sweep", "--config", "slim.json", "--batch-size", "1:3")
        assert heading_of(picture).startswith("DeepSeek-OCR, config slim.json, page of 1240 x 1754")

    @pytest.mark.exhaustive
    def test_predicted_seconds_say_what_is_assumed(self, draw):
        picture, _ = draw(
            "sweep", "--gpu", "h100,l4", "--batch-size", "4", "--quantity", "page_seconds",
            "--weights-dtype", "fp8", "--preprocess-ms", "20", "--workers", "3", "--price", "2.5",
        )  # fmt: skip
        assert heading_of(picture).endswith(
            "batch of 4, bfloat16, eager attention, serving by vllm, float8 weights, 2.5 per"
            " GPU-hour, 20 ms of preprocessing, 3 workers"
        )
        assert ticks_of(picture) == ["h100-sxm", "l4"]

    @pytest.mark.exhaustive
    def test_values_that_do_not_fit_are_left_out(self, draw):
        many = ("sweep", "--page", "400:2000:10x1754", "--x", "page")
        picture, _ = draw(*many)
        assert values_of(picture) == []
        assert 10 < len(ticks_of(picture)) < 100

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("seed", range(6))
    def test_random_sweeps_are_readable_and_exact(self, draw, capsys, seed):
        drawn = random.Random(seed)
        few = lambda values, most: ",".join(  # noqa: E731 - one line for each axis
            str(each) for each in drawn.sample(values, drawn.randint(1, most))
        )
        arguments = [
            "--mode", few([*DEFAULT.modes, "1024/512", "768", "1280/640"], 5),
            "--dtype", few(["bfloat16", "float16", "float32"], 2),
            "--page", few(["a4", "letter", "123x4567", "a5@300", "64x64"], 2),
        ]  # fmt: skip
        if drawn.random() < 0.5:
            arguments += ["--batch-size", few(list(range(1, 99)), 1)]
        x = drawn.choice(["mode", "page"])
        quantity = drawn.choice(["page_flops", "kv_cache_bytes", "decode_step_bytes_written",
                                 "visual_tokens", "decode_step_bytes_read_expected"])  # fmt: skip
        picture, _ = draw("sweep", *arguments, "--x", x, "--quantity", quantity)
        rows = self.rows(capsys, arguments)
        found = sorted(patch.get_height() for bars in picture.axes.containers for patch in bars)
        assert found == sorted(float(row[quantity]) for row in rows)
        scale = scale_of(found[-1], {"visual_tokens": "tokens", "page_flops": "FLOPs"}.get(
            quantity, "B"))  # fmt: skip
        texts = values_of(picture)
        if texts:
            assert sorted(texts) == sorted(map(scale.text, found))


class TestArchive:
    def listed(self, *pages):
        lines = ["width,height", *(f"{width},{height}" for width, height in pages)]
        Path("pages.csv").write_text("\n".join(lines) + "\n")
        return "pages.csv"

    def test_bars_of_two_modes_stand_side_by_side(self, draw):
        pages = self.listed((640, 900), (1640, 2900))
        picture, _ = draw("archive", pages, "--mode", "tiny,base", "--histogram", "tokens")
        bars = [patch for container in picture.axes.containers for patch in container]
        assert [patch.get_width() for patch in bars] == pytest.approx([0.4] * len(bars))

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("histogram", ["grid", "tokens"])
    def test_bars_are_those_of_the_table(self, draw, histogram):
        drawn = random.Random(5)
        pages = [(drawn.randint(100, 4000), drawn.randint(100, 4000)) for _ in range(1500)]
        picture, out = draw("archive", self.listed(*pages), "--histogram", histogram,
                            "--format", "json")  # fmt: skip
        [bars] = picture.axes.containers
        heights = [patch.get_height() for patch in bars]
        assert sum(heights) == 1500
        assert values_of(picture) == [f"{int(height):,}" for height in heights]
        document = json.loads(out)
        if histogram == "grid":
            assert sorted(heights) == sorted(each["pages"] for each in document["pages_by_grid"])

    @pytest.mark.exhaustive
    def test_what_all_pages_share_is_named(self, draw):
        same = self.listed((640, 900), (640, 900))
        picture, _ = draw("archive", same, "--mode", "base", "--max-new-tokens", "9")
        assert heading_of(picture).split(", ")[0] == "2 pages of pages.csv"
        assert heading_of(picture).split(", ")[3:] == [
            "page of 640 x 900 pixels", "base mode", "10 text tokens", "9 new tokens", "bfloat16",
            "eager attention",
        ]  # fmt: skip
        picture, _ = draw("archive", self.listed((640, 900), (640, 901)))
        assert "page width 640 pixels" in heading_of(picture)
        assert "height" not in heading_of(picture)

    def test_lengths_of_the_list_are_not_fixed(self, draw):
        Path("pages.csv").write_text("width,height,max_new_tokens\n99,99,4\n99,99,5\n")
        picture, _ = draw("archive", "pages.csv")
        assert "new token" not in heading_of(picture)

    def test_pages_are_counted_in_whole_numbers(self, draw):
        picture, _ = draw("archive", self.listed((99, 99), (99, 99)))
        assert all(tick == int(tick) for tick in picture.axes.get_yticks())

    @pytest.mark.exhaustive
    def test_names_of_files_are_only_names(self, draw):
        for name in ("$x_1$ ^2$.csv", "_" + "long" * 40 + ".csv"):
            Path(self.listed((99, 99))).rename(name)
            picture, _ = draw("archive", name)
            assert "1 page of" in heading_of(picture)

    def test_no_pages_make_an_empty_picture(self, draw):
        picture, _ = draw("archive", self.listed())
        assert values_of(picture) == []


class TestThroughput:
    def test_lines_are_the_numbers_of_the_json(self, draw):
        picture, out = draw("time", "h100", "l4", "--format", "json")
        entries = json.loads(out)["time"]
        axes, latency = picture.figure.axes
        assert axes.get_ylabel() == "pages per second (filled markers, with band)"
        assert latency.get_ylabel() == "seconds per page (hollow markers, dotted)"
        for entry, line, dotted in zip(entries, axes.get_lines(), latency.get_lines(), strict=True):
            loads = entry["throughput"]
            assert list(line.get_ydata()) == [load["pages_per_second"] for load in loads]
            assert list(dotted.get_ydata()) == [load["page_seconds"] for load in loads]
            assert line.get_marker() == dotted.get_marker()
            assert line.get_linestyle() != dotted.get_linestyle()
        assert legend_of(picture) == ["h100-sxm", "l4"]
        assert heading_of(picture).endswith("bfloat16, eager attention, serving by vllm")

    @pytest.mark.exhaustive
    def test_a_single_gpu_is_fixed(self, draw):
        picture, _ = draw("time", "h100", "--dtype", "float16", "--mode", "base")
        assert heading_of(picture).endswith(
            "base mode, 10 text tokens, 1,024 new tokens, float16, eager attention, h100-sxm,"
            " serving by vllm"
        )
        assert legend_of(picture) == []

    @pytest.mark.exhaustive
    def test_every_gpu_of_the_catalogue_is_readable(self, draw):
        draw("time", "--max-new-tokens", "10", "--concurrency", "1,2")


def test_every_series_can_have_a_mark_of_its_own():
    from dsocr_analyze.archive.chart import MOST_SERIES

    assert len(set(MARKERS)) == len(set(HATCHES)) == MOST_SERIES


@pytest.mark.exhaustive
def test_a_readers_own_settings_of_matplotlib_change_nothing(capsys, monkeypatch):
    import matplotlib as mpl

    for name in ("one", "other"):
        if name == "other":
            monkeypatch.setitem(mpl.rcParams, "font.size", 30.0)
            monkeypatch.setitem(mpl.rcParams, "axes.facecolor", "black")
        assert run(capsys, "compare", "64", "--plot", f"{name}.svg")[0] == 0
    assert Path("one.svg").read_bytes() == Path("other.svg").read_bytes()
    assert mpl.rcParams["font.size"] == 30.0


_DRAWS = """
import sys
from dsocr_analyze.pictures.picture import Picture, drawing
read = []
settings = ("matplotlibrc", "own.rc", ".mplstyle")
sys.addaudithook(lambda event, args: event == "open" and str(args[0]).endswith(settings)
                 and read.append(str(args[0])))
with drawing():
    picture = Picture("a", "b")
    picture.axes.plot([0, 1])
    picture.save(__import__("pathlib").Path(sys.argv[1]))
import matplotlib
print([each for each in read if not each.startswith(matplotlib.get_data_path())])
"""


def test_settings_files_of_matplotlib_are_not_even_read(tmp_path):
    hostile = "axes.facecolor: red\nbackend: module://pwn\nbad\x1b[31mkey: 1\n"
    home, style = tmp_path / "config/matplotlib", tmp_path / "own/stylelib"
    for folder in (home, style, tmp_path / "named"):
        folder.mkdir(parents=True)
    for file in (Path("matplotlibrc"), home / "matplotlibrc", tmp_path / "own/matplotlibrc",
                 tmp_path / "named/own.rc", style / "mine.mplstyle"):  # fmt: skip
        file.write_text(hostile)

    def drawn(name, **environment):
        ended = subprocess.run(
            [sys.executable, "-P", "-c", _DRAWS, name], capture_output=True, text=True, timeout=60,
            env={**os.environ, **environment},
        )  # fmt: skip
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")
        return Path(name).read_bytes()

    with drawing():
        picture = Picture("a", "b")
        picture.axes.plot([0, 1])
        picture.save(Path("here.svg"))
    own = {"MPLCONFIGDIR": str(tmp_path / "own"), "MPLBACKEND": "nonsense"}
    assert Path("here.svg").read_bytes() == drawn("a.svg", **own)
    Path("matplotlibrc").unlink()
    Path("matplotlibrc").symlink_to("/dev/zero")
    own["MATPLOTLIBRC"] = str(tmp_path / "named/own.rc")
    assert Path("here.svg").read_bytes() == drawn("b.svg", **own)


@pytest.mark.exhaustive
def test_an_svg_holds_no_date_and_is_on_white(capsys):
    run(capsys, *shlex.split("compare tiny --plot p.svg"))
    text = Path("p.svg").read_text()
    assert "<dc:date>" not in text
    assert "fill: #ffffff" in text


def test_names_that_xml_cannot_hold_are_shown_escaped(tmp_path):
    name = "a\x1b[2K\x9b\u202e\uffff<b>&"
    with drawing():
        picture = Picture(name, name)
        bars = picture.axes.bar([0], [1])
        picture.name_axes(name, name)
        picture.name_bars([name])
        picture.add_legend([bars], [name])
        picture.lay_out()
        picture.save(tmp_path / "a.svg")
    texts = ["".join(each.itertext()) for each in ET.parse(tmp_path / "a.svg").iter()]
    shown = [each for each in texts if r"a\x1b[2K\x9b\u202e\uffff<b>&" in each]
    assert len(shown) >= 6  # title and its metadata, line below, both axes, bar, legend
