"""One stream: a kernel starts when it has been issued and the one before it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Stretch", "finish_times", "stretch_times"]


def finish_times(issued: Floats, device: Floats) -> Floats:
    """When each kernel ends, `[n]`: `end_i = max(end_(i-1), issued_i) + device_i`.

    Args:
        issued: When each was issued, `[n]`, ascending.
        device: Seconds that each takes, `[n]`.
    """
    import numpy as np

    done: Floats = np.cumsum(device)
    ends: Floats = done + np.maximum.accumulate(issued - (done - device))
    return ends


@dataclass(frozen=True)
class Stretch:
    """Many kernels, issued evenly; floats, or arrays with one element per workload.

    Attributes:
        device: Seconds that they take on the GPU.
        host: Seconds that issuing them takes.
    """

    device: Any
    host: Any


def stretch_times(stretches: Iterable[Stretch]) -> Iterator[Any]:
    """Seconds from one stretch's end to the next's, where the host issues ahead of the GPU.

    A stretch ends no earlier than its kernels' time after the one before it, and no earlier than
    its last kernel is issued.
    """
    import numpy as np

    issued: Any = 0.0
    end: Any = 0.0
    for stretch in stretches:
        started = np.maximum(end, issued)
        issued = issued + stretch.host
        ended = np.maximum(started + stretch.device, issued)
        yield ended - end
        end = ended
