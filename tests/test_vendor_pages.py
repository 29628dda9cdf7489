"""The pages of each architecture say what the vendors' own modules do.

`pytest -m vendor` runs these tests, on the files of DSOCR_VENDOR_DIR, DSOCR_VENDOR_DIR_OCR2 and
DSOCR_VENDOR_DIR_UNLIMITED; they stay untouched.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from vendor_checkout import needs_vendor_unlimited
from vendor_pages import PAGES, described_in, reference, vendor

from dsocr_analyze.documents.library import Library, ModulePage
from dsocr_analyze.documents.markdown import page_file
from dsocr_analyze.errors import DocumentError

pytestmark = pytest.mark.vendor

WITHOUT_TENSORS = {
    "AddAuxiliaryLoss",
    "BaseTransform",
    "DeepseekOCR2Config",
    "DeepseekOCRConfig",
    "NoEOSTextStreamer",
    "UnlimitedOCRConfig",
}
OF_TORCHVISION = {"BasicImageTransform"}
"""The vendor's is made of torchvision's transforms, which also check what they are given."""

NEEDS_A_MASK = {"DeepseekV2Attention", "DeepseekV2FlashAttention2"}
"""Unlimited-OCR's decoder gives a step no mask, without which eager latent attention, whose figures
both pages show, does not run."""

DIFFERENT = {
    "Qwen2Decoder2Encoder": "the vendor writes both sizes of views into the code",
    "Qwen2MLP": "transformers' takes its widths from the config alone",
    "Qwen2RotaryEmbedding": "transformers deprecates every argument but the config",
    "SlidingWindowLlamaAttention": "the vendor's layer has a number in any case",
    "UnlimitedOCRConfig": "the vendor has one key of the window among the constructor's parameters",
}
"""What has another constructor than the vendor's, and why."""

WITHOUT_DEFAULT = re.compile(r"(`config.sliding_window_size` \|[^|]*\|)[^|]*\|")
"""The cells of the key that the vendor's config class has no default of."""


def text_of(name: str, library: Library) -> str:
    """A page as it is written from a library's model, without the code that it quotes."""
    text = library.sources.texts[page_file(name)]
    text = re.sub(r"<!-- begin definition.*?<!-- end definition -->", "", text, flags=re.S)
    filled = library.filled(page_file(name), text, library.owners[name])
    return WITHOUT_DEFAULT.sub(r"\1 |", filled.text)


def runs(architecture: str, name: str) -> bool:
    return name not in OF_TORCHVISION and not (
        architecture == "unlimited-ocr" and name in NEEDS_A_MASK
    )


@pytest.mark.parametrize(("architecture", "name"), [each for each in PAGES if runs(*each.values)])
def test_the_vendors_module_does_what_the_page_says(architecture, name):
    pages = reference(architecture), vendor(architecture)
    own, others = (library.page(name).cases for library in pages)
    assert bool(own) == (name not in WITHOUT_TENSORS)
    for ours, theirs in zip(own, others, strict=True):
        assert ours.label == theirs.label
        assert Counter(ours.traced.kernels) == Counter(theirs.traced.kernels), ours.label
        assert ours.traced.peak_bytes == theirs.traced.peak_bytes, ours.label
        assert ours.traced.cache_bytes == theirs.traced.cache_bytes, ours.label
    assert text_of(name, vendor(architecture)) == text_of(name, reference(architecture))


def constructor(page: ModulePage) -> list[tuple[str, str]]:
    """Parameters that a page describes, with their defaults."""
    described = described_in(page).items()
    return [(name, default) for name, (default, _) in described if "." not in name]


@pytest.mark.parametrize(("architecture", "name"), PAGES)
def test_the_vendors_class_is_built_as_the_page_says(architecture, name):
    library = vendor(architecture)
    page = ModulePage(name, library.model(architecture), library.sources)
    assert page.subject.__name__ == name
    try:
        theirs = constructor(page)
    except DocumentError:
        theirs = None
    is_same = theirs == constructor(reference(architecture).page(name))
    assert is_same == (name not in DIFFERENT)


@needs_vendor_unlimited
def test_latent_attention_needs_the_mask_that_unlimited_ocr_does_not_give():
    for name in NEEDS_A_MASK:
        library = vendor("unlimited-ocr")
        with pytest.raises(AssertionError):
            text_of(name, library)
