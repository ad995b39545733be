# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's models, distributed optimizer and checkpoints without a GPU: ranks over Gloo, and tensors of `cuda` on the CPU."""
import contextlib
import os
import socket
import sys
import types

import torch
import torch.multiprocessing

HEADS, GROUPS, HIDDEN, INNER, VOCABULARY, LAYERS, EXPERTS = 4, 2, 8, 6, 16, 2, 4


_OWN = {name: getattr(torch, name) for name in ("tensor", "empty", "zeros", "ones", "full", "arange")}
_TYPE = torch.Tensor.type


def without_gpu():
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    for name, made in _OWN.items():
        def on_cpu(*values, made=made, device=None, **more):
            return made(*values, device="cpu" if device is None or str(device).startswith("cuda") else device, **more)
        setattr(torch, name, on_cpu)
    torch.Tensor.cuda = lambda self, *_, **__: self
    # The optimizer takes parameters of a GPU only, and knows them by these texts.
    torch.Tensor.type = lambda self, *to, **more: _TYPE(self, *to, **more) if to or more else _TYPE(self).replace("torch.", "torch.cuda.")


def _rank(rank, world, port, work, arguments):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), CUDA_DEVICE_MAX_CONNECTIONS="1")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    without_gpu()
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.transformer.moe import moe_utils
    tensor_parallel.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)
    moe_utils.te_general_gemm = None   # it forgets to define it where Transformer Engine is missing
    filesystem_async._process_memory = lambda: 0   # asks psutil, only for a line of a log
    work(rank, world, *arguments)
    torch.distributed.barrier()
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def use(version):
    """Takes Megatron-Core of that version, "0.16", in a folder of its own, instead of the environment's: in this process and in those of `run`."""
    folder = os.path.join(sys.prefix, f"megatron-core-{version}")
    if not os.path.isdir(folder):
        raise FileNotFoundError(folder)
    sys.path.insert(0, folder)


def run(world, work, *arguments):
    """Calls work(rank, world, *arguments) in as many processes, of which one alone is this one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if world == 1:
        _rank(0, 1, port, work, arguments)
        return
    torch.multiprocessing.spawn(_rank, (world, port, work, arguments), nprocs=world)


def parallel(tp, pp, ep):
    from megatron.core import parallel_state
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep)


def model(tp, pp, ep, experts, seed=1):
    """This rank's part of a GPT of bfloat16: its values depend on the seed alone, not on how it is divided."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    mixture = {"num_moe_experts": EXPERTS, "moe_router_topk": 2, "moe_ffn_hidden_size": INNER, "moe_router_load_balancing_type": "none",
               "moe_token_dispatcher_type": "allgather"} if experts else {}
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=GROUPS, ffn_hidden_size=INNER,
        use_cpu_initialization=True, normalization="RMSNorm", gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False,
        gradient_accumulation_fusion=False, attention_dropout=0, hidden_dropout=0, params_dtype=torch.bfloat16, bf16=True,
        pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        **mixture)
    torch.manual_seed(seed)
    return config, GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(num_experts=EXPERTS if experts else None, normalization="RMSNorm"),
        vocab_size=VOCABULARY, max_sequence_length=32, pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(), position_embedding_type="rope",
        share_embeddings_and_output_weights=False).bfloat16()


def with_optimizer(config, gpt, bucket_size=None):
    """The model wrapped for data parallelism, and Megatron-Core's distributed optimizer after one step on random gradients.  Without a
    size there is one bucket: Megatron-Core makes several where they overlap with the backward pass."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=bucket_size is not None, bucket_size=bucket_size or 1000), gpt)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=0.01, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True), [wrapped],
        use_gloo_process_groups=True)
    for number, parameter in enumerate(gpt.parameters()):
        # Ranks of tensor parallelism have the same norms and routers, so the same gradients of them.
        torch.manual_seed(100 + (torch.distributed.get_rank() if getattr(parameter, "tensor_model_parallel", False) else 50 + number))
        parameter.main_grad.normal_()
    assert optimizer.step()[0]
    return wrapped, optimizer


def metadata(kind, homogeneous=True):
    """What Megatron-LM's training passes to sharded_state_dict, and stores as content_metadata."""
    out = {"distrib_optim_sharding_type": kind, "singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    return out if homogeneous else {**out, "non_homogeneous_layers": True}


def sharded(gpt, optimizer, content, is_loading=False):
    from megatron.core import parallel_state
    more = {**content, "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    out = {"model": gpt.sharded_state_dict(metadata=more)}
    if optimizer is not None:
        out["optimizer"] = optimizer.sharded_state_dict(out, is_loading=is_loading, metadata=more)
    return out


def save(gpt, optimizer, content, folder):
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedObject
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    state = sharded(gpt, optimizer, content)
    state.update(checkpoint_version=3.0, iteration=7, opt_param_scheduler={"max_lr": 0.01, "num_steps": 700}, num_floating_point_operations_so_far=0)
    state["rng_state"] = ShardedObject("rng_state", [{"random_rng_state": rank}], (world,), (rank,), replica_id=0)
    os.makedirs(folder, exist_ok=True)
    torch.distributed.barrier()
    dist_checkpointing.save(state, folder, content_metadata=content)
