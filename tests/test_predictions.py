"""`predict`, `fit` and `plan` say what the commands print, and name arguments in errors."""

import inspect
import json
import math
import subprocess
import sys
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from command_line import run

import dsocr_analyze
from dsocr_analyze import fit, plan, predict
from dsocr_analyze.cli import options
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.predictions import ServingArguments


def as_json(value):
    return json.loads(msgspec.json.encode(value))


@pytest.fixture
def printed(capsys):
    """The document that a command prints, without what only a command has."""
    return partial(document_of, capsys)


def document_of(capsys, *arguments):
    _, out, _ = run(capsys, *arguments, "--format", "json")
    document = json.loads(out)
    return {key: each for key, each in document.items() if key not in ("command", "options")}


def test_seconds_are_those_of_time(printed):
    found = predict(
        ["h100-sxm", "l40s"], mode="base", price=2.5, mean_new_tokens=500.0, runtime="eager,serving"
    )
    command = "time h100-sxm,l40s --mode base --price 2.5 --mean-new-tokens 500"
    assert as_json(found) == printed(*command.split(), "--runtime", "eager,serving")["time"]
    [first, *_] = found
    assert (first.gpu, first.runtime, first.throughput[0].concurrency) == ("h100-sxm", "eager", 1)


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({}, "fit"),
        ({"gpu": "t4", "dtype": "float16", "batch_size": 2},
         "fit t4 --dtype float16 --batch-size 2"),
        ({"gpu": "rtx-4090", "reserved": 0.2, "mode": "large", "architecture": "unlimited-ocr"},
         "fit rtx-4090 --reserved 0.2 --mode large --arch unlimited-ocr"),
    ],
)  # fmt: skip
def test_memory_is_that_of_fit(given, command, printed):
    assert as_json(fit(**given)) == printed(*command.split())["gpus"]


@pytest.fixture
def pages(tmp_path):
    file = tmp_path / "pages.csv"
    file.write_text("width,height\n1240,1754\n800,600\nx,3\n")
    return file


@pytest.mark.parametrize("workers", [1, 16])
def test_a_page_more_at_once_never_makes_the_first_token_jump(workers):
    """An L40S under SGLang feeds some 70 sequences best; the cache has room for all of these."""
    (entry,) = predict("l40s", server="sglang", concurrency="32,48,64,65,68,72,76,80,96,128",
                       workers=workers)  # fmt: skip
    points = entry.throughput
    for before, after in pairwise(points):
        longer = after.ttft_seconds / before.ttft_seconds
        assert 0.99 <= longer <= after.concurrency / before.concurrency


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({"pages": 2_000_000, "deadline_hours": 24.0, "gpu": "h100-sxm", "price": 2.5},
         "plan --pages 2M --deadline 24h --gpu h100-sxm --price 2.5"),
        ({"pages": 500, "mix": {"a4@200": 4.0, "a3": 1.0}, "gpu": "l40s", "workers": 8,
          "first_token_seconds": 2.0},
         "plan --pages 500 --mix a4@200:4,a3:1 --gpu l40s --workers 8 --first-token 2s"),
        ({"pages": 1000, "mean_new_tokens": 600.0, "share_at_limit": 0.01, "gpu": "l40s,h100-sxm"},
         "plan --pages 1000 --mean-new-tokens 600 --share-at-limit 0.01 --gpu l40s,h100-sxm"),
        ({"pages": 9, "page": (1240, 1754), "gpu": "l40s"},
         "plan --pages 9 --page 1240x1754 --gpu l40s"),
    ],
)  # fmt: skip
def test_a_plan_is_that_of_plan(given, command, printed):
    assert {**as_json(plan(**given)), "command": 0, "options": 0} == {
        **printed(*command.split()), "command": 0, "options": 0,
    }  # fmt: skip


def test_a_plan_takes_a_list_of_pages_and_warns_of_what_is_none(pages, printed):
    with pytest.warns(UserWarning, match="(is|are) not") as told:
        found = plan(file=pages, gpu="h100-sxm", max_new_tokens=500)
    assert [str(each.message)[:21] for each in told] == [
        "1 of 3 rows are not p", "row 3: width 'x' is n",
    ]  # fmt: skip
    document = printed("plan", str(pages), "--gpu", "h100-sxm", "--max-new-tokens", "500")
    assert as_json(found)["gpus"] == document["gpus"]
    assert (found.pages, found.different_pages) == (2, 2)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: predict("rtx9"), DeviceError, "no GPU 'rtx9' in the catalogue"),
        (lambda: predict("t4", runtime="warp"), WorkloadError, "^runtime 'warp' is unknown; "),
        (lambda: predict("t4", concurrency="0"), WorkloadError, "^concurrency"),
        (lambda: predict("t4", concurrency=1.5), WorkloadError, "^concurrency '1.5' is not a"),
        (lambda: predict("t4", concurrency=[]), WorkloadError, "^concurrency '' has an empty item"),
        (lambda: predict("h100-sxm", runtime="eager", kv_dtype="fp8"), WorkloadError,
         "^weights_dtype and kv_dtype are for runtime='serving'; leave them out"),
        (lambda: predict("h100-sxm", share_at_limit=0.1), WorkloadError,
         "^share_at_limit 0.1 needs mean_new_tokens"),
        (lambda: predict("h100-sxm", mean_new_tokens=0), WorkloadError,
         "^mean_new_tokens 0 is out of range: pages that end before max_new_tokens 1024"),
        (lambda: predict("h100-sxm", mode="huge"), WorkloadError, "mode 'huge' is unknown"),
        (lambda: predict([]), DeviceError, r"^gpu \[\] is invalid; give a name, or several"),
        (lambda: fit([]), DeviceError, r"^gpu \[\] is invalid"),
        (lambda: plan(5, gpu=()), DeviceError, r"^gpu \(\) is invalid"),
        (lambda: predict(3), DeviceError, "^gpu 3 is invalid"),
        (lambda: predict("t4", runtime=["eager"]), WorkloadError, r"^runtime \['eager'\] is inv"),
        (lambda: predict("t4", max_num_seqs=1.5), WorkloadError, "^max_num_seqs 1.5 is invalid; g"),
        (lambda: predict("t4", workers=True), WorkloadError, "^workers True is invalid; give a wh"),
        *((lambda price=price: predict("t4", price=price), WorkloadError,
           "^price '2' is invalid; give a number") for price in ("2", {"t4": "2"})),
        (lambda: predict("t4", offline="no"), WorkloadError, "^offline 'no' is invalid; give True"),
        (lambda: predict("t4", dtype=16), WorkloadError, "^dtype 16 is invalid; give a text"),
        (lambda: fit("t4", flash_attention=1), WorkloadError, "^flash_attention 1 is invalid"),
        (lambda: fit("t4", reserved=None), WorkloadError, "^reserved None is invalid; give a num"),
        (lambda: plan(5, corrections="no"), WorkloadError, "^corrections 'no' is invalid"),
        (lambda: fit("t4"), DeviceError, "T4 has no bfloat16; use dtype float16"),
        (lambda: fit(memory_gb=0), WorkloadError, "^memory_gb '0' is invalid; give"),
        (lambda: fit("t4", memory_gb=12), WorkloadError, "^memory_gb 12 is of a card without"),
        (lambda: fit(reserved=1.0), WorkloadError, "reserved 1.0 is out of range"),
        (lambda: plan(), WorkloadError, "give pages, their number, or a file or folder"),
        (lambda: plan(file="x.csv", mix={"a4": 1.0}), WorkloadError, "^mix has no effect beside"),
        (lambda: plan(5, page="a4", mix={"a4": 1.0}), WorkloadError, "^give page or mix, not both"),
        (lambda: plan(5, mix={"a9x": 1.0}), WorkloadError, "a9x"),
        (lambda: plan(5, mix={"a4": 0}), WorkloadError, "^mix has the share 0 of 'a4'; give"),
        (lambda: plan(5, mix={"a4": math.nan}), WorkloadError, "^mix has the share nan of 'a4'"),
        (lambda: plan(5, mix={}), WorkloadError, "^mix has no pages; give sizes with their shares"),
        (lambda: plan(0), WorkloadError, "^pages 0 is invalid; give a whole number from 1"),
        (lambda: plan(10**15 + 1), WorkloadError, "^pages 1000000000000001 is invalid"),
        (lambda: plan("2M"), WorkloadError, "^pages '2M' is invalid"),
        (lambda: plan(5, deadline_hours=0), WorkloadError, "^deadline_hours 0 is invalid; give"),
        (lambda: plan(5, first_token_seconds=-1.0), WorkloadError, "^first_token_seconds -1.0 is"),
        (lambda: plan(5, profile="none.toml"), DeviceError, "none.toml"),
        (lambda: plan(5, gpu="l4", max_num_seqs=0), WorkloadError, "^max_num_seqs 0 is out of"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predict("t4", concurency=4), "no argument 'concurency'; did you mean concurrency"),
        (lambda: predict("t4", max_num_seq=4), r"'max_num_seq'; did you mean max_num_seqs"),
        (lambda: fit("t4", max_num_seqs=4), r"fit\(\) has no argument 'max_num_seqs'"),
        (lambda: plan(5, batch_size=4), r"plan\(\) has no argument 'batch_size'; give file, "),
    ],
)  # fmt: skip
def test_an_argument_that_a_function_does_not_have_is_named(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_numbers_are_of_any_kind_and_none_stands_for_a_default_without_a_value():
    given = {"price": np.float64(2.5), "max_num_seqs": np.int64(8), "mean_new_tokens": None}
    assert predict("h100-sxm", **given) == predict("h100-sxm", price=2.5, max_num_seqs=8)


@pytest.mark.parametrize(
    ("concurrency", "counts"), [(16, [16]), ([1, 16], [1, 16]), ("1,4:8:4", [1, 4, 8])]
)
def test_pages_in_flight_are_a_number_or_several(concurrency, counts):
    [found] = predict("h100-sxm", mode="tiny", concurrency=concurrency)
    assert [each.concurrency for each in found.throughput] == counts
    [knee, largest] = predict("h100-sxm", concurrency=["knee", "max"])[0].throughput
    assert knee.concurrency < largest.concurrency


def test_every_option_of_a_prediction_is_an_argument():
    assert {*options.OF_PREDICTIONS} - {"new_tokens_from"} == {*ServingArguments.__annotations__}


def test_everything_offered_is_listed_typed_and_imported_on_first_use():
    names = ("analyze", "compare", "predict", "fit", "plan", "count", "DeepSeekOCRSession")
    assert {*names} <= {*dsocr_analyze.__all__} <= {*dir(dsocr_analyze)}
    for name in names[:-1]:
        function = getattr(dsocr_analyze, name)
        assert inspect.signature(function).return_annotation is not inspect.Parameter.empty
        assert function.__doc__
    code = (
        "import sys, dsocr_analyze; dir(dsocr_analyze); assert 'msgspec' not in sys.modules;"
        " dsocr_analyze.fit('t4', dtype='float16'); dsocr_analyze.predict('h100-sxm');"
        " assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
