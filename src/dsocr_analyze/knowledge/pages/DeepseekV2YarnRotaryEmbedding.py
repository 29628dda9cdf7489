"""Rotary positions extended by YaRN."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.knowledge.families.rotary import YARN_OPERATORS, rotary_diagram, rotary_page
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["page"]

_NAME: Final = "DeepseekV2YarnRotaryEmbedding"


def page(facts: Facts) -> Page:
    """The page."""
    defaults = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    return rotary_page(
        facts,
        _NAME,
        "yarn",
        what="Rotary positions extended by YaRN: frequencies with many turns over the original"
        " length are kept, those with few turns are divided by the factor, and those in between are"
        " blended. Cosines and sines are scaled by a magnitude that grows with the logarithm of the"
        " factor.",
        arguments={
            "scaling_factor": 2.0,
            "original_max_position_embeddings": facts.decoder.max_position_embeddings,
            **{key: facts.default(_NAME, key) for key in defaults},
        },
        meanings={
            "scaling_factor": "New length divided by the original; here for twice the length.",
            "original_max_position_embeddings": "Length before the extension.",
            "beta_fast": "Number of turns over the original length above which a frequency is kept.",
            "beta_slow": "Number of turns below which a frequency is divided by the factor.",
            "mscale": "Scale of the tables' magnitude.",
            "mscale_all_dim": "Scale that attention's softmax already corrects.",
        },
        diagram=rotary_diagram(
            "frequencies, blended by how often they turn", scale=", times magnitude"
        ),
        pseudo_code="""turning(n) = D * log(L0 / (2 * pi * n)) / (2 * log(base))
first, last = floor(turning(beta_fast)), ceil(turning(beta_slow))
share = clamp((arange(D / 2) - first) / (last - first), 0, 1)
frequencies = plain / factor * share + plain * (1 - share)
magnitude = (0.1 * mscale * log(factor) + 1) / (0.1 * mscale_all_dim * log(factor) + 1)
cos, sin = cos(angles) * magnitude, sin(angles) * magnitude""",
        mathematics=r"\theta'_i = \frac{\theta_i}{s}\,\gamma_i + \theta_i\,(1 - \gamma_i), \quad"
        r" \gamma_i = \mathrm{clamp}\left(\frac{i - i_{fast}}{i_{slow} - i_{fast}}, 0, 1\right),"
        r" \quad \mu = \frac{0.1\,m\,\ln s + 1}{0.1\,m_{all}\,\ln s + 1}",
        extra=f" + 2 * K * D + {YARN_OPERATORS} * D / 2",
        usage_arguments=", scaling_factor=2.0, mscale_all_dim=1",
        notes="`rope_scaling` of type yarn",
        references=("yarn", "rope"),
    )
