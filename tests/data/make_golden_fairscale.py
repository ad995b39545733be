#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes golden/frameworks/fairscale_*: shards as FairScale's FSDP saves them (gloo, CPU), joined by its consolidate_shard_weights and its
gather_full_optim_state_dict.

  python make_golden_fairscale.py      with torch==2.11.0 and fairscale==0.4.13; writes golden/SHA256SUMS again
The truth is the result of consolidate_shard_weights.  It loses tied names of units before the last; those come from
the whole model's state_dict(), with which everything else is compared too.  The optimizer's states go by name, in
the order in which FairScale numbers the parameters, and are close to those of AdamW on the whole model after the
same steps.  FairScale gathers none for parameters that are not flattened, so consolidate_shard_weights joins their
states.
"""
import os
import shutil
import sys
import types
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(os.path.dirname(HERE), "support"), os.path.join(os.path.dirname(HERE), "interop")]

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

ROOT = os.path.join(HERE, "golden", "frameworks")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 7)


def wrapped(module, group, **how):
    from fairscale.nn import FullyShardedDataParallel
    return FullyShardedDataParallel(module, compute_device=torch.device("cpu"), process_group=group, process_group_reduce_scatter=group, **how)


class Net(nn.Module):
    """Tied weights, a unit in a unit, one of a single element, buffers; numbers of elements that no world size divides."""

    def __init__(self, group, own, last=False, **how):
        super().__init__()
        self.inp = nn.Linear(5, 7)
        self.again = nn.Linear(5, 7)
        self.again.weight = self.inp.weight
        self.block = Block()
        self.block.down = wrapped(self.block.down, group, **how)
        self.block = wrapped(self.block, group, **how)
        self.scale = nn.Module()
        self.scale.one = nn.Parameter(torch.tensor([3.0]))
        self.scale = wrapped(self.scale, group, **how)
        if own is not None:   # each rank's own expert; the joined result has rank 0's
            self.expert = wrapped(nn.Linear(2, 2), own, no_broadcast_optim_state=True, **how)
        if last:   # of the outer unit, after the inner ones: optimizers number it after them, the metadata before
            self.last = nn.Linear(3, 2)
        self.register_buffer("seen", torch.arange(4))


def names_of(meta):
    """Returns the names of the parameters, in the order in which FairScale numbers them."""
    return [f"{unit['fsdp_path']}.{name}".lstrip(".") for unit in meta["param_metadata"] for said in unit["params"].values() for name in said["names"]]


def plain_adamw(names, weights, grads):
    """Returns AdamW's state of the whole parameters after the same steps; by name."""
    params = [nn.Parameter(weights[n].clone()) for n in names]
    optimizer = torch.optim.AdamW(params, lr=1e-3)
    for step in grads:
        for p, n in zip(params, names):
            p.grad = step[n].clone()
        optimizer.step()
    state = optimizer.state_dict()
    group = {**state["param_groups"][0], "params": names}
    return {"state": {n: state["state"][i] for i, n in enumerate(names)}, "param_groups": [group]}


def compare(gathered, trained, names):
    """Compares with FairScale's gathered state, parameter by parameter."""
    assert set(gathered["state"]) == set(range(len(names)))
    for i, n in enumerate(names):
        want, got = trained["state"][n], gathered["state"][i]
        assert float(got["step"]) == float(want["step"]), n
        assert all(torch.equal(got[k], want[k]) for k in ("exp_avg", "exp_avg_sq")), n


def worker(rank, world, case, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda *_: None   # it waits for a GPU, but there is none
    torch.cuda.current_stream = lambda *_: types.SimpleNamespace(wait_stream=lambda _: None)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from fairscale.nn import FullyShardedDataParallel
    from make_frameworks import write_truth
    everybody = dist.new_group(list(range(world)))
    alone = [dist.new_group([r]) for r in range(world)][rank]
    torch.manual_seed(world)
    how = {"flatten_parameters": False} if case in ("unflattened", "parameters") else {}
    model = wrapped(Net(everybody, alone if case == "trainer" else None, last=case == "parameters", **how), everybody, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = {k: v.clone() for k, v in model.local_state_dict().items()}
    shards = {}   # keys of parameters; tied ones have several
    for k, v in model.local_state_dict().items():
        shards.setdefault(v.data_ptr(), k)
    grads = []
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        grads.append({shards[p.data_ptr()]: p.grad.clone() for p in model.parameters()})
        optimizer.step()
    weights, meta = model.local_state_dict(), model.local_metadata_dict()
    extra = {"epoch": 3, "train_iterator": {"shuffle": True, "offsets": (1, 2)}}
    if case == "trainer":   # names used by fairseq and metaseq
        files = {f"checkpoint_last-shard{rank}.pt": {"model": weights, "shard_metadata": meta, "extra_state": extra,
                                                     "last_optimizer_state": optimizer.state_dict()}}
    elif case == "parameters":   # the same with each parameter cut separately
        files = {f"ckpt_rank{rank}.pt": {"model": weights, "shard_metadata": meta, "optimizer": optimizer.state_dict()}}
    elif case == "unflattened":   # weights and metadata in separate files
        files = {f"weights_rank{rank}.pth": weights, f"meta_rank{rank}.pth": meta}
    else:
        files = {f"shard_{rank}.pt": {"weights": weights, "meta": meta}}
    folder = os.path.join(ROOT, f"fairscale_{case}_w{world}")
    ckpt = os.path.join(folder, "ckpt")
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(ckpt)
    dist.barrier()
    for name, obj in files.items():
        torch.save(obj, os.path.join(ckpt, name))
    gathered = [None] * world
    states = {k: {shards[p.data_ptr()]: optimizer.state[p][k].clone() for p in model.parameters()} for k in ("exp_avg", "exp_avg_sq")}
    dist.all_gather_object(gathered, (weights, meta, before, grads, states))
    full_optimizer = None
    if not how:   # FairScale numbers parameters and has no names
        cpu, torch.Tensor.cpu = torch.Tensor.cpu, lambda t: t.clone()   # FairScale expects a copy here, and reuses one buffer
        full_optimizer = model.gather_full_optim_state_dict(optimizer)
        torch.Tensor.cpu = cpu
    for m in model.modules():
        if isinstance(m, FullyShardedDataParallel):
            m._streams["all_gather"] = None
    whole = model.state_dict()
    if rank == 0:
        all_weights, all_meta, all_before, all_grads, all_states = map(list, zip(*gathered))
        join = lambda parts: FullyShardedDataParallel.consolidate_shard_weights(parts, all_meta, with_module_buffers=False)  # noqa: E731
        joined = FullyShardedDataParallel.consolidate_shard_weights(all_weights, all_meta)
        names = names_of(meta)
        trained = plain_adamw(names, join(all_before), [join([g[step] for g in all_grads]) for step in range(2)])
        for k in "exp_avg", "exp_avg_sq":   # at the end of a shard, vector units round the last bit differently
            cut = join([s[k] for s in all_states])
            for n in names:
                torch.testing.assert_close(trained["state"][n][k], cut[n])
                trained["state"][n][k] = cut[n].clone()
        if full_optimizer is not None:
            compare(full_optimizer, trained, names)
        assert all(torch.equal(joined[k], whole[k]) for k in joined), [k for k in joined if not torch.equal(joined[k], whole[k])]
        lost = {k: whole[k] for k in whole if k not in joined}
        assert set(lost) <= {"again.weight"}, set(lost)
        lost = lost if not how else {}   # names missing in the metadata
        buffers = set(meta["buffer_names"])
        full = {k: v.clone() for k, v in joined.items() if k not in buffers}
        full.update({k: full["inp.weight"] for k in lost})
        full.update({k: joined[k].clone() for k in meta["buffer_names"]})
        if case == "trainer":
            write_truth(folder, {"model": full, "extra_state": extra, "last_optimizer_state": trained}, warnings=["RANK"])
        elif case == "parameters":
            write_truth(folder, {"model": full, "optimizer": trained}, warnings=["EXTRA_FILE"])
        else:
            write_truth(folder, full, warnings=["EXTRA_FILE"] if case == "unflattened" else [])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    from make_frameworks import free_port
    from make_golden_frameworks import compact
    from make_golden import sums
    for case, world in ("nested", 2), ("trainer", 3), ("unflattened", 3), ("parameters", 2):
        mp.start_processes(worker, args=(world, case, free_port()), nprocs=world, start_method="spawn")
        compact(os.path.join(ROOT, f"fairscale_{case}_w{world}"))
        print(f"fairscale_{case}_w{world}", flush=True)
    sums()
