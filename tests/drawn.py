"""Pictures as they were drawn: their texts and where these stand."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import NamedTuple

import numpy as np

from dsocr_analyze.pictures.picture import Picture, drawing


class Box(NamedTuple):
    """A text's rectangle: centre, size (pixels) and slant (radians)."""

    text: str
    centre: tuple[float, float]
    size: tuple[float, float]
    slant: float

    def corners(self):
        turn = np.array([[math.cos(self.slant), -math.sin(self.slant)],
                         [math.sin(self.slant), math.cos(self.slant)]])  # fmt: skip
        half = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * np.array(self.size) / 2
        return half @ turn.T + self.centre

    def overlaps(self, other, *, at_least=1.0) -> bool:
        """Whether they share more than a pixel: no line separates two rectangles."""
        mine, theirs = self.corners(), other.corners()
        for box in (self, other):
            for angle in (box.slant, box.slant + math.pi / 2):
                axis = np.array([math.cos(angle), math.sin(angle)])
                a, b = mine @ axis, theirs @ axis
                if min(a.max(), b.max()) - max(a.min(), b.min()) <= at_least:
                    return False
        return True


def kept_pictures(monkeypatch) -> list[Picture]:
    """Every picture from now on, kept in place of being written."""
    found: list[Picture] = []
    monkeypatch.setattr(Picture, "save", lambda self, _: found.append(self))
    return found


def shown_texts(figure):
    """All texts of a figure that have something to read and are in sight."""
    texts = [*figure.texts]
    for legend in figure.legends:
        texts += legend.get_texts()
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [
                label for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high
                for label in (tick.label1, tick.label2)
            ]  # fmt: skip
    return [each for each in texts if each.get_visible() and each.get_text().strip()]


def box_of(text) -> Box:
    extent = text.get_window_extent()
    rotation = text.get_rotation()
    text.set_rotation(0)
    level = text.get_window_extent()
    text.set_rotation(rotation)
    centre = ((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
    return Box(text.get_text(), centre, (level.width, level.height), math.radians(rotation))


def assert_readable(picture: Picture) -> None:
    """No text stands on another, none leaves the picture, and the legend covers no data."""
    figure = picture.figure
    with drawing(), warnings.catch_warnings():
        figure.draw_without_rendering()
        boxes = [box_of(text) for text in shown_texts(figure)]
        legends = [legend.get_window_extent() for legend in figure.legends]
        data = [axes.bbox for axes in figure.axes]
    width, height = figure.bbox.width, figure.bbox.height
    for box in boxes:
        corners = box.corners()
        assert corners.min() >= 0, f"{box} is clipped"
        assert corners[:, 0].max() <= width, f"{box} is clipped at the right of {width}"
        assert corners[:, 1].max() <= height, f"{box} is clipped at the top of {height}"
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other), f"{one} overlaps {other}"
    for legend, axes in itertools.product(legends, data):
        assert legend.y1 <= axes.y0


def values_of(picture: Picture) -> list[str]:
    """The texts in the axes, in the order in which they were written."""
    return [text.get_text() for text in picture.axes.texts]


def heading_of(picture: Picture) -> str:
    """What stands below the title, in one line."""
    [text] = [each for each in picture.figure.texts if each.get_gid() == "subtitle"]
    return text.get_text().replace("\n", " ")
