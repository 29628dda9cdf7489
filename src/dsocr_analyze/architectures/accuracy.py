"""Published accuracies of the models, `accuracy.toml`."""

from collections.abc import Mapping

from msgspec import Struct

from dsocr_analyze.package_data import package_toml


class Score(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published score of a model.

    Attributes:
        architecture: The model's architecture.
        model: The model that was measured.
        score: The score.
        counted: Whether it is the release whose figures stand beside the score.
        confirmed: Whether it was found in the source itself, not only quoted elsewhere.
    """

    architecture: str
    model: str
    score: float
    counted: bool
    confirmed: bool

    @property
    def mark(self) -> str:
        """What to doubt: `~` for another release than the counted one, `?` if only quoted."""
        return f"{'' if self.confirmed else '?'}{'' if self.counted else '~'}"


class Publication(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scores that were measured in the same way and published together.

    Attributes:
        measured: By whom, and how.
        source: Where they were published.
        looked_up: When they were looked up, YYYY-MM-DD.
        scores: One entry per model.
    """

    measured: str
    source: str
    looked_up: str
    scores: tuple[Score, ...]


class Benchmark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scores that may be ranked together.

    Attributes:
        benchmark: The benchmark.
        version: Its version, and which part or whose measurement of it.
        unit: What the score is; higher is better.
        published: Where scores were published; the first one of an architecture is its figure.
    """

    benchmark: str
    version: str
    unit: str
    published: tuple[Publication, ...]

    @property
    def name(self) -> str:
        """The benchmark with its version."""
        return f"{self.benchmark} {self.version}"

    @property
    def first(self) -> Mapping[str, Score]:
        """The first score of each architecture, by its name."""
        return {
            score.architecture: score
            for publication in reversed(self.published)
            for score in reversed(publication.scores)
        }


def published_accuracies() -> Mapping[str, Benchmark]:
    """What is known, by keys for programs."""
    return package_toml(__package__, "accuracy.toml", dict[str, Benchmark])
