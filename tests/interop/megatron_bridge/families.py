# SPDX-License-Identifier: Apache-2.0
"""The families of Megatron-Bridge: the map of each, and small configurations that use what the map has rules for."""
import dataclasses

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 64,
        "max_position_embeddings": 64}
# A layer without experts, and two with them.
EXPERTS = {**TEXT, "num_hidden_layers": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
DEEPSEEK = {**EXPERTS, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
            "n_routed_experts": 11, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0}
# Multi-token prediction, and what files hold twice for it: Megatron-Core has it once.
PREDICTS = ({}, {"num_nextn_predict_layers": 2})
TWICE = {f"model.layers.{layer}.{name}.weight": (1,) for layer in (3, 4) for name in ("embed_tokens", "shared_head.head")}
GLM = {**EXPERTS, "head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
       "num_nextn_predict_layers": 0}
SHARED = {**EXPERTS, "head_dim": 8, "num_experts": 4, "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_conv_kernel_dim": 4,
         "num_hidden_layers": 4, "head_dim": 12}
QWEN_EXPERTS = {**EXPERTS, "head_dim": 12, "num_experts": 4}
VISION_2 = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 8, "out_hidden_size": 32, "patch_size": 4, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "fullatt_block_indexes": [1], "window_size": 16}
VISION_3 = {"depth": 4, "hidden_size": 16, "intermediate_size": 24, "num_heads": 8, "out_hidden_size": 32, "patch_size": 4, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1, 3]}
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 8, "patch_size": 4, "image_size": 16}
INSIDE = {"": "text_config."}   # the parameters of a model with a tower
# Layers that a search has changed: attention or the feed-forward part may be missing, and sizes differ.
BLOCKS = [{"attention": {"n_heads_in_group": heads, "no_op": heads is None, "replace_with_linear": False},
           "ffn": {"ffn_mult": times, "no_op": times is None, "replace_with_linear": False}} for heads, times in ((2, 1.5), (None, 2.5), (2, None))]
GLM_V = {**GLM, "n_routed_experts": 11, "attention_bias": True, "use_qk_norm": False}


@dataclasses.dataclass
class Family:
    map: str             # the name of the file, without "megatron-" and "-hf"
    model_type: str
    architecture: str
    options: dict
    variants: tuple = ({},)   # beside `options`: those of each sample
    parameters: dict = dataclasses.field(default_factory=dict)   # of rules, by other names in config.json
    later: dict = dataclasses.field(default_factory=dict)   # attributes of the configuration that its class does not take
    left_out: dict = dataclasses.field(default_factory=dict)   # tensors of files, and their shapes, that Megatron-Core has no place for

    refused: str = ""   # why `export` does not write what the map makes

    def config(self, variant):
        import transformers
        options = {**self.options, **variant}
        try:
            config = transformers.AutoConfig.for_model(self.model_type, **options)
        except ValueError:   # of a model that transformers does not have
            config = transformers.PretrainedConfig(**options)
            config.model_type = self.model_type
        for name, value in {"architectures": [self.architecture], "torch_dtype": "bfloat16", **self.later}.items():
            inner, _, last = name.rpartition(".")
            setattr(getattr(config, inner) if inner else config, last, value)
        return config


FAMILIES = [
    Family("llama", "llama", "LlamaForCausalLM", TEXT, ({"tie_word_embeddings": False}, {"tie_word_embeddings": True, "num_hidden_layers": 11}),
           left_out={"model.layers.1.self_attn.rotary_emb.inv_freq": (4,)}),
    Family("llama", "mistral", "MistralForCausalLM", {**TEXT, "head_dim": 12}),
    Family("llama", "qwen2", "Qwen2ForCausalLM", TEXT),
    Family("llama", "qwen3", "Qwen3ForCausalLM", {**TEXT, "head_dim": 12}),
    Family("qwen3-moe", "qwen3_moe", "Qwen3MoeForCausalLM", {**QWEN_EXPERTS, "num_experts": 11}),
    Family("qwen3-next", "qwen3_next", "Qwen3NextForCausalLM", {**QWEN_EXPERTS, **DELTA, "shared_expert_intermediate_size": 12},
           ({}, {"num_nextn_predict_layers": 1})),
    Family("qwen3.5", "qwen3_5_text", "Qwen3_5ForCausalLM", {**TEXT, **DELTA}),
    Family("qwen3.5-moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", {**QWEN_EXPERTS, **DELTA, "shared_expert_intermediate_size": 12}),
    Family("deepseek", "deepseek_v2", "DeepseekV2ForCausalLM", DEEPSEEK),
    Family("deepseek", "deepseek_v3", "DeepseekV3ForCausalLM", DEEPSEEK, PREDICTS, left_out=TWICE),
    Family("deepseek", "kimi_k2", "KimiK2ForCausalLM", {**DEEPSEEK, "scoring_func": "sigmoid"}, later={"rope_theta": 1e4}),
    Family("glm4-moe", "glm4_moe", "Glm4MoeForCausalLM", {**GLM, "attention_bias": True, "use_qk_norm": True}, (
        {}, {"use_qk_norm": False, "attention_bias": False}, PREDICTS[1]), left_out=TWICE),
    Family("deepseek", "glm4_moe_lite", "Glm4MoeLiteForCausalLM", DEEPSEEK, PREDICTS, left_out=TWICE),
    Family("glm-moe-dsa", "glm_moe_dsa", "GlmMoeDsaForCausalLM", {**DEEPSEEK, "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2},
           later={"indexer_rope_interleave": True}),
    Family("gpt-oss", "gpt_oss", "GptOssForCausalLM", {**EXPERTS, "head_dim": 8, "num_local_experts": 11}),
    Family("llama", "gemma", "GemmaForCausalLM", {**TEXT, "head_dim": 12}),
    Family("gemma2", "gemma2", "Gemma2ForCausalLM", {**TEXT, "head_dim": 12}),
    Family("gemma3", "gemma3_text", "Gemma3ForCausalLM", {**TEXT, "head_dim": 12}),
    Family("nemotron", "nemotron", "NemotronForCausalLM", {**TEXT, "head_dim": 8}),
    Family("nemotron-h", "nemotron_h", "NemotronHForCausalLM", {
        **TEXT, "num_hidden_layers": 4, "hybrid_override_pattern": "M-M*", "head_dim": 8, "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 6,
        "n_groups": 2, "conv_kernel": 4}),
    Family("nemotron-h", "nemotron_h", "NemotronHForCausalLM", {
        **EXPERTS, "num_hidden_layers": 4, "hybrid_override_pattern": "MEM*", "head_dim": 8, "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 6,
        "n_groups": 2, "conv_kernel": 4, "n_routed_experts": 4, "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 12, "n_group": 1, "topk_group": 1}),
    Family("qwen3-moe", "olmoe", "OlmoeForCausalLM", {**EXPERTS, "num_key_value_heads": 4, "num_experts": 4}),
    Family("ernie4.5-moe", "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", {
        **EXPERTS, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 1}),
    Family("exaone4", "exaone4", "Exaone4ForCausalLM", {**TEXT, "tie_word_embeddings": True}),
    Family("exaone-moe", "exaone_moe", "ExaoneMoeForCausalLM", SHARED, ({}, {"num_nextn_predict_layers": 1})),
    Family("hy-v3", "hy_v3", "HYV3ForCausalLM", SHARED, PREDICTS),
    Family("falcon-h1", "falcon_h1", "FalconH1ForCausalLM", {
        **TEXT, "head_dim": 8, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_norm_before_gate": False, "mamba_n_groups": 2, "mamba_d_state": 6, "mamba_d_conv": 4},
        parameters={"m_heads": "mamba_n_heads", "m_head_dim": "mamba_d_head", "m_groups": "mamba_n_groups", "m_state_size": "mamba_d_state"}),
    Family("minimax-m2", "minimax_m2", "MiniMaxM2ForCausalLM", {**TEXT, "num_experts_per_tok": 2, "head_dim": 8, "num_local_experts": 4, "rotary_dim": 4}),
    Family("llama", "mimo", "MiMoForCausalLM", {**TEXT, "num_nextn_predict_layers": 0, "tie_word_embeddings": False}, PREDICTS, later={"rope_theta": 1e4}),
    Family("bailing-moe-v2", "bailing_moe_v2", "BailingMoeV2ForCausalLM", SHARED, PREDICTS, later={"rope_theta": 1e4}),
    Family("bailing-moe-v2", "sarvam_moe", "SarvamMoEForCausalLM", SHARED, later={"rope_theta": 1e4}),
    Family("llama", "nemotron-nas", "DeciLMForCausalLM", {
        **TEXT, "num_hidden_layers": 3, "block_configs": BLOCKS, "initializer_range": 0.02, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
        later={"rope_theta": 1e4}),
    Family("ernie4.5-vl-moe", "ernie4_5_vl_moe", "Ernie4_5_VLMoeForConditionalGeneration", {
        "text_config": {**TEXT, "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"], "moe_num_experts": 4, "moe_k": 2,
                        "moe_num_shared_experts": 1, "moe_intermediate_size": [12, 8],
                        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [1, 1, 2]}},
        "vision_config": {**VISION_2, "num_heads": 2, "temporal_merge_size": 2}}, parameters=INSIDE,
        refused="expected [12, 32]"),   # data of the class have one size of experts, the model has two
    Family("ministral3", "mistral3", "Mistral3ForConditionalGeneration", {
        "tie_word_embeddings": False, "text_config": {**TEXT, "model_type": "ministral3", "head_dim": 12},
        "vision_config": {**TOWER, "model_type": "pixtral"}}, parameters=INSIDE),
    Family("qwen2.5-vl", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", {"text_config": TEXT, "vision_config": VISION_2}, parameters=INSIDE),
    Family("qwen3-vl", "qwen3_vl", "Qwen3VLForConditionalGeneration", {"text_config": {**TEXT, "head_dim": 12, "num_hidden_layers": 3}, "vision_config": VISION_3},
           parameters=INSIDE),
    Family("qwen3-vl-moe", "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", {"text_config": QWEN_EXPERTS, "vision_config": VISION_3}, parameters=INSIDE),
    Family("qwen3.5-vl", "qwen3_5", "Qwen3_5ForConditionalGeneration", {"text_config": {**TEXT, **DELTA}, "vision_config": {**VISION_3, "deepstack_visual_indexes": []}}, parameters=INSIDE),
    Family("qwen3.5-vl-moe", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", {
        "text_config": {**QWEN_EXPERTS, **DELTA, "shared_expert_intermediate_size": 12}, "vision_config": {**VISION_3, "deepstack_visual_indexes": []}}, parameters=INSIDE),
    Family("glm4v-moe", "glm4v_moe", "Glm4vMoeForConditionalGeneration", {"text_config": GLM_V, "vision_config": {**VISION_2, "image_size": 16}}, (
        {}, {"text_config": {**GLM_V, "attention_bias": False}}), parameters=INSIDE, later={"text_config.partial_rotary_factor": 0.5}),
    Family("gemma3-vl", "gemma3", "Gemma3ForConditionalGeneration", {
        "text_config": {**TEXT, "head_dim": 12}, "vision_config": {**TOWER, "vision_use_head": False}}, parameters=INSIDE),
    Family("qwen2-audio", "qwen2_audio", "Qwen2AudioForConditionalGeneration", {
        "text_config": {**TEXT, "model_type": "qwen2"},
        "audio_config": {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "num_mel_bins": 8, "max_source_positions": 16}},
        parameters=INSIDE),
]

# Without a map, and why.
LEFT_OUT = {
    "Exaone4_5_ForConditionalGeneration": "Megatron-Core reads layers apart for a moe_layer_freq that is a list, and `map` joins layers that are alike",
    "DeepseekV4ForCausalLM": "not tried: hyper-connections have mappings of their own",
    "Gemma4ForCausalLM": "heads and keys differ between global and sliding layers, and global layers have no values of their own or shared ones: no rule is for layers of a kind",
    "Gemma4ForConditionalGeneration": "heads and keys differ between global and sliding layers, and global layers have no values of their own or shared ones: no rule is for layers of a kind",
    "KimiK25ForConditionalGeneration": "its tower is code of the published repository, for which no stand-in is written; experts are written as INT4",
    "MiMoV2FlashForCausalLM": "heads of keys differ from layer to layer, which no rule can say",
    "MiniMaxM3SparseForConditionalGeneration": "not tried",
    "NemotronH_Nano_Omni_Reasoning_V3": "not tried: needs the code of the published model",
    "NemotronH_Nano_VL_V2": "not tried: needs the code of the published model",
    "NemotronLabsDiffusionModel": "not tried: a diffusion model",
    "Qwen2_5OmniForConditionalGeneration": "not tried",
    "Qwen3ASRForConditionalGeneration": "not tried",
    "Qwen3OmniMoeForConditionalGeneration": "not tried",
    "SarvamMLAForCausalLM": "Megatron-Core 0.19.2 joins a norm to linear_q_proj (qk_layernorm without q_lora_rank), which Megatron-Bridge has no mapping for",
    "Step3p5ForCausalLM": "a gate of each head beside queries, keys and values, which no rule can say",
    "Step3p7ForConditionalGeneration": "not tried",
}
# The same model by another name.
OTHER_NAMES = {"ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM"}


def by_map():
    """The families of each map."""
    maps = {}
    for family in FAMILIES:
        maps.setdefault(family.map, []).append(family)
    return maps
