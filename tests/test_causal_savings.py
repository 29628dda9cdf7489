"""What a causal kernel may skip of eager attention follows from traced decode steps alone."""

from __future__ import annotations

import itertools

from both_engines import LATENT, small_directory
from drawn_passes import directory
from sampling import first, sampled

from dsocr_analyze.architectures.unlimited_ocr import UNLIMITED_OCR
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession

PAGE = {"page": (300, 200), "crop_mode": False, "image_size": 128, "text_tokens": 5}
TOKENS = 5 + 2 * (2 + 1) + 1  # text with BOS, two rows of visual tokens, each ended, a separator
PAIRS = TOKENS * (TOKENS - 1) // 2

_CLIP = {"width": 8, "layers": 1, "heads": 2, "image_size": 56, "patch_size": 14}
_SAM = {
    "width": 8, "layers": 1, "heads": 1, "global_attn_indexes": [], "downsample_channels": [8, 8],
}  # fmt: skip
_VISION = {"width": {"clip-l-14-224": _CLIP, "sam_vit_b": _SAM}}


def windowed(window: int, **changes):
    """Three layers of two heads of size 8."""
    config = ModelDirectory.read(UNLIMITED_OCR.reference).config
    changes |= {
        "vision_config": config["vision_config"] | _VISION,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 24,
        "vocab_size": 50,
        "moe_intermediate_size": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "projector_config": config["projector_config"] | {"input_dim": 16, "n_embed": 16},
        "sliding_window": window,
        "sliding_window_size": window,
    }
    return directory(UNLIMITED_OCR.name, changes)


def skipped(model, new_tokens: int, **page) -> int:
    session = DeepSeekOCRSession.from_directory(model)
    workload = session.plan(**PAGE, **page, max_new_tokens=new_tokens)
    assert workload.seq_len == TOKENS
    return session.figures(workload)[0].causal_savable_flops


_PLAIN = 2 * 3 * 5 * (64 + 64)  # FLOPs of a pair: layers, heads, a query's score and mixed value
_LATENT = 2 * 3 * 5 * (32 + 64 + 64)  # the rotary key, and the latent for both


@sampled(
    ("new_tokens", "heads", "batch"), itertools.product([2, 1, 3, 9], [1, 5], [3, 1]), first(1)
)
def test_of_plain_attention_of_any_number_of_keys(new_tokens, heads, batch):
    grouped = small_directory(num_key_value_heads=heads)
    assert skipped(grouped, new_tokens, batch_size=batch) == batch * _PLAIN * PAIRS


@sampled(
    ("new_tokens", "trained"),
    [(2, TOKENS), *itertools.product([2, 1, 3, 9], [8192, TOKENS, TOKENS + 1])],
    first(1),
)
def test_of_latent_attention_whenever_its_angles_change(new_tokens, trained):
    tuned = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": trained}
    assert skipped(small_directory(**LATENT, **tuned), new_tokens) == _LATENT * PAIRS


@sampled(("new_tokens", "window"), [(3, 2), *itertools.product([3, 1, 2, 7], [1, 2, 5])], first(1))
def test_under_a_window_that_no_longer_grows(new_tokens, window):
    plain = 2 * 3 * 2 * (8 + 8)
    assert skipped(windowed(window), new_tokens, batch_size=2) == 2 * plain * PAIRS
    latent = windowed(
        window,
        use_mla=True,
        kv_lora_rank=8,
        q_lora_rank=None,
        qk_nope_head_dim=4,
        qk_rope_head_dim=4,
        v_head_dim=6,
    )
    assert skipped(latent, new_tokens) == 2 * 3 * 2 * (4 + 8 + 8) * PAIRS


def test_closed_forms_have_no_part_in_it(monkeypatch):
    def refused(*_):
        raise ConfigError("no closed forms")

    monkeypatch.setattr(DeepSeekOCRSession, "composed", refused)
    session = DeepSeekOCRSession.from_directory(small_directory())
    workload = session.plan(**PAGE, max_new_tokens=2)
    traced = session._traced(workload, session.trace(workload))
    assert traced.causal_savable_flops == _PLAIN * PAIRS
