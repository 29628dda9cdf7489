"""The eager runtime: the host launches one kernel after the other.

They are sorted first, since a trace and the closed forms list them in different orders.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.kernels import Gemm, Kernel, Rows, path_order
from dsocr_analyze.timing.kernel_seconds import Duration, kernel_seconds, weight_bytes
from dsocr_analyze.timing.runtimes import Host

_US: Final = 1e-6


def launched(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The records in the assumed order: by module path, layers by number.

    Products without rows, as of an expert without tokens, launch nothing.
    """
    return sorted(
        (each for each in kernels if each.work.macs or not isinstance(each.dimensions, Gemm)),
        key=lambda k: (path_order(k.path), k.operator, k.dtype, k.dimensions, k.work),
    )


def eager_pass(
    stages: Mapping[str, Sequence[Kernel]], device: Device, host: Host
) -> dict[str, Duration]:
    """The stages of a prefill pass on one stream, each from the end of the previous one.

    Raises:
        DeviceError: The GPU lacks a data type.
    """
    between = sum(map(weight_bytes, stages.values()))
    return dict(zip(stages, _run(stages.values(), device, host, between), strict=True))


def eager_step(kernels: Sequence[Kernel], device: Device, host: Host, sequences: int) -> Duration:
    """A decode step of some sequences, and the work of `generate` before the next."""
    between = (host.step_us + host.sequence_us * sequences) * _US
    [step] = _run([kernels], device, host)
    return step.plus(Duration(host=between))


def _is_waited_for(kernel: Kernel) -> bool:
    """Whether the host reads the result: tokens per expert, or the outermost test for a blank page.

    Sums by which a router normalizes stay on the GPU.
    """
    if kernel.operator != "sum" or not isinstance(kernel.dimensions, Rows):
        return False
    is_whole = kernel.dimensions.rows == 1 and "." not in kernel.path
    return is_whole or kernel.dtype == "int64"


def _run(
    stages: Iterable[Sequence[Kernel]],
    device: Device,
    host: Host,
    weights_between: int | None = None,
) -> Iterator[Duration]:
    """The time of the kernels of each stage from the end of the previous one's."""
    launch, issued_until, ended = host.launch_us * _US, 0.0, 0.0
    for kernels in stages:
        priced = kernel_seconds(launched(kernels), device, weights_between=weights_between)
        calls = [each.calls for each in priced.kernels]
        if device.cpu is not None:  # an operator starts when the previous one has ended
            yield priced.duration(launches=launch * sum(calls))
            continue
        seconds, began, waited, first = priced.seconds, ended, 0.0, 0
        for number, kernel in enumerate(priced.kernels, 1):
            is_waited_for = _is_waited_for(kernel)
            if not is_waited_for and number < len(calls):
                continue
            some = np.repeat(seconds[first:number], calls[first:number])
            issued = issued_until + launch * np.arange(1, len(some) + 1, dtype=np.float64)
            issued_until = float(issued[-1])
            issued[0] = max(issued[0], ended)
            # A kernel starts when it is issued and the one before has ended.
            done = np.cumsum(some)
            ended, first = float(done[-1] + np.max(issued - (done - some))), number
            if is_waited_for:
                synchronized = kernel.calls * host.sync_us * _US
                issued_until = ended + synchronized
                waited += synchronized
        idle = max(0.0, ended - began - float((seconds * calls).sum()))
        yield priced.duration(launches=max(0.0, idle - waited), host=min(idle, waited))
