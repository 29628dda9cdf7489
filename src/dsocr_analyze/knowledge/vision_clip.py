"""Pages of the CLIP encoder and of the projector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dsocr_analyze.architectures.ocr_family import projector as projector_costs
from dsocr_analyze.architectures.ocr_family import vision
from dsocr_analyze.costs.activations import quick_gelu
from dsocr_analyze.costs.conv2d import conv2d
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.normalization import layer_norm_fp32
from dsocr_analyze.costs.operators import Kernels, copy
from dsocr_analyze.costs.position_table import bicubic_resize
from dsocr_analyze.costs.sections import Section
from dsocr_analyze.costs.self_attention import self_attention
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.decoder_parts import fallback_notes
from dsocr_analyze.knowledge.machinery.facts import Facts, count, kernels_of, tensor
from dsocr_analyze.knowledge.machinery.page import (
    NO_DEFAULT,
    Case,
    Formulas,
    Page,
    Parameter,
    Symbol,
)
from dsocr_analyze.knowledge.vision_sam import resize_formula

__all__ = ["Projected", "clip_pages", "projector_pages"]

_GROUP: Final = "Vision: CLIP encoder"
_FILE: Final = "dsocr_analyze.architectures.deepseek_ocr.reference.deepencoder"

SYMBOLS: Final = {
    "N": Symbol("N", "views"),
    "R": Symbol("R", "pixels a side of a view"),
    "q": Symbol("q", "patches a side of a view"),
    "T": Symbol("T", "tokens of a view, the class token included", "q ** 2 + 1"),
    "d": Symbol("d", "width"),
    "H": Symbol("H", "heads"),
    "m": Symbol("m", "hidden width of the MLP"),
    "L": Symbol("L", "blocks"),
    "l": Symbol("l", "entries a side of the learned position table"),
    "p": Symbol("p", "pixels a side of a patch of its own convolution"),
}


def _pick(names: str) -> dict[str, Symbol]:
    return {name: SYMBOLS[name] for name in names.split()}


def clip_pages(facts: Facts) -> list[Page]:
    """The pages of the encoder, in reading order."""
    return [
        _vit(facts),
        _embeddings(facts),
        _transformer(facts),
        _block(facts),
        _attention(facts),
        _feed_forward(facts),
        _norm(facts),
        _abs_pos(facts),
    ]


def _values(facts: Facts, N: int, R: int) -> dict[str, int]:
    clip = facts.clip
    return {
        "N": N,
        "R": R,
        "q": facts.token_side(R),
        "d": clip.width,
        "H": clip.heads,
        "m": clip.mlp,
        "L": clip.layers,
        "l": clip.image_size // clip.patch_size,
        "p": clip.patch_size,
        "C": facts.channels,
    }


def _tokens(facts: Facts, R: int) -> int:
    return facts.token_side(R) ** 2 + 1


_ATTENTION: Final = Formulas(
    macs="4 * N * T * d ** 2 + 2 * N * T ** 2 * d",
    vector_flops="4 * N * T * d + 6 * N * H * T ** 2",
    params="4 * d ** 2 + 4 * d",
    activations="5 * N * T * d",
)
_FEED_FORWARD: Final = Formulas(
    macs="2 * N * T * d * m",
    vector_flops="N * T * (7 * m + d)",
    params="2 * d * m + m + d",
    activations="N * T * (m + d)",
)
_BLOCK: Final = Formulas(
    macs="4 * N * T * d ** 2 + 2 * N * T ** 2 * d + 2 * N * T * d * m",
    vector_flops="6 * N * H * T ** 2 + N * T * (7 * m + 17 * d)",
    params="4 * d ** 2 + 2 * d * m + 9 * d + m",
    activations="N * T * (6 * d + m)",
)


def _settings(facts: Facts) -> dict[str, Any]:
    clip = facts.clip
    encoder: Any = facts.at("model.vision_model")
    first_block = encoder.transformer.layers[0]
    return {
        "hidden_size": clip.width,
        "num_attention_heads": clip.heads,
        "ffn_hidden_size": clip.mlp,
        "num_layers": clip.layers,
        "image_size": clip.image_size,
        "patch_size": clip.patch_size,
        "layernorm_epsilon": first_block.layer_norm1.eps,
        "pre_layernorm_epsilon": encoder.pre_layrnorm.eps,
    }


_SETTING_MEANINGS: Final = {
    "hidden_size": "Width d.",
    "num_attention_heads": "Heads H.",
    "ffn_hidden_size": "Hidden width m of the MLP.",
    "num_layers": "Blocks L.",
    "image_size": "Pixels a side that the position table was learned at.",
    "patch_size": "Pixels a side of a patch of the own convolution.",
    "layernorm_epsilon": "Epsilon of the blocks' norms.",
    "pre_layernorm_epsilon": "Epsilon of the norm before the stack.",
    "fp32norm": "Whether the norm before the stack computes in fp32 (`LayerNormfp32`).",
}


def _setting_parameters(facts: Facts, *keys: str) -> dict[str, Parameter]:
    settings, defaults = _settings(facts), facts.get("VitModel").DEFAULTS
    return {
        "cfg": Parameter("Gives everything below.", "built from vision_config"),
        **{
            f"cfg.{key}": Parameter(
                _SETTING_MEANINGS[key],
                settings.get(key, "not given"),
                defaults.get(key, NO_DEFAULT),
            )
            for key in keys
        },
    }


def _sections(facts: Facts, N: int, R: int) -> list[Section]:
    """The frame around the blocks, and the blocks."""
    return vision.clip_sections(N, facts.token_side(R), facts.clip, BFLOAT16)


def _attention(facts: Facts) -> Page:
    clip = facts.clip
    d = clip.width

    def case(label: str, N: int, R: int) -> Case:
        T = _tokens(facts, R)
        return Case(
            label,
            _values(facts, N, R),
            lambda: facts.make("NoTPAttention", _settings(facts)),
            lambda: [tensor(N, T, d)],
            closed_form=lambda: self_attention(N, T, d, clip.heads, BFLOAT16),
        )

    T = _tokens(facts, facts.views[0][2])
    return Page(
        name="NoTPAttention",
        group=_GROUP,
        subject=facts.get("NoTPAttention"),
        what="Multi-head self-attention of the CLIP encoder: one fused projection to queries, keys"
        " and values, PyTorch's scaled dot-product attention without a mask, one projection out."
        ' ("NoTP": not split over processes.)',
        blocks=(("clip", "self-attention"),),
        layer="costs.self_attention.self_attention",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters=_setting_parameters(facts, "hidden_size", "num_attention_heads"),
        diagram=f"""flowchart LR
  x["x [N, T, {d}]"] --> qkv["qkv_proj<br/>{d} to {3 * d}"]
  qkv --> q["q"]
  qkv --> k["k"]
  qkv --> v["v"]
  q --> sdpa["scaled dot-product attention<br/>{clip.heads} heads of {clip.head_dim}"]
  k --> sdpa
  v --> sdpa
  sdpa --> out["out_proj<br/>{d} to {d}"]
  out --> y["y [N, T, {d}]"]""",
        pseudo_code="""q, k, v = split(qkv_proj(x))               # [N, H, T, D]
return out_proj(join_heads(scaled_dot_product_attention(q, k, v)))""",
        mathematics=r"y = W_o\, \mathrm{softmax}\left(\frac{Q K^T}{\sqrt{D}}\right) V + b_o,"
        r" \quad [Q, K, V] = x W_{qkv}^T + b_{qkv}",
        symbols=_pick("N q T d H"),
        formulas=_ATTENTION,
        cases=tuple(case(*view) for view in facts.views),
        flops_notes=("A score costs a scale and a softmax of five; there is no mask.",),
        memory_notes=("Fused: no product of queries and keys is kept.",),
        related=("NoTPTransformerBlock", "Attention", "DeepseekV2DecoderLayer"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

block = DeepSeekOCRSession.from_local().model.model.vision_model.transformer.layers[0]
x = torch.empty(1, {T}, {d}, dtype=torch.bfloat16, device="meta")
assert block.self_attn(x).shape == x.shape""",
        notes="fused, no mask",
        references=("attention", "clip"),
    )


def _feed_forward(facts: Facts) -> Page:
    clip = facts.clip
    d, m = clip.width, clip.mlp

    def case(label: str, N: int, R: int) -> Case:
        T = _tokens(facts, R)
        return Case(
            label,
            _values(facts, N, R),
            lambda: facts.make("NoTPFeedForward", {}, d, m),
            lambda: [tensor(N, T, d)],
            closed_form=lambda: (
                *linear(N * T, d, m, BFLOAT16, bias=True),
                *quick_gelu(N * T * m, BFLOAT16),
                *linear(N * T, m, d, BFLOAT16, bias=True),
            ),
        )

    return Page(
        name="NoTPFeedForward",
        group=_GROUP,
        subject=facts.get("NoTPFeedForward"),
        what="The MLP of a CLIP block: one linear map up, quick GELU, one down; both with bias.",
        blocks=(("clip", "MLP"),),
        layer="costs.linear.linear, costs.activations.quick_gelu",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters={
            "cfg": Parameter("Unused, as published.", "built from vision_config"),
            "dim": Parameter("Width d.", d),
            "hidden_dim": Parameter("Hidden width m.", m),
        },
        diagram=f"""flowchart LR
  x["x [N, T, {d}]"] --> fc1["fc1<br/>{d} to {m}"]
  fc1 --> act["quick GELU"]
  act --> fc2["fc2<br/>{m} to {d}"]
  fc2 --> y["y [N, T, {d}]"]""",
        pseudo_code="""h = fc1(x)
return fc2(h * sigmoid(1.702 * h))""",
        mathematics=r"y = W_2\,\mathrm{qgelu}(W_1 x + b_1) + b_2, \quad"
        r" \mathrm{qgelu}(z) = z\,\sigma(1.702\,z)",
        symbols=_pick("N q T d m"),
        formulas=_FEED_FORWARD,
        cases=tuple(case(*view) for view in facts.views),
        flops_notes=(
            "Quick GELU is a scripted function: a product, a sigmoid of four operations and a"
            " product, each through memory.",
        ),
        related=("NoTPTransformerBlock", "MLPBlock", "DeepseekV2MLP"),
        usage=f"""import torch
from {_FILE} import NoTPFeedForward

mlp = NoTPFeedForward({{}}, {d}, {m})
assert mlp(torch.zeros(1, 2, {d})).shape == (1, 2, {d})""",
        notes="linear, quick GELU, linear",
        references=("gelu", "clip"),
    )


def _block(facts: Facts) -> Page:
    clip = facts.clip
    d = clip.width

    def case(label: str, N: int, R: int) -> Case:
        return Case(
            label,
            _values(facts, N, R),
            lambda: facts.make("NoTPTransformerBlock", _settings(facts), 1),
            lambda: [tensor(N, _tokens(facts, R), d)],
            closed_form=lambda: _sections(facts, N, R)[1].modules,
        )

    return Page(
        name="NoTPTransformerBlock",
        group=_GROUP,
        subject=facts.get("NoTPTransformerBlock"),
        what="A pre-norm block of the CLIP encoder. It runs `forward` of its attention and its MLP"
        " instead of calling them, as published, so hooks on those two never fire; the recorder of"
        " this project sees them all the same.",
        blocks=(("clip", "transformer block"),),
        layer="architectures.ocr_family.vision (one block of it)",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters={
            **_setting_parameters(
                facts, "hidden_size", "num_attention_heads", "ffn_hidden_size", "layernorm_epsilon"
            ),
            "layer_id": Parameter("Number of the block, from one.", f"1 to {clip.layers}"),
            "multiple_of": Parameter(
                "Unused, as published.", facts.default("NoTPTransformerBlock", "multiple_of")
            ),
        },
        diagram=f"""flowchart TB
  x["x [N, T, {d}]"] --> n1["layer_norm1"]
  n1 --> attn["self_attn: NoTPAttention"]
  attn --> add1["sum"]
  x --> add1
  add1 --> n2["layer_norm2"]
  n2 --> mlp["mlp: NoTPFeedForward"]
  mlp --> add2["sum"]
  add1 --> add2
  add2 --> y["y [N, T, {d}]"]""",
        pseudo_code="""h = x + self_attn(layer_norm1(x))
return h + mlp(layer_norm2(h))""",
        mathematics=r"h = x + \mathrm{attn}(\mathrm{norm}_1(x)), \quad"
        r" y = h + \mathrm{mlp}(\mathrm{norm}_2(h))",
        symbols=_pick("N q T d H m"),
        formulas=_BLOCK,
        cases=tuple(case(*view) for view in facts.views),
        flops_notes=("Two norms at five FLOPs an element and two sums come on top of the parts.",),
        related=("NoTPAttention", "NoTPFeedForward", "NoTPTransformer"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

block = DeepSeekOCRSession.from_local().model.model.vision_model.transformer.layers[0]
x = torch.empty(1, {_tokens(facts, facts.views[0][2])}, {d}, dtype=torch.bfloat16, device="meta")
assert block(x).shape == x.shape""",
        notes="pre-norm",
        references=("clip", "vit"),
    )


def _transformer(facts: Facts) -> Page:
    clip = facts.clip
    d = clip.width

    def case(label: str, N: int, R: int) -> Case:
        return Case(
            label,
            _values(facts, N, R),
            lambda: facts.at("model.vision_model.transformer"),
            lambda: [tensor(N, _tokens(facts, R), d)],
            closed_form=lambda: kernels_of(_sections(facts, N, R)[1:]),
        )

    return Page(
        name="NoTPTransformer",
        group=_GROUP,
        subject=facts.get("NoTPTransformer"),
        what=f"The stack of the CLIP encoder: {clip.layers} equal blocks, no norm behind them.",
        blocks=(("clip", "transformer"),),
        layer="architectures.ocr_family.vision.clip_sections",
        inputs={"hidden_states": "N, T, d"},
        output="N, T, d",
        parameters=_setting_parameters(
            facts, "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size"
        ),
        diagram=f"""flowchart LR
  x["x [N, T, {d}]"] --> layers["layers: {clip.layers} x NoTPTransformerBlock"]
  layers --> y["y [N, T, {d}]"]""",
        pseudo_code="""for layer in layers:
    x = layer(x)
return x""",
        mathematics=r"x^{(l)} = \mathrm{block}_l(x^{(l-1)}), \quad l = 1, \dots, L",
        symbols=_pick("N q T d H m L"),
        formulas=_times_layers(_BLOCK),
        cases=tuple(case(*view) for view in facts.views),
        related=("NoTPTransformerBlock", "VitModel"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

stack = DeepSeekOCRSession.from_local().model.model.vision_model.transformer
assert len(stack.layers) == {clip.layers}
x = torch.empty(1, {_tokens(facts, facts.views[0][2])}, {d}, dtype=torch.bfloat16, device="meta")
assert stack(x).shape == x.shape""",
        notes="equal blocks",
        references=("clip",),
    )


def _times_layers(block: Formulas) -> Formulas:
    return Formulas(
        macs=f"L * ({block.macs})",
        vector_flops=f"L * ({block.vector_flops})",
        params=f"L * ({block.params})",
        activations=f"L * ({block.activations})",
    )


_EMBEDDING_PARAMS: Final = "d + C * p ** 2 * d + (l ** 2 + 1) * d"


def _embeddings(facts: Facts) -> Page:
    clip = facts.clip
    d, side = clip.width, clip.image_size // clip.patch_size

    def build() -> Any:
        return facts.make("CLIPVisionEmbeddings", d, clip.image_size, clip.patch_size)

    def frame(N: int, q: int) -> ModuleKernels:
        frame = vision.clip_sections(N, q, clip, BFLOAT16)[0].modules
        return {path: own for path, own in frame.items() if path.startswith("embeddings")}

    def case(label: str, N: int, R: int) -> Case:
        q = facts.token_side(R)
        return Case(
            label,
            {**_values(facts, N, R), "o": 0},
            build,
            lambda: [tensor(N, facts.channels, R, R), tensor(N, d, q, q)],
            closed_form=lambda: frame(N, q),
        )

    def own_case() -> Case:
        R, patch = clip.image_size, clip.patch_size
        patches = conv2d(1, R, facts.channels, d, patch, BFLOAT16, stride=patch)
        return Case(
            "own convolution (never runs in the model)",
            {**_values(facts, 1, R), "q": side, "o": 1},
            build,
            lambda: [tensor(1, facts.channels, R, R), None],
            closed_form=lambda: frame(1, side) | {"embeddings.patch_embedding": patches},
        )

    convolution = clip.patch_size**2 * facts.channels * d
    return Page(
        name="CLIPVisionEmbeddings",
        group=_GROUP,
        subject=facts.get("CLIPVisionEmbeddings"),
        what="Puts a class token before the patch embeddings and adds a learned position table,"
        " resized to the number of patches. The patch embeddings are the SAM features: its own"
        f" patch convolution ({count(convolution)} parameters) never runs.",
        blocks=(("clip", "embeddings"),),
        layer="architectures.ocr_family.vision.clip_sections (its frame)",
        inputs={"pixel_values": "N, C, R, R", "patch_embeds": "N, d, q, q"},
        output="N, T, d",
        parameters={
            "hidden_size": Parameter("Width d.", d),
            "image_size": Parameter(_SETTING_MEANINGS["image_size"], clip.image_size),
            "patch_size": Parameter(_SETTING_MEANINGS["patch_size"], clip.patch_size),
            "num_channels": Parameter("Channels of the image.", facts.channels),
        },
        diagram=f"""flowchart LR
  sam["SAM features [N, {d}, q, q]"] --> flat["flatten, tokens first"]
  first["class_embedding [{d}]"] --> cat["concatenate [N, T, {d}]"]
  flat --> cat
  table["position_embedding<br/>{clip.positions} x {d}"] --> resize["get_abs_pos<br/>to q q + 1 rows"]
  cat --> add["sum"]
  resize --> add
  add --> y["y [N, T, {d}]"]
  own["patch_embedding: Conv2d (never runs)"] -.-> flat""",
        pseudo_code="""patches = patch_embedding(pixels) if patch_embeds is None else patch_embeds
tokens = cat([class_embedding, patches.flatten(2).transpose(1, 2)])
return tokens + get_abs_pos(position_embedding(position_ids), tokens.shape[1])""",
        mathematics=r"x = [c;\ s_1;\ \dots;\ s_{q^2}] + P'",
        symbols=_pick("N R q T d l p")
        | {
            "C": Symbol("C", "channels of a view"),
            "o": Symbol("o", "1 where the own convolution runs, 0 in the model"),
            "I": Symbol("I", "FLOPs of resizing the position table", resize_formula("l", "q", "d")),
        },
        formulas=Formulas(
            macs="o * N * q ** 2 * d * C * p ** 2",
            vector_flops="N * T * d + I",
            params=_EMBEDDING_PARAMS,
            activations="o * N * q ** 2 * d",
        ),
        cases=(*(case(*view) for view in facts.views), own_case()),
        flops_notes=("Looking the position table up computes nothing and moves its rows.",),
        related=("VitModel", "ImageEncoderViT", "get_abs_pos"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

embeddings = DeepSeekOCRSession.from_local().model.model.vision_model.embeddings
side = {facts.token_side(facts.views[0][2])}
features = torch.empty(1, {d}, side, side, dtype=torch.bfloat16, device="meta")
pixels = torch.empty(1, {facts.channels}, {facts.views[0][2]}, {facts.views[0][2]}, dtype=torch.bfloat16, device="meta")
assert embeddings(pixels, features).shape == (1, side * side + 1, {d})""",
        notes="SAM features for patches; own convolution unused",
        references=("clip", "vit"),
    )


def _vit(facts: Facts) -> Page:
    clip = facts.clip
    d = clip.width

    def case(label: str, N: int, R: int) -> Case:
        q = facts.token_side(R)
        return Case(
            label,
            _values(facts, N, R),
            lambda: facts.at("model.vision_model"),
            lambda: [tensor(N, facts.channels, R, R), tensor(N, d, q, q)],
            closed_form=lambda: kernels_of(_sections(facts, N, R)),
        )

    _, _, R = facts.views[0]
    return Page(
        name="VitModel",
        group=_GROUP,
        subject=facts.get("VitModel"),
        what="The CLIP encoder as it stands in the model: embeddings that take the SAM features for"
        f" patches, a norm before the stack, {clip.layers} pre-norm blocks, and no norm behind"
        " them.",
        blocks=(("clip", "CLIP encoder"),),
        layer="architectures.ocr_family.vision.clip_sections",
        inputs={"x": "N, C, R, R", "patch_embeds": "N, d, q, q"},
        output="N, T, d",
        parameters={
            **_setting_parameters(facts, *_SETTING_MEANINGS),
            "freeze_embed": Parameter("Take the embeddings out of training.", False),
            "freeze_pre_norm": Parameter("Take the norm before the stack out of training.", False),
        },
        diagram=f"""flowchart TB
  view["view [N, {facts.channels}, R, R]"] --> emb["embeddings: CLIPVisionEmbeddings"]
  sam["SAM features [N, {d}, q, q]"] --> emb
  emb --> norm["pre_layrnorm: LayerNorm"]
  norm --> stack["transformer: {clip.layers} x NoTPTransformerBlock<br/>width {d}, {clip.heads} heads"]
  stack --> y["y [N, q q + 1, {d}]"]""",
        pseudo_code="return transformer(pre_layrnorm(embeddings(x, patch_embeds)))",
        mathematics=r"y = \mathrm{blocks}(\mathrm{norm}([c;\ s] + P'))",
        symbols=_pick("N R q T d H m L l p")
        | {
            "C": Symbol("C", "channels of a view"),
            "I": Symbol("I", "FLOPs of resizing the position table", resize_formula("l", "q", "d")),
        },
        formulas=Formulas(
            macs=f"L * ({_BLOCK.macs})",
            vector_flops=f"6 * N * T * d + I + L * ({_BLOCK.vector_flops})",
            params=f"{_EMBEDDING_PARAMS} + 2 * d + L * ({_BLOCK.params})",
            activations=f"L * ({_BLOCK.activations})",
        ),
        cases=tuple(case(*view) for view in facts.views),
        related=("CLIPVisionEmbeddings", "NoTPTransformer", "ImageEncoderViT", "MlpProjector"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

model = DeepSeekOCRSession.from_local().model.model
view = torch.empty(1, {facts.channels}, {R}, {R}, dtype=torch.bfloat16, device="meta")
features = model.vision_model(view, model.sam_model(view))
assert features.shape == (1, {_tokens(facts, R)}, {d})""",
        notes="takes SAM features; no final norm",
        references=("clip", "deepseekocr"),
    )


def _norm(facts: Facts) -> Page:
    d = facts.clip.width

    def case(label: str, N: int, R: int) -> Case:
        T = _tokens(facts, R)
        return Case(
            label,
            _values(facts, N, R),
            lambda: facts.make("LayerNormfp32", d),
            lambda: [tensor(N, T, d)],
            closed_form=lambda: layer_norm_fp32(N * T, d, BFLOAT16),
        )

    return Page(
        name="LayerNormfp32",
        group=_GROUP,
        subject=facts.get("LayerNormfp32"),
        what="Layer normalisation that computes in fp32 and returns its input's type. The encoder"
        " takes it before the stack where its settings say `fp32norm`; the published ones do not,"
        " and the model has a plain `nn.LayerNorm` there.",
        blocks=(),
        layer="costs.normalization.layer_norm_fp32",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters={
            "normalized_shape": Parameter("Width that is normalised.", d),
            "eps": Parameter(
                "Added to the variance before the root.", facts.default("LayerNormfp32", "eps")
            ),
            "elementwise_affine": Parameter("Whether there are weight and bias.", True),
            "bias": Parameter("Whether there is a bias beside the weight.", True),
            "device": Parameter("Where the parameters are.", None),
            "dtype": Parameter("Type of the parameters.", None),
        },
        diagram="""flowchart LR
  x["x"] --> wide["cast to fp32"]
  wide --> norm["LayerNorm"]
  norm --> back["cast back"]""",
        pseudo_code="return layer_norm(x.float(), weight, bias, eps).to(x.dtype)",
        mathematics=r"y = w \odot \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + b",
        symbols=_pick("N q T d"),
        formulas=Formulas(vector_flops="5 * N * T * d", params="2 * d"),
        cases=tuple(case(*view) for view in facts.views),
        flops_notes=("Five FLOPs an element, as for a plain LayerNorm; the casts move bytes.",),
        related=("VitModel", "LayerNorm2d", "DeepseekV2RMSNorm"),
        usage=f"""import torch
from {_FILE} import LayerNormfp32

norm = LayerNormfp32({d})
x = torch.randn(2, {d})
assert norm(x).dtype == x.dtype
assert torch.allclose(norm(x).mean(-1), torch.zeros(2), atol=1e-5)""",
        notes="only where the settings ask for `fp32norm`",
        references=("layernorm",),
    )


def _abs_pos(facts: Facts) -> Page:
    clip = facts.clip
    d, side = clip.width, clip.image_size // clip.patch_size

    def case(label: str, R: int) -> Case:
        q = facts.token_side(R)

        def closed() -> Kernels:
            if q == side:
                return ()
            return (
                *copy("clone", side * side * d, BFLOAT16),
                *bicubic_resize(side, q, d, BFLOAT16),
                *copy("cat", (q * q + 1) * d, BFLOAT16),
            )

        return Case(
            label,
            {"l": side, "q": q, "d": d},
            lambda: facts.get("get_abs_pos"),
            lambda: [tensor(1, side * side + 1, d), q * q + 1],
            closed_form=closed,
        )

    return Page(
        name="get_abs_pos",
        group=_GROUP,
        subject=facts.get("get_abs_pos"),
        what="Resizes CLIP's learned position table to the number of patches of a view: bicubic,"
        " antialiased, in fp32, the class token's row kept as it is.",
        blocks=(("clip", "absolute positions"),),
        layer="costs.position_table.bicubic_resize",
        inputs={"abs_pos": "1, l ** 2 + 1, d"},
        output="1, q ** 2 + 1, d",
        parameters={
            "abs_pos": Parameter("The learned table, the class token's row first.", "a parameter"),
            "tgt_size": Parameter("Tokens wanted.", "q q + 1"),
        },
        diagram="""flowchart LR
  table["table [1, 1 + l l, d]"] --> same{"l = q?"}
  same -->|"yes"| itself["the table itself"]
  same -->|"no"| first["class row"]
  same -->|"no"| grid["grid, channels first, fp32"]
  grid --> resize["bicubic, antialiased"]
  first --> cat["concatenate [1, 1 + q q, d]"]
  resize --> cat""",
        pseudo_code="""first, grid = table[:1], table[1:].view(l, l, d)
if l == floor(sqrt(tgt_size)):
    return table
return cat([first, interpolate(grid.float(), q, mode="bicubic", antialias=True)])""",
        mathematics=r"P'_0 = P_0, \quad P'_{ij} = \sum_{a} \sum_{b} k(i, a)\, k(j, b)\, P_{ab}",
        symbols={
            "l": Symbol("l", "entries a side of the learned table"),
            "q": Symbol("q", "entries a side wanted"),
            "d": Symbol("d", "width"),
        },
        formulas=Formulas(vector_flops=resize_formula("l", "q", "d")),
        cases=tuple(case(label, R) for label, _, R in facts.views),
        flops_notes=(
            "Two FLOPs a tap of the window that is laid over the table, one dimension after the"
            " other: five taps where it grows, one more than the bicubic filter is wide.",
        ),
        related=("CLIPVisionEmbeddings", "get_abs_pos_sam"),
        usage=f"""import torch
from {_FILE} import get_abs_pos

table = torch.zeros(1, {side * side + 1}, 8)
assert get_abs_pos(table, {side * side + 1}) is table
assert get_abs_pos(table, {4 * side * side + 1}).shape == (1, {4 * side * side + 1}, 8)""",
        notes="nothing to do at the learned size",
        references=("keys", "clip"),
    )


# --- projector -------------------------------------------------------------------------------


_PROJECTORS: Final = {
    "identity": Formulas(),
    "linear": Formulas(
        macs="N * q ** 2 * c * d",
        vector_flops="N * q ** 2 * d",
        params="c * d + d",
        activations="N * q ** 2 * d",
    ),
    "mlp_gelu": Formulas(
        macs="N * q ** 2 * d * (c + (n - 1) * d)",
        vector_flops="N * q ** 2 * d * (6 * n - 5)",
        params="c * d + d + (n - 1) * (d ** 2 + d)",
        activations="N * q ** 2 * d * n",
    ),
}
"""Of the variants that keep the number of tokens."""

_PROJECTOR_LAYERS: Final = {
    "identity": "Identity",
    "linear": "Linear<br/>{c} to {d}",
    "mlp_gelu": "{n} x Linear, {c} to {d},<br/>GELU between",
}


def has_projector_formulas(facts: Facts) -> bool:
    """Whether the projector is of a variant whose formulas stand on its page."""
    shape = facts.projector
    return shape.projector_type in _PROJECTORS and not (shape.token_pooling or shape.conv_fusion)


class Projected(NamedTuple):
    """What a relative's projector gets, where relatives differ."""

    source: str
    """In a sentence."""
    diagram: str
    """Lines of a flowchart up to a node `joined`."""
    pseudo_code: str
    mathematics: str


def _clip_and_sam(facts: Facts) -> Projected:
    clip, sam, width = facts.clip, facts.sam, facts.projector.input_channels
    return Projected(
        "What it gets are the CLIP features without their class token beside the SAM features of"
        " the same patches.",
        f"""  clip["CLIP features [N, q q + 1, {clip.width}]"] --> drop["drop the class token"]
  sam["SAM features [N, {sam.out_channels}, q, q]"] --> flat["flatten, tokens first"]
  drop --> joined["concatenate [N, q q, {width}]"]
  flat --> joined""",
        "x = cat([clip[:, 1:], sam.flatten(2).transpose(1, 2)], dim=-1)   # by the model",
        r"y = f\left([x_{clip};\ x_{sam}]\right)",
    )


def projector_pages(
    facts: Facts, projected: Callable[[Facts], Projected] = _clip_and_sam
) -> list[Page]:
    """The page of the projector.

    Args:
        facts: The model.
        projected: What it gets, from the facts that the page's figures are of.
    """
    own, facts = facts, facts if has_projector_formulas(facts) else facts.published
    defaults = facts.get("MlpProjector").DEFAULTS
    shape = facts.projector
    d_in, d_out = shape.input_channels, shape.n_embed
    kind, given = shape.projector_type, projected(facts)
    layers = _PROJECTOR_LAYERS[kind].format(c=d_in, d=d_out, n=shape.depth)

    def case(label: str, N: int, R: int) -> Case:
        q = facts.token_side(R)
        return Case(
            label,
            {"N": N, "q": q, "c": d_in, "d": d_out, "n": shape.depth},
            lambda: facts.at("model.projector"),
            lambda: [tensor(N, q * q, d_in)],
            closed_form=lambda: projector_costs.projector(N, q, shape, BFLOAT16),
        )

    keys = {
        "projector_type": "One of the variants: "
        + ", ".join(facts.get("MlpProjector").VARIANTS)
        + ".",
        "input_dim": "Width in (a pair for the hybrid split).",
        "n_embed": "Width out: the decoder's.",
        "depth": "Linear maps of the MLP variants.",
        "mlp_ratio": "Hidden width of the downsampling variants over the width out.",
        "downsample_ratio": "Tokens a side that one token takes together.",
        "channel_div": "Share of the width out that the first map gets in the hybrid split.",
        "token_pooling": "Whether two by two tokens are joined first.",
        "conv_fusion_high_low_features": "Whether two feature maps are joined first.",
    }
    config = own.config.projector_config
    R = facts.views[0][2]
    q = facts.token_side(R)
    page = Page(
        name="MlpProjector",
        group="Vision: projector",
        subject=facts.get("MlpProjector"),
        what="Maps vision features to the width of the decoder."
        f" It has {len(facts.get('MlpProjector').VARIANTS)} variants;"
        f" {own.model_name} uses `{own.projector.projector_type}`. {given.source}",
        blocks=(("projector", "vision-to-text projector"),),
        layer="architectures.ocr_family.projector.projector",
        inputs={"x": "N, q ** 2, c"},
        output="N, q ** 2, d",
        parameters={
            "cfg": Parameter("Gives everything below.", "projector_config"),
            **{
                f"cfg.{key}": Parameter(
                    meaning, config.get(key, "not given"), defaults.get(key, NO_DEFAULT)
                )
                for key, meaning in keys.items()
            },
        },
        diagram=f"""flowchart TB
{given.diagram}
  joined --> layers["layers: {layers}"]
  layers --> y["visual tokens [N, q q, {d_out}]"]""",
        pseudo_code=f"""{given.pseudo_code}
return layers(x)                                                  # the variant""",
        mathematics=rf"{given.mathematics}, \quad"
        r" f_{linear}(x) = x\, W^T + b, \quad"
        r" f_{mlp}(x) = W_n\,\mathrm{gelu}(\dots \mathrm{gelu}(W_1 x + b_1) \dots) + b_n",
        symbols={
            "N": Symbol("N", "views"),
            "q": Symbol("q", "tokens a side of a view"),
            "c": Symbol("d_{in}", "width in"),
            "d": Symbol("d", "width out, the decoder's"),
            "n": Symbol("n", "linear maps of an MLP variant"),
        },
        formulas=_PROJECTORS[kind],
        cases=tuple(case(*view) for view in facts.views),
        runs_given_config=own is facts,
        flops_notes=(
            *fallback_notes(own, facts, "The given config has another variant"),
            f"The formula is that of the variant `{kind}`; `costs.projector.projector` has a closed"
            " form for each of them.",
        ),
        memory_notes=("Nothing of it is needed after the prefill pass.",),
        related=("ImageEncoderViT", facts.second_encoder, facts.model_class),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

projector = DeepSeekOCRSession.from_local().model.model.projector
features = torch.empty(1, {q * q}, {d_in}, dtype=torch.bfloat16, device="meta")
assert projector(features).shape == (1, {q * q}, {d_out})""",
        notes="concatenated features to the decoder's width",
        references=("deepseekocr", "deepseekvl2"),
    )
    return [page]
