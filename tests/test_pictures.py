"""Pictures: bars as high as the numbers say, every fixed setting named, every text readable."""

import csv
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest
from command_line import run
from hand_built import CREATED, FIGURES
from msgspec.structs import replace
from relatives import FAMILY
from sampling import every, first, sampled

from dsocr_analyze import analyze
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.hardware.devices import gpu_catalogue
from dsocr_analyze.model.directory import read_config
from dsocr_analyze.pictures.picture import (
    HATCHES,
    MARKERS,
    Picture,
    Scale,
    drawing,
    label_points,
    scale_logarithmically,
    scale_of,
)
from dsocr_analyze.pictures.settings import fixed_line, varying
from dsocr_analyze.pictures.stage_chart import MOST_BARS, ChartedReport, stage_picture
from dsocr_analyze.report import document, opening, table, tables

pytest.importorskip("matplotlib", reason="the optional extra 'plot'")
from matplotlib import rcParams
from matplotlib.colors import to_hex

# --- pictures as they were drawn: their texts and where these stand --------------------------


def kept_pictures(monkeypatch) -> list[Picture]:
    """Every picture from now on, kept in place of being written."""
    found: list[Picture] = []
    monkeypatch.setattr(Picture, "save", lambda self, _: found.append(self))
    return found


def shown_texts(figure):
    """All texts of a figure that have something to read and are in sight."""
    texts = [*figure.texts]
    for legend in figure.legends:
        texts += legend.get_texts()
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [
                label for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high
                for label in (tick.label1, tick.label2)
            ]  # fmt: skip
    return [each for each in texts if each.get_visible() and each.get_text().strip()]


def outline_of(text, margin: float = 0):
    """The path of a text's rectangle, slanted with it, but for a margin (pixels)."""
    from matplotlib.path import Path  # an optional package
    from matplotlib.transforms import Affine2D

    extent, rotation = text.get_window_extent(), text.get_rotation()
    text.set_rotation(0)
    level = text.get_window_extent()
    text.set_rotation(rotation)
    place = Affine2D().translate(-0.5, -0.5).scale(level.width - margin, level.height - margin)
    centre = (extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2
    return Path.unit_rectangle().transformed(place.rotate_deg(rotation).translate(*centre))


def assert_readable(picture: Picture) -> None:
    """No text stands on another, none leaves the picture, and the legend covers no data."""
    figure = picture.figure
    with drawing(), warnings.catch_warnings():
        figure.draw_without_rendering()
        texts = [
            (text.get_text(), outline_of(text), outline_of(text, 1)) for text in shown_texts(figure)
        ]
        legends = [legend.get_window_extent() for legend in figure.legends]
        data = [axes.bbox for axes in figure.axes]
    for text, outline, _ in texts:
        (left, low), (right, high) = outline.get_extents().get_points()
        is_inside = (
            min(left, low) >= 0 and right <= figure.bbox.width and high <= figure.bbox.height
        )
        assert is_inside, f"{text!r} is clipped at {outline}"
    for (one, _, inner), (other, _, theirs) in itertools.combinations(texts, 2):
        assert not inner.intersects_path(theirs), f"{one!r} overlaps {other!r}"
    for legend, axes in itertools.product(legends, data):
        assert legend.y1 <= axes.y0


def values_of(picture: Picture) -> list[str]:
    """The texts in the axes, in the order in which they were written."""
    return [text.get_text() for text in picture.axes.texts]


def heading_of(picture: Picture) -> str:
    """What stands below the title, in one line."""
    [text] = [each for each in picture.figure.texts if each.get_gid() == "subtitle"]
    return text.get_text().replace("\n", " ")


# --- pictures of each kind -------------------------------------------------------------------


STAGES = ("sam", "clip", "projector", "prefill", "decode")
NAMES = ("slim.json", "$x_1$ ^2$.json", "_" + "long" * 40 + ".json")
"""Of one config."""


@pytest.fixture(scope="module")
def report():
    return analyze(engine="analytic", mode="tiny")


@pytest.fixture(autouse=True)
def _among_files(tmp_path, monkeypatch, report):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in NAMES:
        Path(name).write_text(json.dumps(dict(read_config(DEFAULT.reference / "config.json"))))
    Path("plain.json").write_text(opening.dump_json(report))


@pytest.fixture
def draw(capsys, monkeypatch):
    """Runs a command with --plot; returns the picture and what was printed."""
    kept = kept_pictures(monkeypatch)

    def run_and_keep(command):
        code, out, err = run(capsys, *shlex.split(command), "--plot", "drawn.png")
        assert code == 0, err
        assert_readable(kept[-1])
        return kept[-1], out

    return run_and_keep


def stacks_of(picture):
    """Heights of each bar's segments, from the bottom up."""
    heights = ([bar.get_height() for bar in bars] for bars in picture.axes.containers)
    return list(zip(*heights, strict=True))


def bars_of(picture):
    return [bar for bars in picture.axes.containers for bar in bars]


def legend_of(picture):
    return [text.get_text() for legend in picture.figure.legends for text in legend.get_texts()]


def ticks_of(picture):
    return [label.get_text() for label in picture.axes.get_xticklabels()]


@pytest.mark.parametrize(
    ("settings", "shown", "line", "differ"),
    [
        ({"dtype": ["bfloat16"] * 2, "attention": ["eager", "flash_attention_2"]}, (), "bfloat16",
         ["attention"]),
        ({"dtype": ["bfloat16"], "batch_size": [4]}, ("dtype",), "batch of 4", []),
        ({"prompt_pages": [None, None], "max_new_tokens": [1]}, (), "1 new token", []),
        ({"page": ["1 x 9", "2 x 9"], "page_width": [1, 2], "page_height": [9, 9]},
         ("page_width",), "page height 9 pixels", ["page"]),
        ({"page": ["1 x 9"], "page_width": [1], "page_height": [9]}, (),
         "page of 1 x 9 pixels", []),
        ({"page": ["1 x 9"], "page_width": [1], "page_height": [9]}, ("page_width",),
         "page height 9 pixels", []),
    ],
)  # fmt: skip
def test_one_value_is_fixed_unless_an_axis_shows_it_and_several_differ(
    settings, shown, line, differ
):
    assert (fixed_line(settings, shown), varying(settings)) == (line, differ)


def test_digits_are_those_of_tables_and_smaller_values_have_as_many_in_the_same_unit():
    for value in (1, 999, 1000, 5_858_123_456_789, 44.12e9, 7_460_000_000):
        assert scale_of(value, "FLOPs").text(value) == table.scaled(value).split()[0]
    for step, value, text in (
        (10**12, 612_345_678_901, "0.6123"), (1, 1234, "1,234"), (10**6, 12_345_678, "12.35"),
        (1, 0.087421, "0.08742"), (10**12, 0, "0.000"),
    ):  # fmt: skip
        assert Scale(step, "B").text(value) == text


def test_lines_break_after_commas_then_words_then_parts_of_words():
    with drawing():
        measure = Picture("", "").measure
    for text, widest, lines in (
        ("one, two, three", "one, two,", ["one, two,", "three"]),
        ("alpha beta, gamma", "gamma", ["alpha", "beta,", "gamma"]),
        ("page of 640 x 900", "640 x 900", ["page of", "640 x 900"]),
        ("alpha-beta/gamma", "alpha-beta/", ["alpha-beta/", "gamma"]),
        ("abababababab", "abababa \u2026", ["abababa \u2026"]),
    ):
        assert measure.wrapped(text, measure.width(widest, 8), 8) == lines, text


@sampled(
    ("command", "heading", "axis", "ticks"),
    [
        ("compare base --dtype bfloat16,float32", "eager attention$", "data type",
         ["bfloat16", "float32"]),
        ("sweep --config slim.json --batch-size 1:3",
         "^DeepSeek-OCR, config slim.json, page of 1240 x 1754", "batch size [pages]", None),
        ("compare base --use-flash-attn 0,1", "bfloat16$", "attention",
         ["eager", "flash_attention_2"]),
        ("compare tiny --batch-size 7", ", batch of 7, ", "", ["tiny"]),
        ("compare base tiny --config slim.json --dtype float16 --use-flash-attn 1 --batch-size 3"
         " --page 700x900 --text-tokens 77 --max-new-tokens 5",
         "^DeepSeek-OCR, config slim.json, page of 700 x 900 pixels, pages not cut, 77 text tokens,"
         " 5 new tokens, batch of 3, float16, flash_attention_2 attention$", "mode",
         ["base", "tiny"]),
        ("sweep --page 400:2000:400x1754",
         "^[^,]+, [^,]+, page height 1754 pixels, gundam mode, 10 text tokens, 1,024 new tokens,"
         " batch of 1, bfloat16, eager attention$", "page width [pixels]", None),
        ("sweep --gpu h100,l4 --batch-size 4 --quantity page_seconds --weights-dtype fp8"
         " --preprocess-ms 20 --workers 3 --price 2.5",
         "batch of 4, bfloat16, eager attention, serving by vllm, float8 weights, 2.5 per GPU-hour,"
         " 20 ms of preprocessing, 3 workers$", "GPU", ["h100-sxm", "l4"]),
        *((f"compare base --config '{name}'", "^DeepSeek-OCR, config", None, None)
          for name in NAMES[1:]),
        ("time h100 --dtype float16 --mode base", "base mode, 10 text tokens, 1,024 new tokens,"
         " float16, eager attention, h100-sxm, serving by vllm$", None, None),
    ],
    every(7),
)  # fmt: skip
def test_the_heading_names_all_that_is_fixed_and_the_axis_what_differs(
    draw, command, heading, axis, ticks
):
    picture, _ = draw(command)
    assert re.search(heading, heading_of(picture)), heading_of(picture)
    assert axis in (None, picture.axes.get_xlabel())
    assert ticks in (None, ticks_of(picture))


# --- compare --plot --------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(("quantity", "unit"), [("flops", "FLOPs"), ("bytes", "B")])
def test_segments_are_the_numbers_of_the_json(draw, quantity, unit):
    picture, out = draw("compare tiny gundam --page a4@150 --max-new-tokens 300 --format json"
                        f" --quantity {quantity}")  # fmt: skip
    columns = [column["figures"] for column in json.loads(out)["columns"]]
    for figures, stack in zip(columns, stacks_of(picture), strict=True):
        whole, passed = (figures[f"{name}_{quantity}"] for name in ("page", "prefill_pass"))
        assert (sum(stack[:-1]), stack[-1]) == (passed, whole - passed)
        if quantity == "flops":
            assert list(stack[:-1]) == [figures[f"{name}_flops"] for name in STAGES[:-1]]
    totals = [figures[f"page_{quantity}"] for figures in columns]
    scale = scale_of(max(totals), unit)
    assert values_of(picture)[: len(totals)] == list(map(scale.text, totals))
    assert picture.axes.get_ylabel().endswith(f"[{scale.unit}]")
    assert ticks_of(picture) == ["tiny", "gundam"]
    assert legend_of(picture) == [*STAGES[:-1], "decode (299 steps)"]


@pytest.mark.exhaustive
def test_shares_stand_in_segments_that_have_room(draw):
    picture, out = draw("compare gundam base")
    assert out.endswith("wrote drawn.png\n")
    for place, stack in enumerate(stacks_of(picture)):
        shares = {table.percent_text(part / sum(stack)): part for part in stack}
        written = {
            " ".join(re.sub("[()]", "", text.get_text()).split()[-2:])
            for text in picture.axes.texts[2:] if round(text.get_position()[0]) == place
        }  # fmt: skip
        assert len(written) >= 2
        assert written <= shares.keys() - {min(shares, key=shares.get)}  # the projector's


@pytest.mark.exhaustive
def test_seconds_are_those_of_the_page_alone(draw):
    picture, out = draw("compare tiny gundam --gpu h100,l4 --quantity seconds --format json")
    expected = [
        column["figures"][f"{gpu}_serving_page_seconds"]
        for column in json.loads(out)["columns"] for gpu in ("h100_sxm", "l4")
    ]  # fmt: skip
    assert list(map(sum, stacks_of(picture))) == pytest.approx(expected, rel=1e-12)
    assert values_of(picture)[:4] == [f"{each:#.4g}" for each in expected]
    assert ticks_of(picture) == ["tiny\nh100-sxm", "tiny\nl4", "gundam\nh100-sxm", "gundam\nl4"]
    assert legend_of(picture)[-1] == tables.OUTSIDE
    assert re.search("^(?!.*batch).*serving by vllm", heading_of(picture))


@pytest.mark.exhaustive
def test_saved_reports_say_what_their_names_do_not(draw, capsys):
    run(capsys, "--engine", "analytic", "-q", "--json", "a5.json", "--page", "a5")
    picture, _ = draw("compare plain.json a5.json")
    assert [label.replace("\n", " ") for label in ticks_of(picture)] == [
        "plain.json page of 1240 x 1754 pixels tiny mode",
        "a5.json page of 874 x 1240 pixels gundam mode",
    ]


@pytest.mark.exhaustive
def test_stages_of_several_architectures_keep_their_colours(draw):
    picture, _ = draw(f"compare {' '.join(FAMILY)}")
    names = [label.split(" ")[0] for label in legend_of(picture)]
    assert names == ["sam", "clip", "encoder", "projector", "prefill", "decode"]
    colours = tables.stage_colours(names)
    for name, bars in zip(names, picture.axes.containers, strict=True):
        assert {to_hex(bar.get_facecolor()) for bar in bars} == {colours[name]}
    assert len({bars[0].get_hatch() for bars in picture.axes.containers}) == len(names)


@pytest.mark.exhaustive
def test_models_that_read_no_pages_have_prompts():
    none = dict.fromkeys(("page", "base_size", "image_size", "crop_mode", "grid", "views"))
    report = document.build_report(FIGURES, None, CREATED)
    report = replace(report, workload=replace(report.workload, **none, prompt_pages=None))
    picture = stage_picture([ChartedReport("_mine", report)], "flops")
    assert_readable(picture)
    assert picture.title == "FLOPs of one prompt, stage by stage"
    assert [label.split(" ")[0] for label in legend_of(picture)] == list(report.stages)
    assert re.search("^(?!.*page).*83 prompt tokens", heading_of(picture))


@sampled("name", ["base", "a-long-name/of some/folder, with words.json", "64"], first(1))
@sampled(
    ("count", "inches"),
    [(10, 1.2 + 10 * 0.75), (1, 8.0), (2, 8.0), (12, 1.2 + 12 * 0.75), (MOST_BARS, 16.0)],
    first(1),
)
def test_few_and_many_bars_are_readable_and_many_are_wider(report, name, count, inches):
    picture = stage_picture(
        [ChartedReport(f"{name} ({place})", report) for place in range(count)], "flops"
    )
    assert_readable(picture)
    assert len(stacks_of(picture)) == count
    assert values_of(picture)[:count] == ["1.579"] * count
    if name == "base":  # long names may need more
        assert picture.figure.get_figwidth() == pytest.approx(inches)


# --- sweep --plot ----------------------------------------------------------------------------


@sampled(
    ("arguments", "quantity", "unit", "are_written"),
    [
        ("--x mode --mode tiny,1024/512,768,gundam-m,base --dtype float32 --page a5@300"
         " --batch-size 17", "kv_cache_bytes", "B", True),
        ("--use-flash-attn 0 --arch glm-ocr --page 64x64", "page_flops", "FLOPs", True),
        ("--x mode --mode all --dtype bfloat16,float32", "page_bytes_read", "B", True),
        ("--x page --mode 1280/640,small,768 --dtype float16,float32 --page letter,123x4567",
         "decode_step_bytes_written", "B", True),
        ("--x page --mode large,tiny --page 64x64,a4 --batch-size 98", "page_flops", "FLOPs",
         True),
        ("--x mode --mode gundam,base,1024/512,768 --page a4", "visual_tokens", "tokens", True),
        ("--x page --mode base --page 123x4567,letter",
         "decode_step_bytes_read_expected", "B", True),
        ("--x page --page 400:2000:10x1754", "page_flops", "FLOPs", False),
    ],
    first(2),
)  # fmt: skip
def test_bars_are_the_rows_and_say_their_values(
    draw, capsys, arguments, quantity, unit, are_written
):
    picture, _ = draw(f"sweep {arguments} --quantity {quantity}")
    _, out, _ = run(capsys, "sweep", *arguments.split()[2:])
    expected = sorted(float(row[quantity]) for row in csv.DictReader(io.StringIO(out)))
    assert sorted(bar.get_height() for bar in bars_of(picture)) == expected
    texts = map(scale_of(expected[-1], unit).text, expected)
    assert sorted(values_of(picture)) == (sorted(texts) if are_written else [])
    assert len(ticks_of(picture)) < 100
    series = picture.axes.containers
    assert len({bars[0].get_hatch() for bars in series}) == len(series)


def test_lines_are_told_apart_without_colour(draw):
    picture, _ = draw("sweep --max-new-tokens 1:20 --mode all")
    lines = picture.axes.get_lines()
    assert len({line.get_marker() for line in lines}) == len(lines) == 6
    assert legend_of(picture) == [f"{mode} mode" for mode in DEFAULT.modes]


# --- time --plot -----------------------------------------------------------------------------


def test_lines_are_the_numbers_of_the_json_in_two_panels_over_the_same_pages_at_once(draw):
    picture, out = draw("time h100 l4 --concurrency 16,1,4 --format json")
    rates, latency = picture.figure.axes
    assert (rates.get_ylabel(), latency.get_ylabel(), latency.get_xlabel()) == (
        "pages per second, with band", "seconds", "pages at once",
    )  # fmt: skip
    assert rates.bbox.y0 > latency.bbox.y1
    assert (rates.get_xscale(), rates.get_xlim()) == ("log", latency.get_xlim())
    entries = [sorted(entry["throughput"], key=lambda load: load["concurrency"])
               for entry in json.loads(out)["time"]]  # fmt: skip
    for axes, keys in (
        (rates, ["pages_per_second"]), (latency, ["page_seconds", "ttft_seconds"])
    ):  # fmt: skip
        lines = [line for line in axes.get_lines() if len(line.get_xdata())]
        assert [list(line.get_ydata()) for line in lines] == [
            [load[key] for load in loads] for loads in entries for key in keys
        ]
        assert all(list(line.get_xdata()) == [1, 4, 16] for line in lines)
        assert {line.get_linestyle() for line in lines} == {"-"}
        assert [line.get_color() for line in lines[:: len(keys)]] == [*tables.PALETTE[:2]]
    for band, loads in zip(rates.collections, entries, strict=True):
        bands = [load["pages_per_second_band"] for load in loads]
        assert {y for _, y in band.get_paths()[0].vertices} == {
            each[end] for each in bands for end in ("low", "high")
        }
    assert legend_of(picture) == ["h100-sxm", "l4", "page", "first token"]
    assert heading_of(picture).endswith("bfloat16, eager attention, serving by vllm")


@pytest.mark.parametrize("concurrency", ["3", "1,4,16", "1:64", "100:103", "1,2,3,1000,1001,65536"])
def test_concurrencies_have_a_logarithmic_axis_with_ticks(draw, concurrency):
    picture, _ = draw(f"time h100 --max-new-tokens 10 --concurrency {concurrency}")
    axes = picture.panels[-1]
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks
    assert high < 4 * low or all(int(tick).bit_count() == 1 for tick in ticks)


@pytest.mark.exhaustive
@pytest.mark.parametrize("gpus", ["h100", "", "h100,l4 --runtime eager,serving"])
def test_every_gpu_of_the_catalogue_is_readable_and_one_is_named_above(draw, gpus):
    picture, _ = draw(f"time {gpus} --max-new-tokens 10 --concurrency 1,2")
    assert (len(legend_of(picture)) > 3) == (gpus != "h100")


# --- time --plot --quantity roofline ---------------------------------------------------------


@sampled(
    "command",
    ["h100", "h100 --arch qwen3-vl", "v100-sxm-32gb --dtype float16 --runtime eager",
     "", "l40s --arch got-ocr2 --page 300x200", "a100-40gb --arch deepseek-ocr-2 --runtime eager",
     "h100,l40s,a100-80gb-sxm,l4 --runtime eager,serving", "h100 --weights-dtype fp8"],
    every(4),
)  # fmt: skip
def test_stages_stand_below_the_roof_where_their_shares_say(draw, command):
    picture, out = draw(f"time {command} --quantity roofline --format json")
    axes, entries = picture.axes, json.loads(out)["time"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    lines = [line.get_xydata() for line in axes.get_lines() if len(line.get_xydata())]
    roofs = [line for line in lines if len(line) == 3]
    points = [tuple(line[0]) for line in lines if len(line) == 1]
    dtype = "float16" if "float16" in command else "bfloat16"
    expected = []
    for entry, roof in zip(entries, roofs, strict=True):
        gpu = gpu_catalogue()[entry["gpu"]]
        peak, bandwidth = gpu.tflops(dtype), gpu.bandwidth_gb_s / 1e3
        assert list(roof[1]) == pytest.approx([peak / bandwidth, peak])
        assert (roof[2][1], roof[0][1]) == pytest.approx((peak, roof[0][0] * bandwidth))
        for stage in entry["stages"].values():
            if rate := stage["peak_share"] * peak:
                expected.append((rate / (stage["bandwidth_share"] * bandwidth), rate))
                assert rate <= min(peak, expected[-1][0] * bandwidth) * (1 + 1e-9)
    assert sum(sorted(points), ()) == pytest.approx(sum(sorted(expected), ()))
    names = {text.get_text() for text in axes.texts}
    computing = {name for name, stage in entries[0]["stages"].items() if stage["peak_share"]}
    assert names == (computing if len(entries) == 1 else set())
    assert legend_of(picture)[len(entries) :] == list(entries[0]["stages"])


@sampled("seed", list(range(40)), first(4))
def test_names_of_points_that_are_close_do_not_collide(seed):
    random = Random(seed)
    with drawing():
        picture = Picture("a", "b")
        picture.name_axes("x", "y")
        points = []
        for _ in range(random.randint(1, 9)):
            x, y = 10 ** random.uniform(1.5, 2), 10 ** random.uniform(1.5, 2)
            points.append((x, y, "n" * random.randint(1, 14)))
        for point in points:
            picture.axes.plot(*point[:2], marker="o")
        picture.axes.plot([1, 100], [1, 100])
        scale_logarithmically(picture.axes.xaxis)
        scale_logarithmically(picture.axes.yaxis)
        picture.lay_out()
        label_points(picture, points)
    assert_readable(picture)
    assert [text.get_text() for text in picture.axes.texts] == [
        name for _, _, name in sorted(points, key=lambda point: -point[1])
    ]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [((1.3, 1.9), "1.5 2"), ((2.1, 4.9), "2 3 4 5 6"), ((2, 9), "2 5 10"),
     ((0.03, 4), "0.05 0.1 0.2 0.5 1 2 5"),
     ((1e-3, 1e5), "0.001 0.01 0.1 1 10 100 1,000 10,000 100,000")],
)  # fmt: skip
def test_a_logarithmic_axis_has_its_values_and_a_tick(values, ticks):
    with drawing():
        picture = Picture("a", "b")
        picture.axes.plot([1, 2], values)
        scale_logarithmically(picture.axes.yaxis)
        picture.lay_out()
    low, high = picture.axes.get_ylim()
    assert low < min(values) <= max(values) < high
    shown = [text.get_text() for text in picture.axes.get_yticklabels()
             if low <= text.get_position()[1] <= high]  # fmt: skip
    assert shown == ticks.split()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("h100 --quantity roofline", "--quantity roofline is for a picture; give --plot FILE too"),
     ("h100 --quantity flops --plot a.svg", "throughput")],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(capsys, arguments, said):
    code, out, err = run(capsys, "time", *arguments.split())
    assert (code, out, said in err, Path("a.svg").exists()) == (2, "", True, False)


def test_every_series_can_have_a_mark_of_its_own():
    from dsocr_analyze.archive.shown import MOST_SERIES

    assert len(set(MARKERS)) == len(set(HATCHES)) == MOST_SERIES


_DRAWS = """
import sys
import warnings
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


def test_a_readers_own_settings_change_nothing_and_files_of_them_are_not_even_read(
    tmp_path, monkeypatch
):
    files = [tmp_path / name for name in (
        "config/matplotlib/matplotlibrc", "own/matplotlibrc", "own/stylelib/mine.mplstyle",
        "named/own.rc",
    )]  # fmt: skip
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("axes.facecolor: red\nbackend: module://pwn\nbad\x1b[31mkey: 1\n")
    Path("matplotlibrc").symlink_to("/dev/zero")
    environment = os.environ | {
        "MPLCONFIGDIR": str(tmp_path / "own"), "MPLBACKEND": "nonsense",
        "MATPLOTLIBRC": str(files[-1]),
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-P", "-c", _DRAWS, "drawn.svg"], capture_output=True, text=True,
        timeout=60, env=environment,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")
    monkeypatch.setitem(rcParams, "font.size", 30.0)
    with drawing():
        picture = Picture("a", "b")
        picture.axes.plot([0, 1])
        picture.save(Path("here.svg"))
    assert Path("here.svg").read_bytes() == Path("drawn.svg").read_bytes()
    assert "<dc:date>" not in Path("here.svg").read_text()
    assert rcParams["font.size"] == 30.0


def test_names_that_xml_cannot_hold_are_shown_escaped(tmp_path):
    name = "a\x1b[2K\x9b\u202e\uffff<b>&"
    with drawing():
        picture = Picture(name, name)
        bars = picture.axes.bar([0], [1])
        picture.name_axes(name, name)
        picture.name_bars([name])
        picture.list_in_legend(bars, name)
        picture.lay_out()
        picture.save(tmp_path / "a.svg")
    texts = ["".join(each.itertext()) for each in ET.parse(tmp_path / "a.svg").iter()]
    shown = [each for each in texts if r"a\x1b[2K\x9b\u202e\uffff<b>&" in each]
    assert len(shown) >= 6  # title and its metadata, line below, both axes, bar, legend


def test_models_stand_at_their_scores_and_pages_per_second_in_a_panel_per_benchmark(draw):
    picture, out = draw("compare --all --gpu h100,l4 --page 700x900 --format json")
    found = json.loads(out)
    for axes, (key, benchmark) in zip(
        picture.figure.axes, found["ranking"]["accuracies"].items(), strict=True
    ):
        label = axes.get_ylabel().replace("\n", " ")
        assert label == f"{benchmark['benchmark']} {benchmark['version']}"
        points = {(*line.get_xdata(), *line.get_ydata()) for line in axes.lines}
        figures = [each["figures"] for each in found["columns"]]
        assert points - {()} == {
            (each["l4_serving_pages_per_second_32"], each[f"accuracy_{key}"])
            for each in figures
            if each[f"accuracy_{key}"] is not None
        }
    assert legend_of(picture) == found["names"]
