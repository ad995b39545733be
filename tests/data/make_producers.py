#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes producers/: small checkpoints of libraries beside PyTorch, whose content is more than tensors and plain values.

  python make_producers.py        needs torch 2.11, lightning, omegaconf 2.4.0, torchao 0.18.0, megatron-core 0.16.1
                                  (the last two, and antlr4-python3-runtime 4.9.3, without their dependencies)
  python ../make_producers.py megatron_gpt_0.19    in producers/: only that, with megatron-core 0.19.2
"""
import collections
import multiprocessing
import os
import shutil
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "producers")


def place(name):
    path = os.path.join(OUT, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def config():
    from omegaconf import OmegaConf
    return OmegaConf.create({"lr": 0.5, "dim": 3, "name": "run", "layers": [1, 2], "again": "${lr}"})


def lightning_with_omegaconf():
    """Saves the output of Hydra and Lightning: hyperparameters as a DictConfig, whose nodes know their parents."""
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self, cfg):
            super().__init__()
            self.save_hyperparameters(cfg)
            self.layer = torch.nn.Linear(cfg.dim, 2)

        def training_step(self, batch, _):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(config()), torch.utils.data.DataLoader(torch.ones(2, 3)))
    trainer.save_checkpoint(place("omegaconf/hydra.ckpt"))


def omegaconf_folder():
    import torch
    import torch.distributed.checkpoint as dcp
    state = {"model": {"w": torch.arange(6.0).view(2, 3)}, "cfg": config(), "step": 7}
    dcp.save(state, checkpoint_id=place("omegaconf/folder"), no_dist=True)


def python_objects():
    import torch
    torch.save({"w": torch.arange(4.0), "dots": Ellipsis, "chain": collections.ChainMap({"a": 1}, {"b": 2}), "range": range(3),
                "types": [int, str, range, float, bytes]}, place("python_objects.pt"))
    lengths = [torch.arange(6.0).view(2, 3), torch.arange(9.0).view(3, 3)]
    torch.save({"w": torch.arange(4.0), "jagged": torch.nested.nested_tensor(lengths, layout=torch.jagged)}, place("jagged.pt"))


def programs():
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 4))  # a layer of torch's would leave its path in the trace

        def forward(self, x):
            return x @ self.weight.t()

    torch.export.save(torch.export.export(Module(), (torch.ones(3, 4),)), place("exported.pt2"))
    torch.jit.script(Module()).save(place("scripted.pt"))


def torchao():
    import torch
    torch._dynamo.config.disable = True   # its optimizers compile themselves
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    for name, kind in (("adamw8bit", AdamW8bit), ("adamw4bit", AdamW4bit), ("adamwfp8", AdamWFp8)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64))
        optimizer = kind(model.parameters(), lr=1e-3)
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optim": states}, checkpoint_id=place(f"torchao/{name}"), no_dist=True)
        if kind is AdamW8bit:
            torch.save({"model": weights, "optim": optimizer.state_dict()}, place("torchao/adamw8bit.pt"))
    for name, how in (("int8", Int8WeightOnlyConfig()), ("float8", Float8WeightOnlyConfig())):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 8, dtype=torch.bfloat16))
        quantize_(model, how)
        dcp.save({"model": model.state_dict()}, checkpoint_id=place(f"torchao/{name}"), no_dist=True)


def megatron_rank(rank, world, port, out):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint.filesystem as filesystem
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    # Megatron-Core requires CUDA, even for tensors on the CPU.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: torch.device("cpu")

    # PyTorch pickled the planner's Metadata unchanged, with the plans that Megatron-Core adds, before it began to copy the dataclass.
    def as_it_is(metadata, **changes):
        for name, value in changes.items():
            setattr(metadata, name, value)
        return metadata

    filesystem.dataclasses = types.SimpleNamespace(**{**vars(filesystem.dataclasses), "replace": as_it_is})
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    weight = torch.arange(32.0).view(8, 4)
    rows = 8 // world
    state = {
        "w": ShardedTensor.from_rank_offsets("decoder.w", weight[rank * rows:(rank + 1) * rows].clone(), (0, rank, world)),
        "b": ShardedTensor.from_rank_offsets("decoder.b", torch.arange(4.0), replica_id=rank),
        "rng": ShardedObject("rng_state", {"seed": rank}, (world,), (rank,), replica_id=0),
        "iteration": 7,
        "optimizer": {"param_groups": [{"lr": 0.5}]},
    }
    os.makedirs(out, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(state, out, TorchDistSaveShardedStrategy("torch_dist", 1))
    dist.destroy_process_group()


def megatron():
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=megatron_rank, args=(rank, 2, 29641, place("megatron"))) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        if rank.exitcode != 0:
            sys.exit("Megatron-Core's save failed")


def as_loaded(rank, world, folder):
    import torch
    from megatron.core import dist_checkpointing
    torch.save({**dist_checkpointing.load_plain_tensors(folder), **dist_checkpointing.load_common_state_dict(folder)}, folder + ".pt")


def megatron_gpt(folder):
    """The same model by whichever version is installed."""
    sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "interop"))
    import make_megatron
    import megatron_cpu
    megatron_cpu.run(2, make_megatron.make_small, folder)
    return megatron_cpu


def megatron_gpt_newest():
    """With what Megatron-Core's own load gives.  `.metadata` keeps the path as it is given."""
    name = "megatron_gpt_0.19"
    megatron_gpt(name).run(1, as_loaded, name)


if __name__ == "__main__":
    if sys.argv[1:] == ["megatron_gpt_0.19"]:
        megatron_gpt_newest()
        sys.exit()
    shutil.rmtree(OUT, ignore_errors=True)
    lightning_with_omegaconf()
    omegaconf_folder()
    python_objects()
    programs()
    torchao()
    megatron()
    megatron_gpt(place("megatron_gpt"))
