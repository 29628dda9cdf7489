"""The neighbours' networks: forwards beside the trace of transformers 5, counts by hand."""

import copy
import functools
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from any_models import IS_5, Small, session_of
from sampling import first, sampled
from test_generate_witness import real_model, really_generated
from torch.utils.flop_counter import FlopCounterMode

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.config_file import USED, ConfigFindings, findings_of, leaves_of
from dsocr_analyze.architectures.ocr_family.attention import Pass, lm_head
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.hardware.profile import device
from dsocr_analyze.kernels import BFLOAT16, Work, merged, total_work
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.draft import drafted
from dsocr_analyze.tape import Tape
from dsocr_analyze.tape.polynomial import Polynomial, SymbolicTape, Values
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.serving import TimedModel
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.traced_forms import traced_model

NEIGHBOURS = GLM_OCR, GOT_OCR2, LIGHTONOCR, OLMOCR, PADDLEOCR_VL, QWEN3_VL = [
    ARCHITECTURES[name]
    for name in ("glm-ocr", "got-ocr2", "lightonocr", "olmocr", "paddleocr-vl", "qwen3-vl")
]
BY_NAME = {each.name: each for each in NEIGHBOURS}

PUBLISHED = {  # patches of an A4 page at 150 dpi, parameters, MACs of a prefill pass and of a step
    "glm-ocr": (126, 88, 1107405824, 12476270903296, 764346368),
    "got-ocr2": (64, 64, 560528640, 574359162880, 476909568),
    "lightonocr": (110, 78, 1005647872, 8573654564864, 843251712),
    "olmocr": (126, 88, 8292166656, 28141728677888, 7628845056),
    "paddleocr-vl": (126, 88, 905601648, 13565074300928, 565895168),
    "qwen3-vl": (110, 76, 2127532032, 9648970661888, 1961410560),
}


def page_of(model, rows: int, columns: int):
    """A page in so many patches."""
    merge = model.dimensions.vision.merge
    return model.page_with((columns // merge, rows // merge, 1, 1))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_cost_what_was_recorded(name):
    model, (height, width, params, prefill_macs, step_macs) = BY_NAME[name], PUBLISHED[name]
    c, page = model.dimensions, page_of(model, height, width)
    tokens = 10 + page.visual_tokens
    prefill, step = Tape(BFLOAT16), Tape(BFLOAT16)
    prefill.call("", model.whole_model, c, Pass(1, tokens), page)
    step.call("", model.whole_model, c, Pass(1, 1, tokens), None)
    assert sum(n for *_, n in dict.fromkeys(prefill.weights)) == params
    assert total_work(kernel.total for kernel in prefill.kernels).macs == prefill_macs
    assert total_work(kernel.total for kernel in step.kernels).macs == step_macs


@pytest.mark.parametrize("name", PUBLISHED)
def test_serving_engines_do_the_matrix_work_of_the_model(name):
    """In one attention kernel a layer and length of sequences: olmOCR's windows have two."""
    model, (height, width, *_, step_macs) = BY_NAME[name], PUBLISHED[name]
    c, served = model.dimensions, model.forms.served
    merge = c.vision.merge
    page = model.page_with((width // merge, height // merge, 10, 1))
    own = Tape(BFLOAT16)
    model.served_views(own, page.views[0], c)
    views, n = served.views(page.views[0], c, BFLOAT16)["vision"], page.visual_tokens
    assert macs_of(views) == macs_of(own.kernels)
    assert macs_of(served.step(1, n + 11, c, BFLOAT16, 16)) == step_macs
    calls = Counter()
    for kernel in (*views, *served.prompt(n + 10, n + 10, n, c, BFLOAT16, 16)):
        calls[kernel.operator] += kernel.calls
    layers = {"olmocr": 28 * 2 + 4, "got-ocr2": 0}.get(name, c.vision.layers)
    assert (calls["flash_attention"], calls["deepstack_add"]) == (layers, 3 * (name == "qwen3-vl"))


@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_a_pass_is_its_embedded_prompt_and_the_decoder(model):
    c, page, p = model.dimensions, page_of(model, 64, 64), Pass(2, 1100)
    whole, prompt, rest = Tape(BFLOAT16), Tape(BFLOAT16), Tape(BFLOAT16)
    whole.call("", model.whole_model, c, p, page)
    embeds, (placed, *_) = model.embedded_page(prompt, c, p, page)
    rest.call("model.language_model", model.decoder, embeds, p, c.decoder, placed.deepstack)
    rest.call("lm_head", lm_head, embeds, p.B, c.decoder)
    assert embeds.n == p.tokens * c.decoder.hidden_size
    assert counted(prompt.kernels + rest.kernels) == counted(whole.kernels)


@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_a_pass_on_symbols_costs_what_it_costs_on_numbers(model):
    c, sizes = model.dimensions, {"B": 3, "T": 500, "K": 70}
    B, T, K = (Polynomial.size(name, least=3) for name in sizes)
    for p, of_numbers in ((Pass(B, T), Pass(3, 500)), (Pass(B, 1, K), Pass(3, 1, 70))):
        symbols, numbers, values = SymbolicTape(BFLOAT16), Tape(BFLOAT16), Values(sizes)
        symbols.call("", model.whole_model, c, p, None)
        numbers.call("", model.whole_model, c, of_numbers, None)
        work = total_work(each.total for each in numbers.kernels)
        assert Work(*map(values.of, symbols.work(""))) == work
        assert max(map(values.of, symbols.levels(""))) == numbers.peak.nbytes


@pytest.mark.parametrize("model", [each for each in NEIGHBOURS if each is not OLMOCR])
def test_equal_pages_are_run_once(model):
    """But for olmOCR's, whose windows have several sizes."""
    records = []
    for batch in (3, 300):
        t, page = Tape(BFLOAT16), page_of(model, 64, 64)
        t.call("", model.whole_model, model.dimensions, Pass(batch, 1100), page)
        records.append(len(t.kernels))
    assert records[0] == records[1]


# ---------------------------------------------------------------------------------- config keys


class Noted(dict):
    """An object of a config, which notes the paths of the keys that are read."""

    def __init__(self, values, read, where=()):
        super().__init__(values)
        self.read, self.where = read, where

    def get(self, key, default=None):
        path = (*self.where, key)
        self.read.add(path)
        value = super().get(key, default)
        return Noted(value, self.read, path) if isinstance(value, dict) else value


@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_a_key_is_read_exactly_if_the_table_says_so(model):
    read, table = set(), model.config_table
    model.read_dimensions(Noted(model.config, read))
    assert findings_of(model.config, table, "reference") == ConfigFindings((), ())
    for path, _ in leaves_of(model.config, table.is_section):
        assert (path in read) == (table.rule(path, model.config, "reference") == USED), path


WRONG = (
    (GLM_OCR, "text_config.num_key_value_heads", 3, "a divisor of 'num_attention_heads', 16"),
    (GLM_OCR, "text_config.rope_parameters.mrope_section", [16, 24], "three whole numbers of sum"),
    (GLM_OCR, "text_config.rope_parameters.partial_rotary_factor", 0.5, "rotates only part"),
    (GLM_OCR, "text_config.hidden_act", "sine", "give one of silu"),
    (GLM_OCR, "vision_config.out_hidden_size", 1024, "1536, the decoder's 'hidden_size'"),
    (GLM_OCR, "vision_config.num_heads", 7, "a multiple of 4"),
    (GLM_OCR, "text_config.rope_parameters", None, "mrope_section' is null; give three"),
    (GLM_OCR, "text_config.sliding_window", 4096, "bounds what a decode step attends to"),
    (GLM_OCR, "vision_config.num_hidden_layers", 25, "give 24, 'depth'"),
    (GLM_OCR, "quantization_config", {"bits": 4}, "stores weights in another type"),
    (GOT_OCR2, "vision_config.image_size", 1000, "a multiple of 64"),
    (GOT_OCR2, "text_config.layer_types", ["sliding_attention"] * 24, "'full_attention' for each"),
    (LIGHTONOCR, "vision_feature_layer", -2, "features of other layers"),
    (LIGHTONOCR, "vision_config.head_dim", 32, "give 64, 'hidden_size' over the heads"),
    (LIGHTONOCR, "vision_config.model_type", "siglip_vision_model", "another vision model"),
    (LIGHTONOCR, "text_config.model_type", "mistral", "give one of qwen3"),
    (GOT_OCR2, "text_config.model_type", "llama", "another decoder"),
    (OLMOCR, "use_sliding_window", True, "bounds what a decode step attends to"),
    (OLMOCR, "head_dim", 64, "give 128, 'hidden_size' over 'num_attention_heads'"),
    (OLMOCR, "vision_config.num_attention_heads", 8, "give 16, 'num_heads'"),
    (OLMOCR, "vision_config.fullatt_block_indexes", [32], "from 0 to 31"),
    (OLMOCR, "rope_scaling.rope_type", "dynamic", "other frequencies"),
    (PADDLEOCR_VL, "text_config.sliding_window", 4096, "bounds what a decode step attends to"),
    (PADDLEOCR_VL, "text_config.use_bias", True, "adds biases"),
    (QWEN3_VL, "text_config.sliding_window", 4096, "bounds what a decode step attends to"),
    (QWEN3_VL, "vision_config.num_position_embeddings", 2303, "a square"),
    (QWEN3_VL, "vision_config.deepstack_visual_indexes", [5, 5], "each layer once"),
    (QWEN3_VL, "text_config.num_hidden_layers", 2, "from 3 to"),
)


def read_checked(model, config):
    for message, _ in findings_of(config, model.config_table, "reference").refusals:
        raise ConfigError(message)
    return model.read_dimensions(config)


@pytest.mark.parametrize("model", [GLM_OCR, LIGHTONOCR, PADDLEOCR_VL, QWEN3_VL])
def test_a_head_without_a_size_is_refused_where_its_class_has_one(model):
    config = copy.deepcopy(dict(model.config))
    width = config["text_config"]["hidden_size"] // config["text_config"]["num_attention_heads"]
    del config["text_config"]["head_dim"]
    if model is GLM_OCR:
        config["text_config"]["rope_parameters"]["mrope_section"] = [8, 20, 20]
        assert model.read_dimensions(config).decoder.head_dim == width == 96
        return
    with pytest.raises(ConfigError, match=r"lacks 'text_config\.head_dim'"):
        model.read_dimensions(config)


SAME = (  # what changes nothing, in any case or beside what its config says
    (GLM_OCR, "vision_config.num_hidden_layers", 24),
    (GLM_OCR, "text_config.rope_scaling", {}),
    (GLM_OCR, "text_config.use_cache", False),
    (GOT_OCR2, "text_config.sliding_window", 4096),
    (LIGHTONOCR, "vision_config.head_dim", None),
    (OLMOCR, "head_dim", 128),
)


@pytest.mark.parametrize(("model", "key", "value"), SAME)
def test_a_key_that_changes_nothing_is_accepted(model, key, value):
    config = changed(model, key, value)
    assert findings_of(config, model.config_table, "reference") == ConfigFindings((), ())
    assert model.read_dimensions(config) == model.dimensions


def test_a_decoder_without_a_name_is_refused_where_its_class_is_another():
    config = copy.deepcopy(dict(LIGHTONOCR.config))
    del config["text_config"]["model_type"]
    with pytest.raises(ConfigError, match=r"lacks 'text_config\.model_type'"):
        LIGHTONOCR.read_dimensions(config)


def changed(model, key, value):
    """A model's config with one key, by its dotted path, of another value."""
    config = copy.deepcopy(dict(model.config))
    *sections, name = key.split(".")
    functools.reduce(dict.__getitem__, sections, config)[name] = value
    return config


@pytest.mark.parametrize(("model", "key", "value", "said"), WRONG)
def test_a_config_that_describes_no_model_is_refused(model, key, value, said):
    with pytest.raises(ConfigError, match=f"(?s){re.escape(key)}.*{re.escape(said)}"):
        read_checked(model, changed(model, key, value))
    unknown, *_ = findings_of({**model.config, "new": 1}, model.config_table, "reference").warnings
    assert unknown == "config.json: 'new' is unknown; no figure includes it"


def test_the_second_lightonocr_has_the_sizes_of_the_first():
    """LightOnOCR-2-1B, whose file says more of what its class does anyway."""
    config, rotary = copy.deepcopy(dict(LIGHTONOCR.config)), {"rope_type": "default"}
    changes = {"use_qk_norm": True, "rope_parameters": rotary, "max_position_embeddings": 16384}
    config["text_config"] |= changes
    config["vision_config"]["rope_parameters"] = rotary
    assert findings_of(config, LIGHTONOCR.config_table, "reference") == ConfigFindings((), ())
    found, known = read_checked(LIGHTONOCR, config), LIGHTONOCR.dimensions
    assert replace(found.decoder, max_position_embeddings=8192) == known.decoder
    assert found.vision == known.vision


@pytest.mark.skipif(not IS_5, reason="transformers 4 has none of the six")
def test_a_stages_file_is_drafted_of_a_class_that_transformers_spells_otherwise(tmp_path):
    config, _ = drawn_config(random.Random(0), LIGHTONOCR)
    config["architectures"] = ["LightOnOCRForConditionalGeneration"]
    _, file = Small(config, "").write(tmp_path)
    text = drafted(ModelDirectory.of_config(file, None))
    assert text.startswith("# Drafted for Mistral3ForConditionalGeneration of transformers 5")


# ---------------------------------------------------------- beside transformers, on small models

BEFORE, AFTER = 4, 3
"""Tokens of a drawn prompt before and after those of its image."""


ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "quick_gelu", "relu")


def drawn_config(draw: random.Random, model) -> tuple[dict, tuple[int, int]]:
    """A small config of a neighbour, and an image's rows and columns of patches."""
    config = copy.deepcopy(dict(model.config))
    text, vision = config.get("text_config", config), config["vision_config"]
    kv, halves, groups = draw.randint(1, 3), draw.randint(3, 9), draw.randint(1, 3)
    has_own_width = model not in (GOT_OCR2, OLMOCR)
    width = 2 * draw.randint(5, 20) if has_own_width else 2 * halves * groups * kv
    is_tied = draw.random() < 0.5
    text |= {
        "num_hidden_layers": draw.randint(2, 4),
        "num_attention_heads": groups * kv,
        "num_key_value_heads": kv,
        "hidden_size": width,
        "head_dim": 2 * halves,
        "intermediate_size": draw.randint(3, 70),
        "vocab_size": draw.randint(60, 200),
        "hidden_act": draw.choice(ACTIVATIONS),
        "tie_word_embeddings": is_tied,
        "max_window_layers": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config |= {"architectures": [model.model_class], "tie_word_embeddings": is_tied}
    if model not in (GOT_OCR2, LIGHTONOCR):
        cuts = sorted(draw.sample(range(1, halves), 2))
        sections = [cuts[0], cuts[1] - cuts[0], halves - cuts[1]]
        rotary = {"mrope_section": sections, "rope_type": "default", "rope_theta": 10000.0}
        text["rope_scaling" if model is OLMOCR else "rope_parameters"] = rotary
    for number, key in enumerate(sorted(key for key in config if "token_i" in key)):
        config[key] = 10 + number
    heads, layers, patch, merge = (draw.randint(1, 4) for _ in range(4))
    merge = max(merge, 2)
    vision_width = 4 * draw.randint(1, 6) * heads
    rows, columns = merge * draw.randint(1, 7), merge * draw.randint(2, 7)  # Mistral 3 fails for 1
    if model is GOT_OCR2:
        rows = columns = 4 * draw.randint(1, 4)
    token = 1 if model is GOT_OCR2 else patch * merge
    sizes = {
        "depth": layers,
        "num_hidden_layers": layers,
        "num_heads": heads,
        "num_attention_heads": heads,
        "hidden_size": vision_width,
        "head_dim": vision_width // heads,
        "intermediate_size": draw.randint(3, 70),
        "mlp_dim": draw.randint(3, 70),
        "hidden_act": draw.choice(ACTIVATIONS),
        "out_hidden_size": width,
        "patch_size": patch,
        "temporal_patch_size": draw.randint(1, 3),
        "spatial_merge_size": merge,
        "num_position_embeddings": draw.randint(1, 7) ** 2,
        "deepstack_visual_indexes": sorted(draw.sample(range(layers), min(layers, 2))),
        "fullatt_block_indexes": sorted(draw.sample(range(layers), draw.randint(0, layers))),
        "global_attn_indexes": sorted(draw.sample(range(layers), draw.randint(0, layers))),
        "window_size": token * draw.randint(2, 4) + draw.randint(0, 1),
        "output_channels": draw.randint(2, 9),
        "image_size": patch * (rows if model is GOT_OCR2 else draw.randint(1, 7)),
    }
    vision |= {key: sizes[key] for key in vision if key in sizes}
    config |= {key: merge for key in config if key == "spatial_merge_size"}
    return config, (rows, columns)


STAGES = """
[[stages]]
name = "vision"
prefixes = {prefixes}
[[stages]]
name = "prefill"
prefixes = ["model.language_model"]
role = "prefill"
[[stages]]
name = "decode"
prefixes = ["lm_head"]
role = "decode"
[prompt]
tokens = {tokens}
placed = [{{ value = {image}, start = {before}, count = {taken} }}]
without = ["position_ids"]
[inputs.pixel_values]
shape = {shape}
fill = 0.5
repeat = "batch"
"""


def reading(model, config, rows: int, columns: int) -> Small:
    """A model of a config that reads an image of some patches."""
    c = model.read_dimensions(config).vision
    taken = rows * columns // c.merge**2
    shape, given = (rows * columns, 3 * c.taps), {}
    if model in (LIGHTONOCR, GOT_OCR2):
        shape = (1, 3, rows * c.patch_size, columns * c.patch_size)
    if model is PADDLEOCR_VL:
        shape = (rows * columns, 3, c.patch_size, c.patch_size)
    if model is LIGHTONOCR:
        given = {"image_sizes": [[*shape[2:]]]}
    elif model is not GOT_OCR2:
        kinds = [0] * BEFORE + [1] * taken + [0] * AFTER
        given = {"image_grid_thw": [[1, rows, columns]], "mm_token_type_ids": [kinds]}
    image = config.get("image_token_id", config.get("image_token_index"))
    ids = (0,) * BEFORE + (image,) * taken + (0,) * AFTER
    stages = STAGES.format(
        prefixes=[*model.stages[0].prefixes], tokens=len(ids), image=image, before=BEFORE,
        taken=taken, shape=[*shape],
    )  # fmt: skip
    for name, values in given.items():
        stages += f'[inputs.{name}]\nvalues = {values}\nrepeat = "batch"\n'

    def forward(device):
        tensors = {name: torch.tensor(values, device=device) for name, values in given.items()}
        return tensors | {"pixel_values": torch.full(shape, 0.5, device=device)}

    return Small(config, stages, forward, ids)


def tapes_beside_trace(model, small, sides, batch, folder, **arguments) -> list[Tape]:
    """Tapes of the prefill pass and of a step, each with the records and the peak of its trace."""
    session, model = session_of(small, folder, **arguments), model.of_config(small.config)
    workload = session.plan(batch_size=batch, max_new_tokens=2)
    traced = trace_passes(session.loaded, workload, session.architecture, step_numbers=(0,))
    tapes, tokens = [], len(small.ids)
    for p, seen, trace in (
        (Pass(batch, tokens), page_of(model, *sides), traced.prefill),
        (Pass(batch, 1, tokens), None, traced.decode_steps[0]),
    ):
        t = Tape(session.dtype)
        t.call("", model.whole_model, model.dimensions, p, seen)
        t.check_nothing_is_left()
        assert counted(t.kernels) == counted(trace.kernels)
        # A path that is empty is that of what `generate` does around the model.
        assert t.peak == trace.peak or (not trace.peak.path and t.peak.nbytes < trace.peak.nbytes)
        tapes.append(t)
    return tapes


@pytest.mark.skipif(not IS_5, reason="transformers 4 has none of the six")
@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_a_described_neighbour_is_served_like_the_known_one(model, tmp_path):
    """Of published sizes; what joins an engine's kernels is found again in what its class runs."""
    rows, columns, *_ = PUBLISHED[model.name]
    merge = model.dimensions.vision.merge
    page = model.page_with((columns // merge, rows // merge, BEFORE + AFTER, 1))
    page = replace(page, page=(1240, 1754), max_new_tokens=128)
    config = {**model.config, "architectures": [model.model_class]}
    session = session_of(reading(model, config, rows, columns), tmp_path)
    job = Assumptions(SERVERS["vllm"], preprocess_seconds=0.01)
    *traced, jobs = traced_model(session, session.plan(max_new_tokens=128), [job])
    found, known = (
        predict(TimedModel(architecture, c, BFLOAT16, False, device("h100-sxm")), seen, job, [32])
        for architecture, c, seen in (traced, (model, model.dimensions, page))
    )
    views, expected = (
        each.forms.served.views(page.views[0], model.dimensions, BFLOAT16)["vision"]
        for each in (traced[0], model)
    )
    assert macs_of(views) == macs_of(expected)
    # Engines join queries and keys before they turn, and the activation with a product.
    off = {"vision": 0.05, "prefill": 0.003, "decode": 0.001}
    for name, stage in known.stages.items():
        assert found.stages[name].seconds == pytest.approx(stage.seconds, rel=off[name])
    assert jobs == [job]
    assert found.page_seconds == pytest.approx(known.page_seconds, rel=0.01)
    [rate], [expected] = ([each.pages_per_second for each in e.throughput] for e in (found, known))
    assert rate == pytest.approx(expected, rel=0.03)


@pytest.mark.skipif(not IS_5, reason="transformers 4 has none of the six")
@sampled("seed", range(60), first(2))
@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_a_drawn_model_costs_what_transformers_runs(model, seed, tmp_path):
    """Records and peaks equal the trace's, matrix FLOPs and parameters those of `generate`."""
    draw, dtype = random.Random(seed), ("bfloat16", "float16", "float32")[seed % 3]
    config, sides = drawn_config(draw, model)
    small, batch = reading(model, config, *sides), draw.randint(1, 3)
    device = ("meta", "cpu")[seed % 2]
    tapes = tapes_beside_trace(model, small, sides, batch, tmp_path, dtype=dtype, device=device)
    real, prefixes = really_generated(small, batch, 2), model.stages[0].prefixes
    vision = [each for each in tapes[0].kernels if each.path.startswith(prefixes)]
    assert [2 * macs_of(t.kernels) for t in tapes] == real.flops
    assert 2 * macs_of(vision) == vision_flops(small, batch)
    assert sum(n for *_, n in dict.fromkeys(tapes[0].weights)) == real.params


@pytest.mark.skipif(not IS_5, reason="transformers 4 has none of the six")
@pytest.mark.exhaustive
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("model", NEIGHBOURS, ids=BY_NAME)
def test_a_published_config_costs_what_transformers_runs(model, batch, tmp_path):
    sides = PUBLISHED[model.name][:2]
    config = {**model.config, "architectures": [model.model_class]}
    small = reading(model, config, *sides)
    tapes_beside_trace(model, small, sides, batch, tmp_path)


def counted(kernels):
    """Records without stages, each with the number of its calls."""
    return {each: each.calls for each in merged(each._replace(stage="") for each in kernels)}


def macs_of(kernels):
    return total_work(each.total for each in kernels).macs


def vision_flops(small, batch) -> int:
    """What torch counts of the features of all images."""
    model, given = real_model(small.config).model, small.forward(torch.device("cpu"))
    for name, value in given.items():
        given[name] = value.repeat(batch, *[1] * (value.dim() - 1))
    given.pop("mm_token_type_ids", None)
    with FlopCounterMode(display=False) as counter:
        model.get_image_features(**given)
    return counter.get_total_flops()
