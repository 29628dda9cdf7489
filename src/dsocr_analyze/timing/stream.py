"""One stream: a kernel starts once it has been issued and the previous one has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.timing.span import Figure

    Floats = NDArray[np.float64]

__all__ = ["Stretch", "finish_times", "stretch_times"]


def finish_times(issued: Floats, device: Floats) -> Floats:
    """Time at which each kernel ends, `[n]`: `end_i = max(end_(i-1), issued_i) + device_i`.

    Args:
        issued: Time at which each was issued, `[n]`, ascending.
        device: Seconds of each, `[n]`.
    """
    import numpy as np

    done: Floats = np.cumsum(device)
    ends: Floats = done + np.maximum.accumulate(issued - (done - device))
    return ends


@dataclass(frozen=True)
class Stretch:
    """Many kernels, issued evenly; floats, or arrays with one element per workload.

    Attributes:
        device: Seconds of the kernels on the GPU.
        host: Seconds of issuing them.
    """

    device: Figure
    host: Figure


def stretch_times(stretches: Iterable[Stretch]) -> Iterator[Figure]:
    """Seconds from each stretch's end to the next one's, with the host issuing ahead of the GPU.

    A stretch ends once its kernels have run after the previous stretch, and no earlier than its
    last kernel is issued.
    """
    import numpy as np

    issued: Figure = 0.0
    end: Figure = 0.0
    for stretch in stretches:
        started = np.maximum(end, issued)
        issued = issued + stretch.host
        ended = np.maximum(started + stretch.device, issued)
        yield ended - end
        end = ended
