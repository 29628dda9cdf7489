"""Options for predicted seconds, and their meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.analysis import TimeRequest
from dsocr_analyze.cli import completion, options
from dsocr_analyze.cli.command_options import Added, adding
from dsocr_analyze.cli.kept_files import ProfileOption, user_profiles
from dsocr_analyze.cli.warnings import warn
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.timing.kernel_seconds import Precision
    from dsocr_analyze.timing.output_lengths import OutputLengths

__all__ = [
    "MOST_CONCURRENCY",
    "OF_EVERY_PREDICTION",
    "PANEL",
    "ReservedOption",
    "lengths_by_limit",
    "of_a_page",
    "precision_of",
    "profiles_named",
    "refuse_without_gpu",
    "request_from",
    "request_with_report",
    "time_request",
]

PANEL: Final = "Time"
MOST_CONCURRENCY: Final = 65_536
_MOST_POINTS: Final = 1_000
_SERVERS: Final = ("vllm", "vllm-v1", "vllm-v0", "sglang")
_FEWER_BITS: Final = ("bf16", "fp8", "int8", "int4")

_RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="LIST",
        autocompletion=completion.list_of("eager", "serving"),
        help="What runs the model: eager (its own code under generate), serving (a serving engine),"
        " or eager,serving for both.",
        rich_help_panel=PANEL,
    ),
]
_ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="|".join(_SERVERS),
        autocompletion=completion.one_of(*_SERVERS),
        help="Serving engine, which sets the host's time per step and per sequence.",
        rich_help_panel=PANEL,
    ),
]
_ConcurrencyOption = Annotated[
    str,
    typer.Option(
        "--concurrency",
        metavar="LIST",
        help="Pages in flight at a time: 1,4,16 or 1:64.",
        rich_help_panel=PANEL,
    ),
]
_PreprocessOption = Annotated[
    float | None,
    typer.Option(
        "--preprocess-ms",
        metavar="MS",
        help="CPU milliseconds per page before the model. Default: estimated from its pixels.",
        rich_help_panel=PANEL,
    ),
]
_WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers",
        metavar="N",
        help="Pages that the CPU prepares at a time.",
        rich_help_panel=PANEL,
    ),
]
_PriceOption = Annotated[
    float | None,
    typer.Option(
        "--price",
        metavar="AMOUNT",
        help="Price of a GPU-hour, in any currency.",
        rich_help_panel=PANEL,
    ),
]
_WeightsDtypeOption = Annotated[
    str | None,
    typer.Option(
        "--weights-dtype",
        metavar="|".join(_FEWER_BITS),
        autocompletion=completion.one_of(*_FEWER_BITS),
        help="Data type of the served decoder's linear weights. Default: the model's own.",
        rich_help_panel=PANEL,
    ),
]
_KvDtypeOption = Annotated[
    str | None,
    typer.Option(
        "--kv-dtype",
        metavar="|".join(_FEWER_BITS),
        autocompletion=completion.one_of(*_FEWER_BITS),
        help="Data type of the served decoder's KV cache. Default: the model's own.",
        rich_help_panel=PANEL,
    ),
]
_NewTokensFromOption = Annotated[
    Path | None,
    typer.Option(
        "--new-tokens-from",
        metavar="FILE",
        help="Lengths of real outputs, instead of --max-new-tokens: CSV or Parquet, column"
        " new_tokens.",
        rich_help_panel=PANEL,
    ),
]
_MeanTokensOption = Annotated[
    float | None,
    typer.Option(
        "--mean-new-tokens",
        metavar="TOKENS",
        help="Mean length of the pages that end on their own; the others run to --max-new-tokens.",
        rich_help_panel=PANEL,
    ),
]
_LimitShareOption = Annotated[
    float,
    typer.Option(
        "--share-at-limit",
        metavar="PART",
        help="Share of pages that repeat themselves up to --max-new-tokens, 0 to 1.",
        rich_help_panel=PANEL,
    ),
]
_OfflineOption = Annotated[
    bool,
    typer.Option(
        "--offline",
        help="The CPU prepares all pages before the first one runs, as offline scripts do.",
        rich_help_panel=PANEL,
    ),
]
ReservedOption = Annotated[
    float,
    typer.Option(
        "--reserved",
        metavar="PART",
        help="Fraction of the memory kept for the driver, the allocator and kernels, 0 to 1.",
        rich_help_panel=PANEL,
    ),
]
_CorrectionsOption = Annotated[
    int,
    typer.Option(
        "--corrections",
        metavar="0|1",
        autocompletion=completion.one_of("0", "1"),
        help="Whether to correct by the servers' benchmarks kept by time --from-benchmark.",
        rich_help_panel=PANEL,
    ),
]
_ServerVersionOption = Annotated[
    str | None,
    typer.Option(
        "--server-version",
        metavar="VERSION",
        help="Version of the serving engine whose benchmarks correct. Default: the last one kept.",
        rich_help_panel=PANEL,
    ),
]


OF_EVERY_PREDICTION: Final[Added] = {
    "server": (_ServerOption, "vllm"),
    "preprocess_ms": (_PreprocessOption, None),
    "workers": (_WorkersOption, 1),
    "price": (_PriceOption, None),
    "weights_dtype": (_WeightsDtypeOption, None),
    "kv_dtype": (_KvDtypeOption, None),
    "new_tokens_from": (_NewTokensFromOption, None),
    "mean_new_tokens": (_MeanTokensOption, None),
    "share_at_limit": (_LimitShareOption, 0.0),
    "offline": (_OfflineOption, False),
    "reserved": (ReservedOption, 0.1),
    "profile": (ProfileOption, None),
    "corrections": (_CorrectionsOption, 1),
    "server_version": (_ServerVersionOption, None),
}
"""Options of every command with predicted seconds."""


def time_request(
    gpu: Sequence[str],
    *,
    profile: Sequence[Path] | None,
    runtime: str,
    server: str,
    concurrency: str,
    preprocess_ms: float | None,
    workers: int,
    price: float | None,
    weights_dtype: str | None = None,
    kv_dtype: str | None = None,
    lengths: Callable[[int], OutputLengths] | None = None,
    reserved: float = 0.1,
    offline: bool = False,
    corrections: int = 1,
    server_version: str | None = None,
) -> TimeRequest:
    """The predictions requested by the options; raises AnalyzeError if they are impossible.

    `lengths` is as for `lengths_by_limit`; by default every page generates the most tokens it may.
    """
    from dsocr_analyze.cli.kept_files import corrections_asked_for
    from dsocr_analyze.timing.assumptions import JobAssumptions
    from dsocr_analyze.timing.kernel_seconds import NATIVE
    from dsocr_analyze.timing.output_lengths import OutputLengths
    from dsocr_analyze.timing.runtimes import EAGER, RUNTIMES, server_named

    given = (each.strip() for each in runtime.split(","))
    runtimes = list(dict.fromkeys(options.chosen("--runtime", each, RUNTIMES) for each in given))
    profiles = profiles_named(gpu, profile)
    host = server_named(server)
    lengths = lengths or OutputLengths.fixed
    precision = precision_of(weights_dtype, kv_dtype, runtimes)
    seconds = None if preprocess_ms is None else preprocess_ms / 1e3

    kept = corrections_asked_for(corrections, server_version, profiles, server)
    jobs = [
        JobAssumptions(EAGER, lengths, seconds, workers, NATIVE, reserved, price, offline)
        if each == "eager"
        else JobAssumptions(
            host, lengths, seconds, workers, precision, reserved, price, offline, kept
        )
        for each in runtimes
    ]
    return TimeRequest(profiles, jobs, _concurrencies(concurrency))


_TIME_OPTIONS: Final = (
    "runtime", "server", "concurrency", "deadline", "preprocess_ms", "workers", "price",
    "weights_dtype", "kv_dtype", "new_tokens_from", "mean_new_tokens", "share_at_limit",
    "reserved", "offline", "profile", "corrections", "server_version",
)  # fmt: skip


def refuse_without_gpu(context: typer.Context) -> None:
    """Raise for options that would have no effect."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name) if name in _TIME_OPTIONS else None
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            raise WorkloadError(
                f"{option} is for predicted seconds; give --gpu too, or leave it out"
            )


def of_a_page(
    *, gpu: str = "gpu", runtime: str, concurrency: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options for a page's predicted seconds to a command.

    Args:
        gpu: Name of the parameter set by `--gpu`.
        runtime: Default of `--runtime`.
        concurrency: Default of `--concurrency`.
    """
    return adding(
        {
            gpu: (options.GpuOption, None),
            "runtime": (_RuntimeOption, runtime),
            "concurrency": (_ConcurrencyOption, concurrency),
            **OF_EVERY_PREDICTION,
        }
    )


def request_with_report(context: typer.Context) -> TimeRequest | None:
    """The predictions requested in addition to a report; None without a GPU.

    Raises the errors of `time_request`.
    """
    gpus = context.params["gpu"]
    if not gpus:
        refuse_without_gpu(context)
        return None
    return request_from(context, gpus)


def request_from(
    context: typer.Context, gpus: Sequence[str], *, server: str | None = None
) -> TimeRequest:
    """The predictions requested by the options of `of_a_page`.

    Args:
        context: The command's context.
        gpus: The GPUs.
        server: The benchmarks' server, which replaces `--server` and `--server-version`.

    Raises:
        AnalyzeError: A value is invalid.
    """
    given = context.params
    lengths = lengths_by_limit(context)
    if given["max_new_tokens"] is not None:
        lengths(given["max_new_tokens"])  # raises before any work
    return time_request(
        gpus, profile=given["profile"], runtime=given["runtime"], server=server or given["server"],
        concurrency=given["concurrency"], preprocess_ms=given["preprocess_ms"],
        workers=given["workers"], price=given["price"], weights_dtype=given["weights_dtype"],
        kv_dtype=given["kv_dtype"], lengths=lengths, reserved=given["reserved"],
        offline=given["offline"], corrections=given["corrections"],
        server_version=None if server else given["server_version"],
    )  # fmt: skip


def profiles_named(gpu: Sequence[str], profile: Sequence[Path] | None) -> list[Profile]:
    """Profiles of the named GPUs, without duplicates; names may be comma-separated lists.

    Raises:
        DeviceError: There is no GPU with a name.
        WorkloadError: A name is empty.
    """
    from dsocr_analyze.hardware.devices import catalogue_name
    from dsocr_analyze.hardware.profile import all_profiles

    known = all_profiles(user_profiles(profile))
    names = dict.fromkeys(catalogue_name(name, known) for name in options.gpu_names(gpu))
    return [known[name] for name in names]


def precision_of(
    weights_dtype: str | None, kv_dtype: str | None, runtimes: Sequence[str]
) -> Precision:
    """Data types of a served decoder's weights and cache; raises WorkloadError if not served."""
    from dsocr_analyze.timing.kernel_seconds import NATIVE, Precision

    precision = Precision(_quantized(weights_dtype), _quantized(kv_dtype))
    if precision != NATIVE and "serving" not in runtimes:
        raise WorkloadError(
            "--weights-dtype and --kv-dtype are for --runtime serving; leave them out"
        )
    return precision


def _concurrencies(text: str) -> list[int]:
    from dsocr_analyze.sweep.axes import parse_numbers

    axis = parse_numbers("concurrency", text, 1, MOST_CONCURRENCY)
    if len(axis) > _MOST_POINTS:
        raise WorkloadError(
            f"--concurrency {text} has {len(axis)} values; give at most {_MOST_POINTS}"
        )
    import numpy as np

    return list(dict.fromkeys(axis.take(np.arange(len(axis))).tolist()))


def lengths_by_limit(context: typer.Context) -> Callable[[int], OutputLengths]:
    """A function from the maximum of new tokens to the distribution of output lengths.

    It warns of columns of a file that are not read.

    Raises:
        WorkloadError: The options contradict one another, or the file is not a list of lengths.
    """
    from dsocr_analyze.timing.length_files import read_lengths
    from dsocr_analyze.timing.output_lengths import OutputLengths

    file, mean, share_at_limit = (
        context.params[name] for name in ("new_tokens_from", "mean_new_tokens", "share_at_limit")
    )
    if file is not None:
        if mean is not None or share_at_limit:
            raise WorkloadError(
                "--new-tokens-from gives the output lengths; leave out --mean-new-tokens and"
                " --share-at-limit"
            )
        lengths = read_lengths(file, warn=lambda warning: warn(context, [warning]))
        return lambda _: lengths
    if mean is None and share_at_limit:
        raise WorkloadError(
            f"--share-at-limit {share_at_limit:g} needs --mean-new-tokens for the other pages"
        )
    if mean is None:
        return OutputLengths.fixed
    return lambda limit: OutputLengths.mean_and_limit(mean, limit, share_at_limit)


def _quantized(name: str | None) -> str | None:
    """The data type called `name`; None for 16 bits, the model's own."""
    from dsocr_analyze.hardware.timed_device import dtype_name

    full = None if name is None else dtype_name(name)
    return None if full in ("bfloat16", "float16") else full
