"""Papers that the pages cite."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["REFERENCES", "Reference"]


class Reference(NamedTuple):
    """A paper."""

    authors: str
    title: str
    year: int
    arxiv: str
    """arXiv identifier; empty if it is not on arXiv."""

    def as_markdown(self) -> str:
        """One line, with a link if there is one."""
        title = self.title
        if self.arxiv:
            title = f"[{title}](https://arxiv.org/abs/{self.arxiv})"
        return f"{self.authors} ({self.year}): {title}"


REFERENCES: Final[dict[str, Reference]] = {
    "deepseekocr": Reference(
        "Wei et al.", "DeepSeek-OCR: Contexts Optical Compression", 2025, "2510.18234"
    ),
    "deepseekocr2": Reference(
        "Wei et al.", "DeepSeek-OCR 2: Visual Causal Flow", 2026, "2601.20552"
    ),
    "unlimitedocr": Reference("Yin et al.", "Unlimited OCR Works", 2026, "2606.23050"),
    "qwen2": Reference("Yang et al.", "Qwen2 Technical Report", 2024, "2407.10671"),
    "deepseekv2": Reference(
        "DeepSeek-AI",
        "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model",
        2024,
        "2405.04434",
    ),
    "deepseekv3": Reference("DeepSeek-AI", "DeepSeek-V3 Technical Report", 2024, "2412.19437"),
    "deepseekvl2": Reference(
        "Wu et al.",
        "DeepSeek-VL2: Mixture-of-Experts Vision-Language Models for Advanced Multimodal"
        " Understanding",
        2024,
        "2412.10302",
    ),
    "sam": Reference("Kirillov et al.", "Segment Anything", 2023, "2304.02643"),
    "vitdet": Reference(
        "Li et al.",
        "Exploring Plain Vision Transformer Backbones for Object Detection",
        2022,
        "2203.16527",
    ),
    "mvit": Reference(
        "Li et al.",
        "MViTv2: Improved Multiscale Vision Transformers for Classification and Detection",
        2021,
        "2112.01526",
    ),
    "clip": Reference(
        "Radford et al.",
        "Learning Transferable Visual Models From Natural Language Supervision",
        2021,
        "2103.00020",
    ),
    "vit": Reference(
        "Dosovitskiy et al.",
        "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        2020,
        "2010.11929",
    ),
    "attention": Reference("Vaswani et al.", "Attention Is All You Need", 2017, "1706.03762"),
    "flash2": Reference(
        "Dao",
        "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
        2023,
        "2307.08691",
    ),
    "gqa": Reference(
        "Ainslie et al.",
        "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints",
        2023,
        "2305.13245",
    ),
    "rope": Reference(
        "Su et al.",
        "RoFormer: Enhanced Transformer with Rotary Position Embedding",
        2021,
        "2104.09864",
    ),
    "interpolation": Reference(
        "Chen et al.",
        "Extending Context Window of Large Language Models via Positional Interpolation",
        2023,
        "2306.15595",
    ),
    "yarn": Reference(
        "Peng et al.",
        "YaRN: Efficient Context Window Extension of Large Language Models",
        2023,
        "2309.00071",
    ),
    "swiglu": Reference("Shazeer", "GLU Variants Improve Transformer", 2020, "2002.05202"),
    "gelu": Reference(
        "Hendrycks and Gimpel", "Gaussian Error Linear Units (GELUs)", 2016, "1606.08415"
    ),
    "rmsnorm": Reference(
        "Zhang and Sennrich", "Root Mean Square Layer Normalization", 2019, "1910.07467"
    ),
    "layernorm": Reference("Ba et al.", "Layer Normalization", 2016, "1607.06450"),
    "keys": Reference(
        "Keys", "Cubic convolution interpolation for digital image processing", 1981, ""
    ),
}
"""References by the key that pages use."""
