"""Time the vendor's `infer()` on one image, pass by pass and stage by stage."""

import contextlib
import functools
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
import transformers
from PIL import Image

from dsocr_analyze.architectures.architecture import Architecture, ForwardInputs
from dsocr_analyze.errors import (
    ConfigError,
    ModelCodeError,
    ModelDirectoryError,
    PageError,
    WorkloadError,
)
from dsocr_analyze.input_files import opened
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.measuring.machine import allocated_at_most, kept_memory, timer_of
from dsocr_analyze.measuring.passes import Laps, StageClock
from dsocr_analyze.model.directory import (
    ModelDirectory,
    tokenizer_read,
)
from dsocr_analyze.model.forward import blamed_on, running_unwatched
from dsocr_analyze.model.generation import flash_attention, left_as_it_was
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.model.process_settings import (
    Value,
    answered,
    exclusive,
    is_missing,
    quiet_transformers,
    replaced,
)
from dsocr_analyze.workload import IMAGE_TOKEN, PageWorkload, ViewBatch, text_parts

RunPass = Callable[[Callable[[], Value]], Value]
"""Runs a pass."""


@dataclass(frozen=True)
class InferArguments:
    """What `infer()` is asked.

    Attributes:
        page: Whose sizes it is given.
        output_path: Where `infer()` creates folders of its own.
        most_tokens: None for `infer()`'s own limit.

    Raises:
        WorkloadError: The prompt does not contain `IMAGE_TOKEN` once.
    """

    image_file: Path
    prompt: str
    page: PageWorkload
    output_path: Path
    save_results: bool = False
    most_tokens: int | None = None

    def __post_init__(self) -> None:
        count = self.prompt.count(IMAGE_TOKEN)
        if count != 1:  # infer() would not run one page with its text
            raise WorkloadError(
                f"prompt {self.prompt!r} contains {IMAGE_TOKEN} {count} times; give it once, where"
                " the page belongs",
                arguments=["prompt"],
            )


def check_image(file: Path) -> None:
    """Raise PageError if an image's pixels cannot be read."""
    try:
        with opened(file) as content, Image.open(content) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise PageError(f"cannot read image {str(file)!r}: {error}") from error


class PassShape(NamedTuple):
    """What decides the cost of a prefill pass."""

    batch_size: int
    seq_len: int
    visual_tokens: int
    """Of those per prompt."""
    grid: tuple[int, int]
    """Columns and rows of local views."""
    views: tuple[ViewBatch, ...]
    """One batch per vision call."""

    @classmethod
    def planned(cls, workload: PageWorkload) -> Self:
        """Of the counted pass."""
        return cls(*(getattr(workload, name) for name in cls._fields))

    @classmethod
    def given(cls, inputs: ForwardInputs) -> Self:
        """Of a pass with these arguments of the model's forward."""
        ids, ((patches, overview), *_) = inputs["input_ids"], inputs["images"]
        columns, rows = (int(side) for side in inputs["images_spatial_crop"][0])
        # The model's code skips blank pixels, which it recognizes by a sum of 0.
        seen = [each for each in (patches, overview) if torch.sum(each).item() != 0]
        return cls(
            batch_size=ids.shape[0],
            seq_len=ids.shape[1],
            visual_tokens=int(inputs["images_seq_mask"][0].sum()),
            grid=(columns, rows),
            views=tuple(ViewBatch(each.shape[0], each.shape[-1]) for each in seen),
        )


@dataclass(frozen=True)
class MeasuredInference:
    """Result and times of one call of `infer()`.

    Attributes:
        ran: Its prefill pass.
        text: Without the end token.
        tokens: Generated, with the end token.
        prefill: Seconds by stage.
        steps: Seconds of each decode step.
        preprocess_seconds: Before `generate`.
        generate_seconds: All passes and the time between them.
        peak_bytes: Of the prefill pass, without weights and inputs.
    """

    ran: PassShape
    text: str
    tokens: int
    prefill: Mapping[str, float]
    steps: tuple[float, ...]
    preprocess_seconds: float
    generate_seconds: float
    infer_seconds: float
    peak_bytes: int

    def differences(self, counted: PageWorkload) -> tuple[str, ...]:
        """Where its passes differ from those counted, in lines."""
        names = (*PassShape._fields, "decode steps")
        measured = (*self.ran, len(self.steps))
        planned = (*PassShape.planned(counted), counted.max_new_tokens - 1)
        return tuple(
            f"infer() ran with {name} {_text(ran)}, but {_text(count)} was counted"
            for name, ran, count in zip(names, measured, planned, strict=True)
            if ran != count
        )

    @property
    def prefill_seconds(self) -> float:
        """Of the prefill pass."""
        return sum(self.prefill.values())


def _text(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if all(isinstance(each, ViewBatch) for each in value):
        return " + ".join(f"{each.count} x {each.resolution}\u00b2" for each in value) or "none"
    return " x ".join(map(str, value))


def measure_inference(
    model: LoadedModel,
    tokenizer: transformers.PreTrainedTokenizerFast,
    question: InferArguments,
    architecture: Architecture,
    *,
    on_progress: Callable[[str, float | None], None] = lambda _, __: None,
) -> MeasuredInference:
    """Call a model's `infer()`: once for the memory of its prefill pass, then for its seconds.

    `on_progress` is called with what begins, and the share of the most tokens that there is.

    Raises:
        ConfigError: The model has no `infer()`.
        ModelCodeError: Its code raised, or does not generate like the published code.
        DeviceError: The device ran out of memory.
    """
    if not callable(getattr(model.module, "infer", None)):
        raise ConfigError(
            f"{type(model.module).__name__} in {str(model.directory.path)!r} has no infer(); give a"
            " directory of DeepSeek-OCR, DeepSeek-OCR-2 or Unlimited-OCR"
        )
    device = model.device
    with (
        exclusive(),
        kept_memory(device),
        blamed_on(
            model.directory, f"failed in infer() on {device}", str(device), model.module
        ) as announce,
        left_as_it_was(model.module.modules()),
        _inferring(model),
    ):  # fmt: skip
        announce("memory of the prefill pass")
        on_progress("memory of the prefill pass", None)
        peak_bytes = _peak_bytes(model, tokenizer, question)
        clock = StageClock(model.module, architecture.stages, timer_of(device))
        passes: list[Laps] = []

        def timed(forward: Callable[[], Value]) -> Value:
            step, most = f"infer(), token {len(passes) + 1}", question.most_tokens
            announce(step)
            on_progress(
                step if most is None else f"{step} of at most {most}",
                # Once the prefill pass is over, which is no measure of the steps.
                None if most is None or not passes else (len(passes) - 1) / most,
            )
            clock.is_decoding = bool(passes)  # the first is the prefill pass
            clock.begin()
            output = forward()
            passes.append(clock.finish())
            return output

        with clock.attached():
            ran, times, ids = _called(model, tokenizer, question, timed)
        prefill, *steps = map(clock.seconds, passes)
    began, generate_began, generate_ended, ended = times
    text: str = tokenizer.decode(
        ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids, skip_special_tokens=False
    )
    return MeasuredInference(
        ran=ran,
        text=text.strip(),
        tokens=len(ids),
        prefill=prefill,
        steps=tuple(sum(step.values()) for step in steps),
        preprocess_seconds=generate_began - began,
        generate_seconds=generate_ended - generate_began,
        infer_seconds=ended - began,
        peak_bytes=peak_bytes,
    )


def _peak_bytes(
    model: LoadedModel, tokenizer: transformers.PreTrainedTokenizerFast, question: InferArguments
) -> int:
    peaks: list[int] = []

    def weighed(forward: Callable[[], Value]) -> Value:
        peak, output = allocated_at_most(model.device, forward)
        peaks.append(peak)
        return output

    alone = replace(question, save_results=False, most_tokens=1)
    # On CUDA, the first pass also allocates what libraries keep.
    for _ in range(2 if model.device.type == "cuda" else 1):
        peaks.clear()
        _called(model, tokenizer, alone, weighed)
    return peaks[0]


def _called(
    model: LoadedModel, tokenizer: transformers.PreTrainedTokenizerFast, question: InferArguments,
    run_pass: RunPass,
) -> tuple[PassShape, list[float], list[int]]:  # fmt: skip
    """Call `infer()`; `run_pass` runs the model's forward.

    Returns its prefill pass, when it and its `generate` began and ended, and the new tokens.
    """
    module: Any = model.module
    timer, generate, forward = timer_of(model.device), module.generate, module.forward
    times: list[float] = []
    shapes: list[PassShape] = []
    new_ids: list[int] = []

    def note_time() -> None:
        timer.wait()
        times.append(time.perf_counter())

    @functools.wraps(generate)
    def watched_generate(*args: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if question.most_tokens is not None:
            kwargs.pop("max_length", None)  # Unlimited-OCR's name for the limit
            kwargs["max_new_tokens"] = question.most_tokens
        note_time()
        ids: torch.Tensor = generate(*args, **kwargs)
        note_time()
        prompt = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        new_ids[:] = ids[0, prompt.shape[1] :].tolist()
        return ids

    @functools.wraps(forward)
    def watched_forward(*args: Value, **kwargs: Any) -> Value:
        safe_point()
        if not shapes:
            shapes.append(PassShape.given(kwargs))
        return run_pass(functools.partial(forward, *args, **kwargs))

    with (
        replaced(module, "generate", watched_generate),
        replaced(module, "forward", watched_forward),
    ):
        note_time()
        module.infer(
            tokenizer,
            prompt=question.prompt,
            image_file=str(question.image_file),
            output_path=str(question.output_path),
            base_size=question.page.base_size,
            image_size=question.page.image_size,
            crop_mode=question.page.crop_mode,
            save_results=question.save_results,
        )
        note_time()
    if not shapes or not new_ids:
        raise ModelCodeError(
            f"infer() of {str(model.directory.path)!r} did not call generate(), where its"
            " passes are measured"
        )
    return shapes[0], times, new_ids


# --- its environment --------------------------------------------------------------------------


@contextlib.contextmanager
def _inferring(model: LoadedModel) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(running_unwatched(model.device, flash_attention, has_weights=model.has_weights))
        # It permanently disables the initialisation of layers.
        for layer in (torch.nn.Linear, torch.nn.LayerNorm):
            enter(replaced(layer, "reset_parameters", layer.reset_parameters))
        # transformers warns about a temperature that greedy generation ignores.
        quiet = [("ignore", None, UserWarning, None, 0), *warnings.filters]
        enter(replaced(warnings, "filters", quiet))
        if model.device.type == "cuda":
            enter(torch.cuda.device(model.device))
        else:
            autocast = torch.amp.autocast_mode.autocast
            enter(answered(autocast, "__init__", _autocast_on(model.device, autocast.__init__)))
        if stands_in_for_torchvision(model):
            enter(replaced(_code_of(model), "transforms", TRANSFORMS))
        yield


def stands_in_for_torchvision(model: LoadedModel) -> bool:
    """Whether `infer()` needs torchvision in vain."""
    transforms = getattr(_code_of(model), "transforms", None)
    return is_missing(getattr(transforms, "ToTensor", None))


def _code_of(model: LoadedModel) -> types.ModuleType:
    return sys.modules[type(model.module).__module__]


def _to_tensor(picture: Image.Image) -> torch.Tensor:
    """`[3, h, w]`, from 0 to 1."""
    values = torch.from_numpy(np.array(picture, copy=True)).permute(2, 0, 1).contiguous()
    return values.to(torch.get_default_dtype()).div(255)


def _normalized(
    mean: Sequence[float], std: Sequence[float]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """`(x - mean) / std` of `[C, h, w]`, with one value of each per channel."""

    def normalized(values: torch.Tensor) -> torch.Tensor:
        middle, width = (torch.tensor(each, dtype=values.dtype) for each in (mean, std))
        return values.sub(middle[:, None, None]).div_(width[:, None, None])

    return normalized


TRANSFORMS: Final = types.SimpleNamespace(
    Compose=lambda steps: functools.partial(
        functools.reduce, lambda picture, step: step(picture), steps
    ),
    ToTensor=lambda: _to_tensor,
    Normalize=_normalized,
)
"""What `infer()` uses of `torchvision.transforms`, bit for bit."""


def _autocast_on(device: torch.device, original: Callable[..., None]) -> Callable[..., None]:
    def __init__(  # noqa: N807 - replaces it
        self: torch.autocast, device_type: str, *args: Value, **kwargs: Value
    ) -> None:
        original(self, device.type if device_type == "cuda" else device_type, *args, **kwargs)

    return __init__


# --- the tokenizer ---------------------------------------------------------------------------


_BOS: Final = "<bos>"
_EOS: Final = "<eos>"


def load_tokenizer(directory: ModelDirectory) -> transformers.PreTrainedTokenizerFast:
    """The directory's tokenizer; its code is not executed.

    Raises:
        ModelDirectoryError: It cannot be read, or names no end-of-sequence token.
    """
    # transformers reads any file that it finds there
    with tokenizer_read(directory.tokenizer_file), quiet_transformers():
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(
            str(directory.path), local_files_only=True
        )
    if tokenizer.eos_token_id is None:
        raise ModelDirectoryError(
            f"the tokenizer in {str(directory.path)!r} has no 'eos_token'; set it in"
            " its tokenizer_config.json"
        )
    return tokenizer


def stand_in_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """BOS (0), the end of sequence (1), and every byte; higher ids have no text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([_BOS, _EOS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_BOS,
        eos_token=_EOS,
        clean_up_tokenization_spaces=False,
    )


def text_tokens(tokenizer: transformers.PreTrainedTokenizerFast, prompt: str) -> int:
    """Of a prompt with BOS, without the visual ones."""
    parts = (tokenizer.encode(part, add_special_tokens=False) for part in text_parts(prompt))
    return 1 + sum(map(len, parts))
