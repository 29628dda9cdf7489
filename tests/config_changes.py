"""Configs with a change, and what comes of it."""

from __future__ import annotations

import copy

from dsocr_analyze.escaping import shown


def at(config, path):
    return at(config[path[0]], path[1:]) if path else config


def changed(config, path, value):
    """A copy with another value at a path, whose sections are made where they are missing."""
    result = copy.deepcopy(config)
    section = result
    for name in path[:-1]:
        if not isinstance(section.get(name), dict):
            section[name] = {}
        section = section[name]
    section[path[-1]] = copy.deepcopy(value)
    return result


def without(config, path):
    result = copy.deepcopy(config)
    del at(result, path[:-1])[path[-1]]
    return result


def others(value):
    """Plausible other values."""
    if value is None:
        return [1, 64, "x", {}]
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [2 * value if value else 1, value + 1, None, str(value)]
    if isinstance(value, float):
        return [2 * value, None]
    if isinstance(value, str):
        return [value + "x", value.swapcase(), "", None]
    if isinstance(value, list):
        more = [others(each)[0] for each in value]
        return [[*value[:-1], more[-1]], [more[0], *value[1:]], value[:-1], [], None]
    return [{}, None]


def counts(figures):
    """All that is counted, and nothing of where it comes from."""
    stages = [
        (stage.name, stage.params, stage.kernels, dict(stage.module_calls))
        for stage in figures.stages.values()
    ]
    memory, batch = figures.memory, figures.batch
    return stages, figures.parameters, batch, memory, figures.causal_savable_flops


def is_named(value, message):
    """Whether a message has the value, or the part of a list that does not fit."""
    return shown(value) in message or (isinstance(value, list) and str(value[-1]) in message)
