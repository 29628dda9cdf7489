"""Pictures as they were drawn: their texts and where these stand."""

import itertools
import warnings

from dsocr_analyze.pictures.picture import Picture, drawing


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


def outline_of(text, margin: float = 0):
    """The path of a text's rectangle, slanted with it, but for a margin (pixels)."""
    from matplotlib.path import Path  # an optional package
    from matplotlib.transforms import Affine2D

    extent, rotation = text.get_window_extent(), text.get_rotation()
    text.set_rotation(0)
    level = text.get_window_extent()
    text.set_rotation(rotation)
    place = Affine2D().translate(-0.5, -0.5).scale(level.width - margin, level.height - margin)
    centre = (extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2
    return Path.unit_rectangle().transformed(place.rotate_deg(rotation).translate(*centre))


def assert_readable(picture: Picture) -> None:
    """No text stands on another, none leaves the picture, and the legend covers no data."""
    figure = picture.figure
    with drawing(), warnings.catch_warnings():
        figure.draw_without_rendering()
        texts = [
            (text.get_text(), outline_of(text), outline_of(text, 1)) for text in shown_texts(figure)
        ]
        legends = [legend.get_window_extent() for legend in figure.legends]
        data = [axes.bbox for axes in figure.axes]
    for text, outline, _ in texts:
        (left, low), (right, high) = outline.get_extents().get_points()
        is_inside = (
            min(left, low) >= 0 and right <= figure.bbox.width and high <= figure.bbox.height
        )
        assert is_inside, f"{text!r} is clipped at {outline}"
    for (one, _, inner), (other, _, theirs) in itertools.combinations(texts, 2):
        assert not inner.intersects_path(theirs), f"{one!r} overlaps {other!r}"
    for legend, axes in itertools.product(legends, data):
        assert legend.y1 <= axes.y0


def values_of(picture: Picture) -> list[str]:
    """The texts in the axes, in the order in which they were written."""
    return [text.get_text() for text in picture.axes.texts]


def heading_of(picture: Picture) -> str:
    """What stands below the title, in one line."""
    [text] = [each for each in picture.figure.texts if each.get_gid() == "subtitle"]
    return text.get_text().replace("\n", " ")
