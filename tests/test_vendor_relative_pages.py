"""The pages of DeepSeek-OCR-2 and Unlimited-OCR say what the vendors' own modules do.

`pytest -m vendor` runs these tests, on the files of DSOCR_VENDOR_DIR_OCR2 and
DSOCR_VENDOR_DIR_UNLIMITED; they stay untouched.
"""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest
from vendor_checkout import needs_vendor_ocr2, needs_vendor_unlimited
from vendor_pages import (
    cases_of,
    names_in_index,
    reference_facts,
    reference_pages,
    traced,
    vendor_facts,
    vendor_pages,
)

from dsocr_analyze.knowledge.machinery.page import NO_DEFAULT
from dsocr_analyze.knowledge.machinery.render import defaults_of

pytestmark = pytest.mark.vendor

PAGES = [
    pytest.param(architecture, name, marks=mark, id=name)
    for architecture, mark in (
        ("deepseek-ocr-2", needs_vendor_ocr2),
        ("unlimited-ocr", needs_vendor_unlimited),
    )
    for name in names_in_index(architecture)
]

DIFFERENT = {
    "Qwen2Decoder2Encoder": "the vendor writes both sizes of views into the code",
    "Qwen2MLP": "transformers' takes its widths from the config alone",
    "Qwen2RotaryEmbedding": "transformers deprecates every argument but the config",
    "SlidingWindowLlamaAttention": "the vendor's layer has a number in any case",
    "UnlimitedOCRConfig": "the vendor has one key of the window among the constructor's parameters",
}
"""What has another constructor than the vendor's, and why."""


@pytest.mark.parametrize(("architecture", "name"), PAGES)
def test_the_vendors_module_does_alone_what_the_page_says(architecture, name):
    for own, other in cases_of(name, architecture):
        ours, theirs = traced(own), traced(other)
        assert Counter(ours.kernels) == Counter(theirs.kernels), own.label
        assert ours.peak == theirs.peak, own.label


def own_parameters(subject: Any) -> dict[str, Any]:
    """Parameters of a class's constructor with their defaults."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(subject.__init__).parameters.values())[1:]
    return {each.name: each.default for each in parameters if each.kind not in variable}


@pytest.mark.parametrize(("architecture", "name"), PAGES)
def test_the_vendors_class_is_built_as_the_page_says(architecture, name):
    page, theirs = reference_pages(architecture)[name], vendor_pages(architecture)[name].subject
    assert theirs.__name__ == name
    documented = defaults_of(page, reference_facts(architecture))
    described = [
        (each, documented.get(each, NO_DEFAULT)) for each in page.parameters if "." not in each
    ]
    assert (described == list(own_parameters(theirs).items())) == (name not in DIFFERENT)


@pytest.mark.parametrize(("architecture", "name"), PAGES)
def test_values_of_config_keys_are_the_vendors(architecture, name):
    config = vendor_facts(architecture).config
    for key, parameter in reference_pages(architecture)[name].parameters.items():
        section, _, last = key.rpartition(".")
        is_said = isinstance(parameter.value, str) and " " in parameter.value  # in words
        if section == "config" and not is_said:
            assert getattr(config, last, None) == parameter.value, key
