"""GOT-OCR2: SAM's encoder on one square view, and a projector of two strided convolutions.

Source: `GotOcr2VisionEncoder`, `GotOcr2MultiModalProjector` and their parts of transformers 5.23.
"""

from functools import partial

from dsocr_analyze.architectures.neighbours.vision import (
    ImageFeatures,
    ImageGrid,
    VisionTransformer,
    patch_embed,
)
from dsocr_analyze.architectures.ocr_family.vision import (
    neck,
    position_terms,
    sam_layer,
)
from dsocr_analyze.kernels import Gemm
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import conv2d, layer_norm, linear


def visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
    """N views, `[N, 3, R, R] -> [N, C, g, g]` (`GotOcr2VisionEncoder`)."""
    N, g, d = images.count, c.side, c.width
    x = t.call(
        "patch_embed", patch_embed, images, c, child="projection", operator="conv2d", together=g * g
    )
    x = t.map("add", x, t.weight(g * g * d, "pos_embed"))
    for index in range(c.layers):
        x = t.again(
            f"layers.{index}", sam_layer, x, N, g, c, _attention, c.mlp_width, c.hidden_act,
            is_global=index in c.global_layers, norms=("layer_norm1", "layer_norm2"), copies=True,
        )  # fmt: skip
    # Of what the first norm copies, the second convolution keeps the layout.
    norms = partial(layer_norm, channels_first=True), layer_norm
    names = "conv1", "layer_norm1", "conv2", "layer_norm2"
    return ImageFeatures(t.call("neck", neck, x, N, g, d, c.channels, names, norms))


def project(t: Tape, x: Operand, images: ImageGrid, c: VisionTransformer) -> Operand:
    """`[N, C, g, g] -> [N, (g / 4)^2, d_out]` (`GotOcr2MultiModalProjector`)."""
    N, g, C, d = images.count, c.side, c.channels, c.out_width
    x = t.call("conv_upsampler1", conv2d, x, N, g, C, 2 * C, 3, stride=2, padding=1)
    x = t.call("conv_upsampler2", conv2d, x, N, g // 2, 2 * C, d, 3, stride=2, padding=1)
    return t.call("multimodal_projector", linear, x, x.n // d, d, d, bias=True)


# --- a layer ---------------------------------------------------------------------------------


def _attention(
    t: Tape, x: Operand, N: int, g: int, c: VisionTransformer, _: bool
) -> tuple[Operand, Operand]:
    """`softmax(q k^T / sqrt(D) + q R_h + q R_w) v` of N views or windows, and its weights.

    They have g x g tokens, and tables of their own, in windows or not.
    """
    d, H, D, T = c.width, c.heads, c.width // c.heads, g * g
    fused = t.call("qkv", linear, x, N * T, d, 3 * d, bias=True)
    # Heads go next to the batch: a copy if there are several of both.
    qkv = t.move("clone", fused) if H > 1 and N > 1 else fused
    q, k, v = (t.view(qkv, N * T * d) for _ in range(3))
    weights = t.product("matmul", Gemm(N * H, T, T, D), t.map("mul", q), k)
    (terms,) = position_terms(t, q, N, g, c, 2 * g - 1, of_transformers=True)
    terms = t.move("clone", terms) if H > 1 or N > 1 else terms
    weights = t.map("add", weights, terms)
    weights = t.cast(t.softmax(weights, N * H * T, T), t.dtype)
    heads = t.product("matmul", Gemm(N * H, T, D, T), weights, v)
    if H > 1:
        heads = t.move("clone", heads)
    output = t.call("proj", linear, heads, N * T, d, d, bias=True)
    return t.hold((output, weights), fused, qkv, terms)
