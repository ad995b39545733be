# SPDX-License-Identifier: Apache-2.0
"""GPT models of Megatron-Core's own layers, on a CPU."""
import contextlib
import os
import re
import types

import torch


def _set_up():
    if torch.distributed.is_initialized():
        return
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    # Where its layers ask for a GPU: buffers, and the random numbers of dropout, which is off.
    torch.cuda.current_device = lambda: "cpu"
    from megatron.core import parallel_state, tensor_parallel
    tensor_parallel.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)
    from megatron.core.transformer.moe import moe_utils
    moe_utils.te_general_gemm = None   # it forgets to define it where Transformer Engine is missing
    parallel_state.initialize_model_parallel(1, 1)


def model(heads, groups, experts, hidden, layers, inner, vocabulary, kind="llama", tied=False):
    """A random model with rotary embeddings, RMS norms and gated linear units, and its configuration.  `kind`: qwen2 has biases of queries, keys and
    values; qwen3 has norms of queries and keys, and heads of a width of their own."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    _set_up()
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    torch.manual_seed(heads + experts)
    mixture = {"num_moe_experts": experts, "moe_router_topk": 2, "moe_router_pre_softmax": False, "moe_ffn_hidden_size": inner,
               "moe_router_load_balancing_type": "none", "moe_token_dispatcher_type": "allgather"} if experts else {}
    config = TransformerConfig(
        num_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_query_groups=groups, ffn_hidden_size=inner,
        use_cpu_initialization=True, normalization="RMSNorm", gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False,
        gradient_accumulation_fusion=False, attention_dropout=0, hidden_dropout=0, layernorm_epsilon=1e-6, params_dtype=torch.float32,
        init_method_std=0.3,
        add_qkv_bias=kind == "qwen2", qk_layernorm=kind == "qwen3", kv_channels=8 if kind == "qwen3" else None, **mixture)
    gpt = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(
        num_experts=experts or None, qk_layernorm=kind == "qwen3", normalization="RMSNorm"),
                   vocab_size=vocabulary, max_sequence_length=32, position_embedding_type="rope", rotary_base=10000,
                   share_embeddings_and_output_weights=tied, parallel_output=False).eval()
    for name, parameter in gpt.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter.data, 0.5, 1.5)
        if name.endswith("qkv.bias"):
            torch.nn.init.normal_(parameter.data)
    return gpt, config


def logits(gpt, ids):
    length = ids.shape[1]
    later = torch.ones(1, 1, length, length).tril() < 0.5
    with torch.no_grad():
        return gpt(ids, torch.arange(length).expand_as(ids), later)


def engine_name(key, experts):
    """The name that Transformer Engine's layers give the tensor of a local layer."""
    key = key.replace(".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight")
    if not experts:
        return key.replace(".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight")
    return re.sub(r"local_experts\.(\d+)\.(linear_fc[12])\.weight", r"\2.weight\1", key)
