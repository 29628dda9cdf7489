"""What the tests of both engines share: small models, and a page traced and composed."""

from types import SimpleNamespace

import torch
from drawn_passes import directory
from hypothesis import strategies as st

from dsocr_analyze import analytic
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession

PUBLISHED = ModelDirectory.read(DEFAULT.reference)

SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 320,
    "vocab_size": 1000,
    "intermediate_size": 600,
    "moe_intermediate_size": 72,
    "n_routed_experts": 8,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "projector_config": {"n_embed": 320, "input_dim": 256},
    "vision_config": {
        "image_size": 256,
        "width": {
            "clip-l-14-224": {
                "heads": 4, "image_size": 112, "layers": 2, "patch_size": 14, "width": 128,
            },
            "sam_vit_b": {
                "downsample_channels": [96, 128],
                "global_attn_indexes": [1, 3],
                "heads": 3,
                "layers": 4,
                "width": 96,
            },
        },
    },
}  # fmt: skip

LATENT = {
    "use_mla": True,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 48,
    "v_head_dim": 40,
}


def directory_with(**changes) -> ModelDirectory:
    """The reference with a changed config; a section's keys are changed one by one."""
    merged = {
        key: {**PUBLISHED.config[key], **value}
        for key, value in changes.items()
        if isinstance(value, dict) and isinstance(PUBLISHED.config.get(key), dict)
    }
    return directory(DEFAULT.name, {**changes, **merged})


def small_directory(**changes) -> ModelDirectory:
    """The same around a model that is traced in a blink."""
    merged = {"projector_config": SMALL["projector_config"] | changes.pop("projector_config", {})}
    return directory_with(**{**SMALL, **changes, **merged})


def draw_decoder(draw) -> dict:
    """Config keys of a small decoder without experts: MHA or GQA, of any depth and width."""
    heads = draw(st.sampled_from([1, 2, 4]))
    width = heads * 2 * draw(st.integers(4, 40))
    return {
        "num_hidden_layers": draw(st.integers(1, 4)),
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
        "vocab_size": draw(st.integers(100, 3000)),
        "intermediate_size": draw(st.integers(8, 900)),
        "attention_bias": draw(st.booleans()),
        "projector_config": {"n_embed": width},
        "n_routed_experts": None,
    }


@st.composite
def decoders(draw) -> dict:
    """Config keys of any small decoder: MHA, GQA or latent, dense or mixed, with any positions."""
    changes = draw_decoder(draw)
    if draw(st.booleans()):
        groups = draw(st.sampled_from([1, 2, 4]))
        experts = groups * draw(st.integers(2, 8)) if draw(st.booleans()) else groups
        chosen = draw(st.integers(1, groups))
        methods = ["greedy", "group_limited_greedy", *(["noaux_tc"] if experts > groups else [])]
        changes |= {
            "n_routed_experts": experts,
            "moe_intermediate_size": draw(st.sampled_from([4, 72, 600, 3000])),
            "n_shared_experts": draw(st.sampled_from([None, 1, 2])),
            "num_experts_per_tok": draw(st.integers(1, min(6, experts // groups * chosen))),
            "topk_method": draw(st.sampled_from(methods)),
            "scoring_func": draw(st.sampled_from(["softmax", "sigmoid"])),
            "norm_topk_prob": draw(st.booleans()),
            "n_group": groups,
            "topk_group": chosen,
            "first_k_dense_replace": draw(st.integers(0, 2)),
        }
    if draw(st.booleans()):
        kind = draw(st.sampled_from([None, "linear", "dynamic", "dynamic", "yarn"]))
        changes |= {
            "use_mla": True,
            "num_key_value_heads": changes["num_attention_heads"],
            "kv_lora_rank": draw(st.integers(1, 64)),
            "q_lora_rank": draw(st.sampled_from([None, 24])),
            # The formula of dynamic scaling divides by two less than this.
            "qk_rope_head_dim": 2 * draw(st.integers(2 if kind == "dynamic" else 1, 16)),
            "qk_nope_head_dim": draw(st.integers(20, 48)),
            "v_head_dim": draw(st.integers(4, 20)),
            "max_position_embeddings": draw(st.sampled_from([1, 4, 20, 50, 300, 8192])),
            "rope_scaling": None if kind is None else {"type": kind, "factor": 2.0},
        }
    return changes


def by_both_engines(
    directory: ModelDirectory,
    *,
    dtype: torch.dtype = torch.bfloat16,
    flash: bool = False,
    **page,
) -> SimpleNamespace:
    """A session, and a page that it plans, traces and composes."""
    how = {"dtype": str(dtype).removeprefix("torch."), "flash_attention": flash}
    session = DeepSeekOCRSession.from_directory(directory, **how)
    workload = session.plan(**page)
    traced, agreement = session.figures(workload)
    assert agreement is not None
    composed = analytic.page_figures(directory, workload, **how)
    return SimpleNamespace(
        session=session,
        workload=workload,
        traced=traced,
        analytic=composed,
        agreement=agreement,
    )


def dimensions_of(directory: ModelDirectory):
    return DEFAULT.forms.dimensions(directory.config)
