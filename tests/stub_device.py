"""A GPU whose kernels take times that can be worked out by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dsocr_analyze.hardware.devices import Gpu


class StubFit(NamedTuple):
    """How well a kind is known."""

    median: float
    p90: float
    extrapolated: bool = False
    assumed: bool = False


class StubDevice:
    """Every product, attention, grouped experts and movement of bytes takes its own fixed time.

    Attributes:
        calls: Keyword arguments of every question, with the kind that was asked for.
    """

    def __init__(self, *, gemm=0.0, attention=0.0, experts=0.0, movement=0.0) -> None:
        self.seconds = {"gemm": gemm, "attention": attention, "experts": experts,
                        "movement": movement}  # fmt: skip
        self.gpu = Gpu("stub", "Stub", tensor_tflops=100, bandwidth_gb_s=1000, memory_gb=80,
                       source="", sms=100, l2_mb=50, float32_tflops=50)  # fmt: skip
        self.host = None
        self.cpu = None
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def is_measured(self, kind, dtype="bfloat16"):
        return False

    def fitted(self, kind, dtype="bfloat16", **_):
        return StubFit(0.1, 0.2)

    def _of(self, kind, sizes, keywords):
        self.calls.append((kind, keywords))
        return self.seconds[kind] * np.ones(np.broadcast_shapes(*map(np.shape, sizes)))

    def gemm_seconds(self, *sizes, **keywords):
        return self._of("gemm", sizes, keywords)

    def attention_seconds(self, *sizes, **keywords):
        return self._of("attention", sizes, keywords)

    def grouped_experts_seconds(self, *sizes, **keywords):
        return self._of("experts", sizes, keywords)

    def elementwise_seconds(self, *sizes, **keywords):
        return self._of("movement", sizes, keywords)

    def is_in_l2(self, nbytes, *, cold=False):
        return np.asarray(nbytes) < (0 if cold else 0.8 * self.gpu.l2_mb * 1e6)
