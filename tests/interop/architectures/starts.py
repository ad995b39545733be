"""What a default configuration lacks before its class can be made, by model type or by class: what one of the published models has. Fields, too, that
published configurations say in other words.

Of these fields the data have no default. A function is given the other fields.
"""


def repeated(words, count="num_hidden_layers", default=32, first=()):
    """Returns a function that makes a list with a word for each layer: those of `first`, then `words` again and again."""
    def words_of(fields):
        number = fields.get(count, default)
        return [*first, *words * number][:number]
    return words_of


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
BY_KIND = {"full_attention": ROPE, "sliding_attention": ROPE}

MAMBA_KINDS = ["linear_attention", "moe", "full_attention", "mlp"]
PARTIAL = {**ROPE, "partial_rotary_factor": 0.25}
INDEXER = {"rope_parameters": PARTIAL, "eos_token_id": 248046,   # of n-grams
           "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128,
           "indexer_budget": 2048, "indexer_compress_ratio": 4}

STARTS = {
    "autoformer": {"prediction_length": 24},
    "chameleon": {"vocabulary_map": {"<image>": 8711, "IMGIMGA": 12}},
    "cohere_compass": {"text_config.rope_parameters": BY_KIND},
    "cohere_compass_text": {"rope_parameters": BY_KIND},
    "dbrx": {"attn_config.rope_theta": 500000.0},
    "deepseek_ocr2": {"text_config.mlp_layer_types": repeated(["sparse"], "text_config.num_hidden_layers", first=["dense"]), "text_config.num_experts_per_tok": 6},
    "deepseek_ocr2_text": {"mlp_layer_types": repeated(["sparse"], first=["dense"]), "num_experts_per_tok": 6},
    "diffusion_gemma": {"text_config.num_experts": 16, "text_config.top_k_experts": 4, "text_config.moe_intermediate_size": 704},
    "diffusion_gemma_text": {"num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 704},
    "dots1": {"n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "emu3": {"vocabulary_map": {"<image>": 151851, "<|extra_200|>": 151846, "<|visual token 000000|>": 151854}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "gemma4_assistant": {"text_config.hidden_size_per_layer_input": 0, "text_config.vocab_size_per_layer_input": 0},
    "granite4_vision": {"deepstack_layer_map": [[-19, 9], [-13, 6], [-7, 3], [-1, 0]], "downsample_rate": "4/8"},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config.head_dim": 128},
    "hunyuan_vl_text": {"head_dim": 128},
    "informer": {"prediction_length": 24},
    "lfm2_moe": {"layer_types": repeated(["conv", "conv", "full_attention", "conv"])},
    "ministral": {"head_dim": 128},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "moshi": {"audio_vocab_size": 2048},
    "nemotron": {"num_key_value_heads": 16},
    "nemotron_h": {"layers_block_type": MAMBA_KINDS},   # a text in older ones: hybrid_override_pattern
    "nemotron_h_omni": {"text_config.layers_block_type": MAMBA_KINDS},
    "perception_lm": {"vision_config.architecture": "vit_pe_core_large_patch14_336",
                      "vision_config.model_args": {"embed_dim": 1024, "img_size": [448, 448], "depth": 23, "global_pool": "", "init_values": 0.1,
                                                   "use_post_transformer_norm": False, "ref_feat_shape": [32, 32]}},
    "qwen3_omni_moe": {"talker_config.text_config.shared_expert_intermediate_size": 768, "talker_config.spatial_merge_size": 2},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 768},
    "qwen4_exp": {f"text_config.{name}": value for name, value in INDEXER.items()},
    "qwen4_exp_text": INDEXER,
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    "time_series_transformer": {"prediction_length": 24},
    "vitmatte": {"fusion_hidden_sizes": [256, 128, 64, 32]},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "BeitForSemanticSegmentation": {"out_indices": [3, 5, 7, 11]},
    "BridgeTowerForContrastiveLearning": {"contrastive_hidden_size": 512, "logit_scale_init_value": 2.6592},
    "ConvNextBackbone": {"hidden_sizes": [96, 192, 384, 768]},
    "ConvNextV2Backbone": {"hidden_sizes": [96, 192, 384, 768]},
    "EsmForProteinFolding": {"is_folding_model": True},
    "FocalNetBackbone": {"hidden_sizes": [192, 384, 768, 768]},
    "HieraForPreTraining": {"decoder_hidden_size": 512, "decoder_depth": 8, "decoder_num_heads": 16},
    "ReformerModelWithLMHead": {"is_decoder": True},
}
