"""Builds the `Architecture` of a relative from its network and the shared closed forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from dsocr_analyze.architectures.architecture import Architecture, ClosedForms, Served
from dsocr_analyze.architectures.config_keys import Config, JsonValue
from dsocr_analyze.architectures.config_rules import KeyTable, findings_of
from dsocr_analyze.architectures.key_value_cache import KeyValueCache, lengthened
from dsocr_analyze.architectures.ocr_family import served
from dsocr_analyze.architectures.ocr_family.composition import (
    compose,
    decode_bytes_alive,
    experts_by_stage,
    inputs_bytes,
    memory,
    prefill_bytes_alive,
    step_kernels,
)
from dsocr_analyze.architectures.ocr_family.decoder import NOT_MODELLED
from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions, dimensions_of
from dsocr_analyze.architectures.ocr_family.inputs import decode_inputs, prefill_inputs
from dsocr_analyze.architectures.ocr_family.mixture import expert_params
from dsocr_analyze.architectures.ocr_family.network import Network
from dsocr_analyze.architectures.ocr_family.passes import model_params
from dsocr_analyze.architectures.ocr_family.plan import plan_workload
from dsocr_analyze.architectures.ocr_family.stages import ROUTED_EXPERT, alike
from dsocr_analyze.architectures.ocr_family.totals import page_totals
from dsocr_analyze.architectures.ocr_family.views import (
    page_in_views,
    pixel_work,
    pixel_work_of_pages,
    size_warnings,
)
from dsocr_analyze.workload import DecodeStep, Mode

__all__ = ["relative"]


def relative(
    network: Network,
    *,
    name: str,
    title: str,
    modes: Mapping[str, Mode],
    default_mode: str,
    reference: Path,
    model_class: str,
    model_types: tuple[str, ...],
    published_code: Mapping[str, str],
    read_dimensions: Callable[[Config], RelativeDimensions],
    config_table: KeyTable,
    decode_cache: Callable[[KeyValueCache, DecodeStep], KeyValueCache] = lengthened,
    without_window: Callable[[Config], dict[str, JsonValue]] | None = None,
) -> Architecture:
    """A relative of DeepSeek-OCR as an architecture; see its attributes for arguments of that name.

    Args:
        network: What distinguishes it from the others.
        name: As in the architecture, like every argument that is an attribute of it.
        title: Likewise.
        modes: Likewise.
        default_mode: Likewise.
        reference: Directory of the built-in reference.
        model_class: Class of the whole model in `auto_map`.
        model_types: Its `model_type`, used if `auto_map` names no class.
        published_code: As in the architecture.
        read_dimensions: Reads dimensions from the top-level object of a `config.json`.
        config_table: What each key of a `config.json` does.
        decode_cache: As in the architecture; default: a cache that holds every token.
        without_window: As in the architecture.
    """
    return Architecture(
        name=name,
        title=title,
        stages=network.stages,
        modes=modes,
        default_mode=default_mode,
        text_tokens=network.text_tokens,
        built_in=reference,
        published_code=published_code,
        routed_expert=ROUTED_EXPERT,
        recognizes=partial(_recognizes, model_class, model_types),
        plan=partial(plan_workload, network),
        notes_of=network.notes_of,
        warnings_of=size_warnings,
        prefill_inputs=prefill_inputs,
        decode_inputs=decode_inputs,
        decode_cache=decode_cache,
        without_window=without_window,
        closed_forms=_closed_forms(network, read_dimensions, config_table),
    )


def _closed_forms(
    network: Network,
    read_dimensions: Callable[[Config], RelativeDimensions],
    config_table: KeyTable,
) -> ClosedForms[RelativeDimensions]:
    return ClosedForms(
        network=network,
        dimensions=partial(dimensions_of, read_dimensions, config_table),
        config_findings=lambda config, code: findings_of(config, config_table, code),
        not_modelled=NOT_MODELLED,
        compose=partial(compose, network),
        step_kernels=partial(step_kernels, network),
        page_totals=partial(page_totals, network),
        crop_grids=network.crop,
        parameter_count=partial(model_params, network),
        memory=partial(memory, network),
        prefill_bytes_alive=partial(prefill_bytes_alive, network),
        decode_bytes_alive=partial(decode_bytes_alive, network),
        expert_params=lambda dimensions: expert_params(dimensions.decoder),
        experts_touched=experts_by_stage,
        repeats=alike,
        served=Served(
            check=served.check,
            views=partial(served.views, network),
            prompt=served.prompt,
            step=served.step,
            cache_elements=served.cache_elements,
            quantizable_params=served.quantizable_params,
            activation_bytes=partial(served.activation_bytes, network),
            inputs_bytes=inputs_bytes,
        ),
        page_in_views=partial(page_in_views, network.crop),
        pixel_work=partial(pixel_work, network.crop),
        pixel_work_of_pages=partial(pixel_work_of_pages, network.crop),
    )


def _recognizes(model_class: str, model_types: tuple[str, ...], config: Config) -> bool:
    """Whether a parsed `config.json` belongs to a relative.

    Args:
        model_class: The relative's class of the whole model, as named in `auto_map`.
        model_types: Its model types, used if no class is named; relatives share some.
        config: The file's top-level object.
    """
    auto_map = config.get("auto_map")
    named = auto_map.get("AutoModel") if isinstance(auto_map, Mapping) else None
    if isinstance(named, str):
        return named.rpartition(".")[2] == model_class
    classes = config.get("architectures")
    if isinstance(classes, list) and classes:
        return model_class in classes
    return config.get("model_type") in model_types
