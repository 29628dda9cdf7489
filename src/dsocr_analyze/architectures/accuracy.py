"""Published accuracies of the models, `accuracy.toml`."""

from collections.abc import Mapping
from importlib import resources

from msgspec import Struct, toml


class Score(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published score of a model.

    Attributes:
        architecture: The model's architecture.
        model: The model that was measured.
        counted: Whether it is the release whose figures stand beside the score.
        score: The score.
        measured: By whom, and how.
        source: Where it was published.
        looked_up: When it was looked up, YYYY-MM-DD.
        confirmed: Whether it was found in the source itself, not only quoted elsewhere.
    """

    architecture: str
    model: str
    counted: bool
    score: float
    measured: str
    source: str
    looked_up: str
    confirmed: bool

    @property
    def sentence(self) -> str:
        """All that is known of it."""
        release = "" if self.counted else " (another release)"
        quoted = "" if self.confirmed else ", as others quote it"
        return (
            f"{self.score:g} of {self.model}{release} {self.measured} ({self.source}{quoted};"
            f" looked up {self.looked_up})"
        )


class Benchmark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scores that may be ranked together.

    Attributes:
        benchmark: The benchmark.
        version: Its version, and which part or whose measurement of it.
        unit: What the score is; higher is better.
        scores: One entry per model; the first of an architecture is its figure.
    """

    benchmark: str
    version: str
    unit: str
    scores: tuple[Score, ...]

    @property
    def name(self) -> str:
        """The benchmark with its version."""
        return f"{self.benchmark} {self.version}"

    @property
    def first(self) -> Mapping[str, Score]:
        """The first score of each architecture, by its name."""
        return {each.architecture: each for each in reversed(self.scores)}


def published_accuracies() -> Mapping[str, Benchmark]:
    """What is known, by keys for programs."""
    text = resources.files(__package__).joinpath("accuracy.toml").read_text(encoding="utf-8")
    return toml.decode(text, type=dict[str, Benchmark])
