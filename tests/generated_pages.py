"""Small models of pages and sound whose own `generate` is the witness of what the tool counts."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from any_models import CLIP_VISION, DECODER, IMAGE, IS_5, MODELS, Small, has_class

# --- text models -----------------------------------------------------------------------------

TWO_STAGES = """
[[stages]]
name = "prefill"
role = "prefill"

[[stages]]
name = "decode"
role = "decode"
"""
TOKENS = 12


def decoder(model_type: str, model_class: str, config: dict[str, Any]) -> Small:
    """A decoder with a prompt of text alone."""
    return Small(
        {"model_type": model_type, "architectures": [model_class], **config},
        TWO_STAGES + f"[prompt]\ntokens = {TOKENS}\n",
        ids=(0,) * TOKENS,
        # Version 4.46's own `generate` of this one fails.
        is_there=has_class(model_class) and (IS_5 or model_type != "recurrent_gemma"),
    )


def llama_like(model_type: str, prefix: str, **changes: Any) -> Small:
    """The same with a config in the terms of Llama."""
    return decoder(model_type, f"{prefix}ForCausalLM", {**DECODER, **changes})


_N = {"vocab_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 64}
_GPT2 = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
_MAMBA = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_MPT = {"vocab_size": 128, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}
_ONE_HEAD = {"num_key_value_heads": 1, "head_dim": 16}
_WINDOW = {"sliding_window": TOKENS}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}  # fmt: skip

TEXT_MODELS = {
    **{name: small for name, small in MODELS.items() if small.decodes},
    "llama_tied": llama_like("llama", "Llama", tie_word_embeddings=True),
    "qwen2_window": llama_like(
        "qwen2", "Qwen2", use_sliding_window=True, max_window_layers=1, **_WINDOW
    ),
    "starcoder2": llama_like("starcoder2", "Starcoder2", **_WINDOW),
    "phi3": llama_like("phi3", "Phi3", sliding_window=TOKENS + 1, pad_token_id=0),
    "phi": llama_like("phi", "Phi"),
    "gemma": llama_like("gemma", "Gemma", **_ONE_HEAD),
    "gemma2": llama_like("gemma2", "Gemma2", head_dim=16, sliding_window=TOKENS + 2),
    "cohere": llama_like("cohere", "Cohere"),
    "olmo": llama_like("olmo", "Olmo"),
    "stablelm": llama_like("stablelm", "StableLm"),
    "granite": llama_like("granite", "Granite"),
    "persimmon": llama_like("persimmon", "Persimmon", num_key_value_heads=4),
    "nemotron": llama_like("nemotron", "Nemotron"),
    "glm": llama_like("glm", "Glm", head_dim=16, pad_token_id=0),
    "gpt_bigcode": decoder("gpt_bigcode", "GPTBigCodeForCausalLM", {**_GPT2, "multi_query": True}),
    "falcon": decoder("falcon", "FalconForCausalLM", {**_N, "multi_query": True}),
    "falcon_alibi": decoder(
        "falcon", "FalconForCausalLM", {**_N, "multi_query": False, "alibi": True}
    ),
    "gpt2": decoder("gpt2", "GPT2LMHeadModel", _GPT2),
    "opt": decoder("opt", "OPTForCausalLM", {
        **_N, "ffn_dim": 96, "word_embed_proj_dim": 32, "max_position_embeddings": 128}),
    "bloom": decoder("bloom", "BloomForCausalLM", {
        "vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "gpt_neo": decoder("gpt_neo", "GPTNeoForCausalLM", {
        "vocab_size": 128, "hidden_size": 64, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]], "window_size": 8,
        "max_position_embeddings": 128}),
    "gpt_neox": decoder("gpt_neox", "GPTNeoXForCausalLM", {**_N, "intermediate_size": 96}),
    "mpt": decoder("mpt", "MptForCausalLM", _MPT),
    "mpt_cached": decoder("mpt", "MptForCausalLM", {**_MPT, "use_cache": True}),
    "codegen": decoder("codegen", "CodeGenForCausalLM", {**_GPT2, "rotary_dim": 8}),
    "gptj": decoder("gptj", "GPTJForCausalLM", {**_GPT2, "rotary_dim": 8}),
    "biogpt": decoder("biogpt", "BioGptForCausalLM", {
        **_N, "intermediate_size": 96, "max_position_embeddings": 128}),
    "xglm": decoder("xglm", "XGLMForCausalLM", {
        "vocab_size": 128, "d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4,
        "max_position_embeddings": 128}),
    "qwen3": llama_like("qwen3", "Qwen3", head_dim=16),
    "smollm3": llama_like("smollm3", "SmolLM3", pad_token_id=0),
    "olmo2": llama_like("olmo2", "Olmo2"),
    "gemma3": llama_like(
        "gemma3_text", "Gemma3", head_dim=16, sliding_window=TOKENS + 2, sliding_window_pattern=2
    ),
    "exaone4": llama_like("exaone4", "Exaone4", sliding_window=TOKENS, sliding_window_pattern=2),
    "cohere2": llama_like("cohere2", "Cohere2", sliding_window=TOKENS, sliding_window_pattern=2),
    # Mixtures of experts.
    "granitemoe": llama_like(
        "granitemoe", "GraniteMoe", num_local_experts=4, num_experts_per_tok=2
    ),
    "olmoe": llama_like("olmoe", "Olmoe", num_experts=4, num_experts_per_tok=2),
    "jetmoe": decoder("jetmoe", "JetMoeForCausalLM", {
        "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "kv_channels": 16,
        "num_key_value_heads": 2, "num_attention_heads": 4, "intermediate_size": 96,
        "num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": llama_like("deepseek_v3", "DeepseekV3", **_LATENT),
    "deepseek_v32": llama_like(
        "deepseek_v32", "DeepseekV32", **_LATENT, index_topk=8, index_head_dim=16,
        index_n_heads=2, head_dim=8),
    "deepseek_v4": decoder("deepseek_v4", "DeepseekV4ForCausalLM", {
        "vocab_size": 128, "hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "q_lora_rank": 16,
        "qk_rope_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "hc_mult": 2,
        "sliding_window": TOKENS, "o_groups": 2, "o_lora_rank": 16, "index_n_heads": 2,
        "index_head_dim": 16, "index_topk": 2, "mlp_layer_types": ["hash_moe", "moe"],
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
        "compress_rates": {"heavily_compressed_attention": 5, "compressed_sparse_attention": 3}}),
    "qwen3_moe": llama_like("qwen3_moe", "Qwen3Moe", head_dim=16, **_EXPERTS),
    "gpt_oss": llama_like(
        "gpt_oss", "GptOss", head_dim=16, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=TOKENS + 1),
    # State spaces.
    "mamba": decoder("mamba", "MambaForCausalLM", _MAMBA),
    "mamba2": decoder("mamba2", "Mamba2ForCausalLM", {
        **_MAMBA, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8}),
    "falcon_mamba": decoder("falcon_mamba", "FalconMambaForCausalLM", _MAMBA),
    "jamba": llama_like(
        "jamba", "Jamba", num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1,
        expert_layer_period=2, expert_layer_offset=1, num_experts=4, mamba_d_state=8,
        mamba_dt_rank=4, use_mamba_kernels=False),
    "recurrent_gemma": llama_like(
        "recurrent_gemma", "RecurrentGemma", num_hidden_layers=3, lru_width=64,
        attention_window_size=TOKENS + 2, **_ONE_HEAD),
    "rwkv": decoder("rwkv", "RwkvForCausalLM", {
        "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "context_length": 128}),
    "zamba": llama_like(
        "zamba", "Zamba", num_hidden_layers=5, num_key_value_heads=4, attn_layer_period=2,
        attn_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4, n_mamba_heads=2,
        use_mamba_kernels=False),
    "bamba": llama_like(
        "bamba", "Bamba", attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16,
        mamba_d_state=8, mamba_chunk_size=8),
    "zamba2": llama_like(
        "zamba2", "Zamba2", num_hidden_layers=4, num_key_value_heads=4, mamba_d_state=8,
        mamba_ngroups=1, n_mamba_heads=4,
        layers_block_type=["mamba", "hybrid"] * 2,
        num_mem_blocks=1, chunk_size=8, use_mamba_kernels=False, adapter_rank=8),
    "lfm2": llama_like(
        "lfm2", "Lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3),
    "qwen3_next": llama_like(
        "qwen3_next", "Qwen3Next", head_dim=16, layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
        linear_num_value_heads=4, shared_expert_intermediate_size=32, **_EXPERTS),
}  # fmt: skip


# --- models of pages -------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """An argument of `generate` for one prompt; of a batch, each prompt has its own.

    Attributes:
        shape: Its sizes.
        fill: All its numbers.
        dtype: Its type, or `model`.
        values: The numbers, instead of shape and fill.
    """

    shape: tuple[int, ...] = ()
    fill: float = 0.5
    dtype: str = "model"
    values: tuple[Any, ...] | None = None

    def toml(self) -> str:
        """Keys of its table in a stages file."""
        if self.values is not None:
            return f'values = {json.dumps(self.values)}\nrepeat = "batch"\n'
        return (
            f'shape = {list(self.shape)}\nfill = {self.fill}\ndtype = "{self.dtype}"\n'
            'repeat = "batch"\n'
        )

    def tensor(self, device: torch.device) -> torch.Tensor:
        """It, made by hand."""
        if self.values is not None:
            return torch.tensor(self.values, device=device)
        dtype = torch.float32 if self.dtype == "model" else getattr(torch, self.dtype)
        return torch.full(self.shape, self.fill, dtype=dtype, device=device)


def reader(
    config: dict[str, Any],
    given: dict[str, Given],
    *,
    image_tokens: int = 0,
    text_tokens: int = 8,
    decoder: bool = False,
    start: int = 0,
    is_there: bool = True,
) -> Small:
    """A model that reads more than a prompt.

    Args:
        config: Its config.json.
        given: What else `generate` takes.
        image_tokens: Tokens of its prompt that stand for the image, after two others.
        text_tokens: All others.
        decoder: Whether the prompt, of one token, is the decoder's; `given` has the encoder's.
        start: That token.
        is_there: Whether the installed transformers runs it.
    """
    ids = (0, 0, *[IMAGE] * image_tokens, *[0] * (text_tokens - 2))
    prompt = f"tokens = {len(ids)}\n"
    if image_tokens:
        prompt += f"placed = [{{ value = {IMAGE}, start = 2, count = {image_tokens} }}]\n"
    if decoder:
        ids = ()
        prompt = f'tokens = 1\nfill = {start}\nargument = "decoder_input_ids"\n'
    inputs = "".join(f"[inputs.{name}]\n{each.toml()}\n" for name, each in given.items())

    def forward(device: torch.device) -> dict[str, Any]:
        made = {name: each.tensor(device) for name, each in given.items()}
        if decoder:
            made["decoder_input_ids"] = torch.tensor([[start]], device=device)
        return made

    return Small(
        config,
        f"{TWO_STAGES}\n[prompt]\n{prompt}\n{inputs}",
        forward,
        ids,
        is_there=is_there and has_class(config["architectures"][0]),
    )


SOURCE = {
    "input_ids": Given((1, 9), 5, "int64"),
    "attention_mask": Given((1, 9), 1, "int64"),
}


def translator(model_type: str, model_class: str, **config: Any) -> Small:
    """A model of an encoder and a decoder of text."""
    return reader(
        {"model_type": model_type, "architectures": [model_class], "vocab_size": 128,
         "pad_token_id": 1, "decoder_start_token_id": 0, **config},
        SOURCE,
        decoder=True,
        start=config.get("decoder_start_token_id", 0),
    )  # fmt: skip


_T5 = {
    "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "eos_token_id": 2,
}  # fmt: skip
_BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
    "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
_M2M = {**_BART, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}

PICTURE = {"pixel_values": Given((1, 3, 32, 32))}
_VIT = {**CLIP_VISION, "hidden_size": 64}
_OCR = {
    "model_type": "vision-encoder-decoder", "architectures": ["VisionEncoderDecoderModel"],
    "decoder_start_token_id": 0, "pad_token_id": 1,
}  # fmt: skip

_CLIP = {"model_type": "clip_vision_model", **CLIP_VISION, "projection_dim": 24}
_LLAMA = {"model_type": "llama", **DECODER}
_SIGLIP = {**CLIP_VISION, "model_type": "siglip_vision_model"}


def sees(
    model_type: str, prefix: str, image_tokens: int, given: dict[str, Given], **config: Any
) -> Small:
    """A model of vision and language, by default with Llama's decoder."""
    return reader(
        {"model_type": model_type, "architectures": [f"{prefix}ForConditionalGeneration"],
         "image_token_index": IMAGE, "image_token_id": IMAGE, "text_config": _LLAMA, **config},
        given,
        image_tokens=image_tokens,
        # One token for a whole image: version 5 wants as many as the image has features.
        is_there=image_tokens != 1 or model_type == "mllama" or not IS_5,
    )  # fmt: skip


_IDEFICS_VISION = {**CLIP_VISION, "hidden_size": 32, "embed_dim": 32}


def _idefics(*, use_resampler: bool) -> Small:
    return reader({
        "model_type": "idefics", "architectures": ["IdeficsForVisionText2Text"], **DECODER,
        "additional_vocab_size": 2, "cross_layer_interval": 1, "use_resampler": use_resampler,
        "vision_config": {"embed_dim": 32, "image_size": 32, "patch_size": 8,
                          "num_hidden_layers": 2, "num_attention_heads": 4,
                          "intermediate_size": 48, "hidden_act": "gelu"},
        "perceiver_config": {"resampler_n_latents": 4, "resampler_depth": 1,
                             "resampler_n_heads": 2, "resampler_head_dim": 8},
    }, {"pixel_values": Given((1, 1, 3, 32, 32)),
        "image_attention_mask": Given((1, 8, 1), 1, "int64")})  # fmt: skip


READERS = {
    "t5": translator("t5", "T5ForConditionalGeneration", **_T5),
    "mt5": translator("mt5", "MT5ForConditionalGeneration", **_T5),
    "umt5": translator("umt5", "UMT5ForConditionalGeneration", **_T5),
    "longt5": translator("longt5", "LongT5ForConditionalGeneration", **_T5, local_radius=4),
    "switch": translator(
        "switch_transformers", "SwitchTransformersForConditionalGeneration", **_T5,
        num_decoder_layers=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
        num_experts=4),
    "bart": translator("bart", "BartForConditionalGeneration", **_BART),
    "bart_start": translator("bart", "BartForConditionalGeneration", **{
        **_BART, "decoder_start_token_id": 2, "forced_bos_token_id": 0}),
    "mbart": translator("mbart", "MBartForConditionalGeneration", **_BART),
    "plbart": translator("plbart", "PLBartForConditionalGeneration", **_BART),
    "pegasus": translator("pegasus", "PegasusForConditionalGeneration", **_BART),
    "marian": translator("marian", "MarianMTModel", **_BART, decoder_vocab_size=128),
    "blenderbot": translator("blenderbot", "BlenderbotForConditionalGeneration", **_BART),
    "m2m_100": translator("m2m_100", "M2M100ForConditionalGeneration", **_M2M),
    "bert2bert": translator(
        "encoder-decoder", "EncoderDecoderModel",
        encoder={"model_type": "bert", **DECODER},
        decoder={"model_type": "bert", **DECODER, "is_decoder": True, "add_cross_attention": True}),
    "t5gemma": translator(
        "t5gemma", "T5GemmaForConditionalGeneration",
        encoder={**DECODER, "head_dim": 16}, decoder={
            **DECODER, "head_dim": 16, "sliding_window": 4, "cross_attention_hidden_size": 64}),
    # Pages.
    "trocr": reader({
        **_OCR,
        "encoder": {"model_type": "vit", **_VIT},
        "decoder": {
            "model_type": "trocr", "vocab_size": 128, "d_model": 32, "decoder_layers": 2,
            "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
            "cross_attention_hidden_size": 64},
    }, PICTURE, decoder=True),
    "trocr_deit": reader({
        **_OCR,
        "encoder": {"model_type": "deit", **_VIT},
        "decoder": {
            "model_type": "trocr", "vocab_size": 128, "d_model": 64, "decoder_layers": 2,
            "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "max_position_embeddings": 64},
    }, PICTURE, decoder=True),
    "donut": reader({
        **_OCR,
        "encoder": {
            "model_type": "donut-swin", "image_size": [32, 48], "patch_size": 4, "embed_dim": 16,
            "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        "decoder": {
            "model_type": "mbart", **_BART, "d_model": 32, "vocab_size": 128,
            "is_decoder": True, "add_cross_attention": True},
    }, {"pixel_values": Given((1, 3, 32, 48))}, decoder=True),
    "pix2struct": reader({
        "model_type": "pix2struct", "architectures": ["Pix2StructForConditionalGeneration"],
        "decoder_start_token_id": 0,
        "text_config": {"vocab_size": 128, "hidden_size": 32, "d_kv": 8, "d_ff": 48,
                        "num_layers": 2, "num_heads": 4, "pad_token_id": 1},
        "vision_config": {"hidden_size": 32, "patch_embed_hidden_size": 48, "d_ff": 48, "d_kv": 8,
                          "num_hidden_layers": 2, "num_attention_heads": 4, "seq_len": 16},
    }, {"flattened_patches": Given((1, 16, 50), 1.0), "attention_mask": Given((1, 16), 1, "int64")},
        decoder=True),
    # Speech.
    "whisper": reader(
        {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
         **_BART, "vocab_size": 128, "num_mel_bins": 16, "max_source_positions": 20,
         "max_target_positions": 64, "decoder_start_token_id": 0, "pad_token_id": 1},
        {"input_features": Given((1, 16, 40))}, decoder=True),
    "speech_to_text": reader({
        "model_type": "speech_to_text", "architectures": ["Speech2TextForConditionalGeneration"],
        **_BART, "vocab_size": 128, "input_feat_per_channel": 16, "conv_channels": 32,
        "max_source_positions": 60, "max_target_positions": 64, "decoder_start_token_id": 0,
        "pad_token_id": 1,
    }, {"input_features": Given((1, 40, 16)), "attention_mask": Given((1, 40), 1, "int64")},
        decoder=True),
    "qwen2_audio": reader({
        "model_type": "qwen2_audio", "architectures": ["Qwen2AudioForConditionalGeneration"],
        "audio_token_index": IMAGE, "audio_token_id": IMAGE,
        "text_config": {"model_type": "qwen2", **DECODER},
        "audio_config": {"model_type": "qwen2_audio_encoder", "num_mel_bins": 16, "d_model": 32,
                         "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
                         "max_source_positions": 20},
    }, {"input_features": Given((1, 16, 40)),
        "feature_attention_mask": Given((1, 40), 1, "int64")}, image_tokens=10 if IS_5 else 1),
    "moonshine": reader({
        "model_type": "moonshine", "architectures": ["MoonshineForConditionalGeneration"],
        "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48,
        "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
        "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
        "decoder_start_token_id": 0, "pad_token_id": 1,
    }, {"input_values": Given((1, 2000)), "attention_mask": Given((1, 2000), 1, "int64")},
        decoder=True),
    "voxtral": reader({
        "model_type": "voxtral", "architectures": ["VoxtralForConditionalGeneration"],
        "audio_token_id": IMAGE, "text_config": {"model_type": "llama", **DECODER},
        "audio_config": {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 128,
                         "num_hidden_layers": 2, "num_attention_heads": 4, "num_mel_bins": 16,
                         "max_source_positions": 20},
    }, {"input_features": Given((1, 16, 40))}, image_tokens=5),
    # Vision and language.
    "llava": sees("llava", "Llava", 16, PICTURE, vision_config=_CLIP,
                  vision_feature_layer=-2, image_seq_length=16),
    "llava_grown": sees("llava", "Llava", 1, PICTURE, vision_config=_CLIP,
                        vision_feature_layer=-2),
    "vipllava": sees("vipllava", "VipLlava", 16, PICTURE, image_seq_length=16,
                     vision_config=_CLIP, vision_feature_layers=[-2, -1, 0]),
    "llava_next": sees(
        "llava_next", "LlavaNext", 52,
        {"pixel_values": Given((1, 3, 3, 32, 32)), "image_sizes": Given(values=((32, 64),))},
        vision_config=_CLIP, image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]],
        image_seq_length=16),
    "llava_onevision": sees(
        "llava_onevision", "LlavaOnevision", 52,
        {"pixel_values": Given((1, 3, 3, 32, 32)), "image_sizes": Given(values=((32, 64),))},
        vision_config=_SIGLIP, image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]],
        vision_feature_select_strategy="full", vision_feature_layer=-1,
        text_config={"model_type": "qwen2", **DECODER}),
    "pixtral": sees(
        "llava", "Llava", 16,
        PICTURE | ({"image_sizes": Given(values=((32, 32),))} if IS_5 else {}),
        vision_config={"model_type": "pixtral", **CLIP_VISION, "head_dim": 12},
        vision_feature_select_strategy="full", vision_feature_layer=-1, image_seq_length=16,
        text_config={"model_type": "mistral", **DECODER, "head_dim": 16}),
    "paligemma": sees(
        "paligemma", "PaliGemma", 16, PICTURE, vision_config=_SIGLIP, projection_dim=64,
        text_config={"model_type": "gemma", **DECODER, "head_dim": 16}),
    "paligemma2": sees(
        "paligemma", "PaliGemma", 16, PICTURE, vision_config=_SIGLIP, projection_dim=64,
        text_config={"model_type": "gemma2", **DECODER, "head_dim": 16, "sliding_window": 20}),
    "idefics": _idefics(use_resampler=False),
    "idefics_resampler": _idefics(use_resampler=True),
    "idefics2": sees(
        "idefics2", "Idefics2", 4, {"pixel_values": Given((1, 1, 3, 32, 32))},
        vision_config=_IDEFICS_VISION,
        perceiver_config={"hidden_size": 64, "resampler_n_latents": 4, "resampler_depth": 1,
                          "resampler_n_heads": 2, "resampler_head_dim": 8,
                          "num_key_value_heads": 1},
        text_config={"model_type": "mistral", **DECODER, "pad_token_id": 0}),
    "idefics3": sees(
        "idefics3", "Idefics3", 4, {"pixel_values": Given((1, 1, 3, 32, 32))}, scale_factor=2,
        vision_config=_IDEFICS_VISION, text_config={**_LLAMA, "pad_token_id": 0}),
    "smolvlm": sees(
        "smolvlm", "SmolVLM", 4, {"pixel_values": Given((1, 1, 3, 32, 32))}, scale_factor=2,
        vision_config=_IDEFICS_VISION, text_config={**_LLAMA, "pad_token_id": 0}),
    "mllama": sees(
        "mllama", "Mllama", 1,
        {"pixel_values": Given((1, 1, 4, 3, 32, 32)),
         "aspect_ratio_ids": Given((1, 1), 1, "int64"),
         "aspect_ratio_mask": Given((1, 1, 4), 1, "int64"),
         "cross_attention_mask": Given((1, 9, 1, 4), 1, "int64")},
        vision_config={"hidden_size": 32, "num_hidden_layers": 2, "num_global_layers": 1,
                       "attention_heads": 4, "intermediate_size": 48, "vision_output_dim": 64,
                       "image_size": 32, "patch_size": 8, "intermediate_layers_indices": [0]},
        text_config={**DECODER, "num_hidden_layers": 3, "cross_attention_layers": [1],
                     "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1,
                     "rope_scaling": {"rope_type": "default"}}),
    "blip2": sees(
        "blip-2", "Blip2", 4, PICTURE, num_query_tokens=4,
        vision_config={**CLIP_VISION, "qkv_bias": True},
        qformer_config={"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2,
                        "num_attention_heads": 4, "intermediate_size": 48,
                        "encoder_hidden_size": 48},
        text_config={"model_type": "opt", "vocab_size": 128, "hidden_size": 64, "ffn_dim": 96,
                     "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 64,
                     "max_position_embeddings": 64}),
    "blip2_t5": sees(
        "blip-2", "Blip2", 4, PICTURE, num_query_tokens=4,
        vision_config={**CLIP_VISION, "qkv_bias": True},
        qformer_config={"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2,
                        "num_attention_heads": 4, "intermediate_size": 48,
                        "encoder_hidden_size": 48},
        text_config={"model_type": "t5", "vocab_size": 128, "decoder_start_token_id": 0, **_T5}),
    "git": reader({
        "model_type": "git", "architectures": ["GitForCausalLM"], **DECODER,
        "vision_config": CLIP_VISION,
    }, PICTURE),
    "fuyu": reader({
        "model_type": "fuyu", "architectures": ["FuyuForCausalLM"], **DECODER, "patch_size": 4,
        "image_size": 32, "num_channels": 3, "pad_token_id": 0,
        "text_config": {"model_type": "persimmon", **DECODER, "num_key_value_heads": 4},
    }, {}),
    "gemma3_vision": sees(
        "gemma3", "Gemma3", 4,
        {**PICTURE, "token_type_ids": Given(values=((0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0),))},
        vision_config=_SIGLIP, mm_tokens_per_image=4,
        text_config={**DECODER, "head_dim": 16, "sliding_window": 14}),
    "internvl": sees(
        "internvl", "InternVL", 4, PICTURE, downsample_ratio=0.5,
        vision_config={"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "intermediate_size": 64, "image_size": [32, 32], "patch_size": [8, 8]}),
    "mistral3": sees(
        "mistral3", "Mistral3", 4,
        {"pixel_values": Given((1, 3, 32, 32)), "image_sizes": Given(values=((32, 32),))},
        vision_config={"model_type": "pixtral", **CLIP_VISION, "head_dim": 12},
        text_config={"model_type": "mistral", **DECODER, "head_dim": 16}),
    "florence2": reader({
        "model_type": "florence2", "architectures": ["Florence2ForConditionalGeneration"],
        "image_token_id": IMAGE, "decoder_start_token_id": 0,
        "text_config": {"model_type": "bart", **_BART, "vocab_size": 128, "pad_token_id": 1},
        "vision_config": {"depths": [1, 1], "patch_size": [7, 3], "patch_stride": [4, 2],
                          "patch_padding": [3, 1], "patch_prenorm": [False, True],
                          "embed_dim": [16, 32], "num_heads": [2, 4], "num_groups": [2, 4],
                          "window_size": 4, "projection_dim": 64, "drop_path_rate": 0.0},
    }, {**PICTURE, "input_ids": Given(values=((*[IMAGE] * 17, 5, 5, 5),)),
        "attention_mask": Given((1, 20), 1, "int64")}, decoder=True),
}  # fmt: skip
