"""Weights: their own routing decides which experts run, and no FLOP depends on it."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from dsocr_analyze import DeepSeekOCRSession
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.kernels import Elements, Kernel, Work
from dsocr_analyze.trace.passes import PassTraces
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.summary import batch_work

PAGE = {"page": (600, 500), "crop_mode": False, "image_size": 64, "text_tokens": 4}
DECODER = {
    "num_hidden_layers": 3, "vocab_size": 64, "hidden_size": 64, "intermediate_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_routed_experts": 32, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
}  # fmt: skip
SAM = {"width": 32, "heads": 2, "layers": 2, "global_attn_indexes": [1],
       "downsample_channels": [32, 64]}  # fmt: skip
CLIP = {"width": 64, "heads": 2, "layers": 2}


pytestmark = pytest.mark.directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "model"
    shutil.copytree(DEFAULT.reference, path, ignore=shutil.ignore_patterns("__pycache__"))
    config = json.loads((path / "config.json").read_text()) | DECODER
    del config["language_config"]  # nothing reads it, and it would repeat the published values
    config["projector_config"] |= {"input_dim": 128, "n_embed": 64}
    config["vision_config"]["width"]["sam_vit_b"] |= SAM
    config["vision_config"]["width"]["clip-l-14-224"] |= CLIP
    (path / "config.json").write_text(json.dumps(config))
    model = session(path, "cpu").model
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(tensor.shape, generator=generator) * 0.3
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }
    save_file(weights, path / "model.safetensors")
    return path


def session(path, device):
    return DeepSeekOCRSession.from_local(
        path, device=device, dtype="float32", trust_remote_code=True
    )


@pytest.fixture(scope="module", params=[1, 3], ids=["one page", "batch of 3"])
def documents(request, directory):
    workload = PAGE | {"batch_size": request.param, "max_new_tokens": 50}
    return session(directory, "cpu").analyze(**workload), session(directory, "meta").analyze(
        **workload
    )


@pytest.mark.exhaustive
def test_the_checkpoints_routing_is_not_the_uniform_one(documents):
    routed, uniform = documents
    assert routed.metadata.model.weights == "checkpoint"
    assert routed.stages["prefill"].bytes_read != uniform.stages["prefill"].bytes_read


@pytest.mark.exhaustive
def test_trace_and_closed_forms_agree_without_a_warning(documents):
    for document in documents:
        assert document.warnings == ()
        assert document.agreement.agrees is True


@pytest.mark.exhaustive
def test_expected_bytes_do_not_depend_on_the_routing(documents):
    routed, uniform = documents
    for name in ("prefill", "decode"):
        own, even = routed.stages[name], uniform.stages[name]
        assert even.experts_touched.counted == even.experts_touched.even
        assert own.experts_touched.even == even.experts_touched.even
        assert own.experts_touched.expected == even.experts_touched.expected
        assert own.bytes_read_expected == pytest.approx(even.bytes_read_expected, rel=1e-12)
    # What the checkpoint's own routing chose: not the even split in the prompt.
    counted = routed.stages["prefill"].experts_touched.counted
    assert 2 <= counted < routed.stages["prefill"].experts_touched.even


@pytest.mark.exhaustive
def test_no_flop_depends_on_the_routing(documents):
    routed, uniform = documents
    for key in ("macs", "vector_flops", "flops", "activations"):
        assert getattr(routed.total, key) == getattr(uniform.total, key)
        assert getattr(routed.total.batch, key) == getattr(uniform.total.batch, key)


@pytest.mark.exhaustive
def test_steps_grow_with_the_cache_alone(documents):
    grown = []
    for document in documents:
        total = document.total
        for key in ("bytes_read", "bytes_written"):
            steps = total.batch.decode_steps * getattr(total.decode_step, key)
            grown.append(getattr(total.batch, key) - getattr(total, key) - steps)
    assert grown[:2] == grown[2:]
    assert min(grown) > 0


def test_experts_that_another_step_reads_are_no_growth():
    def kernel(path, operator, work):
        return Kernel("gemm", operator, Elements(1), "bfloat16", "bfloat16", work, path=path)

    def step(expert, expert_bytes, attention):
        path = f"model.layers.1.mlp.experts.{expert}.up_proj"
        return Trace(
            kernels=[
                kernel(path, "linear", Work(bytes_read=expert_bytes)),
                kernel("model.layers.1.self_attn", "matmul", attention),
            ]
        )

    first = step(3, 100, Work(macs=10, bytes_read=7))
    second = step(5, 300, Work(macs=12, bytes_read=8))
    traces = PassTraces(Trace(), (first, second), (0, 1), kv_cache_bytes=0, inputs_bytes=0)
    prefill = Work(macs=1000, bytes_read=5000)
    # 4 new tokens are 3 steps: the cache has grown by 0, 1 and 2 tokens.
    batch = batch_work(prefill, traces, [range(3)], DEFAULT.routed_expert)
    assert batch == Work(
        macs=1000 + 3 * 10 + (0 + 1 + 2) * 2, bytes_read=5000 + 3 * 107 + (0 + 1 + 2) * 1
    )
