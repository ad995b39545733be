#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes checkpoints with the trainers' own packages (gloo, CPU), and the truth about each, by those packages.

  python make_frameworks.py OUT [NAME RANKS]    OUT/<case>_w<ranks>/ckpt and OUT/<case>_w<ranks>/truth.json, as make_checkpoints.py

deepspeed   trained by deepspeed.initialize, stages 1 to 3; weights by its zero_to_fp32, optimizer state by safe_get_full_optimizer_state;
            made universal by its ds_to_universal, of which the same is true
accelerate  saved by accelerate.utils.fsdp_utils from FSDP1 and FSDP2 models; weights by its merge, the rest by PyTorch
lightning   saved by Trainer and Fabric; read by Lightning's own consolidation
per_rank    torch.save by each rank; the truth is full_tensor() of each
transformers           saved by save_pretrained(distributed_checkpoint=True) and save_optimizer_distributed; weights by its consolidation, the
                       optimizer by PyTorch
torch_checkpointing    saved by its CheckpointManager; the truth is what its own resharder loads into whole tensors, and its plain load of the rest
"""
import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

warnings.simplefilter("ignore")
os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="", TORCH_CPP_LOG_LEVEL="ERROR")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType, fully_shard

import models
import truth


def write_truth(folder, obj, **more):
    """`obj` is the expected content of a consolidated file."""
    doc = {"torch": torch.__version__.split("+")[0], "tree": truth.describe(obj), "items": truth.flat(obj), "weights_only": True, "allow": [], **more}
    with open(os.path.join(folder, "truth.json"), "w") as f:
        json.dump(doc, f, indent=1, ensure_ascii=False)


def full(x):
    """Returns the same with whole tensors instead of DTensors and ShardedTensors. Collective."""
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    from torch.distributed.tensor import DTensor
    if isinstance(x, DTensor):
        return x.full_tensor()
    if isinstance(x, ShardedTensor):
        out = torch.empty(x.size(), dtype=x.dtype) if dist.get_rank() == 0 else None
        x.gather(0, out)
        return out
    if isinstance(x, dict):
        return type(x)((k, full(v)) for k, v in x.items())
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        return type(x)(full(v) for v in x)
    return x


# ---- DeepSpeed

class TwoGroups(models.Net):
    """Two parameter groups, a tied weight, a frozen block."""

    def groups(self):
        named = [(n, p) for n, p in self.named_parameters() if p.requires_grad]
        return [{"params": [p for n, p in named if p.dim() > 1], "weight_decay": 0.1},
                {"params": [p for n, p in named if p.dim() <= 1], "weight_decay": 0.0}]


def deepspeed_case(rank, world, out, stage, half, plain):
    import deepspeed
    from deepspeed.utils import safe_get_full_optimizer_state
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    torch.manual_seed(world)
    model = TwoGroups(tied=not plain)
    if not plain:
        models.freeze(model)
    names = {id(p): n for n, p in model.named_parameters()}   # before stage 3 removes the shapes
    order = list(model.state_dict())
    buffers = {n for n, _ in model.named_buffers()}
    groups = model.groups() if not plain else [{"params": [p for p in model.parameters()]}]
    group_names = [[names[id(p)] for p in g["params"]] for g in groups]
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": half}}
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3), config=config)
    for _ in range(2):
        x = torch.randn(4, models.IN, dtype=torch.bfloat16 if half else torch.float32)
        engine.backward(engine(x).float().square().mean())
        engine.step()
    name = f"deepspeed_zero{stage}{'_plain' if plain else ''}_w{world}"
    ckpt = os.path.join(out, name, "ckpt")
    engine.save_checkpoint(ckpt, tag="global_step2", client_state={"epoch": 3, "note": ["a", {"b": 1.5}]})
    if stage < 3:   # DeepSpeed links them after the first group's step, when the second group has none yet
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    state = {}
    for n, p in engine.module.named_parameters():
        if p.requires_grad:
            state[n] = {k: safe_get_full_optimizer_state(p, k).clone() for k in ("exp_avg", "exp_avg_sq")}
    dist.barrier()
    if rank != 0:
        return
    weights = get_fp32_state_dict_from_zero_checkpoint(ckpt)
    file = "zero_pp_rank_0_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"
    saved = torch.load(os.path.join(ckpt, "global_step2", file), weights_only=False)
    optim = sorted(os.listdir(os.path.join(ckpt, "global_step2")))
    optim = next(torch.load(os.path.join(ckpt, "global_step2", f), weights_only=False) for f in optim if "optim_states" in f)["optimizer_state_dict"]
    base = optim["optimizer_state_dict" if stage == 3 else "base_optimizer_state"]
    # Buffers keep their saved type, while zero_to_fp32 makes them float32.
    # Stage 1 keeps frozen weights only with the module's others, where zero_to_fp32 does not look.
    model_part = {n: saved["module"][n] if n in buffers or n not in weights else weights[n] for n in order if n in weights or stage == 1}
    for n in weights:
        assert torch.equal(model_part[n].float(), weights[n].float()), n
    steps = {i: s["step"] for i, s in base["state"].items()}
    optimizer_part = {"state": {}, "param_groups": []}
    for g, members in enumerate(group_names):
        for n in [x for x in saved["param_shapes"][g]]:
            kinds = {"step": steps[0 if stage == 3 else g], **state[n]}
            optimizer_part["state"][n] = {k: kinds[k] for k in next(iter(base["state"].values()))}
        optimizer_part["param_groups"].append({k: v for k, v in base["param_groups"][g].items() if k != "params"} |
                                              {"params": list(saved["param_shapes"][g])})
        assert set(members) == set(saved["param_shapes"][g])
    layout = {"module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params"}
    rest = {k: v for k, v in saved.items() if k not in layout and v is not None}
    whole = {"model": model_part, "optimizer": optimizer_part, **rest}
    write_truth(os.path.dirname(ckpt), whole)
    if not plain:
        universal = os.path.join(out, f"deepspeed_universal{stage}_w{world}")
        make_universal(os.path.join(ckpt, "global_step2"), os.path.join(universal, "ckpt"))
        write_truth(universal, whole)


def make_universal(zero, out):
    from deepspeed.checkpoint import ds_to_universal
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        ds_to_universal.main(types.SimpleNamespace(input_folder=zero, output_folder=out, num_extract_workers=1, num_merge_workers=1,
                                                   keep_temp_folder=False, strict=True, inject_missing_state=True))
    os.remove(os.path.join(os.path.dirname(out), "latest_universal"))   # it stands beside the folder


def deepspeed_cases(rank, world, out):
    import deepspeed
    import deepspeed.comm.torch
    deepspeed.comm.torch.build_shm_op = lambda: None   # it would be compiled
    deepspeed.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", verbose=False, auto_mpi_discovery=False)
    for stage in 1, 2, 3:
        deepspeed_case(rank, world, out, stage, half=True, plain=False)
    deepspeed_case(rank, world, out, 2 if world == 2 else 3, half=False, plain=True)


# ---- Accelerate

def accelerate_cases(rank, world, out):
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils import fsdp_utils
    from accelerate.utils.fsdp_utils import merge_fsdp_weights, save_fsdp_model, save_fsdp_optimizer
    quiet = types.SimpleNamespace(info=lambda *a, **k: None, warning=lambda *a, **k: None)
    fsdp_utils.logger = quiet
    dist.init_process_group("gloo")
    accelerator = types.SimpleNamespace(process_index=rank, num_processes=world, is_main_process=rank == 0, is_fsdp2=False,
                                        wait_for_everyone=dist.barrier, unwrap_model=lambda m: m)

    def trained(version):
        torch.manual_seed(world)
        model = models.Net()
        if version == 2:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        else:
            wrap = lambda module, recurse, nonwrapped_numel, **_: recurse or isinstance(module, models.Block)  # noqa: E731
            model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True, auto_wrap_policy=wrap)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        models.one_step(model, optimizer)
        return model, optimizer

    for version, kind, use_dcp in (1, "SHARDED", True), (2, "SHARDED", True), (2, "FULL", True), (2, "SHARDED", False), (1, "SHARDED", False), (1, "LOCAL", False):
        model, optimizer = trained(version)
        accelerator.is_fsdp2 = version == 2
        plugin = FullyShardedDataParallelPlugin(fsdp_version=version, state_dict_type=kind + "_STATE_DICT")
        name = f"accelerate_fsdp{version}_{kind.lower()}{'' if use_dcp else '_per_rank'}_w{world}"
        ckpt = os.path.join(out, name, "ckpt")
        save_fsdp_model(plugin, accelerator, model, ckpt, 0, use_dcp=use_dcp)
        if kind != "LOCAL":
            save_fsdp_optimizer(plugin, accelerator, optimizer, model, ckpt, 0, use_dcp=use_dcp)
        if rank == 0:
            scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), 2)
            torch.save(scheduler.state_dict(), os.path.join(ckpt, "scheduler.bin"))
            torch.save({"states": torch.get_rng_state()}, os.path.join(ckpt, "random_states_0.pkl"))
        dist.barrier()
        if kind == "SHARDED":
            if version == 2:
                from torch.distributed.checkpoint.state_dict import get_state_dict
                m, o = get_state_dict(model, optimizer)
                m = dict(m)   # like get_model_state_dict
            else:
                with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                    m, o = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
            m, o = full(m), full(o)
        if rank == 0:
            if kind == "SHARDED" and use_dcp:
                with tempfile.TemporaryDirectory() as tmp:
                    merge_fsdp_weights(os.path.join(ckpt, "pytorch_model_fsdp_0"), tmp, safe_serialization=False)
                    merged = torch.load(os.path.join(tmp, "pytorch_model.bin"))
                    assert set(merged) == set(m) and all(torch.equal(merged[k], m[k]) for k in m)
                    dcp_to_torch_save(os.path.join(ckpt, "optimizer_0"), os.path.join(tmp, "o.pt"))
                    whole = {"model": merged, **torch.load(os.path.join(tmp, "o.pt"), weights_only=False)}
            elif kind == "FULL":
                whole = {"model": torch.load(os.path.join(ckpt, "pytorch_model_fsdp.bin")),
                         "optimizer": torch.load(os.path.join(ckpt, "optimizer.bin"))}
            else:
                whole = {"model": m, "optimizer": o} if kind == "SHARDED" else None
            if kind == "LOCAL":
                write_truth(os.path.dirname(ckpt), None, refused="flat parameter", warnings=["EXTRA_FILE"])
            else:
                whole["scheduler"] = torch.load(os.path.join(ckpt, "scheduler.bin"), weights_only=False)
                write_truth(os.path.dirname(ckpt), whole, warnings=["EXTRA_FILE"])
        dist.barrier()


# ---- transformers

def transformers_cases(rank, world, out):
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.distributed import DistributedConfig, consolidate_distributed_checkpoint, save_optimizer_distributed
    dist.init_process_group("gloo")
    seed = os.path.join(out, f"transformers_seed_w{world}")
    if rank == 0:
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(vocab_size=26, hidden_size=8, intermediate_size=10, num_hidden_layers=1, num_attention_heads=2,
                                     num_key_value_heads=1, max_position_embeddings=16)).save_pretrained(seed)
    dist.barrier()
    model = LlamaForCausalLM.from_pretrained(seed, distributed_config=DistributedConfig(fsdp_size=world), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.arange(8).view(1, 8)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    ckpt = os.path.join(out, f"transformers_w{world}", "ckpt")
    model.save_pretrained(ckpt, distributed_checkpoint=True)
    save_optimizer_distributed(model, optimizer, os.path.join(ckpt, "optimizer"))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(seed)
        with tempfile.TemporaryDirectory() as tmp:
            consolidate_distributed_checkpoint(ckpt, tmp)
            weights = {}
            for file in sorted(pathlib.Path(tmp).glob("*.safetensors")):
                weights.update(load_file(file))
            dcp_to_torch_save(os.path.join(ckpt, "optimizer"), os.path.join(tmp, "o.pt"))
            whole = {"model": weights, **torch.load(os.path.join(tmp, "o.pt"), weights_only=False)}
        write_truth(os.path.dirname(ckpt), whole)


# ---- per-rank torch.save

def per_rank_cases(rank, world, out):
    import make_checkpoints
    dist.init_process_group("gloo")
    states = {"dtensors": make_checkpoints.dtensors(world), "fsdp2": models.fsdp2(rank, world)}
    if world == 4:
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        states["tp"] = models.tensor_and_data_parallel(rank, world, grid)
        pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        states["hsdp"] = models.fsdp2(rank, world, mesh=pairs)
    if world == 3:
        states["fsdp1"] = models.fsdp1(rank, world, use_orig=True)
    names = {"dtensors": "state_rank{}.pt", "fsdp2": "model_world_size_{w}_rank_{}.pt", "tp": "checkpoint_{}.pt", "hsdp": "ckpt-rank{}.bin", "fsdp1": "rank{}.pth"}
    for case, state in states.items():
        ckpt = os.path.join(out, f"per_rank_{case}_w{world}", "ckpt")
        os.makedirs(ckpt, exist_ok=True)
        torch.save(state, os.path.join(ckpt, names[case].format(rank, w=world)))
        whole = full(state)
        dist.barrier()
        if rank == 0:
            write_truth(os.path.dirname(ckpt), whole)


# ---- torch_checkpointing

def torch_checkpointing_manager(items, asynchronous=False):
    """A CheckpointManager that works without a GPU: the package gathers metadata on one, and opens files past the page cache."""
    import torch_checkpointing as tc
    from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig
    from torch_checkpointing.metadata_manager import DefaultMetadataManager
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    def gather(self, data, process_group=None):
        out = [None] * dist.get_world_size(process_group)
        dist.all_gather_object(out, data, group=process_group)
        return dict(enumerate(out))

    DefaultMetadataManager._all_gather_pickled_data = gather
    save = AsyncCheckpointSaverConfig() if asynchronous else SyncCheckpointSaverConfig()
    return tc.CheckpointManager.Config(items=items, save=save, storage_config=LocalFileSystemStorageConfig(use_direct_io=False)).build()


def emptied(x):
    """Returns the same structure with whole tensors of zeros to load into."""
    if isinstance(x, torch.Tensor):
        return torch.zeros(x.shape, dtype=x.dtype)
    if isinstance(x, dict):
        return type(x)((k, emptied(v)) for k, v in x.items())
    return type(x)(emptied(v) for v in x) if isinstance(x, (list, tuple)) else x


def in_file_order(tensors, path):
    """Safetensors files do not keep the order of a dict."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    return {k: tensors[k] for k in sorted(tensors, key=lambda k: (header[k]["data_offsets"], k))}


def torch_checkpointing_state(world, mesh):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(2):
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    average = [p.detach() * 0.5 for p in net.parameters()]
    return {"model": dict(net.state_dict()), "optimizer": optimizer.state_dict(), "average": {"of": average[:3], "decay": 0.5},
            "config": {"lr": 0.01, "layers": [5, 7, 3], "note": None}, "step": 2, "train": {"epoch": 1, "seen": torch.arange(4), "names": ("a", "b")}}


def torch_checkpointing_cases(rank, world, out):
    import torch_checkpointing as tc
    from torch_checkpointing.checkpoint_layout import JsonSerialization, LayoutInfo, SafetensorsSerialization
    from torch_checkpointing.default_metadata import DefaultShardingMetadata
    from torch_checkpointing.default_resharder import DefaultResharder
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    state = torch_checkpointing_state(world, mesh)
    cut = DefaultResharder()
    config = tc.ItemSpec(layout=LayoutInfo("config_{rank}.json", JsonSerialization()), required=False)
    cuts = {"model": tc.ItemSpec(resharder=cut), "optimizer": tc.ItemSpec(resharder=cut), "average": tc.ItemSpec(resharder=cut)}
    bare = tc.ItemSpec(resharder=cut, layout=LayoutInfo("weights/{rank}.safetensors", SafetensorsSerialization()))
    cases = {"": (cuts, False), "_safetensors": ({**cuts, "model": bare}, False)}
    if world == 2:
        cases |= {"_async": (cuts, True), "_undescribed": ({}, False)}
    for case, (items, asynchronous) in cases.items():
        ckpt = os.path.join(out, f"torch_checkpointing{case}_w{world}", "ckpt")
        os.makedirs(os.path.dirname(ckpt), exist_ok=True)
        manager = torch_checkpointing_manager({**items, "config": config}, asynchronous)
        done = manager.save(ckpt, state)
        if done is not None:
            done.result()
        manager.close()
        dist.barrier()
        # Every item of torch.save and JSON files as this rank has it; then the resharder fills whole tensors.
        manager = torch_checkpointing_manager({"config": config})
        whole = manager.load(ckpt, {k: None for k in state if items.get(k) is not bare})
        manager.close()
        if items:
            manager = torch_checkpointing_manager(items)
            whole = {**whole, **manager.load(ckpt, {k: emptied(state[k] if items[k] is bare else whole[k]) for k in items}, strict=True)}
            manager.close()
        else:
            whole = full(whole)
        if rank == 0:
            if items.get("model") is bare:
                whole["model"] = in_file_order(whole["model"], os.path.join(ckpt, "weights", "0.safetensors"))
            described = list(items)
            rest = sorted(k for k in state if k not in items and k != "config")
            write_truth(os.path.dirname(ckpt), {k: whole[k] for k in [*described, *rest, "config"]})
        dist.barrier()

    if world != 3:
        return

    class Boxes(DefaultResharder):
        """Describes plain tensors of some rows each, in any order, as the package's interface for other shardings does."""

        def extract_sharding_metadata(self, item_key, item_value):
            found = {}
            for name, (rows, width, height) in layout.items():
                found[(name,)] = DefaultShardingMetadata(global_shape=(height, width), dtype="torch.float32",
                                                         global_offsets=tuple((r, 0) for r in rows[rank]), local_sizes=((1, width),) * len(rows[rank]),
                                                         local_offsets=tuple((i, 0) for i in range(len(rows[rank]))))
            return found

    layout = {"even": ([(0, 5), (4, 1), (3, 2)], 3, 6), "uneven": ([(2,), (), (0, 1, 3)], 2, 4)}
    whole = {name: torch.arange(float(width * height)).reshape(height, width) for name, (_, width, height) in layout.items()}
    mine = {name: whole[name][list(rows[rank])] for name, (rows, _, _) in layout.items()}
    ckpt = os.path.join(out, f"torch_checkpointing_boxes_w{world}", "ckpt")
    os.makedirs(os.path.dirname(ckpt), exist_ok=True)
    spec = {"table": tc.ItemSpec(resharder=Boxes()),
            "bare": tc.ItemSpec(resharder=Boxes(), layout=LayoutInfo("bare_{rank}.safetensors", SafetensorsSerialization()))}
    manager = torch_checkpointing_manager(spec)
    manager.save(ckpt, {"table": mine, "bare": mine})
    manager.close()
    dist.barrier()
    if rank == 0:
        write_truth(os.path.dirname(ckpt), {"table": whole, "bare": whole})
    dist.barrier()


# ---- Lightning

def lightning_cases(rank, world, out):
    import lightning as L
    from lightning.fabric.strategies import ModelParallelStrategy as FabricModelParallel
    from lightning.fabric.utilities.load import _load_distributed_checkpoint
    from lightning.pytorch.strategies import ModelParallelStrategy
    import logging
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ["TORCHELASTIC_RUN_ID"] = "1"

    class Module(L.LightningModule):
        def __init__(self, width=7):
            super().__init__()
            self.save_hyperparameters()
            # On one rank without buffers: if states go by number, nothing tells buffers from parameters.
            self.net = models.Net(width=width) if world > 1 else nn.Sequential(nn.Linear(models.IN, width), nn.Tanh(), nn.Linear(width, models.IN))

        def configure_model(self):
            if world > 1 and not getattr(self, "cut", False):
                self.cut = True
                mesh = self.device_mesh["data_parallel"]
                for block in self.net.blocks:
                    fully_shard(block, mesh=mesh)
                fully_shard(self.net, mesh=mesh)

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def trainer(**more):
        return L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=1,
                         limit_train_batches=2, enable_checkpointing=False, default_root_dir=out, **more)

    torch.manual_seed(1)
    data = torch.utils.data.DataLoader(torch.randn(8, models.IN), batch_size=2)
    if world == 1:
        for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
            os.environ.pop(key, None)
        t, m = trainer(devices=1), Module()
        t.fit(m, data)
        folder = os.path.join(out, "lightning_file_w1")
        os.makedirs(folder)
        t.save_checkpoint(os.path.join(folder, "ckpt"))
        saved = torch.load(os.path.join(folder, "ckpt"), weights_only=False)
        write_truth(folder, saved)
        return
    strategy = ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, process_group_backend="gloo")
    t, m = trainer(devices=world, strategy=strategy), Module()
    t.fit(m, data)
    folder = os.path.join(out, f"lightning_model_parallel_w{world}")
    ckpt = os.path.join(folder, "ckpt")
    t.save_checkpoint(ckpt)
    dist.barrier()
    if rank == 0:
        whole = _load_distributed_checkpoint(pathlib.Path(ckpt))
        write_truth(folder, whole)
    dist.barrier()


MAKERS = {"deepspeed": (deepspeed_cases, (2, 3)), "accelerate": (accelerate_cases, (2,)), "transformers": (transformers_cases, (2,)), "per_rank": (per_rank_cases, (3, 4)),
          "lightning": (lightning_cases, (1, 2)), "torch_checkpointing": (torch_checkpointing_cases, (1, 2, 3))}


def worker(rank, maker, world, out, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    torch.set_num_threads(1)
    MAKERS[maker][0](rank, world, out)
    if dist.is_initialized():
        dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def make(maker, world, out):
    begin = time.time()
    mp.start_processes(worker, args=(maker, world, out, free_port()), nprocs=world, start_method="spawn")
    print(f"{maker}, {world} ranks: {time.time() - begin:.1f} s", flush=True)


def main():
    out = os.path.abspath(sys.argv[1])
    os.makedirs(out, exist_ok=True)
    if len(sys.argv) == 4:
        return make(sys.argv[2], int(sys.argv[3]), out)
    jobs = [[sys.executable, __file__, out, maker, str(world)] for maker, (_, worlds) in MAKERS.items() for world in worlds]
    with ThreadPoolExecutor(2) as pool:   # most of the time goes into loading the packages
        failed = [done.args for done in pool.map(subprocess.run, jobs) if done.returncode]
    sys.exit(f"failed: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
