"""Pages of DeepSeek-OCR-2's encoder: Qwen2 over image tokens and learned queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from dsocr_analyze.architectures.deepseek_ocr_2.encoder import encoder_sections
from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import (
    EncoderDimensions,
    OCR2Dimensions,
)
from dsocr_analyze.costs.activations import activation_flops
from dsocr_analyze.costs.normalization import rms_norm
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.costs.rope import llama_tables
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.costs.swiglu import swiglu
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.machinery.facts import Facts, count, kernels_of, scaled, tensor
from dsocr_analyze.knowledge.machinery.notation import evaluate
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["encoder_of", "encoder_pages"]

_GROUP: Final = "DeepSeek-OCR-2: the Qwen2 encoder"
_FILE: Final = "dsocr_analyze.architectures.deepseek_ocr_2.reference.deepencoderv2"
_ENCODER: Final = "model.qwen2_model"
_DECODER: Final = f"{_ENCODER}.model"
_INNER: Final = f"{_DECODER}.model"
_LAYER: Final = f"{_INNER}.layers.0"

SYMBOLS: Final = {
    "N": Symbol("N", "views"),
    "q": Symbol("q", "tokens a side of a view"),
    "n": Symbol("n", "image tokens of a view, and queries", "q ** 2"),
    "T": Symbol("T", "tokens of a view with its queries", "2 * n"),
    "d": Symbol("d", "width"),
    "H": Symbol("H", "query heads"),
    "G": Symbol("H_{kv}", "key and value heads"),
    "D": Symbol("D", "features of a head"),
    "m": Symbol("m", "hidden width of the MLP"),
    "a": Symbol("a", "FLOPs of the activation, an element"),
    "e": Symbol("e", "bytes of an element"),
    "L": Symbol("L", "layers"),
    "u": Symbol("n_u", "rows of all tables of queries"),
}


def _pick(names: str) -> dict[str, Symbol]:
    return {name: SYMBOLS[name] for name in names.split()}


def encoder_of(facts: Facts) -> EncoderDimensions:
    """The encoder's dimensions."""
    assert isinstance(facts.dimensions, OCR2Dimensions)
    return facts.dimensions.encoder


def encoder_pages(facts: Facts) -> list[Page]:
    """The pages of this file, in reading order."""
    return [
        _encoder(facts),
        _decoder(facts),
        _inner(facts),
        _layer(facts),
        _attention(facts),
        _mlp(facts),
        _norm(facts),
        _rotary(facts),
    ]


_ATTENTION: Final = Formulas(
    macs="2 * N * T * d * D * (H + G) + 2 * N * H * T ** 2 * D",
    vector_flops="N * T * D * (H + 2 * G) + 7 / 2 * N * T * D * (H + G) + 7 * N * H * T ** 2",
    params="2 * d * D * (H + G) + D * (H + 2 * G)",
    activations="2 * N * T * D * (H + G) + N * T * d",
    cache_bytes="2 * N * T * G * D * e",
)
_LAYER_FORMULAS: Final = Formulas(
    macs="Am + 3 * N * T * d * m",
    vector_flops="Av + (a + 1) * N * T * m + 2 * N * T * (4 * d + 2) + 2 * N * T * d",
    params="Ap + 3 * d * m + 2 * d",
    activations="Aa + N * T * (2 * m + d)",
    cache_bytes=_ATTENTION.cache_bytes,
)
_STACK: Final = Formulas(
    macs="L * Lm + T * D / 2",
    vector_flops="L * Lv + N * T * (4 * d + 2) + 4 * T * D + 2 * N * T",
    params="L * Lp + d",
    activations="L * La + T * D / 2",
    cache_bytes="2 * L * N * T * G * D * e",
)


def _layer_symbols() -> dict[str, Symbol]:
    return _pick("N q n T d H G D m a e") | {
        "Am": Symbol("M_{attn}", "MACs of attention", _ATTENTION.macs),
        "Av": Symbol("V_{attn}", "vector FLOPs of attention", _ATTENTION.vector_flops),
        "Ap": Symbol("P_{attn}", "parameters of attention", _ATTENTION.params),
        "Aa": Symbol("A_{attn}", "matrix outputs of attention", _ATTENTION.activations),
    }


def _stack_symbols() -> dict[str, Symbol]:
    return _layer_symbols() | {
        "L": SYMBOLS["L"],
        "Lm": Symbol("M_{layer}", "MACs of a layer", _LAYER_FORMULAS.macs),
        "Lv": Symbol("V_{layer}", "vector FLOPs of a layer", _LAYER_FORMULAS.vector_flops),
        "Lp": Symbol("P_{layer}", "parameters of a layer", _LAYER_FORMULAS.params),
        "La": Symbol("A_{layer}", "matrix outputs of a layer", _LAYER_FORMULAS.activations),
    }


def _values(facts: Facts, N: int, R: int) -> dict[str, int]:
    encoder = encoder_of(facts)
    return {
        "N": N,
        "q": facts.token_side(R),
        "d": encoder.width,
        "H": encoder.heads,
        "G": encoder.kv_heads,
        "D": encoder.head_dim,
        "m": encoder.intermediate_size,
        "a": activation_flops("silu"),
        "e": BFLOAT16.nbytes,
        "L": encoder.layers,
        "u": sum(encoder.queries),
    }


def _tokens(facts: Facts, R: int) -> int:
    """Image tokens and queries of a view."""
    return 2 * facts.token_side(R) ** 2


def _frame_and_layer(facts: Facts, N: int, R: int) -> tuple[ModuleKernels, ModuleKernels]:
    """Kernels of the encoder but its layers, by the path below it, and those of one layer."""
    frame, layer = encoder_sections(N, facts.token_side(R), encoder_of(facts), BFLOAT16)
    return frame.modules, layer.modules


def _part(modules: ModuleKernels, name: str) -> ModuleKernels:
    """Of the kernels by path, those at or below one module."""
    return {
        path: kernels
        for path, kernels in modules.items()
        if path == name or path.startswith(f"{name}.")
    }


def _all_kernels(facts: Facts, N: int, R: int) -> Kernels:
    return kernels_of(encoder_sections(N, facts.token_side(R), encoder_of(facts), BFLOAT16))


def _inner_kernels(facts: Facts, N: int, R: int) -> Kernels:
    """Of the encoder, what its decoder does."""
    return tuple(each for each in _all_kernels(facts, N, R) if each.path.startswith(_DECODER))


def _cases(
    facts: Facts,
    path: str,
    arguments: Callable[[int, int], list[Any]],
    closed: Callable[[int, int], Kernels | ModuleKernels],
    keywords: Callable[[int, int], dict[str, Any]] = lambda N, R: {},
) -> tuple[Case, ...]:
    """A case for the vision calls of the stated page, of the module at `path`."""

    def case(label: str, N: int, R: int) -> Case:
        return Case(
            label,
            _values(facts, N, R),
            lambda: facts.at(path),
            lambda: arguments(N, R),
            lambda: keywords(N, R),
            closed_form=lambda: closed(N, R),
            alike=facts.alike(path),
        )

    return tuple(case(*view) for view in facts.views)


def _hidden(facts: Facts) -> Callable[[int, int], list[Any]]:
    return lambda N, R: [tensor(N, _tokens(facts, R), encoder_of(facts).width)]


def _as_in_a_layer(facts: Facts) -> Callable[[int, int], dict[str, Any]]:
    """What a layer and its attention are called with besides the features."""

    def keywords(N: int, R: int) -> dict[str, Any]:
        T, D = _tokens(facts, R), encoder_of(facts).head_dim
        return {
            "attention_mask": tensor(N, 1, T, T),
            "past_key_value": facts.get("KeyValueCache")(),
            "use_cache": True,
            "position_embeddings": (tensor(1, T, D), tensor(1, T, D)),
        }

    return keywords


def _embeds_and_kinds(facts: Facts) -> Callable[[int, int], dict[str, Any]]:
    """Image tokens and queries as one sequence, and which of both a token is."""

    def keywords(N: int, R: int) -> dict[str, Any]:
        n = _tokens(facts, R) // 2
        # On the CPU, where the encoder makes them too.
        kinds = torch.zeros(N, 2 * n, dtype=torch.long)
        kinds[:, n:] = 1
        return {
            "inputs_embeds": tensor(N, 2 * n, encoder_of(facts).width),
            "token_type_ids": kinds,
        }

    return keywords


# --- the encoder -----------------------------------------------------------------------------


def _encoder(facts: Facts) -> Page:
    encoder = encoder_of(facts)
    d, tables = encoder.width, list(zip(encoder.view_sizes, encoder.queries, strict=True))
    named = ", ".join(f"`query_{size}` with {rows} rows" for size, rows in tables)
    label, N, R = facts.views[0]
    n = facts.token_side(R) ** 2
    cases = _cases(
        facts,
        _ENCODER,
        lambda N, R: [tensor(N, d, facts.token_side(R), facts.token_side(R))],
        lambda N, R: _all_kernels(facts, N, R),
    )
    cache = {
        case.label: evaluate(
            str(_STACK.cache_bytes), {**case.values, "T": 2 * case.values["q"] ** 2}
        )
        for case in cases
    }
    return Page(
        name="Qwen2Decoder2Encoder",
        group=_GROUP,
        subject=facts.class_at(_ENCODER),
        what="A language model's decoder used as an image encoder, in the place of CLIP. SAM's"
        " features become n image tokens; n learned queries follow them, one row of a table each;"
        " the decoder runs over both, and only what becomes of the queries goes on: as many visual"
        " tokens as there were image tokens, in the order that the queries have learned. There is a"
        f" table for each size of view ({named}), told apart by their number of tokens; any other"
        " number has none and is refused.",
        blocks=(("encoder", "Qwen2 as encoder"), ("encoder", "tables of queries")),
        layer="architectures.deepseek_ocr_2.encoder.encoder_sections",
        inputs={"x": "N, d, q, q"},
        output="N, n, d",
        parameters={
            "decoder_layer": Parameter("Layers.", encoder.layers),
            "hidden_dimension": Parameter("Width d: SAM's channels.", d),
            "num_attention_heads": Parameter("Query heads.", encoder.heads),
            "num_key_value_heads": Parameter("Key and value heads.", encoder.kv_heads),
            "intermediate_size": Parameter("Hidden width of the MLPs.", encoder.intermediate_size),
            "max_query": Parameter("Unused, as published.", "any number"),
            "attn_implementation": Parameter("Only `sdpa` is built.", "sdpa"),
            "view_sizes": Parameter(
                "Pixels a side of the views that have queries; not a parameter of the vendor's"
                " class, which has the two published tables.",
                encoder.view_sizes,
            ),
        },
        diagram=f"""flowchart TB
  sam["SAM features [N, {d}, q, q]"] --> flat["flatten, tokens first<br/>[N, n, {d}]"]
  tables["{"<br/>".join(f"query_{size} [{rows}, {d}]" for size, rows in tables)}"] -->|"the one with n rows"| queries["queries [N, n, {d}]"]
  flat --> cat["concatenate [N, 2 n, {d}]"]
  queries --> cat
  flat --> kinds["kinds: n zeros, n ones"]
  cat --> decoder["model: CustomQwen2Decoder<br/>{encoder.layers} layers"]
  kinds --> decoder
  decoder --> last["the last n positions"]
  last --> y["visual tokens [N, n, {d}]"]""",
        pseudo_code="""x = x.flatten(2).transpose(1, 2)                     # [N, n, d]
queries = {rows: table}[n].weight.expand(N, n, d)    # the module of the table is never called
kinds = cat([zeros(N, n), ones(N, n)], dim=1)        # image token, query
return model(cat([x, queries], dim=1), kinds).last_hidden_state[:, n:]""",
        mathematics=r"y_i = f\left(x_1, \dots, x_n, u_1, \dots, u_i\right)_{n + i}"
        r" \quad (i = 1, \dots, n)",
        symbols=_stack_symbols() | _pick("u"),
        formulas=Formulas(
            macs=_STACK.macs,
            vector_flops=_STACK.vector_flops,
            params=f"{_STACK.params} + u * d",
            activations=_STACK.activations,
        ),
        cases=cases,
        flops_notes=(
            "Half of all tokens are image tokens whose last hidden states nobody reads; their"
            " layers run to the end, norm included.",
            "On a real CPU tensor PyTorch's fused attention escapes `FlopCounterMode`; on `meta` it"
            " is counted, as here.",
        ),
        memory_notes=(
            "Every call fills a KV cache of all layers that nothing reads and that is dropped when"
            " the call ends: "
            + ", ".join(f"{scaled(size, 'B')} for the {where}" for where, size in cache.items())
            + ".",
        ),
        related=("CustomQwen2Decoder", "ImageEncoderViT", "MlpProjector", "DeepseekOCR2Model"),
        usage=f"""import torch
from dsocr_analyze.running.forward import running
from dsocr_analyze.session import DeepSeekOCRSession

encoder = DeepSeekOCRSession.from_local().model.model.qwen2_model
features = torch.empty({N}, {d}, {facts.token_side(R)}, {facts.token_side(R)}, dtype=torch.bfloat16, device="meta")
with running(torch.device("meta")):  # answers "which tokens are queries?"
    y = encoder(features)
assert y.shape == ({N}, {n}, {d})""",
        notes=f"as many queries as image tokens; the {label} has {n}",
        references=("deepseekocr2", "qwen2"),
    )


def _decoder(facts: Facts) -> Page:
    encoder = encoder_of(facts)
    config: Any = facts.at(_INNER).config
    return Page(
        name="CustomQwen2Decoder",
        group=_GROUP,
        subject=facts.class_at(_DECODER),
        what="Builds the config of a small Qwen2 and holds the model that is made from it; its call"
        " hands on what it gets. The constructor's defaults are those of Qwen2 with half a billion"
        " parameters, and the token embedding and the head are left out: it only ever sees"
        " features.",
        blocks=(("encoder", "decoder over image tokens and queries"),),
        layer="architectures.deepseek_ocr_2.encoder.encoder_sections (below its `model`)",
        inputs={"inputs_embeds": "N, T, d", "token_type_ids": "N, T"},
        output="N, T, d",
        parameters={
            "decoder_layer": Parameter("Layers.", encoder.layers),
            "max_position_embeddings": Parameter(
                "Positions it was trained for; nothing depends on it.",
                config.max_position_embeddings,
            ),
            "hidden_dimension": Parameter("Width d.", encoder.width),
            "num_attention_heads": Parameter("Query heads.", encoder.heads),
            "num_key_value_heads": Parameter("Key and value heads.", encoder.kv_heads),
            "intermediate_size": Parameter("Hidden width of the MLPs.", encoder.intermediate_size),
            "vocab_size": Parameter("Unused: there is no token embedding.", "any number"),
            "attn_implementation": Parameter("Only `sdpa` takes the mixed mask here.", "sdpa"),
            "rms_norm_eps": Parameter("Epsilon of the norms.", config.rms_norm_eps),
            "rope_theta": Parameter("Base of the rotary frequencies.", config.rope_theta),
            "attention_dropout": Parameter(
                "Dropout of attention's weights, in training.", config.attention_dropout
            ),
            "hidden_act": Parameter("Activation of the MLPs' gates.", config.hidden_act),
            "initializer_range": Parameter(
                "Spread of freshly drawn weights.", config.initializer_range
            ),
        },
        diagram="""flowchart LR
  x["inputs_embeds [N, T, d]"] --> model["model: CustomQwen2ModelInner"]
  kinds["token_type_ids [N, T]<br/>0 image token, 1 query"] --> model
  model --> y["last_hidden_state [N, T, d]"]
  model --> cache[("KV cache, dropped by the caller")]""",
        pseudo_code="""def __init__(sizes):
    self.model = CustomQwen2ModelInner(config(sizes, query, key and value with bias))
def forward(inputs_embeds, token_type_ids, attention_mask=None):
    return model(inputs_embeds=inputs_embeds, token_type_ids=token_type_ids)""",
        mathematics=r"y = \mathrm{Qwen2}(x;\ M(\mathrm{kinds}))",
        symbols=_stack_symbols(),
        formulas=_STACK,
        cases=_cases(
            facts,
            _DECODER,
            lambda N, R: [],
            lambda N, R: _inner_kernels(facts, N, R),
            _embeds_and_kinds(facts),
        ),
        flops_notes=("All of its work is that of its one part.",),
        memory_notes=(
            "`use_cache` is left on: keys and values of every layer come back with the result.",
        ),
        related=("Qwen2Decoder2Encoder", "CustomQwen2ModelInner"),
        usage=f"""import torch
{import_line(_FILE, "CustomQwen2Decoder")}

with torch.device("meta"):
    decoder = CustomQwen2Decoder()
assert len(decoder.model.layers) == {facts.default("CustomQwen2Decoder", "decoder_layer")}
assert not hasattr(decoder.model, "embed_tokens")""",
        notes="config and model; no token embedding, no head",
        references=("qwen2",),
    )


def _mask_notes(facts: Facts) -> tuple[str, ...]:
    """What the mask costs to make, by the kernels that the page is checked against."""
    notes = []
    for label, N, R in facts.views:
        kernels = _frame_and_layer(facts, N, R)[0]["model.model"]
        writes = [kernel for kernel in kernels if kernel.operator == "index_put"]
        launches = sum(kernel.calls for kernel in writes)
        zeros = sum(kernel.total.bytes_written for kernel in writes) // BFLOAT16.nbytes
        T = _tokens(facts, R)
        notes.append(
            f"For the {label} the mask takes {count(launches)} index writes, each a kernel of its"
            f" own ({count(launches // N)} a view); they set {count(zeros)} of"
            f" {count(N * T * T)} entries to zero."
        )
    return tuple(notes)


def _inner(facts: Facts) -> Page:
    encoder = encoder_of(facts)
    d = encoder.width
    return Page(
        name="CustomQwen2ModelInner",
        group=_GROUP,
        subject=facts.class_at(_INNER),
        what=f"Qwen2's {encoder.layers} layers and last norm under a mixed mask. Image tokens see"
        " all image tokens and no query: among them attention is that of an encoder. A query sees"
        " all image tokens, and the queries up to itself: among queries it is that of a decoder."
        " So a query's answer depends on the image and on what was asked before, never on what is"
        " asked after. The mask is additive, made anew at each call, view by view and row by row:"
        " one write for the square of the image tokens, then two for each query. (In the vendor's"
        " file the class is local to its owner's constructor and inherits from the Qwen2 model of"
        " transformers, whose causal mask it replaces.)",
        blocks=(("encoder", "mixed mask"), ("encoder", "layers and last norm")),
        layer="architectures.deepseek_ocr_2.encoder.encoder_sections (its frame and layers)",
        inputs={"inputs_embeds": "N, T, d", "token_type_ids": "N, T"},
        output="N, T, d",
        parameters={"config": Parameter("What the layers read, and their number.", "made above")},
        diagram=f"""flowchart TB
  kinds["token_type_ids [N, T]"] --> mask["mask [N, 1, T, T]"]
  positions["positions 0 .. T - 1"] --> rotary["rotary_emb: cosines and sines [1, T, {encoder.head_dim}]"]
  x["inputs_embeds [N, T, {d}]"] --> layers["layers: {encoder.layers} x Qwen2DecoderLayer"]
  mask --> layers
  rotary --> layers
  layers --> cache[("KV cache, read by nothing")]
  layers --> norm["norm: Qwen2RMSNorm"]
  norm --> y["last_hidden_state [N, T, {d}]"]""",
        pseudo_code="""for view in batch:                                   # rows of the mask, `lowest` at first
    images, queries = (kinds == 0).nonzero(), (kinds == 1).nonzero()
    mask[images, images] = 0                         # rows 0 .. n - 1: columns 0 .. n - 1
    for i, query in enumerate(queries):
        mask[query, images] = 0                      # row n + i: columns 0 .. n - 1
        mask[query, queries[: i + 1]] = 0            # row n + i: columns n .. n + i
mask, tables = stack(masks), rotary_emb(x, arange(T))
for layer in layers:
    x = layer(x, mask, cache, tables)
return norm(x), cache""",
        mathematics=r"M_{rc} = \begin{cases} 0 & c < n \\ 0 & n \le c \le r \\"
        r" -\infty & \text{otherwise} \end{cases}"
        r", \quad \#\{c : M_{rc} = 0\} = \begin{cases} n & r < n \\ r + 1 & r \ge n \end{cases}",
        symbols=_stack_symbols(),
        formulas=_STACK,
        cases=_cases(
            facts,
            _INNER,
            lambda N, R: [],
            lambda N, R: _inner_kernels(facts, N, R),
            _embeds_and_kinds(facts),
        ),
        flops_notes=(
            "The whole square of T tokens is multiplied; what the mask hides is computed and"
            " dropped.",
            *_mask_notes(facts),
            "Rotary angles are made once a call, for one row whatever the batch; the rotary modules"
            " of the layers are never called.",
        ),
        memory_notes=("The mask is kept for every view of the batch while the layers run.",),
        related=(
            "CustomQwen2Decoder",
            "Qwen2DecoderLayer",
            "Qwen2RMSNorm",
            "Qwen2RotaryEmbedding",
            "DeepseekV2Model",
        ),
        usage=f"""import torch
{import_line(_FILE, "CustomQwen2Decoder")}

sizes = dict(decoder_layer=2, hidden_dimension=8, num_attention_heads=2, intermediate_size=8)
inner = CustomQwen2Decoder(**sizes).model.eval()
seen = []
inner.layers[0].register_forward_pre_hook(
    lambda layer, args, kwargs: seen.append(kwargs["attention_mask"] == 0), with_kwargs=True
)
x, kinds = torch.randn(1, 6, 8), torch.tensor([[0, 0, 0, 1, 1, 1]])
y = inner(inputs_embeds=x, token_type_ids=kinds).last_hidden_state
assert seen[0][0, 0].sum(-1).tolist() == [3, 3, 3, 4, 5, 6]  # columns that each row sees
x[0, 5] += 1  # the last query is another one: what stands before does not notice
other = inner(inputs_embeds=x, token_type_ids=kinds).last_hidden_state
assert torch.equal(y[:, :5], other[:, :5]) and not torch.equal(y[:, 5], other[:, 5])""",
        notes="bidirectional over the image, causal over the queries",
        references=("deepseekocr2", "qwen2"),
    )


# --- its layers ------------------------------------------------------------------------------


def _layer(facts: Facts) -> Page:
    encoder = encoder_of(facts)
    d = encoder.width
    return Page(
        name="Qwen2DecoderLayer",
        group=_GROUP,
        subject=facts.class_at(_LAYER),
        what="One layer of the encoder: normalise, attend, add; normalise, MLP, add. It differs"
        " from the decoder's dense layer in its attention: fewer key and value heads, biases, and"
        " scores that never lie in memory.",
        blocks=(("encoder", "layer"),),
        layer="architectures.deepseek_ocr_2.encoder (one layer of it)",
        inputs={"hidden_states": "N, T, d"},
        output="N, T, d",
        parameters={
            "config": Parameter("What attention, MLP and norms read.", "made above"),
            "layer_idx": Parameter("Number of the layer, from 0.", f"0 to {encoder.layers - 1}"),
        },
        diagram=f"""flowchart TB
  x["x [N, T, {d}]"] --> n1["input_layernorm: Qwen2RMSNorm"]
  n1 --> attn["self_attn: Qwen2SdpaAttention"]
  mask["mixed mask, rotary tables"] --> attn
  attn --> add1["sum"]
  x --> add1
  add1 --> n2["post_attention_layernorm: Qwen2RMSNorm"]
  n2 --> mlp["mlp: Qwen2MLP<br/>{d} to {encoder.intermediate_size} to {d}"]
  mlp --> add2["sum"]
  add1 --> add2
  add2 --> y["y [N, T, {d}]"]""",
        pseudo_code="""x = x + self_attn(input_layernorm(x), mask, tables, cache)
return x + mlp(post_attention_layernorm(x)), cache""",
        mathematics=r"h = x + \mathrm{attn}(\mathrm{norm}_1(x)), \quad"
        r" y = h + \mathrm{mlp}(\mathrm{norm}_2(h))",
        symbols=_layer_symbols(),
        formulas=_LAYER_FORMULAS,
        cases=_cases(
            facts,
            _LAYER,
            _hidden(facts),
            lambda N, R: _frame_and_layer(facts, N, R)[1],
            _as_in_a_layer(facts),
        ),
        flops_notes=("The MLP is wide for the model: it takes most of a layer's MACs.",),
        related=(
            "CustomQwen2ModelInner",
            "Qwen2SdpaAttention",
            "Qwen2MLP",
            "Qwen2RMSNorm",
            "DeepseekV2DecoderLayer",
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

layer = DeepSeekOCRSession.from_local().model.model.qwen2_model.model.model.layers[0]
assert layer.mlp.gate_proj.out_features == {encoder.intermediate_size}
assert sum(weights.numel() for weights in layer.parameters()) == {_layer_params(facts)}""",
        notes="pre-norm, grouped-query attention, SwiGLU",
        references=("qwen2",),
    )


def _layer_params(facts: Facts) -> int:
    return sum(weights.numel() for weights in facts.at(_LAYER).parameters())


def _attention(facts: Facts) -> Page:
    encoder = encoder_of(facts)
    d, H, kv, D = encoder.width, encoder.heads, encoder.kv_heads, encoder.head_dim
    return Page(
        name="Qwen2SdpaAttention",
        group=_GROUP,
        subject=facts.class_at(f"{_LAYER}.self_attn"),
        what="Grouped-query attention through PyTorch's fused `scaled_dot_product_attention`, with"
        " the mixed mask added to the scores. Queries, keys and values have biases, the output has"
        f" none. {H} query heads share {kv} key and value heads, which are repeated to as many"
        " before the product. It is this class whatever attention the decoder behind it was loaded"
        " with: the encoder is built with its own default, and FlashAttention-2 takes no such"
        " mask.",
        blocks=(("encoder", "attention"),),
        layer="architectures.deepseek_ocr_2.encoder (attention of a layer)",
        inputs={"hidden_states": "N, T, d"},
        output="N, T, d",
        parameters={
            "config": Parameter("Width, heads, base of the frequencies.", "made above"),
            "layer_idx": Parameter("Number of the layer: its place in the cache.", "0, 1, ..."),
        },
        diagram=f"""flowchart TB
  x["x [N, T, {d}]"] --> q["q_proj: Linear with bias<br/>{d} to {H * D}"]
  x --> k["k_proj: Linear with bias<br/>{d} to {kv * D}"]
  x --> v["v_proj: Linear with bias<br/>{d} to {kv * D}"]
  q --> rq["rotate"]
  k --> rk["rotate, repeat to {H} heads"]
  v --> rv["repeat to {H} heads"]
  rq --> sdpa["scaled dot-product attention"]
  rk --> sdpa
  rv --> sdpa
  mask["mask [N, 1, T, T]"] --> sdpa
  sdpa --> o["o_proj: Linear<br/>{H * D} to {d}"]
  o --> y["y [N, T, {d}]"]""",
        pseudo_code="""q, k, v = heads(q_proj(x)), heads(k_proj(x)), heads(v_proj(x))
q, k = rotate(q, cos, sin), rotate(k, cos, sin)
k, v = cache.update(k, v)                     # before they are repeated
k, v = repeat_kv(k, H // H_kv), repeat_kv(v, H // H_kv)
out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
return o_proj(join_heads(out))""",
        mathematics=r"y = W_o\,\mathrm{softmax}\left(\frac{q k^T}{\sqrt{D}} + M\right) v,"
        r" \quad q = \mathrm{rot}(W_q x + b_q), \quad k = \mathrm{rot}(W_k x + b_k),"
        r" \quad v = W_v x + b_v",
        symbols=_pick("N q n T d H G D e"),
        formulas=_ATTENTION,
        cases=_cases(
            facts,
            f"{_LAYER}.self_attn",
            _hidden(facts),
            lambda N, R: _part(_frame_and_layer(facts, N, R)[1], "self_attn"),
            _as_in_a_layer(facts),
        ),
        flops_notes=(
            "A score costs a scale, the mask and a softmax of five. Both products are over the"
            " whole square of T tokens, hidden entries included.",
        ),
        memory_notes=(
            "Queries, keys, values and mask are read and the heads written; the scores stay inside"
            " the kernel. The repeated keys and values are copies.",
        ),
        related=(
            "Qwen2DecoderLayer",
            "Qwen2RotaryEmbedding",
            "CustomQwen2ModelInner",
            "repeat_kv",
            "Attention",
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

layers = DeepSeekOCRSession.from_local().model.model.qwen2_model.model.model.layers
attention = layers[0].self_attn
assert attention.k_proj.out_features == {kv * D} and attention.k_proj.bias is not None
assert attention.o_proj.bias is None""",
        notes="fused, additive mask, biases, repeated key and value heads",
        references=("attention", "gqa", "rope", "qwen2"),
    )


def _mlp(facts: Facts) -> Page:
    encoder = encoder_of(facts)
    d, m = encoder.width, encoder.intermediate_size
    return Page(
        name="Qwen2MLP",
        group=_GROUP,
        subject=facts.class_at(f"{_LAYER}.mlp"),
        what="The gated MLP of a layer, computed as the decoder's `DeepseekV2MLP` is: two"
        " projections up, one through SiLU, their product, one projection down; no biases.",
        blocks=(("encoder", "SwiGLU MLP"),),
        layer="costs.swiglu.swiglu",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters={
            "config": Parameter("Gives the widths and the activation.", "made above"),
            "hidden_size": Parameter("In place of the config's width.", None),
            "intermediate_size": Parameter("In place of the config's hidden width.", None),
        },
        diagram=f"""flowchart LR
  x["x [N, T, {d}]"] --> gate["gate_proj, SiLU<br/>{d} to {m}"]
  x --> up["up_proj<br/>{d} to {m}"]
  gate --> product["product"]
  up --> product
  product --> down["down_proj<br/>{m} to {d}"]
  down --> y["y [N, T, {d}]"]""",
        pseudo_code="return down_proj(silu(gate_proj(x)) * up_proj(x))",
        mathematics=r"y = \left(\mathrm{silu}(x W_{gate}^T) \odot x W_{up}^T\right) W_{down}^T",
        symbols=_pick("N q n T d m a"),
        formulas=Formulas(
            macs="3 * N * T * d * m",
            vector_flops="(a + 1) * N * T * m",
            params="3 * d * m",
            activations="N * T * (2 * m + d)",
        ),
        cases=_cases(
            facts,
            f"{_LAYER}.mlp",
            _hidden(facts),
            lambda N, R: swiglu(N * _tokens(facts, R), d, m, BFLOAT16),
        ),
        related=("DeepseekV2MLP", "Qwen2DecoderLayer"),
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

mlp = DeepSeekOCRSession.from_local().model.model.qwen2_model.model.model.layers[0].mlp
assert mlp.gate_proj.weight.shape == mlp.up_proj.weight.shape == ({m}, {d})
assert mlp.down_proj.bias is None""",
        notes="as the decoder's",
        references=("swiglu",),
    )


def _norm(facts: Facts) -> Page:
    encoder = encoder_of(facts)
    d = encoder.width
    config: Any = facts.at(_INNER).config
    return Page(
        name="Qwen2RMSNorm",
        group=_GROUP,
        subject=facts.class_at(f"{_INNER}.norm"),
        what="Root-mean-square normalisation in fp32 with a learned gain, computed as the decoder's"
        " `DeepseekV2RMSNorm` is. Each layer has two and one follows the last:"
        f" {count(2 * encoder.layers + 1)} in the encoder.",
        blocks=(("encoder", "RMSNorm"),),
        layer="costs.normalization.rms_norm",
        inputs={"hidden_states": "N, T, d"},
        output="N, T, d",
        parameters={
            "hidden_size": Parameter("Width that is normalised.", d),
            "eps": Parameter("Added to the mean square before the root.", config.rms_norm_eps),
        },
        diagram=f"""flowchart TB
  x["x [N, T, {d}]"] --> wide["cast to fp32"]
  wide --> root["reciprocal root of the mean square and eps"]
  wide --> scale["product"]
  root --> scale
  scale --> gain["cast back, times weight [{d}]"]
  gain --> y["y [N, T, {d}]"]""",
        pseudo_code="""wide = x.float()
return weight * (wide * rsqrt(mean(wide ** 2, dim=-1) + eps)).to(x.dtype)""",
        mathematics=r"y = w \odot \frac{x}{\sqrt{\frac{1}{d} \sum_{i=1}^{d} x_i^2 + \varepsilon}}",
        symbols=_pick("N q n T d"),
        formulas=Formulas(vector_flops="N * T * (4 * d + 2)", params="d"),
        cases=_cases(
            facts,
            f"{_INNER}.norm",
            _hidden(facts),
            lambda N, R: rms_norm(N * _tokens(facts, R), d, BFLOAT16),
        ),
        related=("DeepseekV2RMSNorm", "Qwen2DecoderLayer", "CustomQwen2ModelInner"),
        usage=f"""import torch
{import_line(_FILE, "Qwen2RMSNorm")}

x = torch.randn(1, 4, {d})
y = Qwen2RMSNorm({d})(x)
assert torch.allclose(y.pow(2).mean(-1), torch.ones(1, 4), atol=1e-3)""",
        notes="as the decoder's",
        references=("rmsnorm",),
    )


def _rotary(facts: Facts) -> Page:
    encoder = encoder_of(facts)
    D = encoder.head_dim
    return Page(
        name="Qwen2RotaryEmbedding",
        group=_GROUP,
        subject=facts.class_at(f"{_INNER}.rotary_emb"),
        what="Cosines and sines of position times frequency, made at every call for one row of"
        " positions that all views share: image tokens have positions from zero, the queries those"
        " that follow. The product of frequencies and positions is a matrix product, so it counts"
        f" as MACs. Of the {encoder.layers + 1} modules of this class only the model's own is"
        " called; those of the layers are left over from the class that they come from.",
        blocks=(("encoder", "rotary positions"),),
        layer="costs.rope.llama_tables",
        inputs={"x": "N, T, d", "position_ids": "1, T"},
        output="1, T, D",
        parameters={"config": Parameter("Base of the frequencies, size of a head.", "made above")},
        diagram=f"""flowchart LR
  p["positions [1, T]"] --> outer["matrix product [1, T, {D // 2}]"]
  f["frequencies [{D // 2}], fp32"] --> outer
  outer --> both["both halves [1, T, {D}]"]
  both --> cos["cosine, cast"]
  both --> sin["sine, cast"]""",
        pseudo_code="""angles = inv_freq[:, None] @ position_ids[:, None].float()
angles = cat(angles, angles)
return cos(angles).to(x.dtype), sin(angles).to(x.dtype)""",
        mathematics=r"\theta_i = b^{-2i/D}, \quad"
        r" \mathrm{rot}(x, p) = x \odot \cos(p\,\theta) + \mathrm{half}(x) \odot \sin(p\,\theta)",
        symbols=_pick("N q n T d D"),
        formulas=Formulas(macs="T * D / 2", vector_flops="4 * T * D", activations="T * D / 2"),
        cases=_cases(
            facts,
            f"{_INNER}.rotary_emb",
            lambda N, R: [*_hidden(facts)(N, R), facts.positions(_tokens(facts, R))],
            lambda N, R: llama_tables(1, _tokens(facts, R), D, BFLOAT16),
        ),
        related=("Qwen2SdpaAttention", "CustomQwen2ModelInner", "DeepseekV2RotaryEmbedding"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

rotary = DeepSeekOCRSession.from_local().model.model.qwen2_model.model.model.rotary_emb
positions = torch.arange(8, device="meta")[None]
cos, sin = rotary(torch.empty(0, dtype=torch.bfloat16, device="meta"), positions)
assert cos.shape == sin.shape == (1, 8, {D})""",
        notes="once a call, for one row of positions",
        references=("rope",),
    )
