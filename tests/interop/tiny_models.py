# SPDX-License-Identifier: Apache-2.0
"""Models of transformers by their model_type, with sizes so small that a test can have one of each."""
import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# Sizes by the names that configurations give them.  All differ where they may, so that no two dimensions are taken for each other.
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 4, "num_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 32,
    "intermediate_size": 12, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 7, "num_experts": 3, "n_routed_experts": 3,
    "num_local_experts": 3, "moe_num_experts": 3, "num_experts_per_tok": 2, "moe_topk": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 6, "q_lora_rank": 7, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "qk_head_dim": 8,
    "v_head_dim": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 3, "linear_value_head_dim": 5, "index_n_heads": 2, "index_head_dim": 6,
    "tie_word_embeddings": False, "depth": 2, "num_heads": 2, "out_hidden_size": 16, "patch_size": 2, "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0], "image_size": 8, "n_embd": 16, "n_head": 4, "n_layer": 3, "n_positions": 9,
}
AUTO = ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
        "MODEL_MAPPING_NAMES")


def class_of(model_type):
    """The class with the largest part of the model, or None where transformers has no such model_type."""
    for table in AUTO:
        name = getattr(modeling_auto, table).get(model_type)
        if name:
            return getattr(transformers, name if isinstance(name, str) else name[0])
    return None


def shrink(config, own):
    """Sets the sizes that a configuration and those inside it have, and `own` beside them."""
    for name, size in (SIZES | own).items():
        if isinstance(size, dict):
            continue
        if name in own or (hasattr(config, name) and not isinstance(getattr(config, name), (dict, tuple))):
            try:
                setattr(config, name, size)
            except AttributeError:   # follows from others
                pass
    for name in ("layer_types", "mlp_layer_types"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, list) and name not in own:
            try:
                setattr(config, name, (list(dict.fromkeys(kinds)) * config.num_hidden_layers)[:config.num_hidden_layers])
            except AttributeError:
                pass
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            shrink(getattr(config, name), own.get(name, {}))
    return config


def tiny(model_type, own, seed=5):
    """A model whose every floating element is random, and no two of them equal by the way it is made.  `own`: other sizes."""
    torch.manual_seed(seed)
    cls = class_of(model_type)
    config = shrink(CONFIG_MAPPING[model_type](), own)
    model = cls(config).eval()
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.randn(value.shape))
    return model
