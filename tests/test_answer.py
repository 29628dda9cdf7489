"""The dozen lines that a run prints: what they say, and that they stay a dozen."""

import re
from pathlib import Path

import pytest
from hand_built import AGREEMENT, CREATED, FIGURES, LEFT_OUT, batch_of, compared, traced
from hypothesis import given, strategies as st
from msgspec.structs import replace

from dsocr_analyze.report.document import build_report
from dsocr_analyze.report.markdown import ReadableReport, answer_lines
from dsocr_analyze.timing import (
    Interval,
    LoadedGpu,
    TimeAssumptions,
    TimeEntry,
    TimeProfile,
    TimeStage,
)

BAND = Interval(low=0.5, high=2.0)


def load(concurrency=1, pages_per_second=0.5, cost=None, fits=True):
    return LoadedGpu(
        concurrency=concurrency,
        pages_per_second=pages_per_second,
        pages_per_second_band=BAND,
        tokens_per_second=1.5,
        ttft_seconds=0.25,
        tpot_seconds=0.125,
        page_seconds=2.0,
        memory_bytes=10**9,
        bound="memory",
        fits=fits,
        cost_per_thousand_pages=cost,
        cost_band=None if cost is None else BAND,
    )


TIME = TimeEntry(
    gpu="some-gpu",
    runtime="eager",
    profile=TimeProfile(source="a table", extrapolated=(), assumed=()),
    stages={
        "decode": TimeStage(
            seconds=0.1, low=0.1, high=0.2, bound="memory", peak_share=0.1, bandwidth_share=0.5
        )
    },
    ttft_seconds=0.25,
    tpot_seconds=0.125,
    page_seconds=2.0,
    bands=dict.fromkeys(("ttft_seconds", "tpot_seconds", "page_seconds"), BAND),
    largest_concurrency=9,
    ridge_flops_per_byte=100.0,
    throughput=(load(), load(16, 4.5)),
    assumptions=TimeAssumptions(
        host="eager",
        new_tokens_mean=3,
        new_tokens_longest=3,
        preprocess_seconds=0.1,
        preprocess_estimated=False,
        workers=1,
        offline=False,
        weights_dtype=None,
        kv_dtype=None,
        reserved=0.1,
        price_per_hour=None,
        sentences=("pages are flat",),
    ),
)


def gpu(name, page_seconds, cost=None, **changes):
    return replace(
        TIME, gpu=name, page_seconds=page_seconds, throughput=(load(cost=cost),), **changes
    )


def answer(figures=FIGURES, agreement=None, times=(), files=(), **rest):
    return answer_lines(build_report(figures, agreement, CREATED, times), files, **rest)


def line(lines, label):
    [found] = [text for text in lines if text.split(" ")[0] == label]
    return found.removeprefix(label).strip()


def timed(gpu="l4", throughput=TIME.throughput, **changes):
    return {"times": [replace(TIME, gpu=gpu, throughput=throughput, **changes)]}


SHORT = replace(TIME.assumptions, new_tokens_mean=2.0)
DIFFERING = replace(
    AGREEMENT, agrees=False, stages={**AGREEMENT.stages, "eye": {"macs": False}},
    first_difference="macs of 'model.eye.fc'",
)  # fmt: skip
LINES = [
    # What the answer is of, the line, and what it says.
    ({"figures": batch_of(3)}, "passes", "batch 3: prefill 6.864 kFLOPs, 496 B"),
    ({"figures": batch_of(3)}, "page", "2.409 kFLOPs, 133.7 B: 1/3 of the batch: "),
    # The witnesses.
    ({"figures": traced()}, "checked", "1 warning; traced only"),
    ({"figures": traced(), "agreement": AGREEMENT}, "checked",
     "1 warning; trace and closed forms agree in all 9 counts"),
    ({"figures": traced(), "agreement": DIFFERING}, "checked",
     "1 warning; trace and closed forms DIFFER: macs of 'model.eye.fc'"),
    ({"figures": traced(), "agreement": LEFT_OUT}, "checked",
     "1 warning; trace and closed forms agree in all 8 counts but 2 operators"),
    (timed(), "checked", "1 warning; closed forms only; nothing was traced; seconds are predicted"),
    # 13.84 and 5.324 FLOPs per byte, judged against the named GPU.
    (timed("some-gpu", ridge_flops_per_byte=100), "bound",
     "memory on some-gpu (< 100.0 FLOPs/byte): prefill 13.84, decode 5.324"),
    (timed("some-gpu", ridge_flops_per_byte=2), "bound",
     "compute on some-gpu (>= 2.000 FLOPs/byte): prefill 13.84, decode 5.324"),
    (timed("some-gpu", ridge_flops_per_byte=8), "bound",
     "FLOPs/byte: prefill 13.84 compute, decode 5.324 memory; some-gpu 8.000"),
    # Seconds and money; a price has three digits.
    (timed(), "time", "l4, eager: 2.00 s a page; 4.50 pages/s (16 at once), bound by memory"),
    (timed("some-gpu", (load(), load(16, 4.5, cost=3.25))), "time",
     "some-gpu, eager: 2.00 s a page; 4.50 pages/s at 16, 3.25 per 1,000"),
    (timed("some-gpu", (load(16, 4.5, fits=False),)), "time",
     "some-gpu, eager: 2.00 s a page; 4.50 pages/s (16 at once); only 9 fit"),
    *((timed(throughput=(load(1, 4.5, cost=cost),)), "time",
       f"l4, eager: 2.00 s a page; 4.50 pages/s (1 at once), {shown} per 1,000")
      for cost, shown in ((3.25, "3.25"), (0.0456, "0.0456"), (0.03, "0.0300"),
                          (12345, "12,345.00"))),
    # Seconds of other lengths than the counts, which are of three new tokens, say so.
    (timed(assumptions=SHORT), "time",
     "l4, eager: 2.00 s a page of 2 new tokens; 4.50 pages/s (16 at once)"),
    (timed("h100-sxm", (load(16, 4.5, cost=0.0456),), assumptions=SHORT), "time",
     "h100-sxm, eager: 2.00 s for 2 tokens; 4.50/s at 16, 0.0456 per 1,000"),
]  # fmt: skip


@pytest.mark.parametrize(("of", "label", "said"), LINES)
def test_a_line_says(of, label, said):
    assert line(answer(**of), label).startswith(said)


def test_a_page():
    # Prefill pass: 3400 MACs in four calls, 50 + 10 + 4 vector FLOPs: 6,864 FLOPs. Each linear
    # moves 34 bytes (4 calls), each element that is added 6: 136 + 360 = 496 bytes.
    # The page: 2 * 3581 + 66 = 7,228 FLOPs, 401 bytes; the eye: 4,052 of them.
    assert answer(files=[Path("out/a.json"), Path("out/a.md")]) == [
        "model   small-model in my-model, analytic engine, bfloat16, eager attention",
        "input   600 x 500 pixels, sizes 512 / 512, not cut: 73 visual + 10 text tokens",
        "passes  batch 1: prefill 6.864 kFLOPs, 496 B; a decode step 181 FLOPs, 34 B",
        "page    7.228 kFLOPs, 401 B: prefill pass and 2 decode steps for 3 new tokens",
        "memory  1.686 kB weights, 1.700 kB KV cache, 6.785 kB at the prefill pass's peak",
        "mostly  eye 56.1 % of a page's FLOPs (fc 98.8 % of it); eye 91.8 % of its bytes",
        "bound   prefill 13.84, decode 5.324 FLOPs/byte; a GPU decides what bounds it",
        "checked 1 warning; closed forms only; nothing was traced",
        "files   a.json, a.md in out",
    ]


def test_a_model_that_does_not_decode():
    report = build_report(FIGURES, None, CREATED)
    stages = {name: each for name, each in report.stages.items() if name != "decode"}
    total = replace(report.total, decode_step=None)
    lines = answer_lines(replace(report, total=total, stages=stages))
    for label, said in (
        ("passes", "batch 1: prefill pass 6.864 kFLOPs, 496 B; the model does not decode"),
        ("page", "7.228 kFLOPs, 401 B: the prefill pass alone"),
        ("bound", "prefill 13.84 FLOPs/byte"),
    ):
        assert line(lines, label).startswith(said)


def test_of_several_runtimes_the_words_are_the_same():
    priced = timed("some-gpu", (load(), load(16, 4.5, cost=3.25)))["times"]
    alone = "some-gpu, eager: 2.00 s a page; 4.50 pages/s at 16"
    assert answer(times=[TIME, *priced])[5:7] == [
        f"time    {alone}, 3.25 per 1,000", f"        {alone}",
    ]  # fmt: skip


def test_of_many_gpus_the_fastest_and_the_cheapest_stay():
    times = [gpu(f"gpu-{i}", float(i), cost=100.0 - i) for i in range(1, 31)]
    lines = answer(times=times, files=[Path("a.md")], rest=": --full")
    assert len(lines) == 12
    assert [re.findall(r"gpu-\d+", text) for text in lines[5:7]] == [["gpu-30"], ["gpu-1"]]
    assert lines[7].strip() == "and 28 more: --full"


def test_the_markdown_opens_with_it_and_leaves_nothing_out():
    times = [gpu(f"gpu-{i}", float(i)) for i in range(1, 31)]
    report = build_report(FIGURES, None, CREATED, times)
    summary = ReadableReport(report).markdown().split("## Summary")[1].split("\n## ")[0]
    assert summary.count("- **time**: gpu-") == 30


# --- what it looks like ------------------------------------------------------------------------


def check(lines):
    assert len(lines) <= 12
    for text in lines:
        assert len(text) <= 80, text
        assert text == text.rstrip()
        assert "\n" not in text


names = st.text(alphabet="abcXYZ019._-/", min_size=1, max_size=120)


@pytest.mark.exhaustive
@given(st.data())
def test_whatever_the_names_and_numbers_it_stays_a_dozen_lines_of_80_columns(data):
    report = build_report(compared(), AGREEMENT, CREATED)
    workload = replace(
        report.workload,
        page=(data.draw(st.integers(1, 10**6)), data.draw(st.integers(1, 10**6))),
        grid=(data.draw(st.integers(1, 99)), 9),
        crop_mode=data.draw(st.booleans()),
        visual_tokens=data.draw(st.integers(0, 10**6)),
        text_tokens=data.draw(st.integers(1, 10**6)),
        batch_size=data.draw(st.integers(1, 10**6)),
        prompt_pages=data.draw(st.sampled_from((1, 20))),
    )
    model = replace(
        report.metadata.model,
        id=data.draw(names),
        architecture=data.draw(st.none() | names),
        source=data.draw(st.sampled_from(("reference", "directory", "config"))),
        weights=data.draw(st.sampled_from(("none", "checkpoint"))),
    )
    report = replace(
        report,
        workload=workload,
        metadata=replace(report.metadata, model=model),
        time=tuple(gpu(data.draw(names), data.draw(st.floats(1e-6, 1e6)), data.draw(
            st.none() | st.floats(0.01, 1e6))) for _ in range(data.draw(st.integers(0, 5)))),
        warnings=("mind the gap",) * data.draw(st.integers(0, 30)),
    )  # fmt: skip
    files = [Path(each) for each in data.draw(st.lists(names, max_size=3))]
    lines = answer_lines(report, files, rest=": --full")
    check(lines)
    assert [text.split(" ")[0] for text in lines if text[0] != " "] == [
        "model", "input", "passes", "page", "memory", *(["time"] if report.time else []),
        "mostly", "bound", "checked", *(["files"] if files else []),
    ]  # fmt: skip
