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


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch_size", [1, 3])
def test_figures_of_a_checkpoint_differ_by_its_routing_alone(directory, batch_size):
    routed, uniform = documents = [
        session(directory, device).analyze(**PAGE, batch_size=batch_size, max_new_tokens=50)
        for device in ("cpu", "meta")
    ]
    assert routed.metadata.model.weights == "checkpoint"
    assert routed.stages["prefill"].bytes_read != uniform.stages["prefill"].bytes_read
    for document in documents:
        assert document.warnings == ()
        assert document.agreement.agrees is True
    for name in ("prefill", "decode"):
        own, even = routed.stages[name], uniform.stages[name]
        assert even.experts_touched.counted == even.experts_touched.even
        assert own.experts_touched.even == even.experts_touched.even
        assert own.experts_touched.expected == even.experts_touched.expected
        assert own.bytes_read_expected == pytest.approx(even.bytes_read_expected, rel=1e-12)
    # What the checkpoint's own routing chose: not the even split in the prompt.
    touched = routed.stages["prefill"].experts_touched
    assert 2 <= touched.counted < touched.even
    for key in ("macs", "vector_flops", "flops", "activations"):  # no FLOP depends on it
        assert getattr(routed.total, key) == getattr(uniform.total, key)
        assert getattr(routed.total.batch, key) == getattr(uniform.total.batch, key)
    # Steps grow with the cache alone.
    grown = [
        getattr(total.batch, key)
        - getattr(total, key)
        - total.batch.decode_steps * getattr(total.decode_step, key)
        for total in (routed.total, uniform.total)
        for key in ("bytes_read", "bytes_written")
    ]
    assert grown[:2] == grown[2:]
    assert min(grown) > 0


def test_experts_that_another_step_reads_are_no_growth():
    def step(expert, expert_bytes, attention):
        rest = ("linear", Elements(1), "bfloat16", "bfloat16")
        expert_path = f"model.layers.1.mlp.experts.{expert}.up_proj"
        of_expert = Kernel("gemm", *rest, Work(bytes_read=expert_bytes), path=expert_path)
        return Trace([of_expert, Kernel("gemm", *rest, attention, path="model.layers.1.self_attn")])

    first = step(3, 100, Work(macs=10, bytes_read=7))
    second = step(5, 300, Work(macs=12, bytes_read=8))
    traces = PassTraces(Trace(), (first, second), (0, 1), kv_cache_bytes=0, inputs_bytes=0)
    prefill = Work(macs=1000, bytes_read=5000)
    # 4 new tokens are 3 steps: the cache has grown by 0, 1 and 2 tokens.
    batch = batch_work(prefill, traces, [range(3)], DEFAULT.routed_expert)
    assert batch == Work(
        macs=1000 + 3 * 10 + (0 + 1 + 2) * 2, bytes_read=5000 + 3 * 107 + (0 + 1 + 2) * 1
    )
