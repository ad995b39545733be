#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that trainers' own packages load the tool's output, and what the tool reports of checkpoints with files missing.

  python check_frameworks.py CORPUS --tool PATH      CORPUS is the output of make_frameworks.py
"""
import argparse
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import traceback
import types
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
import torch.distributed as dist
from torch import nn

import models
import tried
import truth
from ranks import run_ranks


class Tool:
    def __init__(self, path, corpus):
        self.path, self.corpus = path, corpus

    def run(self, *args, expect=0):
        # Folders for trainers to load are sealed, like files.
        if args[0] in ("convert", "shard", "reshard", "rename", "rekey"):
            args = (*args, "--seal")
        done = subprocess.run([self.path, *map(str, args)], capture_output=True, text=True)
        assert done.returncode == expect, f"{' '.join(map(str, args))}: exit {done.returncode}, expected {expect}\n{done.stderr}{done.stdout}"
        return done.stdout + done.stderr

    def case(self, name):
        return os.path.join(self.corpus, name, "ckpt")

    def consolidated(self, name, tmp):
        out = os.path.join(tmp, f"{name}.pt")
        if not os.path.exists(out):
            self.run("consolidate", self.case(name), out)
        return torch.load(out, weights_only=False)


def same(what, want, got):
    lines = truth.diff(truth.describe(want), truth.describe(got))
    assert not lines, f"{what}: " + "\n  ".join(lines[:10])


def plain(x):
    if isinstance(x, dict):
        return {k: plain(v) for k, v in sorted(x.items(), key=lambda item: str(item[0]))}
    return [plain(v) for v in x] if isinstance(x, list) else x


def lightning_module(width=7, whole=False):
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self, width=7):
            super().__init__()
            self.net = models.Net(width=width) if whole else nn.Sequential(nn.Linear(models.IN, width), nn.Tanh(), nn.Linear(width, models.IN))

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    return Module


def trainer(tmp, **more):
    import lightning as L
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return L.Trainer(**{"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
                        "limit_train_batches": 2, "enable_checkpointing": False, "default_root_dir": tmp, **more})


def lightning_resumes_from_our_file(tool, tmp):
    """A folder of two ranks becomes a file; the Trainer resumes from it on one rank with the optimizer's state."""
    folder = tool.consolidated("lightning_model_parallel_w2", tmp)
    out = os.path.join(tmp, "whole.ckpt")
    tool.run("convert", tool.case("lightning_model_parallel_w2"), out, "--to", "lightning-ckpt")
    Module = lightning_module(whole=True)
    loaded = Module.load_from_checkpoint(out, map_location="cpu")
    same("weights", plain(dict(folder["state_dict"])), plain(dict(loaded.state_dict())))
    seen = {}

    class Resumed(Module):
        def on_train_start(self):
            optimizer = self.trainer.optimizers[0]
            names = {id(p): n for n, p in self.named_parameters()}
            seen.update({names[id(p)]: {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()})
            seen["step"] = self.trainer.global_step

    data = torch.utils.data.DataLoader(torch.randn(8, models.IN), batch_size=2)
    trainer(tmp, max_epochs=2).fit(Resumed(), data, ckpt_path=out)
    assert seen.pop("step") == folder["global_step"], "global step"
    same("optimizer state", plain(folder["optimizer_0"]["state"]), plain(seen))


def lightning_reads_our_folder(tool, tmp):
    """A file becomes a folder of three ranks; Lightning's consolidations read it, and the way back is exact."""
    from lightning.fabric.utilities.load import _load_distributed_checkpoint
    from lightning.pytorch.utilities.consolidate_checkpoint import _format_checkpoint
    file = torch.load(tool.case("lightning_file_w1"), weights_only=False)
    out = os.path.join(tmp, "folder.ckpt")
    tool.run("convert", tool.case("lightning_file_w1"), out, "--to", "lightning", "--world-size", 3)
    tool.run("verify", out)
    got = _format_checkpoint(_load_distributed_checkpoint(pathlib.Path(out)))
    same("weights", plain(dict(file["state_dict"])), plain(dict(got["state_dict"])))
    names = list(file["state_dict"])
    want = {names[i]: s for i, s in file["optimizer_states"][0]["state"].items()}
    same("optimizer state", plain(want), plain(got["optimizer_states"][0]["state"]))
    rest = {k: v for k, v in file.items() if k not in ("state_dict", "optimizer_states")}
    same("the rest", plain(rest), plain({k: got[k] for k in rest}))
    back = os.path.join(tmp, "back.ckpt")
    tool.run("convert", out, back, "--to", "lightning-ckpt")
    same("the way back", plain(file), plain(torch.load(back, weights_only=False)))


def lightning_on_ranks(rank, world, folder, tmp):
    """Lightning resumes from the folder; returns what it has when training starts."""
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="1", TORCHELASTIC_RUN_ID="1")
    seen = {}

    def whole(tensors):
        return {n: t.full_tensor().clone() if hasattr(t, "full_tensor") else t.clone() for n, t in tensors.items()}

    class Resumed(lightning_module(whole=True)):
        def configure_model(self):
            if not getattr(self, "cut", False):
                self.cut = True
                mesh = self.device_mesh["data_parallel"]
                for block in self.net.blocks:
                    fully_shard(block, mesh=mesh)
                fully_shard(self.net, mesh=mesh)

        def on_train_start(self):
            optimizer = self.trainer.optimizers[0]
            names = {id(p): n for n, p in self.named_parameters()}
            seen.update(weights=whole(self.state_dict()), states={names[id(p)]: whole(s) for p, s in optimizer.state.items()},
                        step=self.trainer.global_step, scheduler=self.trainer.lr_scheduler_configs[0].scheduler.state_dict())

    data = torch.utils.data.DataLoader(torch.randn(8 * world, models.IN), batch_size=2)
    strategy = ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, process_group_backend="gloo")
    trainer(tmp, max_epochs=2, devices=world, strategy=strategy).fit(Resumed(), data, ckpt_path=folder)
    return seen


def lightning_resumes_on_other_ranks(tool, tmp):
    """A folder of two ranks becomes one of three; the Trainer resumes from it on three."""
    case = "lightning_model_parallel_w2"
    want, out = tool.consolidated(case, tmp), os.path.join(tmp, "folder.ckpt")
    tool.run("reshard", tool.case(case), out, "--world-size", 3)
    for got in run_ranks(3, lightning_on_ranks, out, tmp):
        same("weights", plain(dict(want["state_dict"])), plain(got["weights"]))
        same("optimizer state", plain(want["optimizer_0"]["state"]), plain(got["states"]))
        assert got["step"] == want["global_step"], got["step"]
        same("scheduler", plain(want["lr_schedulers"][0]), plain(got["scheduler"]))


def lightning_loads_weights_from_elsewhere(tool, tmp):
    """A checkpoint that was never Lightning's: DeepSpeed's becomes a file that load_from_checkpoint accepts."""
    want = tool.consolidated("deepspeed_zero2_plain_w2", tmp)["model"]
    source = os.path.join(tmp, "named.pt")
    torch.save({"model": {f"net.{k}": v for k, v in want.items()}}, source)
    out = os.path.join(tmp, "elsewhere.ckpt")
    tool.run("convert", source, out, "--to", "lightning-ckpt")
    loaded = lightning_module(whole=True).load_from_checkpoint(out, map_location="cpu", weights_only=True)
    same("weights", plain({f"net.{k}": v for k, v in want.items()}), plain(dict(loaded.state_dict())))


def accelerate_loads_our_folders(tool, tmp):
    """Accelerate's functions load model and optimizer of a folder that was written for four ranks, and its merge reads it."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils import fsdp_utils
    from torch.distributed.fsdp import fully_shard
    fsdp_utils.logger = types.SimpleNamespace(info=lambda *a, **k: None, warning=lambda *a, **k: None)
    want = tool.consolidated("accelerate_fsdp2_sharded_w2", tmp)
    out = os.path.join(tmp, "accelerate")
    tool.run("convert", tool.case("accelerate_fsdp2_sharded_w2"), out, "--to", "accelerate", "--world-size", 4)
    tool.run("verify", out)
    same("scheduler", want["scheduler"], torch.load(os.path.join(out, "scheduler.bin")))
    merged = os.path.join(tmp, "merged")
    fsdp_utils.merge_fsdp_weights(os.path.join(out, "pytorch_model_fsdp_0"), merged, safe_serialization=False)
    same("merged weights", plain(want["model"]), plain(torch.load(os.path.join(merged, "pytorch_model.bin"))))

    dist.init_process_group("gloo", init_method=f"file://{tmp}/store", rank=0, world_size=1)
    accelerator = types.SimpleNamespace(process_index=0, num_processes=1, is_main_process=True, is_fsdp2=True, wait_for_everyone=dist.barrier,
                                        unwrap_model=lambda m: m)
    model = models.Net()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    fsdp_utils.load_fsdp_model(plugin, accelerator, model, out, 0)
    fsdp_utils.load_fsdp_optimizer(plugin, accelerator, optimizer, model, out, 0)
    got = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in model.state_dict().items()}
    names = {id(p): n for n, p in model.named_parameters()}
    state = {names[id(p)]: {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in s.items()} for p, s in optimizer.state.items()}
    dist.destroy_process_group()
    same("weights", plain(want["model"]), plain(dict(got)))
    same("optimizer state", plain(want["optimizer"]["state"]), plain(state))
    assert optimizer.param_groups[0]["lr"] == 1e-3


def values_without_a_place_are_refused(tool, tmp):
    out = os.path.join(tmp, "refused")
    said = tool.run("convert", tool.case("deepspeed_zero2_w2"), out, "--to", "accelerate", expect=2)
    assert "--drop-values" in said and not os.path.exists(out), said
    tool.run("convert", tool.case("deepspeed_zero2_w2"), out, "--to", "accelerate", "--drop-values")
    back = os.path.join(tmp, "back.pt")
    tool.run("consolidate", out, back)
    want, got = tool.consolidated("deepspeed_zero2_w2", tmp), torch.load(back)
    same("what has a place", plain({k: want[k] for k in ("model", "optimizer")}), plain(got))


def missing_ranks_are_named(tool, tmp):
    for case, file in (("deepspeed_zero2_w3", "global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
                       ("deepspeed_zero3_w2", "global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
                       ("deepspeed_universal1_w3", "zero/one.bias/step.pt"), ("deepspeed_universal3_w2", "zero/out.weight/fp32.pt"),
                       ("deepspeed_universal3_w3", "zero_pp_rank_2_mp_rank_00_model_states.pt"),
                       ("per_rank_fsdp2_w3", "model_world_size_3_rank_1.pt"),
                       ("accelerate_fsdp1_sharded_per_rank_w2", "pytorch_model_fsdp_0_rank1.bin"),
                       ("accelerate_fsdp2_sharded_w2", "pytorch_model_fsdp_0/__1_0.distcp")):
        copy = os.path.join(tmp, "missing_" + case)
        shutil.copytree(tool.case(case), copy)
        os.remove(os.path.join(copy, file))
        found = json.loads(tool.run("verify", copy, "--json", expect=1).split("\n}\n")[0] + "\n}")["findings"]
        codes = {f["code"] for f in found}
        assert "SHARD_MISSING" in codes, f"{case}: {codes}"
        assert case.startswith("accelerate_fsdp2_sharded_w") or "HOLE" in codes, f"{case}: {codes}"
        out = os.path.join(tmp, "missing.pt")
        tool.run("consolidate", copy, out, expect=2)
        assert not os.path.exists(out), case


def flipped_bytes_are_found(tool, tmp):
    for case, file in (("deepspeed_zero2_w2", "global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"), ("per_rank_fsdp2_w3", "model_world_size_3_rank_1.pt"),
                       ("deepspeed_universal2_w2", "zero/inp.weight/exp_avg.pt"), ("deepspeed_universal2_w2", "zero/seen/fp32.pt"),
                       ("accelerate_fsdp2_full_w2", "optimizer.bin")):
        copy = os.path.join(tmp, "flipped_" + case)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tool.case(case), copy)
        path = os.path.join(copy, file)
        with open(path, "r+b") as f:
            f.seek(os.path.getsize(path) * 2 // 3)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1]))
        tool.run("verify", copy, expect=1)


def deepspeed_becomes_a_folder_as_fsdp_has_it(tool, tmp):
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    for case in ("deepspeed_zero2_w3", "deepspeed_zero3_w2"):
        out = os.path.join(tmp, case)
        tool.run("reshard", tool.case(case), out, "--world-size", 2, "--layout", "dcp")
        read = FileSystemReader(out).read_metadata().state_dict_metadata
        for key in ("model.inp.weight", "optimizer.state.inp.weight.exp_avg"):
            assert [list(c.sizes) for c in read[key].chunks] == [[4, 6], [3, 6]], key
        assert len(read["model.seen"].chunks) == 1   # a buffer
        full = os.path.join(tmp, "full.pt")
        dcp_to_torch_save(out, full)
        same(case, plain(tool.consolidated(case, tmp)), plain(torch.load(full)))


def universal_checkpoints_equal_what_they_were_made_from(tool, tmp):
    for case in ("1_w2", "1_w3", "2_w2", "2_w3", "3_w2", "3_w3"):
        tool.run("diff", tool.case("deepspeed_zero" + case), tool.case("deepspeed_universal" + case))


def shapes_that_do_not_fit_the_partitions_are_refused(tool, tmp):
    for case, file in (("deepspeed_zero2_w2", "mp_rank_00_model_states.pt"), ("deepspeed_zero3_w2", "zero_pp_rank_0_mp_rank_00_model_states.pt")):
        for shape, said in ((torch.Size([0, 7]), "elements of"), ((-1, 7), "names and shapes"), ((2**62, 2**62), "names and shapes"), (torch.Size([900, 7]), "elements of")):
            copy = os.path.join(tmp, "shapes")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(tool.case(case), copy)
            path = os.path.join(copy, "global_step2", file)
            saved = torch.load(path, weights_only=False)
            saved["param_shapes"][0]["out.weight"] = shape
            torch.save(saved, path)
            text = tool.run("verify", copy, expect=1)
            assert said in text, text
            tool.run("consolidate", copy, os.path.join(tmp, "shapes.pt"), expect=2)


CHECKS = [lightning_resumes_from_our_file, lightning_resumes_on_other_ranks, lightning_reads_our_folder, lightning_loads_weights_from_elsewhere, accelerate_loads_our_folders,
          values_without_a_place_are_refused, missing_ranks_are_named, flipped_bytes_are_found, deepspeed_becomes_a_folder_as_fsdp_has_it,
          universal_checkpoints_equal_what_they_were_made_from, shapes_that_do_not_fit_the_partitions_are_refused]

# What the page of compatibility says of a check that passed: package, layout, verbs, what was tried.
TRIED = {
    lightning_resumes_from_our_file: ("lightning", "`ModelParallelStrategy`", "convert", "to a `.ckpt` file, from which its Trainer resumes"),
    lightning_resumes_on_other_ranks: ("lightning", "`ModelParallelStrategy`", "reshard", "to 3 ranks, on which its Trainer resumes"),
    lightning_reads_our_folder: ("lightning", "`.ckpt` file", "convert, verify", "to a folder of 3 ranks, which its consolidation reads, and back"),
    lightning_loads_weights_from_elsewhere: ("deepspeed", "ZeRO stage 2", "convert", "to a `.ckpt` file, which Lightning's load_from_checkpoint loads"),
    accelerate_loads_our_folders: ("accelerate", "FSDP2, `SHARDED_STATE_DICT`", "convert, verify",
                                   "to 4 ranks; its load functions and its merge read that"),
    values_without_a_place_are_refused: ("deepspeed", "ZeRO stage 2", "convert", "to Accelerate's folders; values without a place there are refused"),
    deepspeed_becomes_a_folder_as_fsdp_has_it: ("deepspeed", "ZeRO stages 2 and 3", "reshard", "to a DCP folder, which PyTorch reads"),
    universal_checkpoints_equal_what_they_were_made_from: ("deepspeed", "universal checkpoints", "diff", "equal to the ZeRO folders that they were made from"),
}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("corpus")
    ap.add_argument("--tool", required=True)
    args = ap.parse_args()
    passed = True
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as tmp:
            try:
                check(Tool(args.tool, os.path.abspath(args.corpus)), tmp)
                print(f"PASS  {check.__name__}", flush=True)
                if check in TRIED:
                    tried.record(*TRIED[check])
            except Exception as why:
                passed = False
                print(f"FAIL  {check.__name__}: {why if isinstance(why, AssertionError) else traceback.format_exc()}", flush=True)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
