"""Small text models whose own `generate` is the witness of what the tool counts."""

from typing import Any

from any_models import DECODER, IS_5, MODELS, Small, has_class

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

DECODERS = {
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
}  # fmt: skip

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}  # fmt: skip
MIXTURES = {
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
    "qwen3_moe": llama_like("qwen3_moe", "Qwen3Moe", head_dim=16, **_EXPERTS),
    "gpt_oss": llama_like(
        "gpt_oss", "GptOss", head_dim=16, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=TOKENS + 1),
}  # fmt: skip

STATE_SPACES = {
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

TEXT_MODELS = {
    **{name: small for name, small in MODELS.items() if small.decodes},
    **DECODERS,
    **MIXTURES,
    **STATE_SPACES,
}
