"""Runs a model's code: the settings and functions that it relies on, and what it raises.

The vendor's files are written for one GPU, one version of transformers and a full set of packages,
to which the process is adapted meanwhile.
"""

import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias

import torch
import transformers

from dsocr_analyze.errors import AnalyzeError, DeviceError, ModelCodeError, UncountableError
from dsocr_analyze.escaping import visible
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.known_values import (
    WITH_VALUES,
    KnownShapes,
    KnownValues,
    routed_uniformly,
)
from dsocr_analyze.model.process_settings import (
    Arguments,
    Function,
    FunctionMode,
    Keywords,
    Value,
    answered,
    discarding_stdout,
    exclusive,
    quiet_transformers,
    replaced,
    uncounted,
    without_unused_imports,
)

_TopK: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Values and indices."""

REMOTE_PACKAGE: Final = "dsocr_analyze_remote"
"""The package in which the files of every model directory are imported."""

_ARCHITECTURES: Final = "dsocr_analyze.architectures."


@contextlib.contextmanager
def running(
    device: torch.device,
    flash_attention: Callable[..., torch.Tensor] | None = None,
    *,
    has_weights: bool = False,
) -> Iterator[None]:
    """Sets up the environment for a model's forward pass on `device`.

    Args:
        device: Where the model's parameters are.
        flash_attention: Replaces `flash_attn_func` in the model's code, if given.
        has_weights: Whether the parameters are a checkpoint's; else routing is made uniform.
    """
    with running_unwatched(device, flash_attention, has_weights=has_weights), watched(device):
        yield


@contextlib.contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """Every operator can be seen, and on `meta` known values answer what asks for them."""
    with without_unused_imports(), contextlib.ExitStack() as stack:
        # Scripted functions run operator by operator: a fused kernel would hide its operators.
        optimize = torch._C._set_graph_executor_optimize  # of this thread only
        stack.callback(optimize, torch._C._get_graph_executor_optimize())
        optimize(False)
        if device.type == "meta":
            autocast = torch.amp.autocast_mode.autocast
            stack.enter_context(
                answered(autocast, "__init__", _autocast_anywhere(autocast.__init__))
            )
            stack.enter_context(KnownValues())
            stack.enter_context(KnownShapes())
        else:
            stack.enter_context(FunctionMode(_ended_if_interrupted))
        yield


def _ended_if_interrupted(func: Function, args: Arguments, kwargs: Keywords) -> Value:
    safe_point()
    return func(*args, **kwargs)


@contextlib.contextmanager
def running_unwatched(
    device: torch.device,
    flash_attention: Callable[..., torch.Tensor] | None = None,
    *,
    has_weights: bool = False,
) -> Iterator[contextlib.ExitStack]:
    """The same for timing: no mode sees the functions, and scripts run fused.

    `.cuda()` moves to the device under analysis.
    """
    with (
        exclusive(),
        discarding_stdout(),  # the vendor's forward prints feature shapes
        quiet_transformers(),
        torch.no_grad(),
        contextlib.ExitStack() as stack,
    ):
        if flash_attention is not None:
            # The loaded model's own files, files shared by built-in references, and transformers'.
            callers = [transformers.modeling_flash_attention_utils]
            for name, module in tuple(sys.modules.items()):
                is_shared = name.startswith(_ARCHITECTURES) and hasattr(module, "flash_attn_func")
                if name.startswith(f"{REMOTE_PACKAGE}.") or is_shared:
                    callers.append(module)
            for module in callers:
                stack.enter_context(answered(module, "flash_attn_func", flash_attention))
                if not hasattr(module, "_flash_supports_window_size"):
                    stack.enter_context(replaced(module, "_flash_supports_window_size", False))
        if device.type not in ("meta", "cuda"):
            stack.enter_context(
                answered(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor.to(device))
            )
        if device.type != "meta" and not has_weights:
            for owner in (torch, torch.Tensor):
                stack.enter_context(answered(owner, "topk", _uniform_top_k(owner.topk)))
        yield stack


def _uniform_top_k(top_k: Callable[..., _TopK]) -> Callable[..., _TopK]:
    """Deals the choices of a top-k to experts in turn, where scores are random."""

    def uniform(*args: Value, **kwargs: Value) -> _TopK:
        result = top_k(*args, **kwargs)
        with uncounted():
            result[1].copy_(routed_uniformly(result[1], args, kwargs)())
        return result

    return uniform


def _autocast_anywhere(original: Callable[..., None]) -> Callable[..., None]:
    """A constructor of autocast that enters CUDA's for `meta` without needing a GPU."""

    def __init__(  # noqa: N807 - replaces it
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        is_ours = device_type in ("cuda", "meta")
        device = "cuda" if is_ours else device_type
        # Disabled, CUDA's needs no GPU.
        original(self, device, dtype, enabled and not is_ours, cache_enabled)
        if is_ours:
            self._enabled = enabled

    return __init__


# --- failures, in one line: what failed, where, why and what to try -------------------------------

_LONGEST: Final = 200
"""Characters of an exception's own text."""

_OF_OTHERS: Final = sys.stdlib_module_names | {"dsocr_analyze", "torch", "utils"}

_WAYS_OUT: Final = (
    ("do not match", "place one token per feature: 'placed' under [prompt] in the stages file"),
    (
        "keyword argument|not used by the model",
        "correct its name under [inputs] in the stages file",
    ),
    ("required positional|specify", "describe what is missing under [inputs] in the stages file"),
    ("", "compare [prompt] and [inputs] in the stages file with what the processor returns"),
)
"""What to try if a stages file describes the model, by a pattern in the exception's text."""


@contextlib.contextmanager
def blamed_on(
    directory: ModelDirectory,
    what: str,
    device: str = "the device",
    module: torch.nn.Module | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Callable[[str], None]]:
    """Turns whatever model code raises into one line, with any doubt about the config.

    Yields what to call, instead of `on_progress`, with the name of each pass.

    Args:
        directory: The code's.
        what: What failed, such as "could not be built".
        device: Where it runs.
        module: The model, if it runs.
        on_progress: Called with the name of each pass as it starts.

    Raises:
        DeviceError: The device is out of memory.
        UncountableError: The trace refused what the model's code does.
        ModelCodeError: Anything else, even `SystemExit`, but this package's other errors.
    """
    running = ""

    def announce(name: str) -> None:
        nonlocal running
        running = name
        on_progress(name)

    try:
        yield announce
    except (Exception, SystemExit) as error:
        refuses = isinstance(error, ModelCodeError | UncountableError)
        if isinstance(error, AnalyzeError) and not refuses:
            raise
        where = visible(", ".join(filter(None, (running, *place_of(error, module)))))
        said = f"{where}: {_said(error)}" if where else _said(error)
        if is_out_of_memory(error):
            raise DeviceError(f"{device} has not enough memory: {said}") from error
        kind = UncountableError if isinstance(error, UncountableError) else ModelCodeError
        runs_described = module is not None and directory.described is not None
        way_out = _way_out(error, device, runs_described=runs_described)
        told = f"the model in {str(directory.path)!r} {what}: {said}"
        message = "; ".join(filter(None, (told, way_out, directory.doubt)))
        raise kind(message, arguments=["device='cpu'"]) from error


def _said(error: BaseException) -> str:
    """An exception's text on one line, after its class if that is not of this package."""
    text = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, AnalyzeError):
        return text
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return ": ".join(filter(None, (type(error).__name__, shown)))


def place_of(error: BaseException, module: torch.nn.Module | None) -> Iterator[str]:
    """The innermost module, and the innermost line of model code."""
    paths = {} if module is None else {each: path for path, each in module.named_modules()}
    chain = [each for each in (error.__cause__, error) if each is not None]
    frames = [each for one in chain for each in reversed([*traceback.walk_tb(one.__traceback__)])]
    for frame, _ in frames:
        inner = frame.f_locals.get("self")
        if isinstance(inner, torch.nn.Module) and (module is None or inner in paths):
            path, name = paths.get(inner), type(inner).__name__
            yield f"{path} ({name})" if path else name
            break
    for frame, line in frames:
        if _is_the_models(frame):
            yield f"{Path(frame.f_code.co_filename).name}:{line}"
            break


def _is_the_models(frame: FrameType) -> bool:
    """Whether it is the model's own code, or transformers' outside of `utils`."""
    name = str(frame.f_globals.get("__name__"))
    root = name.removeprefix("transformers.").partition(".")[0]
    return root not in _OF_OTHERS


def _way_out(error: BaseException, device: str, *, runs_described: bool) -> str:
    """What to try, if known; errors of this package say so themselves."""
    if isinstance(error, AnalyzeError):
        return ""
    text = str(error)
    *known, otherwise = [way for pattern, way in _WAYS_OUT if re.search(pattern, text)]
    if runs_described and known:
        return known[0]
    if device == "meta" and re.search(r"\bmeta\b", text, re.IGNORECASE):
        return WITH_VALUES
    return otherwise if runs_described else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device is out of memory; of the CPU, only the error's text tells."""
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("can't allocate memory", "std::bad_alloc"))
    )
