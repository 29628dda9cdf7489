"""What runs on this machine's own device: `measure` a page, `infer` one, `calibrate` the CPU."""

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from dsocr_analyze import analysis
from dsocr_analyze.architectures import RELATIVES
from dsocr_analyze.cli import help_text, kept_files, options, page_options, printing, streams, words
from dsocr_analyze.errors import DeviceError, ModelDirectoryError, WorkloadError, refuse
from dsocr_analyze.extras import require_trace
from dsocr_analyze.hardware.profile import cpu_profile_text
from dsocr_analyze.input_files import is_regular, own_folder_to_write
from dsocr_analyze.measuring import calibration_needs as needs
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.output_files import prepare_directory, write_files

_DEFAULT_OUTPUT: Final = Path("tmp/dsocr-infer-one")
_TRIAL_TOKENS: Final = 16
_FILES: Final = {"infer_one.json": "json", "infer_one.md": "markdown", "result.txt": "text"}
"""The format of every file of `infer`."""


def calibrate(
    context: typer.Context,
    device: Annotated[
        str,
        options.option(
            "cpu", "The device to measure; GPUs are predicted from the profiles that devices lists."
        ),
    ] = "cpu",
    output: Annotated[
        Path | None,
        options.option(
            "FILE",
            "File for the profile. Default: one in $XDG_CONFIG_HOME/dsocr-analyze/devices, where"
            " every command finds it.",
            group=help_text.OUTPUT,
        ),
    ] = None,
    seconds: Annotated[
        float,
        options.option(
            "N",
            "Time for the whole calibration, 20 to 3600. From 90 on, kernels are measured in"
            " passes too.",
        ),
    ] = 300.0,
    debug: bool = False,
) -> None:
    """Measure this CPU's kernels, to predict its seconds from then on."""
    began = time.monotonic()
    if device != "cpu":
        raise DeviceError(
            f"--device {device!r} cannot be calibrated; use cpu. GPUs are predicted from profiles:"
            " dsocr-analyze devices lists them, and --profile FILE adds one"
        )
    least, most = needs.LEAST_SECONDS, needs.MOST_SECONDS
    if not least <= seconds <= most:
        raise WorkloadError(f"--seconds {seconds:g} is out of range; give {least:g} to {most:g}")
    require_trace()
    memory = needs.checked_memory(seconds)
    words.note(context, f"calibration of cpu takes about {seconds:g} s, up to {memory}")
    ends, has_passes = began + seconds, needs.has_passes(seconds)
    with streams.announced_steps(is_quiet=context.params["quiet"], ends=ends) as announce:
        announce("importing torch")
        analysis.start_torch()
        from dsocr_analyze.cli import device_runs

        profile = device_runs.calibrated(announce, ends=ends, has_passes=has_passes)
    name = f"{profile.gpu.name}.toml"
    file = output or own_folder_to_write() / kept_files.PROFILES / name
    context.obj.begin_writing()
    prepare_directory(file.parent)
    write_files({file: cpu_profile_text(profile)})
    printing.emit(context, None, device_runs.calibration_said(profile, file))


def measure(
    context: typer.Context,
    of_model: options.Added = page_options.DESCRIBED | page_options.WINDOW | page_options.TRUST,
    device: Annotated[str, options.option("cpu|cuda:N", "Device to run on.")] = "cpu",
    types: options.Added = page_options.TYPES,
    of_page: options.Added = page_options.OF_A_PAGE,
    repeats: Annotated[int, options.option("N", "Timed repeats.")] = 5,
    warmups: Annotated[int, options.option("N", "Untimed repeats before them.")] = 2,
    steps: Annotated[int, options.option("N", "Decode steps of each repeat.")] = 4,
    autocast: Annotated[
        int,
        options.option(
            options.SWITCH,
            "Run under the autocast of the vendor's infer(), in bfloat16.",
            callback=options.switch,
        ),
    ] = 0,
    profile: options.ProfileOption = None,
    output_format: str = "table",
    json_file: str | None = None,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Run a page's passes on a device, beside their predicted seconds."""
    directory = page_options.directory_asked(context.params)
    asked = page_options.page_request(context.params, directory, engine="trace")
    words.print_config_findings(context, directory, by_closed_forms=False)
    words.warn(context, directory.architecture.warnings_of(asked.workload))
    with streams.announced_steps(is_quiet=context.params["quiet"]) as announce:
        announce("importing torch")
        analysis.start_torch()
        from dsocr_analyze.cli import device_runs

        found = device_runs.measurement(
            directory, asked, context.params, announce, options.options_used(context)
        )
    printing.emit(context, found, device_runs.measurement_said(found))


_CALL: Final[options.Added] = {
    "prompt": (
        Annotated[
            str,
            options.option(
                "TEXT", "The prompt, with <image> where the page belongs.", group=help_text.PAGE
            ),
        ],
        "<image>\n<|grounding|>Convert the document to markdown.",
    ),
    "max_new_tokens": (
        Annotated[
            int | None,
            options.option(
                "TOKENS",
                "Most tokens to generate. Default: infer()'s own limit, or"
                f" {_TRIAL_TOKENS} with --random-weights.",
                group=help_text.PAGE,
            ),
        ],
        None,
    ),
    "profile": (options.ProfileOption, None),
    "save_results": (
        Annotated[
            int,
            options.option(
                options.SWITCH,
                "1: infer() also writes its own results (result.mmd, pictures with boxes); for a"
                " chart, it evaluates the text as Python.",
                callback=options.switch,
                group=help_text.OUTPUT,
            ),
        ],
        0,
    ),
    "output_format": (
        Annotated[
            str,
            options.option(
                ("table", "markdown", "json", "text"),
                f"{options.FORMAT[:-1]}; text: only the text that was read.",
                "--format",
                callback=options.in_any_case,
                group=help_text.OUTPUT,
            ),
        ],
        "table",
    ),
}
"""How the page is read, and what is printed."""


def infer(
    context: typer.Context,
    image: Annotated[
        Path, options.option(
            "FILE", "The image of the page.", "--image", "--input", "-i", group=help_text.PAGE
        ),
    ],
    output: Annotated[
        Path, options.option(
            "DIR",
            "Folder for infer_one.json, infer_one.md, the text (result.txt) and the folders that"
            " infer() creates.",
            "--output", "-o", group=help_text.OUTPUT,
        ),
    ] = _DEFAULT_OUTPUT,
    model: str | None = None,
    arch: str | None = None,
    trust_remote_code: bool = False,
    random_weights: Annotated[
        bool,
        options.option(
            None,
            "A trial without a checkpoint: weights are random, and if the directory has no"
            " tokenizer.json, a stand-in is used. The text means nothing.",
            "--random-weights", group=help_text.MODEL,
        ),
    ] = False,
    device: Annotated[
        str | None, options.option(
            "cpu|cuda:N", "Device to run on. Default: the first CUDA GPU, else the CPU."
        ),
    ] = None,
    use_flash_attn: int = 0,
    of_page: options.Added = page_options.SIZES,
    call: options.Added = _CALL,
    strict: bool = False,
    debug: bool = False,
) -> None:  # fmt: skip
    """Read an image with the vendor's own code, and measure its cost.

    Measured seconds are shown beside counted FLOPs and predicted seconds. The vendor's infer() is
    called twice: briefly, for the memory of its prefill pass, and then timed.
    """
    given, most = context.params, context.params["max_new_tokens"]
    if most is None and random_weights:
        most = _TRIAL_TOKENS
    directory = page_options.model_directory_from(
        model, arch, None, trust_remote_code=trust_remote_code
    )
    # Fail on impossible requests before anything is loaded.
    planned = page_options.page_request(
        given, directory, prompt=None, max_new_tokens=1 if most is None else most
    ).workload_of_page
    words.warn(context, directory.architecture.warnings_of(planned))
    _check_files(directory, random_weights=random_weights)
    prepare_directory(output, may_lead_out=output != _DEFAULT_OUTPUT)
    with streams.announced_steps(is_quiet=given["quiet"]) as announce:
        announce("importing torch, building the model")
        analysis.start_torch()
        from dsocr_analyze.cli import device_runs

        report = device_runs.inferred(
            directory, planned, {**given, "max_new_tokens": most}, announce,
            options.options_used(context),
        )  # fmt: skip
    files: dict[Path | None, str] = {output / name: each for name, each in _FILES.items()}
    printing.emit(
        context, report, device_runs.inference_said(report, [*filter(None, files)]), files=files
    )
    words.warn(context, report.differences)


def _check_files(directory: ModelDirectory, *, random_weights: bool) -> None:
    """Raises ModelDirectoryError if it cannot run `infer()`."""
    refuse(
        ModelDirectoryError,
        (directory.of_transformers is not None,
         f"{directory.architecture.title} has no infer() of its own; give the directory of"
         f" {', '.join(RELATIVES)}"),
        (directory.is_reference,
         "the built-in reference has no infer(); give the vendor's own directory, such"
         " as --model models/deepseek-ocr (models/README.md says where it comes from)"),
        (not random_weights and not directory.weight_files(),
         f"{str(directory.path)!r} has no weights (*.safetensors); models/README.md says where"
         " they come from, and --random-weights runs a trial without any"),
        (not random_weights and not is_regular(directory.tokenizer_file),
         f"infer() needs {str(directory.tokenizer_file)!r}, which does not exist;"
         " models/README.md says where it comes from, and --random-weights runs a trial with a"
         " stand-in"),
    )  # fmt: skip
