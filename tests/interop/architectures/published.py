"""Configurations of published models: model type, class, where it is published, and the fields of its config.json that names and sizes depend on.

Fields that are as transformers has them by default are left out, unless they are what makes the model what it is. `backbone_config.` and the like are
parts, as in starts.py.
"""

def decoder(hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, vocab_size, **more):
    return {"hidden_size": hidden_size, "intermediate_size": intermediate_size, "num_hidden_layers": num_hidden_layers,
            "num_attention_heads": num_attention_heads, "num_key_value_heads": num_key_value_heads, "vocab_size": vocab_size, **more}


def encoder(hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, **more):
    return {"hidden_size": hidden_size, "intermediate_size": intermediate_size, "num_hidden_layers": num_hidden_layers,
            "num_attention_heads": num_attention_heads, **more}


PUBLISHED = [
    ("albert", "AlbertForMaskedLM", "albert/albert-base-v2", encoder(768, 3072, 12, 12, embedding_size=128, vocab_size=30000)),
    ("bart", "BartForConditionalGeneration", "facebook/bart-large", {"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 4096,
                                                                     "decoder_ffn_dim": 4096, "vocab_size": 50265}),
    ("bert", "BertForMaskedLM", "google-bert/bert-large-uncased", encoder(1024, 4096, 24, 16, vocab_size=30522)),
    ("bloom", "BloomForCausalLM", "bigscience/bloom-560m", {"hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880}),
    ("clip", "CLIPModel", "openai/clip-vit-large-patch14", {
        "projection_dim": 768, "text_config.hidden_size": 768, "text_config.num_attention_heads": 12, "text_config.intermediate_size": 3072,
        "vision_config.hidden_size": 1024, "vision_config.intermediate_size": 4096, "vision_config.num_hidden_layers": 24,
        "vision_config.num_attention_heads": 16, "vision_config.patch_size": 14, "text_config.projection_dim": 768, "vision_config.projection_dim": 768}),
    ("cohere", "CohereForCausalLM", "CohereForAI/c4ai-command-r-plus", decoder(12288, 33792, 64, 96, 8, 256000, use_qk_norm=True)),
    ("convnext", "ConvNextForImageClassification", "facebook/convnext-base-224", {"depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024],
                                                                                  "num_labels": 1000}),
    ("deepseek_v2", "DeepseekV2ForCausalLM", "deepseek-ai/DeepSeek-V2-Lite", decoder(
        2048, 10944, 27, 16, 16, 102400, moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2, first_k_dense_replace=1, q_lora_rank=None,
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)),
    ("deepseek_v3", "DeepseekV3ForCausalLM", "deepseek-ai/DeepSeek-V3", decoder(
        7168, 18432, 61, 128, 128, 129280, moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1, first_k_dense_replace=3,
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)),
    ("dinov2", "Dinov2Model", "facebook/dinov2-giant", {"hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 24, "patch_size": 14,
                                                        "image_size": 518, "use_swiglu_ffn": True}),
    ("efficientnet", "EfficientNetForImageClassification", "google/efficientnet-b0", {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280,
                                                                                      "image_size": 224, "num_labels": 1000}),
    ("efficientnet", "EfficientNetForImageClassification", "google/efficientnet-b7", {"width_coefficient": 2.0, "depth_coefficient": 3.1, "hidden_dim": 2560,
                                                                                      "image_size": 600, "num_labels": 1000}),
    ("electra", "ElectraForPreTraining", "google/electra-small-discriminator", encoder(256, 1024, 12, 4, embedding_size=128, vocab_size=30522)),
    ("falcon", "FalconForCausalLM", "tiiuae/falcon-7b", {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size": 65024,
                                                         "multi_query": True, "parallel_attn": True, "bias": False}),
    ("falcon", "FalconForCausalLM", "tiiuae/falcon-40b", {"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8,
                                                          "new_decoder_architecture": True, "parallel_attn": True, "bias": False, "vocab_size": 65024}),
    ("gemma", "GemmaForCausalLM", "google/gemma-2b", decoder(2048, 16384, 18, 8, 1, 256000, head_dim=256)),
    ("gemma2", "Gemma2ForCausalLM", "google/gemma-2-9b", decoder(3584, 14336, 42, 16, 8, 256000, head_dim=256)),
    ("gpt2", "GPT2LMHeadModel", "openai-community/gpt2-xl", {"n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "vocab_size": 50257}),
    ("gpt_neox", "GPTNeoXForCausalLM", "EleutherAI/pythia-1.4b", encoder(2048, 8192, 24, 16, vocab_size=50304)),
    ("gpt_oss", "GptOssForCausalLM", "openai/gpt-oss-20b", decoder(2880, 2880, 24, 64, 8, 201088, head_dim=64, num_local_experts=32)),
    ("llama", "LlamaForCausalLM", "meta-llama/Llama-3.1-8B", decoder(4096, 14336, 32, 32, 8, 128256)),
    ("llama", "LlamaForCausalLM", "meta-llama/Llama-3.2-1B", decoder(2048, 8192, 16, 32, 8, 128256, head_dim=64, tie_word_embeddings=True)),
    ("mamba", "MambaForCausalLM", "state-spaces/mamba-130m-hf", {"hidden_size": 768, "num_hidden_layers": 24, "state_size": 16, "expand": 2,
                                                                 "time_step_rank": 48, "vocab_size": 50280}),
    ("mistral", "MistralForCausalLM", "mistralai/Mistral-7B-v0.3", decoder(4096, 14336, 32, 32, 8, 32768)),
    ("mistral", "MistralForCausalLM", "mistralai/Mistral-Nemo-Base-2407", decoder(5120, 14336, 40, 32, 8, 131072, head_dim=128)),
    ("mixtral", "MixtralForCausalLM", "mistralai/Mixtral-8x7B-v0.1", decoder(4096, 14336, 32, 32, 8, 32000, num_local_experts=8)),
    ("olmo2", "Olmo2ForCausalLM", "allenai/OLMo-2-1124-7B", decoder(4096, 11008, 32, 32, 32, 100352)),
    ("opt", "OPTForCausalLM", "facebook/opt-350m", {"hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                                                    "word_embed_proj_dim": 512, "do_layer_norm_before": False, "vocab_size": 50272}),
    ("phi", "PhiForCausalLM", "microsoft/phi-2", encoder(2560, 10240, 32, 32, vocab_size=51200)),
    ("phi3", "Phi3ForCausalLM", "microsoft/Phi-3-mini-4k-instruct", decoder(3072, 8192, 32, 32, 32, 32064)),
    ("qwen2", "Qwen2ForCausalLM", "Qwen/Qwen2.5-0.5B", decoder(896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True)),
    ("qwen2_moe", "Qwen2MoeForCausalLM", "Qwen/Qwen1.5-MoE-A2.7B", decoder(2048, 5632, 24, 16, 16, 151936, moe_intermediate_size=1408,
                                                                           shared_expert_intermediate_size=5632, num_experts=60)),
    ("qwen3", "Qwen3ForCausalLM", "Qwen/Qwen3-8B", decoder(4096, 12288, 36, 32, 8, 151936, head_dim=128)),
    ("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen/Qwen3-30B-A3B", decoder(2048, 6144, 48, 32, 4, 151936, head_dim=128, moe_intermediate_size=768,
                                                                       num_experts=128)),
    ("qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", "Qwen/Qwen3-Omni-30B-A3B-Instruct", {
        "thinker_config.text_config." + name: value for name, value in decoder(2048, 768, 48, 32, 4, 152064, head_dim=128, moe_intermediate_size=768,
                                                                               num_experts=128).items()}),
    ("resnet", "ResNetForImageClassification", "microsoft/resnet-18", {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512],
                                                                       "num_labels": 1000}),
    ("roberta", "RobertaForMaskedLM", "FacebookAI/roberta-large", encoder(1024, 4096, 24, 16, vocab_size=50265, max_position_embeddings=514,
                                                                          type_vocab_size=1)),
    ("segformer", "SegformerForSemanticSegmentation", "nvidia/segformer-b5-finetuned-ade-640-640", {
        "depths": [3, 6, 40, 3], "hidden_sizes": [64, 128, 320, 512], "decoder_hidden_size": 768, "num_labels": 150}),
    ("starcoder2", "Starcoder2ForCausalLM", "bigcode/starcoder2-3b", decoder(3072, 12288, 30, 24, 2, 49152, use_bias=True)),
    ("t5", "T5ForConditionalGeneration", "google/flan-t5-base", {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12,
                                                                 "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5", "T5ForConditionalGeneration", "google-t5/t5-11b", {"d_model": 1024, "d_ff": 65536, "d_kv": 128, "num_layers": 24, "num_heads": 128}),
    ("vit", "ViTForImageClassification", "google/vit-base-patch16-224", {"num_labels": 1000}),
    ("whisper", "WhisperForConditionalGeneration", "openai/whisper-large-v3", {
        "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32, "encoder_attention_heads": 20, "decoder_attention_heads": 20, "encoder_ffn_dim": 5120,
        "decoder_ffn_dim": 5120, "num_mel_bins": 128, "vocab_size": 51866}),
]
