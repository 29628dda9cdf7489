"""What the tool counts of a generation is what torch counts of the model's own `generate()`."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import transformers
from any_models import FORMULAS, IS_5, PROMPT, TEXT_STAGES, Small, session_of
from generated_models import TEXT_MODELS
from generated_pages import READERS
from sampling import named, sampled
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import GenerationMixin
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.described_model import use_attention
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.trace.summary import growing_work

MODELS = {name: each for name, each in {**TEXT_MODELS, **READERS}.items() if each.is_there}
REFUSED_ON_META = ("switch",)
"""What it runs depends on values: which expert is the best."""


class Counted(NamedTuple):
    """What is counted of a generation.

    Attributes:
        flops: FLOPs of matrix operators: of all up to the first token, then of each step.
        cache_bytes: Bytes of the cache's floating numbers after each of these.
        params: Parameters of the model, tied ones once.
    """

    flops: list[int]
    cache_bytes: list[int]
    params: int


def real_model(small: Small) -> torch.nn.Module:
    values = copy.deepcopy(small.config)
    config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    use_attention(config, "eager")
    torch.manual_seed(0)
    model = getattr(transformers, values["architectures"][0])(config)
    return model.bfloat16().eval().requires_grad_(False)


def first_token(input_ids, scores):
    """Generates token 0, so that no drawn weights decide what a step embeds."""
    return torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor([0]), 0)


def really_generated(small: Small, batch: int, new_tokens: int) -> Counted:
    """What torch counts while the model itself generates on the CPU."""
    model = real_model(small)
    given = {
        name: (value.bfloat16() if value.is_floating_point() else value).repeat(
            batch, *[1] * (value.dim() - 1)
        )
        for name, value in small.inputs(torch.device("cpu")).items()
    }
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
    starts, ends, cache_bytes, sample = [], [], [], GenerationMixin._sample

    def after(_module, _args, kwargs, output):
        ends.append(counter.get_total_flops())
        kept = kwargs | dict(output)
        caches = [kept.get(name) for name in ("past_key_values", "cache_params", "state")]
        cache_bytes.append(floating_bytes(caches, set()))

    def hooked_sample(self, *args, **kwargs):
        self.register_forward_pre_hook(lambda *_: starts.append(counter.get_total_flops()))
        self.register_forward_hook(after, with_kwargs=True)
        return sample(self, *args, **kwargs)

    # torch counts no flash kernel of a CPU, which some classes call however they are asked.
    with pytest.MonkeyPatch.context() as patch, counter, sdpa_kernel(SDPBackend.MATH):
        patch.setattr(GenerationMixin, "_sample", hooked_sample)
        model.generate(
            **given,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
            eos_token_id=None,
            pad_token_id=1,
            logits_processor=[first_token],
        )
    starts[0] = 0  # an encoder has run before
    flops = [end - start for start, end in zip(starts, ends, strict=True)]
    assert len(flops) == new_tokens
    return Counted(flops, cache_bytes, sum(each.numel() for each in model.parameters()))


def floating_bytes(value, seen: set[int]) -> int:
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.is_floating_point() else 0
    parts = getattr(value, "__dict__", value)
    if isinstance(parts, dict):
        parts = [*parts.values()]
    return sum(floating_bytes(x, seen) for x in parts) if isinstance(parts, list | tuple) else 0


def told(small: Small, folder, batch: int, steps, new_tokens: int, **arguments) -> Counted:
    """What the tool says of the prefill pass and of some steps of the same generation."""
    session = session_of(small, folder, **arguments)
    workload = session.plan(batch_size=batch, max_new_tokens=new_tokens)
    traces = trace_passes(session.loaded, workload, session.architecture, step_numbers=steps)
    return Counted(
        [2 * growing_work(each, None).macs for each in (traces.prefill, *traces.decode_steps)],
        [traces.kv_cache_bytes, *traces.step_cache_bytes],
        sum(each.numel() for each in session.model.parameters()),
    )


@pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning")  # Nemotron's
@sampled("batch", [1, 3], named(1))
@sampled("name", sorted({*MODELS} - {*REFUSED_ON_META}), named("mamba"))
def test_every_pass_costs_what_generate_runs(tmp_path, name, batch):
    small = MODELS[name]
    real = really_generated(small, batch, 4)
    assert told(small, tmp_path, batch, range(3), 4) == real
    report = session_of(small, tmp_path).analyze(batch_size=batch, max_new_tokens=4)
    passes = report.total, report.total.decode_step, report.total.batch
    assert [each.matrix_flops for each in passes] == [*real.flops[:2], sum(real.flops)]
    found = report.memory.kv_cache_bytes, report.total.params
    assert found == (real.cache_bytes[-1], real.params)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS.keys() & {*REFUSED_ON_META})
def test_what_meta_cannot_tell_is_refused_and_a_cpu_can(tmp_path, name):
    small = MODELS[name]
    with pytest.raises(ModelCodeError, match=r"no values on meta.*give device=.cpu"):
        told(small, tmp_path, 1, range(3), 4)
    real = really_generated(small, 1, 4)
    assert told(small, tmp_path, 1, range(3), 4, device="cpu", dtype="bfloat16") == real


JUMPS = (
    "deepseek_v32", "gemma2", "gemma3", "gpt_bigcode", "gpt_oss", "idefics", "mamba", "mistral",
    "mllama", "mpt", "phi3", "qwen2_audio", "recurrent_gemma", "rwkv", "t5", "whisper", "zamba",
)  # fmt: skip
"""Windows that fill up, caches as large as the whole answer, and each other way to grow."""


@sampled("name", sorted(MODELS.keys() & {*JUMPS}), named("t5"))
def test_a_step_after_many_that_do_not_run_costs_what_it_costs_after_them(tmp_path, name):
    small = MODELS[name]
    real = really_generated(small, 1, 12)
    flops, cache_bytes = ([of[0], of[1], of[11]] for of in (real.flops, real.cache_bytes))
    assert told(small, tmp_path, 1, (0, 10), 12) == Counted(flops, cache_bytes, real.params)
    report = session_of(small, tmp_path).analyze(max_new_tokens=12)
    found = report.total.batch.matrix_flops, report.memory.kv_cache_bytes
    assert found == (sum(real.flops), real.cache_bytes[-1])


def test_the_page_says_how_many_models_these_are():
    page = (Path(__file__).parent.parent / "docs/any-model.md").read_text(encoding="utf-8")
    words = "small models under transformers" if not IS_5 else "under"
    version = transformers.__version__.rpartition(".")[0]
    assert f"{len(MODELS)} {words} {version}" in " ".join(page.split())


LLAMA = Small(
    {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    },
    'attention = "sdpa"\n' + TEXT_STAGES + PROMPT,
)  # fmt: skip
"""Llama-3.2-1B."""


def test_a_prefill_computes_the_logits_of_one_token_as_generate_asks(tmp_path):
    tokens, d, kv, inner, layers, vocabulary = 2048, 2048, 512, 8192, 16, 128256
    keep = "logits_to_keep" if IS_5 else "num_logits_to_keep"
    shallow = replace(LLAMA, config=LLAMA.config | {"num_hidden_layers": 1})
    deep, one, every = (
        session_of(small, tmp_path).analyze(seq_len=tokens, max_new_tokens=2)
        for small in (
            LLAMA, shallow, replace(shallow, stages=LLAMA.stages + f"[inputs]\n{keep} = 0\n"),
        )
    )  # fmt: skip
    layer = tokens * (2 * d * d + 2 * d * kv + 3 * d * inner) + 2 * tokens * tokens * d
    # Of the angles, one product per position and half a head's width, which 4.46 makes with a
    # matrix operator.
    angles = 0 if IS_5 else tokens * 32
    flops = 4_536_010_932_224 - (131_072 if IS_5 else 0)
    assert (deep.total.macs, deep.total.matrix_flops, deep.total.params) == (
        layers * layer + d * vocabulary + angles, flops, 1_235_814_400,
    )  # fmt: skip
    difference = every.total.matrix_flops - one.total.matrix_flops
    assert difference == 2 * (tokens - 1) * d * vocabulary
    logits = 2 * tokens * vocabulary
    assert one.memory.peak_activation_bytes < logits < every.memory.peak_activation_bytes
