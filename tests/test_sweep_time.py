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
from scalar_rows import planned

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
from dsocr_analyze.workload import Mode

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
    mode = Mode("", row["base_size"], row["image_size"], row["crop_mode"])
    names = ("text_tokens", "max_new_tokens")
    page = row["page_width"], row["page_height"]
    workload = planned(page, mode, **{name: row[name] for name in names})
    flash = row["attention"] != "eager"
    model = TimedModel(
        DEFAULT, published_model().dimensions, dtype_named(row["dtype"]), flash, device(row["gpu"])
    )
    prepare = estimated_preprocessing(DEFAULT, workload) if prepare is None else prepare
    lengths = (lengths or OutputLengths.fixed)(row["max_new_tokens"])
    assumptions = Assumptions(host, lengths, prepare, price_per_hour=price, **options)
    return predict(model, workload, assumptions, [row["batch_size"]])


def assert_row(row, **assumed):
    """The row is what `predict` says; a batch of 1 is a page alone."""
    prediction = predicted(row, **assumed)
    (load,) = prediction.throughput
    page = prediction if row["batch_size"] == 1 else load
    expected = {
        **{name: getattr(page, name) for name in ("ttft_seconds", "tpot_seconds", "page_seconds")},
        **{name: getattr(load, name) for name in ("pages_per_second", "tokens_per_second")},
        **({COST: load.cost_per_thousand_pages} if COST in row else {}),
    }
    found = {name: row[name] for name in expected}
    if expected["tpot_seconds"] is None:  # of a page of one token
        assert found.pop("tpot_seconds") is expected.pop("tpot_seconds")
    assert found == pytest.approx(expected, rel=EXACT)
    assert row["fits"] is load.fits


class TestRows:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("arguments", "assumed"),
        [
            ("--gpu h100-sxm,l40s --page 500x500,a4,1000x3000 --mode gundam,large --text-tokens"
             " 10,300 --max-new-tokens 1,2,777 --batch-size 1,2,17 --price 2.5", {"price": 2.5}),
            ("--gpu l40s --batch-size 1,400 --max-new-tokens 8000", {}),  # the second does not fit
            ("--gpu h100-sxm --runtime eager --mode tiny --batch-size 1,3 --max-new-tokens 1,20"
             " --use-flash-attn 1", {"host": EAGER}),
            ("--gpu h100-sxm --max-new-tokens 1000,4000 --batch-size 1,4 --mean-new-tokens 300.5"
             " --share-at-limit 0.1",
             {"lengths": lambda most: OutputLengths.mean_and_limit(300.5, most, 0.1)}),
            ("--gpu h100-sxm --batch-size 1,4 --new-tokens-from lengths.csv",
             {"lengths": lambda _: OutputLengths.of_counts({100: 2, 900: 1})}),
            *(
                (f"--gpu h100-sxm --batch-size 1,8 --server {server} --preprocess-ms 20 --workers 4"
                 " --weights-dtype fp8 --kv-dtype fp8 --reserved 0.2 --offline",
                 {"host": SERVERS[server], "prepare": 0.02, "workers": 4, "reserved": 0.2,
                  "precision": Precision("float8", "float8"), "is_offline": True})
                for server in ("vllm-v0", "sglang")
            ),
        ],
    )  # fmt: skip
    def test_each_is_what_predict_says(self, arguments, assumed):
        Path("lengths.csv").write_text("new_tokens\n100\n100\n900\n", encoding="utf-8")
        rows = rows_of(*arguments.split()).to_pylist()
        for row in rows[:: 1 + len(rows) // 30]:
            assert_row(row, **assumed)

    def test_a_page_of_one_token_has_no_time_per_token(self):
        table = rows_of("--gpu", "l40s", "--max-new-tokens", "1,2", "--batch-size", "1,4")
        nulls = table.column("tpot_seconds").is_null().to_pylist()
        assert nulls == [True, True, False, False]

    def test_the_command_time_says_the_same(self, capsys):
        (row,) = rows_of("--gpu", "h100-sxm", "--page", "1240x1754", "--batch-size",
                         "8").to_pylist()  # fmt: skip
        _, out, _ = command_line.run(
            capsys, "time", "h100-sxm", "--page", "1240x1754", "--mode", "gundam", "--concurrency",
            "8", "--format", "json",
        )  # fmt: skip
        (load,) = json.loads(out)["time"][0]["throughput"]
        names = ("ttft_seconds", "tpot_seconds", "page_seconds", "pages_per_second")
        assert [row[name] for name in names] == pytest.approx(
            [load[name] for name in names], rel=EXACT
        )

    def test_money_by_hand(self):
        """3.60 an hour is 0.1 cent a second; a thousand pages take 1000 / rate seconds."""
        (row,) = rows_of("--gpu", "l40s", "--price", "3.6").to_pylist()
        assert row[COST] == pytest.approx(1000 / row["pages_per_second"] * 0.001)


class TestColumns:
    @pytest.mark.parametrize(
        ("arguments", "names"),
        [
            ((), COUNTS),
            (("--gpu", "h100-sxm"), (*COUNTS, *TIMES)),
            (("--gpu", "h100-sxm", "--price", "1", "--max-new-tokens", "1"),
             (*COUNTS, *TIMES, COST)),
        ],
    )  # fmt: skip
    def test_with_a_gpu_they_come_last(self, arguments, names):
        schema = rows_of(*arguments).schema
        assert tuple(schema.names) == names
        types = {"gpu": pa.string(), "fits": pa.bool_()}
        for name in names[len(COUNTS) :]:
            assert schema.field(name).type == types.get(name, pa.float64()), name

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
        assert (code, [line for line in err.splitlines() if ": assumed: " not in line]) == (0, [])
        text = Path("rate.svg").read_text(encoding="utf-8")
        assert [said in text for said in ("pages per second", "h100-sxm", "l40s")] == [True] * 3

    @pytest.mark.exhaustive
    def test_rows_without_a_value_are_left_out(self, capsys):
        code, _, err = run(capsys, "--gpu", "l40s", "--max-new-tokens", "1,2,3", "--plot",
                           "step.svg", "--quantity", "tpot_seconds", "--quiet")  # fmt: skip
        assert (code, err) == (0, "")


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
        assert found == estimated_preprocessing(DEFAULT, planned((width, height), mode))
