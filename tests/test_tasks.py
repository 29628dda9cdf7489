"""What people come with: each task of the documentation is one command that answers first."""

import json
import re
import shlex
from pathlib import Path

import pytest
from command_line import run
from sampling import named, sampled

from dsocr_analyze.cli.docs import TASKS, task_table

DOCUMENTED = Path(__file__).parent.parent / "docs" / "tasks.md"


@pytest.fixture
def there(task_folder, monkeypatch, tmp_path):
    monkeypatch.chdir(task_folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def test_the_documentation_lists_thirty_and_none_twice():
    assert len({*TASKS.values()}) == len(TASKS) >= 30
    assert task_table() in DOCUMENTED.read_text(encoding="utf-8")


FIRST = 5
"""Lines in which an answer must be, at 80 columns."""
COUNTS = r"passes  .*prefill {} TFLOPs.*\npage    {} TFLOPs"
PAGE = COUNTS.format("4.591", "5.858")
PAGE_SECONDS = r"{}: [\d.]+ m?s a page{} \([\d.]+ m?s to [\d.]+ m?s\)"
RATE = r"[\d.]+ pages/s \({} at once\)"
PLANNED_RATE = r"[\d.]+ pages/s \({} at once, \d+ CPU workers\)"
PLAN = (
    r"^\d+ x {}, serving, vllm: {} pages in [\d.]+ h, before the deadline of {} h;"
    r" [\d.]+ GPU-hours .*\d+ pages at once \(the knee\), [\d.]+ pages/s,"
    r" first token \d+ m?s, [\d.]+ GB of [\d.]+ GB, \d+ CPU workers?; bound by "
)
PRICED_PLAN = PLAN.format("{}", "2,000,000", 24).replace(
    "GPU-hours .*", r"GPU-hours .*, which cost [\d.]+, or [\d.]+ per 1,000 pages.*"
)
FITS = r"^{}: {} pages? needs? {} GB, and {} has {} GB free; at most \d+ \(.*\) prefilled at once"
ANSWERS = {
    # What is counted is the same everywhere and forever; what is predicted has a form.
    "": PAGE,
    "--mode Base": COUNTS.format("1.479", "2.706"),
    "--base-size 1024 --image-size 640": PAGE,
    "--image page.png": r"620 x 877 pixels.*\npasses  .*prefill [\d.]+ TFLOPs.*\npage    [\d.]+ T",
    "--engine analytic": PAGE,
    "--engine analytic --full": PAGE,
    "--engine analytic --batch-size 16":
        r"batch 16: prefill 73.46 TFLOPs.*\npage    5.858 TFLOPs.*1/16 of the batch",
    "fit rtx-4090": FITS.format("Yes", 1, "7.460", "RTX 4090", "23.18"),
    "fit t4 --dtype float16": FITS.format("Yes", 1, "7.460", "T4", "14.50"),
    "fit mi300x": FITS.format("Yes", 1, "7.460", "MI300X", "172.8"),
    "fit --memory-gb 12": FITS.format("Yes", 1, "7.460", "a card of 12 GB", "10.80"),
    "fit rtx-3060 --server vllm":
        r"^Yes: RTX 3060 12 GB, .* GPU KV cache size 71,008 tokens; at most 36 pages of 1,936 ",
    "fit a100-40gb": FITS.format("Yes", 1, "7.460", "A100 40 GB", "36.00"),
    "fit a100-40gb --reserved 0.1 --batch-size 16":
        FITS.format("Yes", 16, "19.28", "A100 40 GB", "36.00"),
    "fit": r"^1 page \(7.460 GB\) fits on \d+ of \d+ GPUs; no bfloat16: t4,",
    "time a100-80gb-sxm": PAGE_SECONDS.format("a100-80gb-sxm, serving, vllm", ""),
    "time h100 --runtime eager":
        r"eager: [\d.]+ s a page .* the GPU is busy [\d.]+ % of it and otherwise waits for the"
        r" host to launch operators \([\d.]+ s under vllm\)",
    "time a100-80gb-sxm --runtime eager --concurrency 16":
        r"eager: [\d.]+ s a page .*" + RATE.format(16),
    "time h100 --concurrency knee": PLANNED_RATE.format(r"\d+"),
    "time h100 --concurrency max": PLANNED_RATE.format(r"\d{3,}"),
    "time h100 --concurrency 64 --workers 1": RATE.format(64) + ", bound by CPU workers",
    "time h100 --price 2.50": r"a page .* [\d.]+ per 1,000 pages",
    "time h100 --weights-dtype fp8 --kv-dtype fp8": PAGE_SECONDS.format("vllm", ""),
    "time l40s --weights-dtype int4": PAGE_SECONDS.format("vllm", ""),
    "time h100 --server sglang --mode base": PAGE_SECONDS.format("h100-sxm, serving, sglang", ""),
    "time h100 --max-new-tokens 8192 --mean-new-tokens 800 --share-at-limit 0.09":
        PAGE_SECONDS.format("vllm", " of 1,465 new tokens"),  # 0.91 * 800 + 0.09 * 8192
    "time h100 --new-tokens-from lengths.csv":
        PAGE_SECONDS.format("vllm", " of 3,131 new tokens"),  # (300 + 900 + 8192) / 3
    "plan --pages 2M --deadline 24h --price 2.5 --gpu h100": PRICED_PLAN.format("h100-sxm"),
    "plan --pages 2M --deadline 24h --price 2.5": PRICED_PLAN.format(r"\S+"),
    "plan --pages 2M --deadline 24h --price h100:2.5,l40s:0.8": PRICED_PLAN.format("h100-sxm"),
    "plan --pages 2M --deadline 24h --first-token 2s --gpu h100,l40s":
        PLAN.format("h100-sxm", "2,000,000", 24) + ".*at once keep the first token within 2.00 s",
    "plan --pages 500k --deadline 3d --mix a4@200:0.8,a3@300:0.2 --gpu l40s":
        PLAN.format("l40s", "500,000", 72),
    "plan scans --pages 500k --deadline 3d --gpu l40s": PLAN.format("l40s", "500,000", 72),
    "devices": r"^GPUs, and the error of predicted kernel times(.*\n){3,4}a100-40gb +312 ",
    "advise --page a4@200":
        r"^Recommended: it depends on the kind of document. base for financial report; large for .*"
        r"base, the cheapest within 0.03 of the best, for book, .*"
        r"\sWithin 0.03 of the best for every single kind: gundam-m\.",
    "advise --page a4@200 --minimum-dpi 90":
        r"^Recommended: it depends .* large for financial report; .*every single kind: gundam-m",
    "advise --page a3 --kind newspaper --page-text-tokens 5000":
        r"^Recommended for newspaper: gundam; it gets 0.122 of a page wrong, .* base 0.645,",
    "advise --page a4@200 --kind financial-report --gpu h100 --price 2.5":
        r"^Recommended for financial report: base; it gets 0.027 of a page wrong",
    "compare --all --gpu h100 --price 2.5":
        r"^h100-sxm, serving, vllm: 32 at once \[pages/s\]: .*deepseek-ocr:gundam [\d.]+;",
    "compare base gundam --page a4@200":
        r"^page \[FLOPs\]: base 2.706 T; gundam 5.858 T \(\+3.152 T, 2.165 x\)$",
    "compare base --config config.json --config slim.json":
        r"^config keys that differ: .*num_experts_per_tok\spage \[FLOPs\]: config.json 2.706 T; s",
    "compare base --use-flash-attn 0,1 --dtype bfloat16,float32":
        r"^page \[FLOPs\]: bfloat16, eager 2.706 T; bfloat16, flash_attention_2 2.706 T \(-106.5 M",
    "compare tiny gundam --plot stages.svg":
        r"^page \[FLOPs\]: tiny 1.579 T; gundam 5.858 T \(\+4.279 T, 3.710 x\)$",
    "compare deepseek-ocr deepseek-ocr-2 unlimited-ocr":
        r"^page \[FLOPs\]: deepseek-ocr 5.858 T; deepseek-ocr-2 8.427 T \(\+2.570 T, 1.439 x\);",
    "compare report.json gundam --config slim.json":
        r"^page \[FLOPs\]: report.json 5.858 T; gundam [\d.]+ T \(-[\d.]+ G, 0.\d+ x\)$",
    "check --against report.json":
        "^passed: check of 1 workload against report.json\npage: passed; all .* figures equal",
    # Four images, ten frames, three pages of a PDF.
    "archive scans": r"^mode gundam: 17 pages cost 99.58 TFLOPs and move 25.65 TB$",
    "archive scans --mode base,gundam --histogram tokens":
        "^mode base: 17 pages cost 46.00 TFLOPs .*\nmode gundam: 17 pages cost 99.58 TFLOPs",
    "archive scans --gpu h100 --deadline 1h":
        r"vllm, mode gundam: 17 pages take [\d.]+ GPU-hours \(.*\); 1 GPU to finish in 1 h;",
    "sweep --page 400:2000:400x1754 --output widths.csv": r"^wrote widths.csv \(5 rows\)$",
    "tree --depth 3": r"\nDeepseekOCRForCausalLM +3,336,106,240 (.* )?4,591,267,432,942",
    "tree --mode tiny --depth 3": r"\nDeepseekOCRForCausalLM +3,336,106,240 (.* )?365,326,691,781",
    "--arch deepseek-ocr-2 --engine analytic": COUNTS.format("7.147", "8.427"),
    "--arch qwen3-vl --engine analytic": COUNTS.format("20.25", "24.41"),
    "--arch unlimited-ocr --prompt-pages 10 --mode base --engine analytic":
        r"^input   10 pages .*2,730 visual \+ 5 .*\npasses  .*15.10 TFLOPs.*\npage    1.646 TFLOPs",
    "time h100 --arch unlimited-ocr --prompt-pages 10 --mode base":
        r"vllm: [\d.]+ s a prompt of 10 pages \(.*" + RATE.format("16 prompts"),
    "time h100 --plot load.svg": RATE.format(16),
    "time h100 --plot roofline.svg --quantity roofline": "bound by",
    "--engine analytic --gpu h100 --html page.html": PAGE,
}  # fmt: skip
"""What the first lines of each task say; of those that print JSON, `KEYS` has what is asked for."""

KEYS = {
    "--engine analytic --json - --quiet": lambda found: found["total"]["page"]["flops"],
    "time h100 --format json": lambda found: found["time"][0]["page_seconds"],
}
FILES = {"stages.svg", "load.svg", "roofline.svg", "page.html", "widths.csv"}
QUICK = "--engine analytic --json - --quiet"


@sampled("task", TASKS.values(), named(QUICK), ids=lambda task: task or "alone")
def test_each_is_one_command_that_answers_in_its_first_lines(there, capsys, monkeypatch, task):
    monkeypatch.setenv("COLUMNS", "80")
    if "report.json" in task:
        assert run(capsys, "--engine", "analytic", "--json", "report.json", "-q")[0] == 0
    code, out, err = run(capsys, *shlex.split(task))
    assert code == 0, err
    assert "Traceback" not in err
    if task in KEYS:
        assert KEYS[task](json.loads(out)) > 0
    else:
        # Where a terminal breaks a line, a sentence goes on.
        first = "\n".join(out.splitlines()[:FIRST])
        assert re.search(ANSWERS[task], first, re.M) or re.search(
            ANSWERS[task], first.replace("\n", " "), re.S
        ), first
    for name in FILES & {*shlex.split(task)}:
        assert Path(name).stat().st_size > 100
    assert "--html" not in task or "5857657126489" in Path("page.html").read_text(encoding="utf-8")


def test_each_task_has_an_answer():
    assert ANSWERS.keys() | KEYS.keys() == {*TASKS.values()}
    assert {word for task in TASKS.values() for word in shlex.split(task)} >= FILES
