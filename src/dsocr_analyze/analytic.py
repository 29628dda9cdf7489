"""The analytic engine: a page's figures from its networks' forwards, without torch or a model."""

from typing import Final

from dsocr_analyze.figures import OperatorLedger, PageFigures, Provenance
from dsocr_analyze.kernels import calls_of, dtype_named
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.version import VERSION
from dsocr_analyze.workload import PageWorkload, position_warnings

UNIFORM_ROUTING_NOTE = (
    "MoE routing is uniform (no checkpoint is loaded): every expert gets its share of the tokens'"
    " choices, the remainder going to the first ones"
)


ATTENTION_NAMES: Final = {False: "eager", True: "flash_attention_2"}
"""What transformers calls the decoder's attention, by whether it is FlashAttention."""


def page_figures(
    directory: ModelDirectory,
    workload: PageWorkload,
    *,
    dtype: str = "bfloat16",
    flash_attention: bool = False,
    provenance: Provenance | None = None,
) -> PageFigures:
    """A workload's figures, all from closed forms; the directory's code is not even imported.

    Their `provenance` is that of a model that runs, if any does.

    Raises:
        ConfigError: The config lacks a key, or describes something without a closed form.
        DeviceError: No model can have that type.
    """
    architecture, element = directory.architecture, dtype_named(dtype)
    dimensions = directory.dimensions()
    composition = architecture.forms.compose(dimensions, workload, element, flash_attention)
    counted = calls_of(each for stage in composition.stages.values() for each in stage.kernels)
    warnings = (
        *directory.config_findings.warnings,
        *architecture.warnings_of(workload),
        *position_warnings(workload, dimensions.decoder.max_position_embeddings),
    )
    return PageFigures(
        **vars(composition),
        workload=workload,
        provenance=provenance
        or Provenance(
            model=directory.source(architecture.name),
            engine="analytic",
            device="none",
            dtype=element.name,
            attention=ATTENTION_NAMES[flash_attention],
            versions={"tool": VERSION},
        ),
        ledger=OperatorLedger(counted=dict(sorted(counted.items())), free={}, unknown={}),
        warnings=warnings,
        notes=(
            *warnings,
            *architecture.notes_of(workload),
            *dimensions.notes,
            *([UNIFORM_ROUTING_NOTE] if architecture.routed_expert else []),
            "the analytic engine evaluated closed forms; nothing was run",
            *directory.assumptions,
            *map("not modelled: {0.reason}".format, architecture.forms.model.not_modelled),
        ),
    )
