"""Sweeps with predicted seconds: each row is what `predict` says of it alone."""

import csv
import io
import json
from pathlib import Path

import command_line
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.archive.evaluate import BATCH_RESULTS, COST
from dsocr_analyze.archive.setting import published_model
from dsocr_analyze.archive.table_files import METADATA_KEY
from dsocr_analyze.cli import main
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.hardware import device
from dsocr_analyze.timing.assumptions import (
    Assumptions,
    estimated_preprocessing,
    estimated_preprocessing_of_pages,
)
from dsocr_analyze.timing.closed_loop import LoopTimes, closed_loop
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.timing.predict import TimedModel, predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS, Precision

INPUTS = (
    "page_width", "page_height", "mode", "base_size", "image_size", "crop_mode", "dtype",
    "attention", "text_tokens", "max_new_tokens", "batch_size",
)  # fmt: skip
COUNTS = (*INPUTS, *BATCH_RESULTS, "weights_bytes")
TIMES = (
    "gpu", "ttft_seconds", "tpot_seconds", "page_seconds", "pages_per_second", "tokens_per_second",
    "fits",
)  # fmt: skip
EXACT = 1e-9


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(capsys, *arguments):
    """Exit code, stdout and stderr of one `sweep`."""
    return command_line.run(capsys, "sweep", *arguments)


def rows_of(*arguments):
    """The rows of a sweep, from a Parquet file."""
    path = Path("rows.parquet")
    assert main(["sweep", *map(str, arguments), "--output", str(path), "--quiet"]) == 0
    return pq.read_table(path)


def predicted(row, host=SERVERS["vllm"], lengths=None, prepare=None, price=None, **options):
    """What `predict` says of a row of a sweep."""
    workload = DEFAULT.plan(
        page=(row["page_width"], row["page_height"]),
        base_size=row["base_size"],
        image_size=row["image_size"],
        crop_mode=row["crop_mode"],
        text_tokens=row["text_tokens"],
        max_new_tokens=row["max_new_tokens"],
    )
    flash = row["attention"] != "eager"
    model = TimedModel(
        DEFAULT, published_model().dimensions, dtype_named(row["dtype"]), flash, device(row["gpu"])
    )
    if prepare is None:
        prepare = estimated_preprocessing(DEFAULT, workload)
    lengths = lengths or OutputLengths.fixed(row["max_new_tokens"])
    assumptions = Assumptions(host, lengths, prepare, price_per_hour=price, **options)
    return predict(model, workload, assumptions, [row["batch_size"]])


def assert_row(row, **assumed):
    """The row is what `predict` says; a batch of 1 is a page alone."""
    found = predicted(row, **assumed)
    (load,) = found.throughput
    ttft, tpot, page = load.ttft_seconds, load.tpot_seconds, load.page_seconds
    if row["batch_size"] == 1:
        ttft, page = found.ttft_seconds, found.page_seconds
        tpot = None if found.tpot_seconds is None else found.tpot_seconds
    assert row["ttft_seconds"] == pytest.approx(ttft, rel=EXACT)
    assert row["page_seconds"] == pytest.approx(page, rel=EXACT)
    if tpot is None:
        assert row["tpot_seconds"] is None
    else:
        assert row["tpot_seconds"] == pytest.approx(tpot, rel=EXACT)
    assert row["pages_per_second"] == pytest.approx(load.pages_per_second, rel=EXACT)
    assert row["tokens_per_second"] == pytest.approx(load.tokens_per_second, rel=EXACT)
    assert row["fits"] is load.fits
    if COST in row:
        cost = load.cost_per_thousand_pages
        assert cost is not None
        assert row[COST] == pytest.approx(cost, rel=EXACT)


class TestRows:
    @pytest.mark.exhaustive
    def test_each_is_what_predict_says(self):
        table = rows_of(
            "--gpu", "h100-sxm,l40s", "--page", "500x500,a4,1000x3000", "--mode", "gundam,large",
            "--text-tokens", "10,300", "--max-new-tokens", "1,2,777", "--batch-size", "1,2,17",
            "--price", "2.5",
        )  # fmt: skip
        rows = table.to_pylist()
        assert len(rows) == 2 * 3 * 2 * 2 * 3 * 3
        for row in rows[::7]:
            assert_row(row, price=2.5)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("server", ["vllm-v0", "sglang"])
    def test_so_it_is_with_every_option(self, server):
        table = rows_of(
            "--gpu", "h100-sxm", "--batch-size", "1,8", "--server", server, "--preprocess-ms", "20",
            "--workers", "4", "--weights-dtype", "fp8", "--kv-dtype", "fp8", "--reserved", "0.2",
            "--offline",
        )  # fmt: skip
        for row in table.to_pylist():
            assert_row(
                row, host=SERVERS[server], prepare=0.02, workers=4, reserved=0.2,
                precision=Precision("float8", "float8"), is_offline=True,
            )  # fmt: skip

    @pytest.mark.exhaustive
    def test_so_it_is_with_what_does_not_fit(self):
        table = rows_of("--gpu", "l40s", "--batch-size", "1,400", "--max-new-tokens", "8000")
        fits = table.column("fits").to_pylist()
        assert fits == [True, False]
        for row in table.to_pylist():
            assert_row(row)

    @pytest.mark.exhaustive
    def test_so_it_is_under_the_eager_runtime(self):
        table = rows_of(
            "--gpu", "h100-sxm", "--runtime", "eager", "--mode", "tiny", "--batch-size", "1,3",
            "--max-new-tokens", "1,20", "--use-flash-attn", "1",
        )  # fmt: skip
        for row in table.to_pylist():
            assert_row(row, host=EAGER)

    @pytest.mark.exhaustive
    def test_so_it_is_with_pages_that_end_by_themselves(self):
        table = rows_of(
            "--gpu", "h100-sxm", "--max-new-tokens", "1000,4000", "--batch-size", "1,4",
            "--mean-new-tokens", "300.5", "--share-at-limit", "0.1",
        )  # fmt: skip
        for row in table.to_pylist():
            lengths = OutputLengths.mean_and_limit(300.5, row["max_new_tokens"], 0.1)
            assert_row(row, lengths=lengths)

    @pytest.mark.exhaustive
    def test_so_it_is_with_lengths_from_a_file(self):
        Path("lengths.csv").write_text("new_tokens\n100\n100\n900\n", encoding="utf-8")
        table = rows_of("--gpu", "h100-sxm", "--batch-size", "1,4", "--new-tokens-from",
                        "lengths.csv")  # fmt: skip
        for row in table.to_pylist():
            assert_row(row, lengths=OutputLengths.of_counts({100: 2, 900: 1}))

    def test_a_page_of_one_token_has_no_time_per_token(self):
        table = rows_of("--gpu", "l40s", "--max-new-tokens", "1,2", "--batch-size", "1,4")
        nulls = table.column("tpot_seconds").is_null().to_pylist()
        assert nulls == [True, True, False, False]

    def test_the_command_time_says_the_same(self, capsys):
        (row,) = rows_of("--gpu", "h100-sxm", "--page", "1240x1754", "--batch-size",
                         "8").to_pylist()  # fmt: skip
        assert main(["time", "h100-sxm", "--page", "1240x1754", "--mode", "gundam",
                     "--concurrency", "8", "--format", "json"]) == 0  # fmt: skip
        (entry,) = json.loads(capsys.readouterr().out)["time"]
        (load,) = entry["throughput"]
        for name in ("ttft_seconds", "tpot_seconds", "page_seconds", "pages_per_second"):
            assert row[name] == pytest.approx(load[name], rel=EXACT)

    def test_money_by_hand(self):
        """3.60 an hour is 0.1 cent a second; a thousand pages take 1000 / rate seconds."""
        (row,) = rows_of("--gpu", "l40s", "--price", "3.6").to_pylist()
        assert row[COST] == pytest.approx(1000 / row["pages_per_second"] * 0.001)


class TestColumns:
    def test_without_a_gpu_there_are_none(self):
        assert rows_of("--page", "a4").column_names == list(COUNTS)

    @pytest.mark.exhaustive
    def test_with_one_they_come_last(self):
        names = rows_of("--gpu", "h100-sxm").column_names
        assert names == [*COUNTS, *TIMES]
        assert rows_of("--gpu", "h100-sxm", "--price", "1").column_names == [*names, COST]

    def test_their_types(self):
        schema = rows_of("--gpu", "h100-sxm", "--price", "1", "--max-new-tokens", "1").schema
        types = {name: schema.field(name).type for name in (*TIMES, COST)}
        assert types.pop("gpu") == pa.string()
        assert types.pop("fits") == pa.bool_()
        assert set(types.values()) == {pa.float64()}

    @pytest.mark.exhaustive
    def test_every_gpu_has_its_rows_under_its_name(self, capsys):
        code, out, _ = run(capsys, "--gpu", "h100,l40s", "--gpu", "l40s", "--batch-size", "1:3")
        gpus = [row["gpu"] for row in csv.DictReader(io.StringIO(out))]
        assert (code, gpus) == (0, 3 * ["h100-sxm"] + 3 * ["l40s"])

    def test_counts_are_those_without_a_gpu(self):
        asked = ("--page", "a4,600:3000:1200x800", "--batch-size", "1,4")
        timed = rows_of(*asked, "--gpu", "l40s")
        assert timed.select(COUNTS).equals(rows_of(*asked))

    def test_a_parquet_file_says_what_was_assumed(self):
        metadata = rows_of("--gpu", "l40s", "--workers", "3").schema.metadata
        notes = json.loads(metadata[METADATA_KEY])["metadata"]["notes"]
        assert "every page generates the most tokens it may" in notes
        assert any("3 at a time" in note for note in notes)


class TestPlots:
    @pytest.mark.exhaustive
    def test_one_line_a_gpu(self, capsys):
        code, _, err = run(capsys, "--gpu", "h100-sxm,l40s", "--batch-size", "1:4", "--plot",
                           "rate.svg", "--quantity", "pages_per_second")  # fmt: skip
        assert code == 0
        assert all(": assumed: " in line for line in err.splitlines())
        text = Path("rate.svg").read_text(encoding="utf-8")
        assert "pages per second" in text
        assert "h100-sxm" in text
        assert "l40s" in text

    @pytest.mark.exhaustive
    def test_rows_without_a_value_are_left_out(self, capsys):
        code, _, err = run(capsys, "--gpu", "l40s", "--max-new-tokens", "1,2,3", "--plot",
                           "step.svg", "--quantity", "tpot_seconds", "--quiet")  # fmt: skip
        assert (code, err) == (0, "")

    def test_seconds_need_a_gpu(self, capsys):
        code, _, err = run(capsys, "--plot", "a.svg", "--quantity", "page_seconds")
        assert code == 2
        assert "give --gpu too" in err


class TestRefusals:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (("--price", "2"), "--price is for predicted seconds; give --gpu too"),
            (("--runtime", "eager"), "--runtime is for predicted seconds; give --gpu too"),
            (("--gpu", "h1000"), "h100"),
            (("--gpu", "h100-sxm,"), "--gpu 'h100-sxm,' has an empty item"),
            (("--gpu", "l40s", "--runtime", "eager,serving"), "--runtime 'eager,serving'"),
            (("--gpu", "l40s", "--server", "vlm"), "did you mean vllm"),
            (("--gpu", "l40s", "--workers", "0"), "--workers 0 is too small"),
            (("--gpu", "l40s", "--price", "0"), "--price 0 is out of range"),
            (("--gpu", "l40s", "--preprocess-ms", "-1"), "--preprocess-ms -1 is out of range"),
            (("--gpu", "l40s", "--reserved", "1"), "--reserved 1.0 is out of range"),
            (("--gpu", "l40s", "--dtype", "bfloat16,float32"), "--dtype float32"),
            (("--gpu", "a100", "--weights-dtype", "fp8"), "float8"),
            (("--gpu", "l40s", "--runtime", "eager", "--kv-dtype", "fp8"), "--runtime serving"),
            (("--gpu", "l40s", "--share-at-limit", "0.1"), "needs --mean-new-tokens"),
            (("--gpu", "l40s", "--mean-new-tokens", "50", "--max-new-tokens", "20,100"), "mean 50"),
            (("--gpu", "l40s", "--concurrency", "4"), "--concurrency 4 is for a list of pages"),
            (("--gpu", "l40s", "--deadline", "4h"), "--deadline 4h is for a list of pages"),
        ],
    )
    def test_by_name(self, capsys, arguments, told):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert told in err

    def test_a_file_of_lengths_beside_several_limits(self, capsys):
        Path("lengths.csv").write_text("new_tokens\n100\n", encoding="utf-8")
        code, _, err = run(capsys, "--gpu", "l40s", "--new-tokens-from", "lengths.csv",
                           "--max-new-tokens", "10,20")  # fmt: skip
        assert code == 2
        assert "give one --max-new-tokens" in err


class TestManyLoops:
    def drawn(self, n):
        """n loops over four tables, in which 1 to 9 clients share a GPU."""
        random = np.random.default_rng(7)
        growth = 1 + random.uniform(0.001, 0.3, (4, 1)) * np.arange(9)
        steps = random.choice([0.0, 1.0, 30.0, 900.0], n)
        times = LoopTimes(
            prepare=random.choice([0.0, 0.02, 0.4], n), workers=2,
            prefill=random.uniform(0.02, 0.2, n), chunks=random.integers(0, 3, n), steps=steps,
            step=0.004 * growth, carried=0.0005 * growth, table=random.integers(0, 4, n),
        )  # fmt: skip
        return random.integers(1, 10, n), times

    @pytest.mark.exhaustive
    def test_each_is_what_it_is_alone(self):
        clients, times = self.drawn(60)
        many = closed_loop(clients, times)
        for row, count in enumerate(clients.tolist()):
            table = times.table[row]
            one = closed_loop(np.array([count]), LoopTimes(
                times.prepare[row], 2, times.prefill[row], times.chunks[row], times.steps[row],
                times.step[table, :count], times.carried[table, :count],
            ))  # fmt: skip
            alone = [float(part[0]) for part in one]
            assert [part[row] for part in many] == pytest.approx(alone, rel=EXACT)

    def test_as_many_run_as_others_come_by_while_a_page_is_decoded(self):
        """The balance itself: throughput, decode steps and running sequences agree."""
        clients, times = self.drawn(400)
        found = closed_loop(clients, times)
        others = found.pages_per_second * (clients - 1) / clients
        assert found.running == pytest.approx(1 + others * found.decode, rel=EXACT)
        assert found.pages_per_second * found.page == pytest.approx(clients, rel=EXACT)


@pytest.mark.parametrize("mode", DEFAULT.modes.values(), ids=lambda mode: mode.name)
def test_pixels_of_many_pages_are_those_of_each(mode):
    random = np.random.default_rng(3)
    widths, heights = random.integers(1, 6000, (2, 300))
    seconds = estimated_preprocessing_of_pages(DEFAULT, mode, widths, heights)
    for width, height, found in zip(widths.tolist(), heights.tolist(), seconds, strict=True):
        workload = DEFAULT.plan(
            page=(width, height), base_size=mode.base_size, image_size=mode.image_size,
            crop_mode=mode.crop_mode,
        )  # fmt: skip
        assert found == estimated_preprocessing(DEFAULT, workload)
