# SPDX-License-Identifier: Apache-2.0
"""transformers' tables of conversions that change tensors, and the built-in map that does the same, or why there is none."""

MOE, MIXTRAL = "transformers-moe-files", "transformers-mixtral-files"

# Name of the table: the map, and the sizes of a small model beside those of tiny_models.py.
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

OWN = "the experts of transformers-moe-files beside names of its own, for which that map is the beginning of one: "
ENCODER = "an encoder of images, sound or texts without experts, which fits one device"
PART = "a part of other models, which is never saved by itself"
BACKWARDS = "save_pretrained does not write what is published: "

REASONS = {
    "Dinov2Backbone": ENCODER, "Dinov2Model": ENCODER, "Dinov2WithRegistersBackbone": ENCODER, "Dinov2WithRegistersModel": ENCODER,
    "RfDetrModel": ENCODER, "Tipsv2TextModel": ENCODER, "Tipsv2VisionBackbone": ENCODER, "Tipsv2VisionModel": ENCODER, "gte": ENCODER,
    "jina_embeddings_v3": ENCODER, "nomic_bert": ENCODER, "radio": ENCODER, "sapiens2": ENCODER,
    "Dots3NoteTextModel": PART, "Molmo2TextModel": PART, "UnlimitedOcrTextModel": PART, "UnlimitedOcrVisionEncoder": PART,
    "dots3_note_vision_encoder": PART, "glm5_next_text": PART, "mistral_large4_text": PART, "qwen3_omni_moe_text": PART, "step3p5_vision": PART,
    "axk1": OWN + "post_mlp_layernorm lies inside mlp",
    "axk2": OWN + "q_b_proj is q_gate_proj, and norms have two layers",
    "kolibri1": OWN + "the norms after attention and experts",
    "flint": OWN + "softmax_offset is sinks",
    "laguna": OWN + "shared_expert is shared_experts, and the correction lies in gate",
    "kimi_k25": BACKWARDS + "it calls the layers of the language model blocks",
    "olmo_hybrid": BACKWARDS + "it divides the convolution into three equal parts, whatever the sizes of keys and values",
    "deepseek_v4": BACKWARDS + "the files have no prefix, and 4-bit experts",
    "ernie4_5_vl_moe": "experts of texts and of images stand in one list, which only sizes of config.json divide",
    "deepseek_ocr2": "text of pages from images, with experts only inside; trained by its own code",
    "qianfan_ocr": "text of pages from images, without experts",
    "gradium_phonon_tts": "speech, without experts",
    "hrm_text": "without experts, and too small to be sharded",
    "nemo_speechlm": "speech recognition of NeMo, whose files transformers only reads",
    "qwen3_omni_moe": "the thinker has a map; talker and code2wav beside it are not trained in shards",
    "bailing_hybrid": "the names of all attention differ, and convolutions are joined",
    "glm5_next": "the names of hyper-connections differ, and convolutions are joined",
    "inkling2_text": "gate and up alternate row by row, which has no operation",
    "inkling_mm_model": "gate and up alternate row by row, which has no operation",
    "minimax_m3_vl": "every name of the vision tower differs, and the shared experts are joined as well",
    "mistral_large4": "queries and keys are permuted in the vision tower alone, with the sizes of vision_config",
    "qwen4_exp_text": "an experiment, whose embedding is divided into as many tensors as its configuration says",
    "step3p7": "names of three towers differ, and files hold stacked experts",
}
