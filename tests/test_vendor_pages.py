"""The pages of each architecture say what the vendors' own modules do.

`pytest -m vendor` runs these tests, on the files of DSOCR_VENDOR_DIR, DSOCR_VENDOR_DIR_OCR2 and
DSOCR_VENDOR_DIR_UNLIMITED; they stay untouched.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from vendor_pages import PAGES, described_in, reference, vendor

from dsocr_analyze.documents.library import Library
from dsocr_analyze.documents.markers import filled
from dsocr_analyze.documents.module_page import ModulePage
from dsocr_analyze.documents.sources import page_file
from dsocr_analyze.errors import DocumentError

pytestmark = pytest.mark.vendor

WITHOUT_TENSORS = {
    "BaseTransform",
    "DeepseekOCR2Config",
    "DeepseekOCRConfig",
    "NoEOSTextStreamer",
    "UnlimitedOCRConfig",
}
OF_TORCHVISION = {"BasicImageTransform"}
"""The vendor's is made of torchvision's transforms, which also check what they are given."""

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
    return WITHOUT_DEFAULT.sub(r"\1 |", filled(text, library.page(name)).text)


@pytest.mark.parametrize(
    ("architecture", "name"), [each for each in PAGES if each.values[1] not in OF_TORCHVISION]
)
def test_the_vendors_module_does_what_the_page_says(architecture, name):
    pages = reference(architecture), vendor(architecture)
    own, others = (library.page(name).cases for library in pages)
    assert bool(own) == (name not in WITHOUT_TENSORS)
    for ours, theirs in zip(own, others, strict=True):
        assert ours.label == theirs.label
        assert Counter(ours.traced.kernels) == Counter(theirs.traced.kernels), ours.label
        assert ours.peak_bytes == theirs.peak_bytes, ours.label
        assert ours.cache_bytes == theirs.cache_bytes, ours.label
    assert text_of(name, vendor(architecture)) == text_of(name, reference(architecture))


def constructor(page: ModulePage) -> list[tuple[str, str]]:
    """Parameters that a page describes, with their defaults."""
    described = described_in(page).items()
    return [(name, default) for name, (default, _) in described if "." not in name]


@pytest.mark.parametrize(("architecture", "name"), PAGES)
def test_the_vendors_class_is_built_as_the_page_says(architecture, name):
    library = vendor(architecture)
    page = ModulePage(name, library.model(architecture), library.sources, library.page)
    assert page.subject.__name__ == name
    try:
        theirs = constructor(page)
    except DocumentError:
        theirs = None
    is_same = theirs == constructor(reference(architecture).page(name))
    assert is_same == (name not in DIFFERENT)
