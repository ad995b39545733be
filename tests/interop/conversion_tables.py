# SPDX-License-Identifier: Apache-2.0
"""Models whose tensors transformers converts while it saves them, the built-in maps that do the same, and model types without a map."""

MOE, MIXTRAL = "transformers-moe-files", "transformers-mixtral-files"

# Model type: the map, and the sizes of a small model beside those of tiny_models.py.
COVERED = {
    "qwen2_moe": (MOE, {}),
    "qwen3_moe": (MOE, {"mlp_only_layers": [1]}),
    "qwen3_next": (MOE, {}),
    "qwen3_5_moe_text": (MOE, {}),
    "deepseek_v2": (MOE, {}),
    "deepseek_v3": (MOE, {"num_experts_per_tok": 2, "n_routed_experts": 12, "n_group": 2}),
    "deepseek_v32": (MOE, {}),
    "glm4_moe": (MOE, {}),
    "glm4_moe_lite": (MOE, {}),
    "glm_moe_dsa": (MOE, {}),
    "glm4v_moe": (MOE, {}),
    "ernie4_5_moe": (MOE, {}),
    "hunyuan_v1_moe": (MOE, {}),
    "dots1": (MOE, {}),
    "afmoe": (MOE, {}),
    "olmoe": (MOE, {}),
    "flex_olmo": (MOE, {}),
    "cohere2_moe": (MOE, {}),
    "longcat_flash": (MOE, {"zero_expert_num": 0}),
    "solar_open": (MOE, {}),
    "mellum": (MOE, {}),
    "beam": (MOE, {}),
    "mixtral": (MIXTRAL, {}),
    "minimax": (MIXTRAL, {}),
    "minimax_m2": (MIXTRAL, {}),
    "phimoe": ("transformers-phimoe-files", {}),
    "lfm2_moe": ("transformers-lfm2-moe-files", {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_dense_layers": 1}),
    "jamba": ("transformers-jamba-files", {"num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2}),
    "nemotron_h": ("transformers-nemotron-h-files", {"mamba_num_heads": 4, "mamba_head_dim": 4, "ssm_state_size": 3, "n_groups": 2,
                                                     "moe_shared_expert_intermediate_size": 9}),
    # It writes the layout that it has in memory, and reads what is published, too: check_tables.py makes that.
    "qwen3_vl_moe": ("transformers-qwen3-vl-moe-files", {}),
    "qwen3_omni_moe_thinker": ("transformers-qwen3-omni-thinker-files", {
        "audio_config": {"downsample_hidden_size": 4, "output_dim": 16, "d_model": 16, "encoder_attention_heads": 2, "encoder_ffn_dim": 12,
                         "encoder_layers": 2, "num_mel_bins": 16}}),
    "kimi_linear": ("transformers-kimi-linear-files", {"linear_head_dim": 3}),
    "exaone_moe": ("transformers-exaone-moe-files", {}),
    "hy_v3": ("transformers-hy-v3-files", {}),
    "mimo_v2_flash": ("transformers-mimo-v2-files", {}),
}

VALUES = "rows of queries and keys are reordered before they are joined with values, and an operation applies to all tensors of a rule"
PADDED = "the vocabulary is padded in files alone, by sizes of config.json, and the numbers of layers in names change"

# Why no map converts the classes of a model type: what write_maps.py says.
REASONS = {
    "csm": "by its configuration the modules of its codec have names of two kinds, which become the same in files",
    "ernie4_5_vl_moe": "experts of texts and of images, of other sizes, are counted on in one list",
    "gradium_phonon_tts": VALUES, "kimi_k25": VALUES, "step3p7": VALUES, "step3p5_vision": VALUES,
    "inkling2": PADDED, "inkling2_text": PADDED, "inkling2_loop": PADDED, "inkling2_loop_text": PADDED,
    "inkling_mm_model": "numbers of layers become parts of words in names, norm_0",
    "nemo_speechlm": "queries, keys and values, which are joined, may differ in size",
    "olmo_hybrid": "convolutions of queries, keys and values, which are one tensor, may differ in size",
}

# Classes that the maps of their model types refuse.
REFUSED = {
    "VisionEncoderDecoderModel": "its parts are models of any types",
    "Tipsv2DptForDensePrediction": "it has tensors that no class of the default configuration has",
}
