"""The projector from vision features to the decoder's width."""

from __future__ import annotations

from typing import Final, NamedTuple

from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import OCR2Dimensions
from dsocr_analyze.architectures.ocr_family import projector_forms as projector_costs
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.decoder import fallback_notes
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import NO_DEFAULT, Formulas, Page, Parameter, Symbol

__all__ = ["page"]

_FORMULAS: Final = {
    "identity": Formulas(),
    "linear": Formulas(
        macs="N * q ** 2 * c * d",
        vector_flops="N * q ** 2 * d",
        params="c * d + d",
        activations="N * q ** 2 * d",
    ),
    "mlp_gelu": Formulas(
        macs="N * q ** 2 * d * (c + (n - 1) * d)",
        vector_flops="N * q ** 2 * d * (6 * n - 5)",
        params="c * d + d + (n - 1) * (d ** 2 + d)",
        activations="N * q ** 2 * d * n",
    ),
}
"""Formulas of the variants that keep the number of tokens."""

_LAYERS: Final = {
    "identity": "Identity",
    "linear": "Linear<br/>{c} to {d}",
    "mlp_gelu": "{n} x Linear, {c} to {d},<br/>GELU between",
}

_KEYS: Final = {
    "input_dim": "Input width (a pair for the hybrid split).",
    "n_embed": "Output width: the decoder's.",
    "depth": "Linear maps of the MLP variants.",
    "mlp_ratio": "Hidden width of the downsampling variants, divided by the output width.",
    "downsample_ratio": "Tokens per side that are merged into one.",
    "channel_div": "Share of the output width for the first map in the hybrid split.",
    "token_pooling": "Whether squares of two by two tokens are joined first.",
    "conv_fusion_high_low_features": "Whether two feature maps are joined first.",
}


def page(facts: Facts) -> Page:
    """The page; uses the published config if the given one has a variant without formulas."""
    own, facts = facts, facts if _has_formulas(facts) else facts.published
    variants, shape = facts.get("MlpProjector").VARIANTS, facts.projector
    d_in, d_out, kind = shape.input_channels, shape.n_embed, shape.projector_type
    layers = _LAYERS[kind].format(c=d_in, d=d_out, n=shape.depth)
    joined = _joined(facts)
    tokens = facts.token_side(facts.views[0][2]) ** 2
    return Page(
        group="Vision: projector",
        subject=facts.get("MlpProjector"),
        what="Maps vision features to the width of the decoder."
        f" It has {len(variants)} variants;"
        f" {own.model_name} uses `{own.projector.projector_type}`. {joined.what}",
        blocks=(("projector", "vision-to-text projector"),),
        layer="architectures.ocr_family.projector_forms.projector",
        inputs={"x": "N, q ** 2, c"},
        output="N, q ** 2, d",
        parameters=_parameters(own),
        diagram=f"""flowchart TB
{joined.diagram}
  joined --> layers["layers: {layers}"]
  layers --> y["visual tokens [N, q q, {d_out}]"]""",
        pseudo_code=f"""{joined.pseudo_code}
return layers(x)                                                  # the variant""",
        mathematics=rf"{joined.mathematics}, \quad"
        r" f_{linear}(x) = x\, W^T + b, \quad"
        r" f_{mlp}(x) = W_n\,\mathrm{gelu}(\dots \mathrm{gelu}(W_1 x + b_1) \dots) + b_n",
        symbols={
            "N": Symbol("N", "views"),
            "q": Symbol("q", "tokens per side of a view"),
            "c": Symbol("d_{in}", "input width"),
            "d": Symbol("d", "output width, the decoder's"),
            "n": Symbol("n", "linear maps in an MLP variant"),
        },
        formulas=_FORMULAS[kind],
        cases=cases_of(
            [(label, N, facts.token_side(R)) for label, N, R in facts.views],
            lambda N, q: {"N": N, "q": q, "c": d_in, "d": d_out, "n": shape.depth},
            build=lambda *_: facts.at("model.projector"),
            arguments=lambda N, q: [tensor(N, q * q, d_in)],
            closed_form=lambda N, q: projector_costs.projector(N, q, shape, BFLOAT16),
        ),
        runs_given_config=own is facts,
        flops_notes=(
            *fallback_notes(own, facts, "The given config has another variant"),
            f"The formula is for the variant `{kind}`; `costs.projector.projector` has a closed"
            " form for each variant.",
        ),
        memory_notes=("Nothing is kept after the prefill pass.",),
        related=("ImageEncoderViT", facts.second_encoder, facts.model_class),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

projector = DeepSeekOCRSession.from_local().model.model.projector
features = torch.empty(1, {tokens}, {d_in}, dtype=torch.bfloat16, device="meta")
assert projector(features).shape == (1, {tokens}, {d_out})""",
        notes="concatenated features to the decoder's width",
        references=("deepseekocr", "deepseekvl2"),
    )


def _has_formulas(facts: Facts) -> bool:
    shape = facts.projector
    return shape.projector_type in _FORMULAS and not (shape.token_pooling or shape.conv_fusion)


def _parameters(facts: Facts) -> dict[str, Parameter]:
    projector, config = facts.get("MlpProjector"), facts.config.projector_config
    keys = {
        "projector_type": f"One of the variants: {', '.join(projector.VARIANTS)}.",
        **_KEYS,
    }
    return {
        "cfg": Parameter("Source of everything below.", "projector_config"),
        **{
            f"cfg.{key}": Parameter(
                meaning, config.get(key, "not given"), projector.DEFAULTS.get(key, NO_DEFAULT)
            )
            for key, meaning in keys.items()
        },
    }


class _Joined(NamedTuple):
    """The projector's input, which differs between relatives."""

    what: str
    diagram: str
    """Lines of a flowchart up to a node `joined`."""
    pseudo_code: str
    mathematics: str


def _joined(facts: Facts) -> _Joined:
    width = facts.projector.input_channels
    if isinstance(facts.dimensions, OCR2Dimensions):
        return _Joined(
            "Its input is the encoder's output at the queries, without any SAM features.",
            f'  joined["answers of the queries [N, q q, {facts.dimensions.encoder.width}]"]',
            "x = qwen2_model(sam_model(view))                                  # by the model",
            r"y = f(x_{encoder})",
        )
    return _Joined(
        "Its input is the CLIP features, without the class token, concatenated with the SAM"
        " features of the same patches.",
        f"""  clip["CLIP features [N, q q + 1, {facts.clip.width}]"] --> drop["drop the class token"]
  sam["SAM features [N, {facts.sam.out_channels}, q, q]"] --> flat["flatten, tokens first"]
  drop --> joined["concatenate [N, q q, {width}]"]
  flat --> joined""",
        "x = cat([clip[:, 1:], sam.flatten(2).transpose(1, 2)], dim=-1)   # by the model",
        r"y = f\left([x_{clip};\ x_{sam}]\right)",
    )
