# SPDX-License-Identifier: Apache-2.0
"""The counterpart of samples/train_gpt.cpp, by PyTorch's FSDP1 and FSDP2: the same model, order of tokens and optimizer.

A training has a kind ("fsdp1", "fsdp2"), a world, Sizes, and optionally another model.  All functions run on every rank.
"""
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (FullyShardedDataParallel, ShardedOptimStateDictConfig, ShardedStateDictConfig, StateDictType,
                                    fully_shard)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.functional import cross_entropy

from models import Block, Linear


@dataclass(frozen=True)
class Sizes:
    """Like train_gpt's options; batch is that of all ranks."""
    vocab: int
    dim: int
    layers: int
    heads: int
    seq: int
    batch: int
    lr: float
    weight_decay: float


class GPT(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.emb, self.pos = nn.Embedding(sizes.vocab, sizes.dim), nn.Embedding(sizes.seq, sizes.dim)
        self.blocks = nn.ModuleList(Block(sizes.dim, sizes.heads) for _ in range(sizes.layers))
        self.ln, self.head = nn.LayerNorm(sizes.dim), Linear(sizes.dim, sizes.vocab, bias=False)

    def forward(self, x):
        x = self.emb(x) + self.pos(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def initialize(model, seed):
    """Like samples/gpt.h, value by value."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)
            elif name.endswith("bias"):
                parameter.zero_()


def read(folder):
    """Everything in a folder, whole, as PyTorch's dcp_to_torch_save reads it."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


class Training:
    def __init__(self, kind, sizes, tokens, use_orig_params=True, build=GPT, unit=Block, device=torch.device("cpu"), seed=None):
        """`unit`: the class of the modules that are sharded separately.  `seed`: train_gpt's, for its weights; without it they are others, so
        that a load must replace them."""
        self.kind, self.sizes, self.step = kind, sizes, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        with open(tokens, "rb") as f:
            self.tokens = torch.frombuffer(bytearray(f.read()), dtype=torch.int16).to(device, torch.int64) & 0xFFFF
        torch.manual_seed(4321)
        model = build(sizes)
        if seed is not None:
            initialize(model, seed)
        if kind == "fsdp1":
            model = FullyShardedDataParallel(model, device_id=device, use_orig_params=use_orig_params,
                                             auto_wrap_policy=ModuleWrapPolicy({unit}))
            FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig())
        else:
            mesh = init_device_mesh(device.type, (self.world,))
            for module in list(model.modules()):
                if isinstance(module, unit):
                    fully_shard(module, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=sizes.weight_decay)

    def batch(self):
        local, length = self.sizes.batch // self.world, self.sizes.seq
        first = (self.step * self.world + self.rank) * local
        starts = [(first + b) * length % (len(self.tokens) - length - 1) for b in range(local)]
        rows = torch.stack([self.tokens[s:s + length + 1] for s in starts])
        return rows[:, :-1], rows[:, 1:]

    def train(self, until):
        """Trains up to step `until`; returns the mean loss over all ranks of each step."""
        losses = []
        while self.step < until:
            x, y = self.batch()
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(x).flatten(0, 1), y.flatten())
            loss.backward()
            self.optimizer.step()
            self.step += 1
            mean = loss.detach().double()
            dist.all_reduce(mean)
            losses.append(mean.item() / self.world)
        return losses

    def state(self):
        """(model, optimizer), sharded."""
        if self.kind == "fsdp1":
            return self.model.state_dict(), FullyShardedDataParallel.optim_state_dict(self.model, self.optimizer)
        return get_state_dict(self.model, self.optimizer)

    def whole_state(self):
        """(model, optimizer), every tensor whole on rank 0."""
        return _whole(self.state())

    def take(self, model, optimizer=None):
        if self.kind == "fsdp1":
            self.model.load_state_dict(model)
            if optimizer is not None:
                flat = FullyShardedDataParallel.optim_state_dict_to_load(self.model, self.optimizer, optimizer)
                self.optimizer.load_state_dict(flat)
        elif optimizer is not None:
            set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        else:
            set_state_dict(self.model, [], model_state_dict=model, optim_state_dict={})

    def save(self, folder):
        model, optimizer = self.state()
        dcp.save({"model": model, "optimizer": optimizer, "global_step": self.step}, checkpoint_id=folder)

    def load_weights(self, folder):
        model = self.model.state_dict() if self.kind == "fsdp1" else get_state_dict(self.model, [])[0]
        _load({"model": model}, folder)
        self.take(model)

    def resume(self, folder, optimizer_key, step):
        """Loads model and optimizer from a folder, in place; `optimizer_key`: the key of the optimizer's state."""
        self.train(1)  # an optimizer has no state to load into before its first step
        model, optimizer = self.state()
        state = {"model": model, optimizer_key: optimizer}
        _load(state, folder)
        self.take(state["model"], state[optimizer_key])
        self.step = step


def _whole(x):
    # Not FSDP1's own full optimizer state: on the CPU, PyTorch 2.11 gathers each of its tensors into one and the same buffer.
    if isinstance(x, dict):
        return {k: _whole(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(_whole(v) for v in x)
    if hasattr(x, "full_tensor"):
        return x.full_tensor()
    if hasattr(x, "local_shards"):
        out = torch.empty(x.size(), dtype=x.dtype) if dist.get_rank() == 0 else None
        x.gather(0, out)
        return out
    return x


def _load(state, folder):
    # PyTorch 2.11 drops ShardedTensors of which a rank has no part while it flattens them, and then assumes a folder from before 2.4;
    # without that step it loads.
    dcp.load(state, checkpoint_id=folder, planner=DefaultLoadPlanner(flatten_sharded_tensors=False))
