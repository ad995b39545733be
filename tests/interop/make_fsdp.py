# SPDX-License-Identifier: Apache-2.0
"""A folder of `fsdp_dtensor` by Megatron-FSDP itself, on a CPU: its DTensors, which it cuts where its buffers end, and its own code that
takes gated linear units apart.  The keys are those of Megatron-LM's checkpoints, which its training makes; that is not on PyPI."""
import contextlib
import os
import types

import torch

import megatron_cpu


class _Stream:
    """A stream of a CPU, where everything is done at once."""

    def __getattr__(self, name):
        return lambda *_, **__: self


_TO = torch.Tensor.to


def _without_gpu():
    torch.cuda.Stream = torch.cuda.Event = lambda *_, **__: _Stream()
    torch.cuda.current_stream = lambda *_: _Stream()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    torch.cuda.empty_cache = lambda: None
    torch.cuda.current_device = lambda: 0   # it wants a device's number

    def on_cpu(value):
        return "cpu" if isinstance(value, (str, torch.device)) and str(value).startswith("cuda") else value
    torch.Tensor.to = lambda self, *to, **more: _TO(self, *map(on_cpu, to), **{k: on_cpu(v) for k, v in more.items()})


def state(world, seed=1, experts=False):
    """Model and optimizer after one step as a state dict of DTensors, as Megatron-LM's training saves and loads it."""
    _without_gpu()
    megatron_cpu.parallel(1, 1, 1)
    _, gpt = megatron_cpu.model(1, 1, 1, experts, seed)
    from megatron.core.distributed.fsdp.src.megatron_fsdp.fully_shard import fully_shard_model
    from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import preprocess_state_dict_for_uneven_dtensor
    from megatron.core.transformer.fsdp_dtensor_checkpoint import handle_swiglu_in_state_dict
    from megatron.core.transformer.transformer_layer import TransformerLayer
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("dp", "tp"))
    model = fully_shard_model(gpt, device_mesh=mesh, dp_shard_dim="dp", tp_dim="tp", zero_dp_strategy=3, fsdp_unit_modules=[TransformerLayer],
                              device=torch.device("cuda:0"), preproc_state_dict_for_dcp_ckpt=False)
    parameters = dict(model.named_parameters())   # "module.decoder..."
    decay = [p for p in parameters.values() if p.dim() > 1]
    optimizer = torch.optim.AdamW([{"params": decay, "wd_mult": 1.0, "is_expert_parallel": False},
                                   {"params": [p for p in parameters.values() if p.dim() < 2], "wd_mult": 0.0, "is_expert_parallel": False}],
                                  lr=0.01)
    torch.manual_seed(seed + torch.distributed.get_rank())
    for parameter in parameters.values():
        local = parameter.to_local()
        parameter.grad = torch.distributed.tensor.DTensor.from_local(torch.randn_like(local), parameter.device_mesh, parameter.placements,
                                                                     run_check=False, shape=parameter.shape, stride=parameter.stride())
    optimizer.step()
    names = {id(p): "module.module." + name for name, p in parameters.items()}
    groups = {names[id(p)]: {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups for p in group["params"]}
    states = {"state": {names[id(p)]: dict(s) for p, s in optimizer.state.items()}, "param_to_group_meta": groups}
    # Below the wrappers of Megatron-Core's training.
    wrapped = types.SimpleNamespace(config=gpt.config if hasattr(gpt, "config") else model.module.config, named_modules=model.named_modules,
                                    get_parameter=lambda name: parameters["module." + name.replace("module.", "")])
    weights, states = handle_swiglu_in_state_dict(wrapped, dict(model.state_dict()), states)
    out = {"model": weights, "optimizer": states, "checkpoint_version": 3.0, "iteration": 7, "args": None}
    return preprocess_state_dict_for_uneven_dtensor(out)


def make(rank, world, folder):
    import torch.distributed.checkpoint as dcp
    os.makedirs(folder, exist_ok=True)
    torch.distributed.barrier()
    dcp.save(state(world), storage_writer=dcp.FileSystemWriter(folder))
