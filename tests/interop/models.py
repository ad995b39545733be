# SPDX-License-Identifier: Apache-2.0
"""Small models for the interop checkpoints, wrapped and trained for one step with FSDP1 or FSDP2."""
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, ShardingStrategy, StateDictType, fully_shard

IN = 6


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """Uneven sizes: 7 and 13 divide by no world size, `one` has fewer rows than ranks, `scale` is one number."""

    def __init__(self, tied=False, zero_dim=False, width=7, hidden=13):
        super().__init__()
        self.inp = nn.Linear(IN, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(2))
        self.one = nn.Linear(width, 1)
        self.out = nn.Linear(width, IN, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.0) if zero_dim else torch.tensor([2.0]))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(()))
        if tied:
            self.again = nn.Linear(width, IN, bias=False)
            self.again.weight = self.out.weight

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        y = self.out(x) * self.scale + self.one(x)
        return y + self.again(x) if hasattr(self, "again") else y


def freeze(model):
    for p in model.blocks[0].parameters():
        p.requires_grad_(False)
    return model


def one_step(model, opt, dtype=torch.float32):
    for _ in range(2):
        opt.zero_grad()
        model(torch.randn(4, IN, dtype=dtype)).float().square().mean().backward()
        opt.step()


def fsdp1(rank, world, use_orig, tied=False, frozen=False, strategy=ShardingStrategy.FULL_SHARD, mesh=None, half=False):
    """Returns a state dict {"model", "optimizer", ...} of ShardedTensors (of DTensors if a mesh is given)."""
    torch.manual_seed(world)
    model = Net(tied=tied)
    if frozen:
        freeze(model)
    wrap = lambda module, recurse, nonwrapped_numel, **_: recurse or isinstance(module, Block)  # noqa: E731
    model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=use_orig, auto_wrap_policy=wrap, sharding_strategy=strategy,
                 device_mesh=mesh, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16) if half else None)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    one_step(model, opt)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        return {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, opt), "epoch": 3, "lr": [0.1, 0.2]}


def fsdp2(rank, world, mesh=None, tied=False, frozen=False, dtype=torch.float32, half=False, flat=False, optimizer=None, width=7, hidden=13):
    """A state dict {"model", "optim", ...} of DTensors."""
    torch.manual_seed(world)
    model = Net(tied=tied, width=width, hidden=hidden).to(dtype)
    if frozen:
        freeze(model)
    policy = dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)) if half else {}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **policy)
    fully_shard(model, mesh=mesh, **policy)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = optimizer(params) if optimizer else torch.optim.AdamW(params, lr=1e-3)
    one_step(model, opt, dtype)
    m, o = get_state_dict(model, opt, options=StateDictOptions(flatten_optimizer_state_dict=flat))
    return {"model": m, "optim": o, "step": 3}


def tensor_and_data_parallel(rank, world, mesh):
    """FSDP2 over one mesh dimension, tensor parallel over the other: Shard(0), Shard(1) and _StridedShard."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    torch.manual_seed(world)
    model = Net(width=10, hidden=12)
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    one_step(model, opt)
    m, o = get_state_dict(model, opt)
    return {"model": m, "optim": o}
