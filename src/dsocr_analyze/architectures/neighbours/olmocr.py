"""olmOCR: the vision transformer of Qwen2.5-VL, most of whose blocks attend within windows.

Source: `Qwen2_5_VisionTransformerPretrainedModel` and its parts of transformers 5.23.
"""

from dsocr_analyze.architectures.neighbours.vision import (
    ImageFeatures,
    ImageGrid,
    VisionTransformer,
    patch_embed,
    rotary_positions,
    vision_layer,
)
from dsocr_analyze.kernels import BOOL, INT32, INT64, Elements, Rows, Work
from dsocr_analyze.tape import Operand, Tape, ceil_log2
from dsocr_analyze.tape.modules import mlp, rms_norm


def visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
    """The vision model; features before they are merged stay alive."""
    index, starts, windows = _window_index(t, images, c)
    x = t.call("patch_embed", patch_embed, images, c, bias=False)
    x = t.gather("index", index, x.n, t.dtype)
    cos, sin, *held = rotary_positions(t, images, c)
    cos, sin = (t.gather("index", index, each.n, each.dtype) for each in (cos, sin))
    for number in range(c.layers):
        lengths = images.lengths if number in c.global_layers else windows
        x = t.again(f"blocks.{number}", vision_layer, x, c, lengths, cos, sin)
    n = index.n  # on the host
    t.rows("routing", "sort", index, Rows(1, n), (n, INT64), (n, INT64), flops=n * ceil_log2(n))
    tokens = t.call("merger", _merger, x, c)
    tokens = t.gather("index", index, tokens.n, t.dtype)
    return t.hold(ImageFeatures(tokens, kept=(x,)), *held, starts)


def _merger(t: Tape, x: Operand, c: VisionTransformer) -> Operand:
    """Patches of a token side by side through an MLP (`Qwen2_5_VLPatchMerger`)."""
    joined = c.width * c.unit
    x = t.call("ln_q", rms_norm, x, x.n // c.width, c.width)
    return t.call("mlp", mlp, x, ("0", "1", "2"), (joined, joined, c.out_width))


# --- windows ---------------------------------------------------------------------------------


def _window_index(
    t: Tape, images: ImageGrid, c: VisionTransformer
) -> tuple[Operand, Operand, tuple[int, ...]]:
    """Tokens in the order of windows, on the host; where each window starts; patches of each.

    Windows at the right and lower edges are smaller.

    Source: `get_vision_window_index`.
    """
    N, h, w, W = images.count, images.height // c.merge, images.width // c.merge, c.window
    tokens, count = h * w, (h // W + 1) * (w // W + 1)
    padded = count * W * W
    host, flags, counts = t.host(padded, INT64), t.host(padded, BOOL), (count, INT64)
    parts: list[Operand] = []
    for _ in range(N):
        index = t.move("arange", n=tokens, dtype=INT64, into=t.host(tokens, INT64))
        t.move("constant_pad_nd", index, n=padded, into=host)
        if W > 1 and w >= W:
            t.move("clone", host, into=host)
        inside = t.map("ne", host, output=BOOL, into=flags)
        sizes, *_ = t.rows("reduction", "sum", inside, Rows(count, W * W), counts, flops=padded)
        inside = t.map("ne", host, output=BOOL, into=flags)
        t.gather("index", inside, tokens, INT64)
        parts.append(t.map("add", index, into=index))
        t.map("add", t.map("mul", t.reduce("cumsum", sizes, count, 1)))
        del sizes
    index = t.move("cat", *parts, n=N * tokens, into=t.host(N * tokens, INT64))
    heights, widths = ([min(W, side - i) for i in range(0, side, W)] for side in (h, w))
    windows = tuple(rows * columns * c.unit for rows in heights for columns in widths) * N
    given, found = 1 + N * count, 1 + len(windows)
    work = Work(0, given, 0, given * INT32.nbytes, found * INT32.nbytes)
    t.record("reduction", "unique_consecutive", Elements(found), INT32, INT32, work)
    return index, t.empty(given, INT32), windows  # `found` of them, in memory for all
