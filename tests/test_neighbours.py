"""The neighbours' networks: forwards beside the trace of transformers 5, counts by hand."""

import pytest

from dsocr_analyze.architectures.neighbours.glm_ocr import GLM_OCR
from dsocr_analyze.architectures.neighbours.got_ocr2 import GOT_OCR2
from dsocr_analyze.architectures.neighbours.lightonocr import LIGHTONOCR
from dsocr_analyze.architectures.neighbours.neighbour import embedded_prompt, whole_model
from dsocr_analyze.architectures.neighbours.olmocr import OLMOCR
from dsocr_analyze.architectures.neighbours.paddleocr_vl import PADDLEOCR_VL
from dsocr_analyze.architectures.neighbours.qwen3_vl import QWEN3_VL
from dsocr_analyze.architectures.neighbours.vision import ImageGrid
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.kernels import total_work
from dsocr_analyze.tape import Tape

NEIGHBOURS = (GLM_OCR, GOT_OCR2, LIGHTONOCR, OLMOCR, PADDLEOCR_VL, QWEN3_VL)
BY_NAME = {each.name: each for each in NEIGHBOURS}

PUBLISHED = {  # patches of an A4 page at 150 dpi, parameters, MACs of a prefill pass and of a step
    "glm-ocr": (126, 88, 1107405824, 12476270903296, 764346368),
    "got-ocr2": (64, 64, 560528640, 574359162880, 476909568),
    "lightonocr": (110, 78, 1005647872, 8573654564864, 843251712),
    "olmocr": (126, 88, 8292166656, 28141728677888, 7628845056),
    "paddleocr-vl": (126, 88, 905601648, 13565074300928, 565895168),
    "qwen3-vl": (110, 76, 2127532032, 9648970661888, 1961410560),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_cost_what_was_recorded(name):
    model, (height, width, params, prefill_macs, step_macs) = BY_NAME[name], PUBLISHED[name]
    c, images = model.read_dimensions(model.config), ImageGrid(1, height, width)
    tokens = 10 + images.total // c.vision.merge**2
    prefill, step = Tape(BFLOAT16), Tape(BFLOAT16)
    prefill.call("", whole_model, model, c, Pass(1, tokens), images)
    step.call("", whole_model, model, c, Pass(1, 1, tokens), None)
    assert sum(n for *_, n in dict.fromkeys(prefill.weights)) == params
    assert total_work(kernel.total for kernel in prefill.kernels).macs == prefill_macs
    assert total_work(kernel.total for kernel in step.kernels).macs == step_macs


@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_a_prompt_is_embedded_as_in_the_whole_pass(model):
    c, t, images = model.read_dimensions(model.config), Tape(BFLOAT16), ImageGrid(2, 64, 64)
    embeds, _ = embedded_prompt(t, model, c, Pass(2, 1100), images)
    assert embeds.n == 2200 * c.decoder.hidden_size
    whole = Tape(BFLOAT16)
    whole.call("", whole_model, model, c, Pass(2, 1100), images)
    assert t.kernels == whole.kernels[: len(t.kernels)]
