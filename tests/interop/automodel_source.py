# SPDX-License-Identifier: Apache-2.0
"""NeMo Automodel's own models and their adapters, small and on a CPU.

The package and the transformers that it asks for are in a folder of their own beside the newer transformers of the environment: this module
is imported before transformers is.
"""
import copy
import glob
import importlib
import logging
import os
import sys
import types

ROOT = os.path.join(sys.prefix, "nemo-automodel")
sys.path.insert(0, ROOT)
logging.getLogger("nemo_automodel").setLevel(logging.ERROR)

import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import automodel_mimo
import fla_modules
import tiny_models
from learn_maps import Sizes
from trainer_family import Family

fla_modules.install()

PRODUCER, VERSION = "NeMo Automodel", "nemo-automodel 0.7"
MODELS = "nemo_automodel.components.models."
BY_HAND, CHECKS = {}, {}
# What is not counted.
APART = {"qwen_image_edit": "an adapter between models, not of state dicts"}
SCALES = "its from_hf multiplies experts by per_expert_scale, its to_hf makes one of ones: no operation multiplies two tensors or makes one of none"
REASONS = {
    "diffusion_gemma": SCALES, "gemma4_moe": SCALES,
}


def found():
    """Every folder of a model with an adapter."""
    names = set()
    for path in glob.glob(os.path.join(ROOT, *MODELS.split("."), "*", "*.py")):
        with open(path, encoding="utf-8") as file:
            if "StateDictAdapter(" in file.read() or os.path.basename(path) in ("adapter.py", "state_dict_adapter.py"):
                names.add(os.path.basename(os.path.dirname(path)))
    return names - {"common"}


class OnCpu(TorchFunctionMode):
    """Models make buffers on the GPU whatever the device of the rest."""

    def __torch_function__(self, func, kinds, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def shrink(config, sizes, own):
    """Small sizes in a configuration and those inside it, where it has them, and `own` beside them, where functions make values of it."""
    for name, size in (tiny_models.SIZES | sizes | own).items():
        if isinstance(vars(config).get(name), transformers.PretrainedConfig):
            continue
        try:
            if name in own or (hasattr(config, name) and not isinstance(getattr(config, name), (dict, tuple))):
                setattr(config, name, size(config) if callable(size) else size)
        except Exception:   # follows from others, or differs between layers: each model has errors of its own
            pass
    for name in ("layer_types", "mlp_layer_types"):
        kinds = vars(config).get(name)
        if isinstance(kinds, list) and name not in own:
            setattr(config, name, (list(dict.fromkeys(kinds)) * config.num_hidden_layers)[:config.num_hidden_layers])
    for name, inner in list(vars(config).items()):
        if isinstance(inner, transformers.PretrainedConfig):
            shrink(inner, sizes if name in ("text_config", "llm_config") else {}, own.get(name, {}))
    config.dtype = torch.float32
    return config


# What the class of a folder is made with beside a configuration.
BESIDE = {"qwen3_8_flash_next": lambda config: {"engram_table_config": importlib.import_module(
    MODELS + "qwen3_8_flash_next.engram").Qwen3_8_FlashNextEngramTableConfig(num_embeddings=24, embedding_dim=config.text_config.ple_embed_dim // 16)}}
made = {}


def model(variant):
    """(folder, class, configuration, sizes, own sizes): the names and shapes of Automodel's model, its adapter and its configuration."""
    key = repr(variant)
    if key not in made:
        folder, cls, config, sizes, own = variant
        if callable(config):
            config = config()
        elif "." in config:
            module, _, name = config.rpartition(".")
            config = getattr(importlib.import_module(MODELS + module), name)()
        else:
            config = CONFIG_MAPPING[config]()
        config = shrink(config, sizes, own)
        config.architectures = [cls.rpartition(".")[2]]
        torch.cuda.current_device = lambda: 0
        module, _, name = cls.rpartition(".")
        code = getattr(importlib.import_module(f"{MODELS}{folder}.{module or 'model'}"), name)
        transformers.PreTrainedModel.init_weights = lambda *args, **kwargs: None   # elements are of no interest
        with OnCpu():
            whole = getattr(code, "from_config", code)(config, **(BESIDE[folder](config) if folder in BESIDE else {}))
        made[key] = {k: tuple(v.shape) for k, v in whole.state_dict().items()}, whole.state_dict_adapter, config
    return made[key]


def converter(variant):
    shapes, adapter, _ = model(variant)
    adapter = copy.deepcopy(adapter)   # some remember what they have read

    def to_hf(state):
        return adapter.to_hf(dict(state), exclude_key_regex=r".*_extra_state.*", quantization=False)

    def from_hf(state):
        own = adapter.from_hf(dict(state))
        for name in set(getattr(adapter, "view_loaded_native_keys", ())) - own.keys():   # read into views of the model's tensor
            views = to_hf({name: torch.empty(shapes[name], dtype=next(iter(state.values())).dtype)})
            for key, view in views.items():
                view.copy_(state[key])
            own[name] = next(iter(views.values()))._base
        return own
    return types.SimpleNamespace(to_hf=to_hf, from_hf=from_hf, adapter=adapter)


SMALL = {"num_hidden_layers": 6, "mtp_base_layer_idx": 6, "first_k_dense_replace": 2}
OTHER = SMALL | {"num_hidden_layers": 5, "mtp_base_layer_idx": 5, "hidden_size": 24, "moe_intermediate_size": 10, "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4}
LARGE = OTHER | {"num_hidden_layers": 12, "mtp_base_layer_idx": 12, "num_experts": 12, "n_routed_experts": 12, "num_local_experts": 12}


def inside(config, **inner):
    """A configuration whose inner ones the default leaves out."""
    def make():
        module, _, name = config.rpartition(".")
        cls = getattr(importlib.import_module(MODELS + module), name) if module else CONFIG_MAPPING[name]
        return cls(**inner)
    return make


class Tower(transformers.PreTrainedModel):
    """Stands in for the vision tower that comes with published weights as code: the adapter leaves its names as they are, whatever they are."""
    config_class = type("TowerConfig", (transformers.PretrainedConfig,), {"model_type": "published_radio"})

    def __init__(self, config):
        super().__init__(config)
        self.radio_model = torch.nn.Linear(2, 3)
        self.radio_model.make_preprocessor_external = lambda: None


def nemotron_omni():
    transformers.AutoModel.register(Tower.config_class, Tower, exist_ok=True)
    for name in ("timm", "timm.layers", "timm.layers.config"):   # the code sets a flag of it
        sys.modules.setdefault(name, types.ModuleType(name)).set_fused_attn = lambda on: None
    code = importlib.import_module(MODELS + "nemotron_omni.model")
    return code.NemotronOmniConfig(name_or_path=os.path.dirname(__file__), vision_config=Tower.config_class(), llm_config=CONFIG_MAPPING["nemotron_h"](),
                                   sound_config=CONFIG_MAPPING["parakeet_encoder"]())


def family(name, what, *kinds, computed=(), misnamed=None, said="", through=lambda config, code: code, **more):
    """`kinds`: (folder, class, configuration, model_type, sizes) of each model that the map is for; the last of a model_type has most.

    `computed`: buffers that from_hf computes and to_hf leaves out.  `misnamed`: names that the model has, by those that from_hf gives instead.
    `through`: makes of the configuration and the adapter what has published files on the other side.
    """
    misnamed = misnamed or {}

    def adapter(variant):
        code = through(model(variant)[2], converter(variant))

        def from_hf(state):
            own = code.from_hf(state)
            if absent := {*computed, *misnamed} - own.keys():
                raise ValueError(f"{name}: from_hf does not give {sorted(absent)}")
            return {misnamed.get(k, k): v for k, v in own.items() if k not in computed}
        return types.SimpleNamespace(to_hf=code.to_hf, from_hf=from_hf, adapter=code.adapter)

    def make():
        def variants(sizes):
            return [(folder, cls, config, sizes, own) for folder, cls, config, _, own in kinds]
        types_of = list(dict.fromkeys(kind[3] for kind in kinds))
        return Family(
            name, f"NeMo Automodel's {what}, with its own names and layouts, to the published files{said}", types_of,
            adapter, None, variants(SMALL) + variants(OTHER), variants(LARGE), computed=computed,
            own_shapes=lambda v: {k: shape for k, shape in model(v)[0].items() if k not in computed},
            variant_of={kind[3]: variant for kind, variant in zip(kinds, variants(LARGE))},
            covers=tuple(dict.fromkeys(kind[0] for kind in kinds)), **more)
    return make


ERNIE = {"tie_word_embeddings": True, "moe_layer_start_index": 2}
# Two layers without experts, so that their numbers are not taken for a part of the names.
FREQUENCIES = {"moe_layer_freq": [0, 0] + [1] * 10}
SPARSE = {"sparse_attention_config": {"sparse_num_index_heads": 2, "sparse_index_dim": 6, "sparse_block_size": 4, "sparse_topk_blocks": 2,
                                      "sparse_attention_freq": [0, 0] + [1] * 10}}
# Layers behind the last one, which predict further tokens, compress nothing.
RATIOS = {"compress_ratios": [0, 4, 128, 4, 128, 0, 0, 4, 128, 4, 128, 4]}
KINDS = {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 10}
M3 = ("minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", "minimax_m3_vl.config.MiniMaxM3VLConfig", "minimax_m3_vl")
M4 = ("mistral4", "Mistral4ForCausalLM", "mistral4.configuration.Mistral4Config", "mistral4")
V4 = ("deepseek_v4", "DeepseekV4ForCausalLM", "deepseek_v4.config.DeepseekV4Config", "deepseek_v4")
MAMBA = {"num_hidden_layers": 12, "layers_block_type": ["mamba", "moe", "attention", "mlp"] * 3, "moe_shared_expert_intermediate_size": 9, "mamba_num_heads": 4,
         "mamba_head_dim": 4, "ssm_state_size": 3, "n_groups": 2}
AUDIO = {"downsample_hidden_size": 4, "output_dim": 16, "d_model": 16, "encoder_attention_heads": 2, "encoder_ffn_dim": 12, "encoder_layers": 2,
         "num_mel_bins": 16}
KDA = {"linear_attn_config": lambda config: {"head_dim": 3, "num_heads": 5, "short_conv_kernel_size": 2,
                                             "kda_layers": [n for n in range(1, config.num_hidden_layers + 1) if n % 3],
                                             "full_attn_layers": list(range(3, config.num_hidden_layers + 1, 3))},
       "num_shared_experts": 1, "num_experts_per_token": 2}
K3_TEXT = KDA | {"routed_expert_hidden_size": 10, "attn_res_block_size": 2}
K3_VISION = {"vt_num_attention_heads": 2, "vt_num_hidden_layers": 2, "vt_hidden_size": 12, "vt_intermediate_size": 14, "init_pos_emb_height": 3,
             "init_pos_emb_width": 3, "init_pos_emb_time": 2, "qkv_hidden_size": 16, "mm_hidden_size": 12,
             "_attn_implementation": "eager"}
K3 = ("kimi_k3", "multimodal.KimiK3ForConditionalGeneration", "kimi_k3.config.KimiK3Config", "kimi_k3")
UNET = ("hunyuan_image3", "HunyuanImage3ForCausalMM", "hunyuan_image3.config.HunyuanImage3Config", "hunyuan_image_3_moe")
UNET_SIZES = {"hidden_size": 32, "patch_embed_hidden_dim": 64, "attention_head_dim": 6, "patch_size": 1, "vae": {"latent_channels": 3}}   # groups of 32


def tokenizer(config):
    """One whose texts are the numbers of its tokens."""
    from tokenizers import Tokenizer, models
    return lambda revision=None: transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({str(n): n for n in range(30)}, "0")))


# Tables of hashes have a row for each of the primes above the size of the vocabulary, added up.
ENGRAMS = {"engram_layer_ids": [1, 3], "engram_num_embeddings": [40, 90], "engram_max_ngram_size": 3, "engram_vocab_size": 5, "engram_n_heads": 2,
           "engram_head_dim": 7, "engram_compressed_vocab_size": 30}
V41 = {"build_tokenizer": tokenizer, "text_config": ENGRAMS | {
    "num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 5, "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1], "kv_source_layer_ids": [2, 3, 4],
    "index_source_layer_ids": [2, 3, 4], "candidate_source_layer_id": 4}}
MIMO = FREQUENCIES | {"hybrid_layer_pattern": [0, 1, 1, 0] * 3, "swa_num_attention_heads": 6, "swa_num_key_value_heads": 4, "swa_head_dim": 10, "swa_v_head_dim": 5,
                      "add_swa_attention_sink_bias": True, "n_shared_experts": None}
MIMO_V25 = ("mimo_v25", "MiMoV2ForCausalLM", "mimo_v25.config.MiMoV2Config", "mimo_v2")
QKV = dict(parameters={"heads": '{ config = "num_attention_heads" }', "kv_heads": '{ config = "num_key_value_heads" }', "width": '{ config = "head_dim" }'},
           numbers=lambda v: {k: getattr(model(v)[2], n) for k, n in (("heads", "num_attention_heads"), ("kv_heads", "num_key_value_heads"), ("width", "head_dim"))},
           config=lambda v: {k: getattr(model(v)[2], k) for k in ("num_attention_heads", "num_key_value_heads", "head_dim")},
           sizes=Sizes(splits=[["heads * width", "kv_heads * width", "kv_heads * width"]]))
BAGEL = ("bagel", "BagelForUnifiedMultimodal", inside("bagel.configuration.BagelConfig", vision_config={"vision_use_head": False},
                                                      vae_config={"z_channels": 2, "downsample": 8}), "bagel")
BAGELS = {"vit_max_num_patch_per_side": 3, "max_latent_size": 3, "vision_config": {"num_hidden_layers": 4}}
# Layers of full attention have sizes of their own.
ATTENTION = {"num_hidden_layers": 12, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2}
GEMMA4 = inside("gemma4_unified", vision_config={}, audio_config={}, text_config=ATTENTION | {
    "head_dim": 8, "per_layer_config": {i: {"head_dim": 12, "num_key_value_heads": 1} for i in (5, 11)}})
STEP = {"layer_types": ["full_attention", "sliding_attention"] * 8, "rope_scaling": {"rope_type": "default"},
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 3},
        "num_attention_groups": 2, "moe_top_k": 2, "share_expert_dim": 7, "use_head_wise_attn_gate": True, "use_moe_router_bias": True,
        "moe_router_activation": "sigmoid", "moe_layers_enum": tuple(range(2, 12))}
STEP3P7 = [("step3p7", "Step3p7ForConditionalGeneration", "step3p7.configuration_step3p7.Step3p7Config", "step3p7",
            {"text_config": STEP | {"num_nextn_predict_layers": n}, "vision_config": {"width": 16, "layers": 3, "heads": 2, "mlp_ratio": 1.5}}) for n in (0, 3)]
FURTHER = dict(parameters={"every_layer": '{ count_of = ["model.language_model.layers.{i:int}.self_attn.o_proj.weight", "model.layers.{i:int}.self_attn.o_proj.weight"] }',
                           "mtp_layers": '{ count_of = "model.layers.{i:int}.eh_proj.weight" }',
                           "layers": '{ config = ["text_config.num_hidden_layers", "num_hidden_layers"], value = "every_layer - mtp_layers" }'},
               numbers=lambda v: {"layers": model(v)[2].text_config.num_hidden_layers}, sizes=Sizes(shifts=("layers",)))
OMNI = {"llm_config": MAMBA, "vit_hidden_size": 16, "projector_hidden_size": 12,
        "sound_config": {"num_hidden_layers": 3, "subsampling_conv_channels": 4, "num_mel_bins": 16, "conv_kernel_size": 3, "projection_hidden_size": 10}}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 0, 0]}
# One layer has a table, which files hold in parts.
TABLE = "model.language_model.layers.{i:int}.ple.ple_embedding.ngram_embedding."
FLASH = [("qwen3_8_flash_next", "Qwen3_8_FlashNextForConditionalGeneration", f"qwen3_8_flash_next.config.Qwen3_8_FlashNext{kind}Config", model_type,
          {"language_model_only": True, "text_config": {
              "split_ngram_parts": parts, "ple_layer_ids": [layer], "ple_embed_dim": 48, "hc_lowrank": 5, "indexer_n_heads": 2, "indexer_head_dim": 4,
              "layer_types": ["linear_attention", "full_attention"] * 6, "rope_scaling": ROPE, "rope_parameters": ROPE}})
         for kind, model_type, parts, layer in (("", "qwen3_8_flash_next", 4, 2), ("Legacy", "qwen4_exp", 3, 3))]
PARTS = dict(parameters={"parts": f'{{ config = "text_config.split_ngram_parts", count_of = "{TABLE}shard_{{e:int}}.weight" }}',
                         "width": f'{{ shape_of = "{TABLE}{{rest:**}}", dim = 1 }}'},
             numbers=lambda v: {"parts": model(v)[2].text_config.split_ngram_parts, "width": 3},
             config=lambda v: {"text_config": {"split_ngram_parts": model(v)[2].text_config.split_ngram_parts}},
             sizes=Sizes(reshapes=[(("parts", -1, "width"), (-1, "width"))]), drops=["mtp.{rest:**}", "model.visual.{rest:**}"])
MISTRAL3 = {"text_config": {"model_type": "ministral3"}}
# Models that need no map: what a command does to the names of one, and its variant.
NONE = {
    "ministral_bidirectional": (["rename", "--rename", "score=language_model.score"], (
        "ministral_bidirectional", "Mistral3VLBidirectionalForSequenceClassification",
        inside("ministral_bidirectional.model.Mistral3BidirectionalConfig", **MISTRAL3), SMALL, {})),
    "mistral3": (["convert"], ("mistral3", "Ministral3ForCausalLM", "mistral3.model.Ministral3Config", SMALL, {"quantization_config": {"quant_method": "fp8"}})),
}

FAMILIES = [
    family("automodel-bagel-hf", "BAGEL", (*BAGEL, BAGELS | {"stage": 1}), (*BAGEL, BAGELS | {"stage": 2})),
    family("automodel-moe-hf", "DeepSeek-V3 and V3.2, GLM-4.5 to 5 and Qwen 3 with experts",
           ("deepseek_v3", "DeepseekV3ForCausalLM", "deepseek_v3", "deepseek_v3", {"q_lora_rank": None}),
           ("deepseek_v3", "DeepseekV3ForCausalLM", "deepseek_v3", "deepseek_v3", {}),
           ("deepseek_v32", "DeepseekV32ForCausalLM", "deepseek_v32.config.DeepseekV32Config", "deepseek_v32", {}),
           ("glm4_moe", "Glm4MoeForCausalLM", "glm4_moe", "glm4_moe", {"attention_bias": True, "use_qk_norm": True}),
           ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", "glm4_moe_lite", "glm4_moe_lite", {}),
           ("glm_moe_dsa", "GlmMoeDsaForCausalLM", "glm_moe_dsa.config.GlmMoeDsaConfig", "glm_moe_dsa", {}),
           ("qwen3_moe", "Qwen3MoeForCausalLM", "qwen3_moe", "qwen3_moe", {})),
    family("automodel-deepseek-v4-hf", "DeepSeek-V4", (*V4, RATIOS | {"num_nextn_predict_layers": 0}), (*V4, RATIOS)),
    family("automodel-deepseek-v41-hf", "DeepSeek-V4.1",
           ("deepseek_v41", "DeepseekV41ForCausalLM", "deepseek_v41.config.DeepseekV41Config", "deepseek_v41", V41), drops=["mtp.{rest:**}"],
           said="; backwards without the draft model (mtp)"),
    family("automodel-ernie4-5-hf", "Ernie 4.5", ("ernie4_5", "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", "ernie4_5_moe", ERNIE),
           sizes=Sizes(reshapes=[((1, -1), (-1,))])),
    family("automodel-gemma4-unified-hf", "Gemma 4 Unified",
           ("gemma4_unified", "Gemma4UnifiedForConditionalGeneration", GEMMA4, "gemma4_unified",
            {"tie_word_embeddings": True, "text_config": ATTENTION | {"tie_word_embeddings": True},
             "vision_config": {"mm_embed_dim": 10, "mm_posemb_size": 9, "output_proj_dims": 10}}), absent=("lm_head.weight",)),
    family("automodel-glm5-next-hf", "GLM-5 Next", ("glm5_next", "Glm5NextForConditionalGeneration", "glm5_next.config.Glm5NextConfig", "glm5_next", {})),
    family("automodel-gpt-oss-hf", "GPT-OSS", ("gpt_oss", "GptOssForCausalLM", "gpt_oss", "gpt_oss", {})),
    family("automodel-hunyuan-image3-hf", "transformer of HunyuanImage 3", (*UNET, UNET_SIZES),
           drops=["vae.{rest:**}", "vision_model.{rest:**}", "vision_aligner.{rest:**}"], sizes=Sizes(swaps=True),
           said="; backwards without the VAE and the vision encoder"),
    family("automodel-hy-hf", "Hunyuan 3 and MT2", ("hy_v3", "HYV3ForCausalLM", "hy_v3.config.HYV3Config", "hy_v3", {}),
           ("hy_mt2", "HyMT2ForCausalLM", "hy_mt2.config.HyMT2Config", "hy_mt2", {})),
    family("automodel-inkling-hf", "Inkling", ("inkling", "InklingForConditionalGeneration", "inkling.configuration.InklingConfig", "inkling_mm_model",
                                                 {"text_config": KINDS})),
    family("automodel-kimi-k2-5-hf", "Kimi K2.5", ("kimi_k25_vl", "KimiK25VLForConditionalGeneration", "kimi_k25_vl.model.KimiK25VLConfig", "kimi_k25", {}),
           dtype=torch.bfloat16),
    family("automodel-kimi-k3-hf", "Kimi K3",
           ("kimi_k3", "KimiK3ForCausalLM", "kimi_k3.config.KimiK3TextConfig", "kimi_linear", K3_TEXT | {"latent_moe_use_norm": False}),
           (*K3, {"text_config": K3_TEXT, "vision_config": K3_VISION}),
           parameters={"heads": '{ shape_of = "{rest:**}.self_attn.b_proj.weight" }'}, numbers=lambda v: {"heads": 5}, sizes=Sizes(pads=[(128, "heads")])),
    family("automodel-kimi-linear-hf", "Kimi Linear",
           *(("kimi_linear", "KimiLinear48BForCausalLM", "kimi_linear.config.KimiLinear48BConfig", kind, KDA | {"q_lora_rank": None, "mla_use_nope": True})
             for kind in ("kimi_linear", "kimi_linear_48b_a3b"))),
    family("automodel-kimi-vl-hf", "Kimi VL",
           ("kimivl", "KimiVLForConditionalGeneration", "kimivl.model.KimiVLConfig", "kimi_vl", {"init_pos_emb_height": 5, "init_pos_emb_width": 5}),
           misnamed={"lm_head.weight": "model.language_model.lm_head.weight"},
           said="; lm_head has the model's name, which its to_hf reads and its from_hf does not give"),
    family("automodel-laguna-hf", "Laguna", ("laguna", "LagunaForCausalLM", "laguna.config.LagunaConfig", "laguna", {"mlp_only_layers": [0, 1]})),
    family("automodel-ling-v2-hf", "Ling 2", ("ling_v2", "BailingMoeV2ForCausalLM", "ling_v2.config.BailingMoeV2Config", "bailing_moe", {}), **QKV),
    family("automodel-llava-onevision-hf", "LLaVA-OneVision 1.5",
           ("llava_onevision", "LLaVAOneVision1_5_ForConditionalGeneration", "llava_onevision.model.Llavaonevision1_5Config", "llavaonevision1_5", {})),
    family("automodel-mimo-v2-flash-hf", "MiMo 2 Flash",
           ("mimo_v2_flash", "MiMoV2FlashForCausalLM", "mimo_v2_flash.config.MiMoV2FlashConfig", "mimo_v2_flash",
            FREQUENCIES | {"n_shared_experts": None})),
    family("automodel-mimo-v2-5-hf", "MiMo 2.5", (*MIMO_V25, MIMO | {"attention_projection_layout": "split"}),
           (*MIMO_V25, MIMO | {"attention_projection_layout": "fused_qkv"}),
           said=", whose rows of fused attention its from_hf reads and its to_hf does not write", through=automodel_mimo.published,
           by_hand=(r".*\.qkv_proj\.weight", automodel_mimo.rules()), parameters=automodel_mimo.PARAMETERS, config=lambda v: model(v)[2].to_dict()),
    family("automodel-minimax-m2-hf", "MiniMax-M2", ("minimax_m2", "MiniMaxM2ForCausalLM", "minimax_m2", "minimax_m2", {"use_qk_norm": True})),
    family("automodel-minimax-m3-hf", "MiniMax-M3", (*M3, {"text_config": FREQUENCIES | SPARSE | {"num_mtp_modules": 0}}),
           (*M3, {"text_config": FREQUENCIES | SPARSE})),
    family("automodel-mistral3-hf", "Mistral 3 with images",
           ("mistral3_vlm", "Mistral3FP8VLMForConditionalGeneration", inside("mistral3", **MISTRAL3), "mistral3", {}), absent=("language_model.lm_head.weight",)),
    family("automodel-mistral4-hf", "Mistral 4", (*M4, {"first_k_dense_replace": 0}), (*M4, {})),
    family("automodel-muse-glimmer-hf", "Muse Glimmer",
           ("muse_glimmer", "MuseGlimmerForConditionalGeneration", "muse_glimmer.config.MuseGlimmerConfig", "muse_glimmer", {}),
           computed=("model.rotary_emb.freqs", "model.vision_encoder.rotary_emb.inv_freq"),
           said="; without the frequencies of rotary embeddings, which it computes"),
    family("automodel-nemotron-omni-hf", "Nemotron 3 Nano Omni",
           ("nemotron_omni", "NemotronOmniForConditionalGeneration", nemotron_omni, "NemotronH_Nano_Omni_Reasoning_V3", OMNI),
           same=["vision_model.radio_model."]),
    family("automodel-nemotron-v3-hf", "Nemotron 3", ("nemotron_v3", "NemotronHForCausalLM", "nemotron_h", "nemotron_h", MAMBA)),
    family("automodel-qwen2-5-omni-hf", "thinker of Qwen 2.5 Omni",
           ("qwen2_5_omni", "Qwen2_5OmniThinkerForConditionalGeneration", "qwen2_5_omni_thinker", "qwen2_5_omni", {})),
    family("automodel-qwen3-5-hf", "Qwen 3.5 without experts", ("qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen3_5", {})),
    family("automodel-qwen3-5-text-hf", "Qwen 3.5 without experts and without images",
           ("qwen3_5", "Qwen3_5ForCausalLM", "qwen3_5_text", "qwen3_5_text", {})),
    family("automodel-qwen3-5-moe-hf", "Qwen 3.5 with experts", ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "qwen3_5_moe", {})),
    family("automodel-qwen3-5-moe-text-hf", "Qwen 3.5 with experts and without images",
           ("qwen3_5_moe", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "qwen3_5_moe_text", {})),
    family("automodel-qwen3-8-flash-next-hf", "Qwen 3.8 Flash Next without images", *FLASH, **PARTS),
    family("automodel-qwen3-next-hf", "Qwen 3 Next", ("qwen3_next", "Qwen3NextForCausalLM", "qwen3_next", "qwen3_next", {})),
    family("automodel-qwen3-omni-hf", "thinker of Qwen 3 Omni",
           ("qwen3_omni_moe", "Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_thinker", "qwen3_omni_moe", {"pad_token_id": 0, "audio_config": AUDIO})),
    family("automodel-qwen3-vl-moe-hf", "Qwen 3 VL with experts",
           ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "qwen3_vl_moe", {})),
    family("automodel-step3p5-hf", "Step 3.5", ("step3p5", "Step3p5ForCausalLM", "step3p7.configuration_step3p7.Step3p7TextConfig", "step3p5", STEP)),
    family("automodel-step3p7-hf", "Step 3.7", *STEP3P7, **FURTHER),
]


def mimo_float8(tmp):
    family = next(one for one in (make() for make in FAMILIES) if one.name == "automodel-mimo-v2-5-hf")
    for layout in ("split", "fused_qkv"):
        own = MIMO | {"attention_projection_layout": layout, "hidden_size": 256, "num_attention_heads": 64}   # more than a block of 128 x 128
        automodel_mimo.from_float8(tmp, family, (*MIMO_V25[:3], OTHER, own))


CHECKS["automodel-mimo-v2-5-hf: FP8"] = mimo_float8
