"""olmOCR: the vision transformer of Qwen2.5-VL, most of whose blocks attend within windows.

Source: `Qwen2_5_VisionTransformerPretrainedModel` and its parts of transformers 5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsocr_analyze.architectures.config_file import Config, ConfigKeys
from dsocr_analyze.architectures.neighbours.decoder import DenseDecoder, Rotary
from dsocr_analyze.architectures.neighbours.neighbour import ImageFeatures, Neighbour
from dsocr_analyze.architectures.neighbours.vision import (
    INT32,
    ImageGrid,
    Runs,
    VisionTransformer,
    axial_tables,
    mlp,
    patch_embed,
    patch_pixels,
    patch_positions,
    rotary_attention,
    sequence_ends,
    transformer_sizes,
)
from dsocr_analyze.architectures.ocr_family.attention import swiglu
from dsocr_analyze.architectures.ocr_family.dimensions import LARGEST_IMAGE
from dsocr_analyze.dtypes import BOOL, INT64
from dsocr_analyze.kernels import Elements, Rows, Work
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import rms_norm


@dataclass(frozen=True, slots=True)
class Qwen25Vision(VisionTransformer):
    """Dimensions of `Qwen2_5_VisionTransformerPretrainedModel`.

    Attributes:
        window: Tokens per side of a window.
        global_blocks: Blocks that attend over the whole image.
    """

    window: int
    global_blocks: tuple[int, ...]


class OlmOcr(Neighbour[Qwen25Vision]):
    """olmOCR."""

    has_videos = True

    def read_decoder(self, config: Config) -> DenseDecoder:
        """Reads a whole `config.json`, old or new; raises ConfigError."""
        keys = ConfigKeys(config)
        return DenseDecoder.from_config(
            keys if keys.value("text_config", None) is None else keys.section("text_config"),
            is_tied=keys.boolean("tie_word_embeddings", False),
            rotary=Rotary.SECTIONS,
            mrope_section=(16, 24, 24),
            attention_bias=True,
        )

    def read_vision(self, config: Config, out_width: int) -> Qwen25Vision:
        """Reads a whole `config.json`; raises ConfigError."""
        keys = ConfigKeys(config).section("vision_config")
        sizes = transformer_sizes(config, out_width)
        token = sizes["merge"] * sizes["patch_size"]
        window = keys.integer("window_size", least=token, most=LARGEST_IMAGE)
        blocks = keys.integers("fullatt_block_indexes", least=0, most=sizes["layers"] - 1)
        return Qwen25Vision(**sizes, window=window // token, global_blocks=blocks)

    def encode(self, t: Tape, images: ImageGrid, c: Qwen25Vision) -> ImageFeatures:
        """`[n, 3 taps] -> [n / m^2, d_out]`."""
        pixels = patch_pixels(t, images, c)
        tokens, before = t.call("model.visual", _visual, pixels, images, c)
        return ImageFeatures(tokens, kept=(before,))


def _visual(
    t: Tape, pixels: Operand, images: ImageGrid, c: Qwen25Vision
) -> tuple[Operand, Operand]:
    """The vision model: tokens, and features before they are merged."""
    n, windows = images.total, _windows(images, c)
    positions = patch_positions(t, images)
    ends = sequence_ends(t, images)
    index = _window_index(t, images, c)
    starts = _window_starts(t, images, windows, c)
    x = t.call("patch_embed", patch_embed, pixels, n, c, bias=False)
    x = t.gather("index", index, x.n, t.dtype)
    cos, sin = t.call("rotary_pos_emb", axial_tables, positions, c.head_dim)
    cos, sin = (t.gather("index", index, each.n, each.dtype) for each in (cos, sin))
    for number in range(c.layers):
        runs = images.runs if number in c.global_blocks else windows
        x = t.again(f"blocks.{number}", _block, x, cos, sin, runs, c)
    order = _order(t, index)
    tokens = t.call("merger", _merger, x, n, c)
    tokens = t.gather("index", order, tokens.n, t.dtype)
    t.hold(ends, starts)
    return tokens, x


def _block(t: Tape, x: Operand, cos: Operand, sin: Operand, runs: Runs, c: Qwen25Vision) -> Operand:
    """`y = x + attention(norm(x))`, `y + mlp(norm(y))` (`Qwen2_5_VLVisionBlock`)."""
    n, d = x.n // c.width, c.width
    residual = x
    x = t.call("norm1", rms_norm, x, n, d)
    x = t.call("attn", rotary_attention, x, cos, sin, runs, c.heads)
    residual = x = t.map("add", residual, x)
    x = t.call("norm2", rms_norm, x, n, d)
    x = t.call("mlp", swiglu, x, n, d, c.mlp_width, c.hidden_act, bias=True)
    return t.map("add", residual, x)


def _merger(t: Tape, x: Operand, n: int, c: Qwen25Vision) -> Operand:
    """Patches of a token side by side through an MLP (`Qwen2_5_VLPatchMerger`)."""
    joined = c.width * c.unit
    x = t.call("ln_q", rms_norm, x, n, c.width)
    return t.call("mlp", mlp, x, ("0", "1", "2"), n // c.unit, (joined, joined, c.out_width))


# --- windows ---------------------------------------------------------------------------------


def _windows(images: ImageGrid, c: Qwen25Vision) -> Runs:
    """Windows of all images, row by row; those at the right and lower edges are smaller."""
    tall, left = divmod(images.height // c.merge, c.window)
    wide, right = divmod(images.width // c.merge, c.window)
    runs: list[tuple[int, int]] = []
    for height in [c.window] * tall + [left] * (left > 0):
        runs += [(wide, height * c.window * c.unit)] * (wide > 0)
        runs += [(1, height * right * c.unit)] * (right > 0)
    return tuple(runs * images.count)


def _window_index(t: Tape, images: ImageGrid, c: Qwen25Vision) -> Operand:
    """The tokens in the order of windows, on the host (`get_vision_window_index`)."""
    h, w, W = images.height // c.merge, images.width // c.merge, c.window
    tokens, count = h * w, (h // W + 1) * (w // W + 1)
    padded = count * W * W
    host, flags = t.host(padded, INT64), t.host(padded, BOOL)
    parts: list[Operand] = []
    for _ in range(images.count):
        index = t.move("arange", n=tokens, dtype=INT64, into=t.host(tokens, INT64))
        index = t.move("constant_pad_nd", index, n=padded, into=host)
        if W > 1 and w >= W:
            index = t.move("clone", index, into=host)
        inside = t.map("ne", index, output=BOOL, into=flags)
        counts, *_ = t.rows(
            "reduction", "sum", inside, Rows(count, W * W), (count, INT64), flops=padded
        )
        inside = t.map("ne", index, output=BOOL, into=flags)
        chosen = t.host(t.gather("index", inside, tokens, INT64).n, INT64)
        parts.append(t.map("add", chosen, into=chosen))
        ends, *_ = t.rows(
            "reduction", "cumsum", counts, Rows(count, 1), (count, INT64), flops=count
        )
        t.map("add", t.map("mul", ends))
    return t.move("cat", *parts, n=images.count * tokens, into=t.host(images.count * tokens, INT64))


def _window_starts(t: Tape, images: ImageGrid, windows: Runs, c: Qwen25Vision) -> Operand:
    """Where each window starts and the last one ends, without the empty ones of the padding."""
    h, w, W = images.height // c.merge, images.width // c.merge, c.window
    given = 1 + images.count * (h // W + 1) * (w // W + 1)
    found = 1 + sum(count for count, _ in windows)
    work = Work(0, given, 0, given * INT32.nbytes, found * INT32.nbytes)
    t.record("reduction", "unique_consecutive", Elements(found), INT32, INT32, work)
    return t.empty(found, INT32)


def _order(t: Tape, index: Operand) -> Operand:
    """Where each token is among those in the order of windows, on the host."""
    n = index.n
    pair = (n, INT64), (n, INT64)
    t.rows("routing", "sort", index, Rows(1, n), *pair, flops=n * (n - 1).bit_length())
    return t.host(n, INT64)


OLMOCR: Final = OlmOcr(__file__)
