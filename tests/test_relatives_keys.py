"""Every key of a relative's config does something, says why not, or is refused by name."""

from __future__ import annotations

import dataclasses

import pytest
from config_changes import at, changed, counts, is_named, others, without
from sampling import every, sampled

from dsocr_analyze.analytic import page_figures
from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.config_file import USED, Harmless, Unread, leaves_of
from dsocr_analyze.architectures.deepseek_ocr_2 import CONFIG_TABLE as OCR2_TABLE
from dsocr_analyze.architectures.unlimited_ocr import CONFIG_TABLE as UNLIMITED_TABLE
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.escaping import shown
from dsocr_analyze.model.directory import ModelDirectory

TABLES = {"deepseek-ocr-2": OCR2_TABLE, "unlimited-ocr": UNLIMITED_TABLE}
DIRECTORY = {name: ModelDirectory.read(ARCHITECTURES[name].reference) for name in TABLES}
ENCODER = ("vision_config", "width", "qwen2-0-5b")
BESIDES = {
    "deepseek-ocr-2": {
        (*ENCODER, "layers"): 12,
        (*ENCODER, "heads"): 7,
        (*ENCODER, "key_value_heads"): 7,
        (*ENCODER, "intermediate_size"): 4000,
        (*ENCODER, "view_sizes"): [768],
    },
    "unlimited-ocr": {},
}
"""Keys that the published file leaves out, and values besides the published code's."""

KEYS = [
    pytest.param(name, path, id=f"{name}-{'.'.join(path)}")
    for name, table in TABLES.items()
    for path in [
        *(path for path, _ in leaves_of(DIRECTORY[name].config, table.is_section)),
        *BESIDES[name],
    ]
]
SAM_CHANNELS = ("vision_config", "width", "sam_vit_b", "downsample_channels")
SAME_MEANING = [
    (("num_key_value_heads",), None),
    (("vision_config", "width", "clip-l-14-224", "image_size"), 225),
    # the second key of the window counts where the first is null
    (("sliding_window_size",), None),
]


def outcome(name, config):
    """Figures and warnings, or a refusal; a page whose decode steps fill the window."""
    page = ARCHITECTURES[name].plan(page=(600, 500), max_new_tokens=300)
    try:
        figures = page_figures(dataclasses.replace(DIRECTORY[name], config=config), page)
    except ConfigError as error:
        return None, (), str(error)
    return counts(figures), figures.warnings, None


BASE = {name: outcome(name, directory.config) for name, directory in DIRECTORY.items()}


@pytest.mark.parametrize("name", TABLES)
def test_the_published_file_says_nothing(name):
    _, warnings, refusal = BASE[name]
    assert (warnings, refusal) == ((), None)


@sampled(("name", "path"), KEYS, every(6))
def test_a_changed_key_is_never_silent(name, path):
    config = DIRECTORY[name].config
    values = [BESIDES[name][path]] if path in BESIDES[name] else others(at(config, path))
    for value in values:
        if path == ("model_type",) and value is None:
            continue
        now = changed(config, path, value)
        figures, warnings, refusal = outcome(name, now)
        rule = TABLES[name].rule(path, now, "reference")
        context = (path, value, rule, warnings, refusal)
        if refusal is not None:
            assert path[-1] in refusal, context
            assert "give " in refusal, context
            assert is_named(value, refusal), context
        elif isinstance(rule, Unread):
            assert figures == BASE[name][0], context
            assert any(shown(value) in warning for warning in warnings), context
        elif figures == BASE[name][0]:
            assert isinstance(rule, Harmless) or (path, value) in SAME_MEANING, context
        else:
            assert rule == USED, context


@sampled(("name", "path"), KEYS, every(4))
def test_a_missing_key_is_a_default_or_is_refused_by_name(name, path):
    if path in BESIDES[name]:
        return
    figures, _, refusal = outcome(name, without(DIRECTORY[name].config, path))
    if refusal is None:
        assert figures == BASE[name][0]
    else:
        assert path[-1] in refusal


def test_the_last_of_sams_channels_may_be_the_width_that_is_built():
    config = changed(DIRECTORY["deepseek-ocr-2"].config, SAM_CHANNELS, [512, 896])
    assert outcome("deepseek-ocr-2", config) == BASE["deepseek-ocr-2"]
    _, _, refusal = outcome("deepseek-ocr-2", changed(config, SAM_CHANNELS, [512, 900]))
    assert "give [512, 896]" in refusal
