"""A dense decoder of transformers 5 on a tape: grouped heads, rotary positions, a gated MLP.

B is the batch, T the new tokens per sequence, K the keys of each, d the width, D of a head.

Source: `Qwen2Model` and `Qwen2Attention` of transformers 5.23, which the decoders of GOT-OCR2,
LightOnOCR, Qwen3-VL, olmOCR, PaddleOCR-VL and GLM-OCR vary.
"""

from collections.abc import Sequence
from typing import Any, Literal

from dsocr_analyze.architectures.config_file import LARGEST_WIDTH, MOST_LAYERS, ConfigKeys
from dsocr_analyze.architectures.ocr_family.attention import LayerCache, Pass
from dsocr_analyze.architectures.ocr_family.decoder import decoder_layers
from dsocr_analyze.architectures.ocr_family.dimensions import (
    LARGEST_VOCABULARY,
    DecoderDimensions,
    multi_head_attention,
)
from dsocr_analyze.kernels import BOOL, FLOAT32, INT64
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import ACTIVATIONS

# --- dimensions ------------------------------------------------------------------------------


def read_decoder(
    keys: ConfigKeys,
    *,
    is_tied: bool,
    rotary: str = "plain",
    mrope_section: Sequence[int] = (),
    model_type: str | None = None,
    head_dim: Literal["read", "needed", "divided"] = "read",
    deepstack: int = 0,
    **options: Any,
) -> DecoderDimensions:
    """Reads the object with the decoder's keys; raises ConfigError.

    Args:
        keys: The object.
        is_tied: Whether embeddings and head have the same weights.
        rotary: As the attribute.
        mrope_section: Where the file has none.
        model_type: What the key must say, if it chooses the class.
        head_dim: Whether the class reads the key, has a number where it is absent, which does not
            follow from other keys, or always divides the width by the heads.
        deepstack: As the attribute.
        options: `attention_bias`, `head_norms`, `output_norms`, as the attributes.
    """
    if model_type is not None:
        keys.choice("model_type", (model_type,))
    if head_dim == "needed":
        keys.value("head_dim")
    heads = multi_head_attention(keys)
    width, number = keys.integer("hidden_size", most=LARGEST_WIDTH), heads["heads"]
    keys.check(
        head_dim != "divided" or number * heads["head_dim"] == width,
        "head_dim",
        f"{width // number}, 'hidden_size' over 'num_attention_heads'",
    )
    layers = keys.integer("num_hidden_layers", least=max(1, deepstack), most=MOST_LAYERS)
    types = keys.value("layer_types", None)
    keys.check(
        types is None or types == ["full_attention"] * layers,
        "layer_types",
        f"'full_attention' for each of {layers} layers",
    )
    if rotary != "plain":
        mrope_section = _sections(keys, tuple(mrope_section), heads["head_dim"] // 2)
    return DecoderDimensions(
        vocab_size=keys.integer("vocab_size", most=LARGEST_VOCABULARY),
        hidden_size=width,
        layers=layers,
        intermediate_size=keys.integer("intermediate_size", most=LARGEST_WIDTH),
        hidden_act=keys.choice("hidden_act", tuple(ACTIVATIONS)),
        max_position_embeddings=keys.integer("max_position_embeddings"),
        tie_word_embeddings=is_tied,
        rotary=rotary,
        mrope_section=tuple(mrope_section),
        deepstack=deepstack,
        is_of_transformers=True,
        axes=1 if rotary == "plain" else 3,
        **heads,
        **options,
    )


def _sections(keys: ConfigKeys, usual: tuple[int, ...], half: int) -> tuple[int, ...]:
    """`mrope_section` of the older or the newer object of rotary keys, or the `usual` one."""
    name = "rope_scaling" if keys.value("rope_scaling", None) else "rope_parameters"
    rotary = keys.section(name, {})
    sections = rotary.integers("mrope_section", usual)
    rotary.check(
        len(sections) == 3 and sum(sections) == half,
        "mrope_section",
        f"three whole numbers of sum {half}, half a head's features",
    )
    return sections


# --- the forward -----------------------------------------------------------------------------


def decoder(
    t: Tape, embeds: Operand, p: Pass, c: DecoderDimensions, deepstack: Sequence[Operand] = ()
) -> tuple[Operand, list[LayerCache]]:
    """`Qwen2Model`: embeddings `[B, T, d]` to normed features, and the cache by layer.

    Each of `deepstack`, features of the visual tokens, is added to them after a layer.
    """
    # A step's positions in three axes come from the whole model.
    positions = None if c.axes > 1 and p.past else _range(t, p.T)
    mask = None if p.flash else _mask(t, p)
    cos, sin = t.call("rotary_emb", _rotary_tables, p, c)
    outputs = decoder_layers(t, embeds, p, c, mask, (cos, sin), deepstack)
    return t.hold(outputs, positions, mask, cos, sin)


def _mask(t: Tape, p: Pass) -> Operand:
    """`create_causal_mask` of eager attention: zeros and lowest numbers, `[B, 1, T, K]`.

    Positions of sequences, heads, queries and keys are compared.
    """
    places = [t.move("arange", n=n, dtype=INT64) for n in (p.B, 1)]
    places += [_range(t, n) for n in (p.T, p.keys)]
    seen = t.map("le", *places[2:], n=p.T * p.keys, output=BOOL)
    del places
    zero, lowest = t.move("zeros", n=1, dtype=t.dtype), t.move("scalar_tensor", n=1, dtype=t.dtype)
    return t.hold(
        t.map("where", seen, zero, lowest, n=p.B * seen.n, output=t.dtype), seen, zero, lowest
    )


def _range(t: Tape, n: Size) -> Operand:
    """Integers from an offset."""
    return t.map("add", t.move("arange", n=n, dtype=INT64))


def _rotary_tables(t: Tape, p: Pass, c: DecoderDimensions) -> tuple[Operand, Operand]:
    """Cosines and sines `[B, T, D]` of positions times frequencies (`Qwen2RotaryEmbedding`)."""
    n, half = p.T if c.axes == 1 else p.tokens, c.head_dim // 2
    ids = t.input(c.axes * n if p.past else p.T, INT64)
    angles = t.map(
        "mul",
        t.move("_to_copy", ids, n=c.axes * n, dtype=FLOAT32),
        t.input(half, FLOAT32),
        n=c.axes * n * half,
    )
    turned = t.cat(angles, angles) if c.axes == 1 else angles
    cos = t.map("mul", t.map("cos", turned))
    sin = t.map("mul", t.map("sin", turned))
    if c.axes > 1:
        sin = _joined(t, sin, n, c)
        cos = _joined(t, cos, n, c)
    return t.hold((t.cast(cos, t.dtype), t.cast(sin, t.dtype)), angles, turned, cos, sin)


def _joined(t: Tape, table: Operand, n: Size, c: DecoderDimensions) -> Operand:
    """A table of three axes `[3, n, D / 2]` as one `[n, D]`."""
    joined: Operand = t.view(table, n * (c.head_dim // 2))
    if c.rotary == "turns":
        for axis, section in enumerate(c.mrope_section[1:], 1):
            places = len(range(axis, min(3 * section, c.head_dim // 2), 3))
            t.move("copy", t.view(table, n * places), into=joined)
    else:
        joined = t.move("cat", joined)
    if c.rotary == "neighbours":
        return t.move("clone", joined, n=2 * joined.n)
    return t.cat(joined, joined)
