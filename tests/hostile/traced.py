"""Cases that go through the trace, on small models."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from hostile.cases import Case, argument_value, options_of, report, write_wrong_toml
from hostile.mutation import mutated_values

_TINY: Final = ("--mode", "tiny")
_TRACE: Final = ("--engine", "trace", "--output", "out", "--max-new-tokens", "1")
_WAYS: Final = (
    _TRACE[:4],
    _TRACE,
    (*_TRACE, "--full", "--html", "page.html"),
    ("tree",),
    ("tree", "--trace"),
    ("tree", "--leaves"),
    ("tree", "--format", "json"),
    ("tree", "--format", "mermaid", "--output", "tree.mmd"),
    ("tree", "--format", "dot", "--output", "tree.dot"),
)


def _small(draw: Random) -> dict[str, Any]:
    """A config that is traced in a blink, or now and then the published one."""
    from both_engines import PUBLISHED, small_directory

    return (PUBLISHED if draw.random() < 0.1 else small_directory()).config


def _wrong(values: dict[str, Any], draw: Random) -> str:
    """JSON of the values, some of them wrong; it stays an object, so that somebody reads on."""
    while not isinstance(changed := mutated_values(values, draw), dict):
        pass
    return json.dumps(changed)


def traced_config_case(draw: Random) -> Case:
    """A config with wrong values, which a model is built from."""
    Path("config.json").write_text(_wrong(_small(draw), draw))
    way = draw.choice(_WAYS)
    return [*way, "--config", "config.json", *(() if "--leaves" in way else _TINY)]


@cache
def _described() -> tuple[Any, ...]:
    """Small models of transformers that a stages file describes."""
    import any_models

    models = [each for each in vars(any_models).values() if isinstance(each, any_models.Small)]
    return tuple(each for each in models if each.is_there)


def traced_stages_case(draw: Random) -> Case:
    """A stages file, or the config it is for, with wrong values."""
    small = draw.choice(_described())
    stages, _ = small.write(Path())
    if draw.random() < 0.5:
        write_wrong_toml(stages, "stages.toml", draw)
        Path("config.json").write_text(json.dumps(small.config))
    else:
        shutil.copy(stages, "stages.toml")
        Path("config.json").write_text(_wrong(small.config, draw))
    return [*draw.choice(_WAYS), "--hf-config", "config.json", "--stages", "stages.toml"]


def traced_report_case(draw: Random) -> Case:
    """A saved report with wrong values, against what the trace counts."""
    Path("report.json").write_text(_wrong(report(), draw))
    Path("config.json").write_text(json.dumps(_small(draw)))
    if draw.random() < 0.5:
        Path("dsocr-budgets.toml").write_text(
            '[workloads.page]\nmode = "tiny"\nengine = "trace"\nconfig = "config.json"\n'
        )
        return ["check", "--against", "report.json"]
    return ["compare", "report.json", "tiny", "--engine", "trace", "--config", "config.json"]


def traced_arguments_case(draw: Random) -> Case:
    """A command that traces, with options of its own and any values."""
    Path("config.json").write_text(json.dumps(_small(draw)))
    command = draw.choice(("", "tree"))
    arguments = [command] if command else list(_TRACE)
    arguments += ["--config", "config.json", *_TINY]
    for _ in range(draw.randrange(1, 3)):
        option, takes = draw.choice(options_of(command))
        if option not in ("--engine", "--config", "--model", "--arch", "--device"):
            arguments += [option, argument_value(draw)] if takes else [option]
    return arguments
