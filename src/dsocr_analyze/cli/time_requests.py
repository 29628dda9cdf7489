"""The predicted seconds that options ask for; imported where there are any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from dsocr_analyze.archive.axes import parse_numbers
from dsocr_analyze.cli import kept_files, options, words
from dsocr_analyze.errors import WorkloadError, chosen, did_you_mean, refuse
from dsocr_analyze.hardware.devices import catalogue_name
from dsocr_analyze.hardware.timed_device import STORED_BITS, dtype_name
from dsocr_analyze.report.table import percent_text
from dsocr_analyze.timing import MOST_CONCURRENCY, SECONDS_PER_HOUR, runtimes
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths
from dsocr_analyze.timing.predict import Concurrency, TimeRequest

if TYPE_CHECKING:
    from dsocr_analyze.archive.seconds import TimeRequested
    from dsocr_analyze.hardware.timed_device import Device

_MOST_POINTS: Final = 1_000
_MOST_CHUNK: Final = 1 << 20
DEFAULTS: Final = {name: default for name, (_, default) in options.SECONDS_OF_A_PAGE.items()}
"""Values of `options.SECONDS_OF_A_PAGE`."""


def time_request(
    gpus: Sequence[str],
    given: Mapping[str, Any],
    lengths: Callable[[int], OutputLengths] = OutputLengths.fixed,
) -> TimeRequest:
    """The predictions that values of `options.SECONDS_OF_A_PAGE` ask for.

    Missing ones are the defaults. Raises AnalyzeError.
    """
    asked = {**DEFAULTS, **given}
    names = [
        chosen("runtime", name.strip(), runtimes.RUNTIMES) for name in asked["runtime"].split(",")
    ]
    known = kept_files.gpu_profiles(asked["profile"])
    found = [catalogue_name(name, known) for name in options.gpu_names(gpus)]
    profiles = [known[name] for name in dict.fromkeys(found)]
    serving = serving_from(asked)
    _, precision, _, limits = serving
    if limits is not None and "serving" not in names:
        wrong = next(name for name in options.SERVER_LIMITS if asked[name] is not None)
        raise WorkloadError(
            f"{wrong} is for runtime='serving'; leave it out", arguments=[wrong, "runtime"]
        )
    if precision != runtimes.NATIVE and "serving" not in names:
        raise WorkloadError(
            "weights_dtype and kv_dtype are for runtime='serving'; leave them out",
            arguments=["weights_dtype", "kv_dtype", "runtime"],
        )
    corrections = kept_files.select_corrections(
        asked["corrections"], asked["server_version"], profiles, asked["server"]
    )
    seconds = None if asked["preprocess_ms"] is None else asked["preprocess_ms"] / 1e3
    points = _concurrencies(asked["concurrency"])
    workers = 1 if asked["workers"] is None else asked["workers"]
    plans_workers = asked["workers"] is None and not all(isinstance(each, int) for each in points)
    eager: Serving = runtimes.EAGER, runtimes.NATIVE, asked["reserved"], None
    runs = {"eager": eager, "serving": serving}
    price = asked["price"]
    prices = _prices(price, profiles, known) if isinstance(price, Mapping) else {}
    jobs = [
        Assumptions(
            runtime, lengths, seconds, workers, stored, reserved, None if prices else price,
            asked["offline"], corrections, limits=limited, plans_workers=plans_workers,
            prices_per_hour=prices,
        )
        for runtime, stored, reserved, limited in map(runs.__getitem__, dict.fromkeys(names))
    ]  # fmt: skip
    return TimeRequest(profiles, jobs, points)


def priced_gpus(price: float | Mapping[str, float] | None) -> list[str]:
    """The GPUs that a price names, if it does."""
    return [*price] if isinstance(price, Mapping) else []


def _prices(
    given: Mapping[str, float], profiles: Sequence[Device], known: Mapping[str, Device]
) -> dict[str, float]:
    """The price of each GPU by its name in the catalogue; raises AnalyzeError."""
    prices = {catalogue_name(name, known): price for name, price in given.items()}
    names = [each.gpu.name for each in profiles]
    wrong = ""
    if len(prices) < len(given):
        wrong = f"names a GPU twice: {', '.join(given)}; give each one price"
    elif lacking := [name for name in names if name not in prices]:
        wrong = f"has no amount for {lacking[0]}; add one, like {lacking[0]}:2.5"
    elif unasked := [name for name in prices if name not in names]:
        wrong = f"names {unasked[0]}, which gpu does not; add it there, or leave it out here"
    if wrong:
        raise WorkloadError(f"price {wrong}", arguments=["price", "gpu"])
    return prices


Serving: TypeAlias = tuple[runtimes.Host, runtimes.Precision, float, str | None]
"""An engine with its limits, its types, the fraction of memory left free, and the given limits in
the engine's words."""


def serving_from(asked: Mapping[str, Any]) -> Serving:
    """A serving engine by the command's parameters; raises WorkloadError."""
    host = runtimes.SERVERS[chosen("server", asked["server"], runtimes.SERVERS)]
    share, most, chunk = (asked[name] for name in options.SERVER_LIMITS)
    reserved = asked["reserved"] if share is None else 1 - share
    refuse(
        WorkloadError,
        (most is not None and not 1 <= most <= MOST_CONCURRENCY,
         f"max_num_seqs {most} is out of range; give 1 to {MOST_CONCURRENCY}"),
        (chunk is not None and not 1 <= chunk <= _MOST_CHUNK,
         f"max_num_batched_tokens {chunk} is out of range; give 1 to {_MOST_CHUNK}"),
        (share is not None and not 0 < share <= 1,
         f"gpu_memory_utilization {share or 0:g} is out of range; give a part above 0, at most 1"),
        (share is not None and asked["reserved"] != DEFAULTS["reserved"],
         f"gpu_memory_utilization {share or 0:g} leaves {reserved:.4g} of the memory free; leave"
         f" out reserved={asked['reserved']:g}"),
        (host.engine == "vllm" and most and chunk and chunk < most,
         f"vLLM refuses max_num_batched_tokens {chunk} below max_num_seqs {most}; give {most} or"
         " more"),
        arguments=[*options.SERVER_LIMITS, "reserved"],
    )  # fmt: skip
    host = replace(host, chunk_tokens=chunk or host.chunk_tokens, most_sequences=most)
    types: list[str | None] = []
    for option in ("weights_dtype", "kv_dtype"):
        given = asked[option]
        name = None if given is None else dtype_name(given)
        if name in (None, "bfloat16", "float16"):
            types.append(None)  # the model's own
        elif name in STORED_BITS:
            types.append(name)
        else:
            raise WorkloadError(
                f"{option} {given!r} is unknown; {did_you_mean(given, ('bf16', *STORED_BITS))}use"
                " bf16, fp8, int8 or int4",
                arguments=[option],
            )
    limits = None if share is most is chunk is None else host.limits(reserved)
    return host, runtimes.Precision(*types), reserved, limits


def _concurrencies(text: str) -> list[Concurrency]:
    """The distinct values of `concurrency`: numbers and ranges, `knee` and `max`."""
    items = [each.strip() for each in text.split(",")]
    named: list[Concurrency] = [each for each in ("knee", "max") if each in map(str.lower, items)]
    others = [each for each in items if each.lower() not in named]
    for item in filter(str.isalpha, others):
        raise WorkloadError(
            f"concurrency {item!r} is unknown; {did_you_mean(item, ('knee', 'max'))}give numbers"
            f" from 1 to {MOST_CONCURRENCY} or ranges, like 1,4,16 or 1:64, knee or max",
            arguments=["concurrency"],
        )
    numbers = ",".join(others)
    points: list[Concurrency] = []
    if numbers or not named:
        points = parse_numbers(
            "concurrency", numbers, 1, MOST_CONCURRENCY, ", knee or max"
        ).tolist()
    if len(points) > _MOST_POINTS:
        raise WorkloadError(
            f"concurrency {text} is too many values; give at most {_MOST_POINTS}",
            arguments=["concurrency"],
        )
    return [*dict.fromkeys(points), *named]


def request_from(
    context: typer.Context, gpus: Sequence[str], *, server: str | None = None
) -> TimeRequest:
    """The predictions of a page that a command's options ask for; raises AnalyzeError.

    The `server` of a benchmark replaces `--server` and `--server-version`.
    """
    lengths, most = lengths_asked(context), context.params["max_new_tokens"]
    if most is not None:
        lengths(most)  # raises before any work
    instead = {} if server is None else {"server": server, "server_version": None}
    return time_request(gpus, {**context.params, **instead}, lengths)


def many_pages_requested(
    given: Mapping[str, Any], gpus: Sequence[str], lengths: Callable[[int], OutputLengths]
) -> TimeRequested:
    """The predictions of many pages that values of `options.SECONDS_OF_A_PAGE` ask for.

    `lengths` are those of outputs, by their limit. Raises AnalyzeError.
    """
    from dsocr_analyze.archive.seconds import TimeRequested

    request = time_request(gpus, {**given, "concurrency": "1"}, lengths)
    mean, plans_workers = given["mean_new_tokens"], given["workers"] is None
    job = replace(request.jobs[0], plans_workers=plans_workers)
    said = "every page generates the most tokens it may"
    if lengths_are_given(given):
        said = job.lengths(1).sentence if mean is None else (
            f"pages that end on their own generate {mean:g} tokens on average;"
            f" {100 * given['share_at_limit']:g} % of pages generate the most tokens they may"
        )  # fmt: skip
        said += "; FLOPs and bytes are counted for the most tokens that pages may generate"
    return TimeRequested(request.profiles, job, said)


def lengths_asked(context: typer.Context) -> Callable[[int], OutputLengths]:
    """Output lengths by the most tokens that a page may generate."""
    given = context.params
    file, mean, share = given["new_tokens_from"], given["mean_new_tokens"], given["share_at_limit"]
    if file is not None:
        if mean is not None or share:
            raise WorkloadError(
                "--new-tokens-from gives the output lengths; leave out --mean-new-tokens and"
                " --share-at-limit"
            )
        from dsocr_analyze.row_files import spare_pandas
        from dsocr_analyze.timing.length_files import read_lengths

        spare_pandas()
        lengths = read_lengths(file, warn=lambda warning: words.warn(context, [warning]))
        limit = str(given["max_new_tokens"])  # a list in a sweep
        is_given = "max_new_tokens" in options.given_options(context) and limit.isdecimal()
        if is_given and lengths.longest > int(limit):
            words.warn(context, [
                f"{percent_text(lengths.share_above(int(limit)))} of the lengths in {str(file)!r}"
                f" are above --max-new-tokens {limit}, up to {lengths.longest:,}; seconds are those"
                " of all lengths"
            ])  # fmt: skip
        return lambda _: lengths
    return lengths_by_limit(given)


def lengths_by_limit(given: Mapping[str, Any]) -> Callable[[int], OutputLengths]:
    """The same by their mean and the share of pages that run to the limit; or the limit itself."""
    mean, share = given["mean_new_tokens"], given["share_at_limit"]
    if mean is not None:
        return lambda limit: OutputLengths.mean_and_limit(mean, limit, share)
    if share:
        raise WorkloadError(
            f"share_at_limit {share:g} needs mean_new_tokens for the other pages",
            arguments=["share_at_limit", "mean_new_tokens"],
        )
    return OutputLengths.fixed


def lengths_without_repetition(
    given: Mapping[str, Any],
) -> Callable[[int], OutputLengths] | None:
    """Output lengths if no page repeated itself to its limit; None if none does."""
    return lengths_by_limit({**given, "share_at_limit": 0.0}) if given["share_at_limit"] else None


def lengths_are_given(given: Mapping[str, Any]) -> bool:
    """Whether options give more than the longest output."""
    return not (given["new_tokens_from"] is None and given["mean_new_tokens"] is None)


def deadline_hours(text: str) -> float:
    """Hours of a deadline like 90m, 12h, 3d, or a number of hours; raises WorkloadError."""
    if not (hours := words.seconds_in(text, "h") / SECONDS_PER_HOUR):
        raise WorkloadError(
            f"--deadline {text!r} is invalid; {words.meant_point(text)}give a time above 0 like"
            " 90m, 12h, 3d, or hours"
        )
    return hours
