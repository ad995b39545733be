# SPDX-License-Identifier: Apache-2.0
"""The families of Megatron-Bridge: the map of each, and small configurations that use what the map has rules for."""
import dataclasses
import importlib

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
THINKER = {"": "thinker_config.text_config."}
HEARS = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "num_mel_bins": 8, "max_source_positions": 16, "d_model": 16,
         "n_window": 4, "output_dim": 32}
# Published files also hold what Megatron-Bridge makes of the configuration.
RADIO_ALONE = {"vision_model.radio_model." + name: (3,) for name in ("input_conditioner.norm_mean", "input_conditioner.norm_std", "summary_idxs")}
SOUND_ALONE = {f"sound_encoder.encoder.feature_extractor.featurizer.{name}": (3,) for name in ("fb", "window")}
LLM = {"": "llm_config.", "v_heads": 16, "v_hidden": 1280}   # of RADIO's one size
STEP = {**TEXT, "num_hidden_layers": 4, "head_dim": 8, "num_attention_groups": 2, "moe_num_experts": 4, "moe_top_k": 2, "moe_intermediate_size": 12,
        "share_expert_dim": 12, "moe_layers_enum": "1,2,3", "use_moe_router_bias": True, "use_qk_norm": True, "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False, "sliding_window": 4,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"], "moe_router_activation": "sigmoid",
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 8}}
# The published models have code of their own, which is not here: the names are those of Megatron-Bridge's tables, the sizes of its providers.
NANO = {**TEXT, "num_hidden_layers": 4, "hybrid_override_pattern": "M-M*", "head_dim": 8, "mamba_num_heads": 128, "mamba_head_dim": 80, "ssm_state_size": 128,
        "n_groups": 8, "conv_kernel": 4}
# A whole part of a model that only files have; maps have a pattern for it.
ANYTHING = "any.thing"
SPEAKS = {f"{part}.{ANYTHING}": (2,) for part in ("talker", "token2wav", "code2wav")}
HEARS_3 = {**HEARS, "downsample_hidden_size": 6, "num_hidden_layers": 2}
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
    code: str = ""   # the module with the configuration of a model, and perhaps the model, where it is not in transformers
    refused: str = ""   # by export, which holds other names for those of transformers' model
    by_name: bool = False   # export takes it for --map alone: Megatron-Core's models of another map, which most are, have the same names
    left_out: dict = dataclasses.field(default_factory=dict)   # tensors of files, and their shapes, that Megatron-Core has no place for

    def module(self):
        """Where the model and its configuration are, if anywhere."""
        return importlib.import_module(self.code or "transformers")

    def config(self, variant):
        import transformers
        options = {**self.options, **variant}
        known = next((c for n, c in vars(self.module()).items() if n.endswith("Config") and getattr(c, "model_type", "") == self.model_type), None)
        try:
            config = known(**options) if known else transformers.AutoConfig.for_model(self.model_type, **options)
        except ValueError:   # of a model that transformers does not have
            inner = {n: transformers.PretrainedConfig(**o) if n.endswith("_config") else o for n, o in options.items()}
            config = transformers.PretrainedConfig(**inner)
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
        "n_groups": 2, "conv_kernel": 4, "n_routed_experts": 4, "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 12, "n_group": 1, "topk_group": 1},
        ({}, {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"})),
    Family("qwen3-moe", "olmoe", "OlmoeForCausalLM", {**EXPERTS, "num_key_value_heads": 4, "num_experts": 4}),
    Family("ernie4.5-moe", "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", {
        **EXPERTS, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 1}),
    Family("exaone4", "exaone4", "Exaone4ForCausalLM", {**TEXT, "tie_word_embeddings": True}),
    Family("exaone4.5", "exaone4_5", "Exaone4_5_ForConditionalGeneration", {"tie_word_embeddings": False, "text_config": {
        **TEXT, "model_type": "exaone4", "head_dim": 8, "num_nextn_predict_layers": 0}, "vision_config": VISION_2}, parameters=INSIDE),
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
    Family("kimi-k2.5", "kimi_k25", "KimiK25ForConditionalGeneration", {
        "tie_word_embeddings": False, "projection_hidden_size": 16, "text_config": {**DEEPSEEK, "model_type": "deepseek_v3"},
        "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4, "pos_emb_height": 4,
                          "pos_emb_width": 4}}, parameters=INSIDE, code="megatron_bridge.kimi_tower"),
    Family("qwen2-audio", "qwen2_audio", "Qwen2AudioForConditionalGeneration", {
        "text_config": {**TEXT, "model_type": "qwen2"},
        "audio_config": {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "num_mel_bins": 8, "max_source_positions": 16}},
        parameters=INSIDE),
    Family("qwen2.5-omni", "qwen2_5_omni", "Qwen2_5OmniForConditionalGeneration", {
        "enable_audio_output": False, "thinker_config": {"text_config": {**TEXT, "tie_word_embeddings": False}, "vision_config": VISION_2, "audio_config": HEARS}},
        parameters=THINKER, left_out=SPEAKS),
    Family("qwen3-omni", "qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", {
        "enable_audio_output": False, "thinker_config": {"text_config": QWEN_EXPERTS, "vision_config": VISION_3, "audio_config": HEARS_3}},
        parameters=THINKER, left_out=SPEAKS),
    Family("qwen3-asr", "qwen3_asr", "Qwen3ASRForConditionalGeneration", {
        "thinker_config": {"text_config": {**TEXT, "head_dim": 12, "pad_token_id": 0}, "audio_config": HEARS_3}}, parameters=THINKER,
        code="megatron.bridge.models.qwen3_asr.hf_qwen3_asr.configuration_qwen3_asr", refused="has no 'thinker."),
    Family("minimax-m3", "minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", {
        "text_config": {**TEXT, "num_hidden_layers": 3, "head_dim": 8, "rotary_dim": 4, "dense_intermediate_size": 20, "shared_intermediate_size": 12,
                        "num_local_experts": 4, "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse", "sparse"],
                        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"], "index_n_heads": 2, "index_head_dim": 6},
        "vision_config": {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4},
        "projector_hidden_size": 20}, parameters=INSIDE,
        refused="has no 'language_model.model.layers.0.mlp.gate_proj.weight'"),
    Family("nemotron-labs-diffusion", "nemotron_labs_diffusion", "NemotronLabsDiffusionModel", {
        **TEXT, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rope_parameters": {
            "rope_theta": 1e6, "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.1}}, by_name=True),
    Family("mimo-v2-flash", "mimo_v2_flash", "MiMoV2FlashForCausalLM", {
        **EXPERTS, "head_dim": 12, "v_head_dim": 8, "n_routed_experts": 4, "scoring_func": "sigmoid", "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
        later={"hybrid_layer_pattern": [0, 1, 1], "moe_layer_freq": [0, 1, 1], "rope_theta": 1e4, "swa_rope_theta": 1e4, "sliding_window_size": 4,
               "layernorm_epsilon": 1e-5, "swa_num_key_value_heads": 4}),
    Family("step3.5", "step3p5", "Step3p5ForCausalLM", STEP, (
        {}, {"num_nextn_predict_layers": 2, "layer_types": [*STEP["layer_types"], "sliding_attention", "sliding_attention"]}),
        parameters={"n_kv_heads": "num_attention_groups"}, code="megatron.bridge.models.stepfun.configuration_step35",
        left_out={f"model.layers.{layer}.transformer.shared_head.output.weight": (1,) for layer in (4, 5)}),
    Family("nemotron-vl", "NemotronH_Nano_VL_V2", "NemotronH_Nano_VL_V2", {"llm_config": NANO, "vision_config": {}}, parameters=LLM, left_out=RADIO_ALONE),
    Family("nemotron-omni", "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_Omni_Reasoning_V3", {
        "llm_config": {**NANO, "hybrid_override_pattern": "MEM*", "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_routed_experts": 4, "n_shared_experts": 1,
                       "moe_shared_expert_intermediate_size": 12}, "vision_config": {"separate_video_embedder": True},
        "sound_config": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "num_mel_bins": 16, "subsampling_factor": 4,
                         "projection_hidden_size": 20}, "sound_context_token_id": 5, "projector_hidden_size": 24}, parameters=LLM,
        left_out={**RADIO_ALONE, **SOUND_ALONE}),
]

# Without a map, and why.
LEFT_OUT = {
    "DeepseekV4ForCausalLM": "Megatron-Core 0.19.2 has no attention variant dsv4_hybrid, which the bridge asks for",
    "Gemma4ForCausalLM": "the bridge failed on a small model (merge_qkv_weights) with transformers 5.23; its global layers share keys and values",
    "Gemma4ForConditionalGeneration": "not run: its text model is that of Gemma4ForCausalLM",
    "SarvamMLAForCausalLM": "Megatron-Core 0.19.2 joins a norm to linear_q_proj (qk_layernorm without q_lora_rank), which Megatron-Bridge has no mapping for",
    "Step3p7ForConditionalGeneration": "linear_qkv of Megatron-Core 0.19.2 has no rows for a gate of each head (head_wise_attn_gate), which the bridge fills",
}
# The same model by another name.
OTHER_NAMES = {"ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM"}


def by_map():
    """The families of each map."""
    maps = {}
    for family in FAMILIES:
        maps.setdefault(family.map, []).append(family)
    return maps
