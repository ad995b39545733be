#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's torch_dist folders against Megatron-Core itself, on a CPU.

  python check_megatron.py PART --tool PATH      PART is one of PARTS below, or a version of OLDER

Megatron-Core saves small GPTs with its distributed optimizer (make_megatron.py); what the tool makes of the folders has the elements
that Megatron-Core's own load gives, and folders that the tool writes are loaded by it at other parallel sizes.  The parts are of the newest
version; older ones read and write, and their folders and the newest's become each other.
"""
import argparse
import os
import shutil
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", TORCH_CPP_LOG_LEVEL="ERROR", CUDA_DEVICE_MAX_CONNECTIONS="1")
sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import torch

import make_fsdp
import make_megatron
import megatron_cpu
import tried
from tool_run import check, run

# Of each the environment has the newest release in a folder, megatron-core-0.16; NEWEST is the environment's own.
OLDER, NEWEST = ("0.16", "0.17", "0.18"), "0.19"
PRODUCERS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "producers")
# The same model by 0.16.1 and by 0.19.2.
OLD_GPT, NEW_GPT = os.path.join(PRODUCERS, "megatron_gpt"), os.path.join(PRODUCERS, "megatron_gpt_0.19")


def same(a, b, where=""):
    """The same elements, dtypes, shapes and values."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape, f"{where}: {a} and {b}"
        assert torch.equal(a.reshape(-1).contiguous().view(torch.uint8), b.reshape(-1).contiguous().view(torch.uint8)), f"{where} differs"
    elif isinstance(a, dict):
        assert set(a) == set(b), f"{where}: only in one: {sorted(map(str, set(a) ^ set(b)))[:6]}"
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b), f"{where}: {a} and {b}"
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}.{i}")
    else:
        assert a == b, f"{where}: {a} and {b}"


def part_of(tp, pp, ep, experts, content):
    megatron_cpu.parallel(tp, pp, ep)
    config, gpt = megatron_cpu.model(tp, pp, ep, experts, seed=99)
    in_buckets = (content or {}).get("distrib_optim_sharding_type") == "dp_reshardable"
    _, optimizer = megatron_cpu.with_optimizer(config, gpt, bucket_size=make_megatron.BUCKET if in_buckets else None)
    return gpt, optimizer


def tensors(state):
    """The loaded tensors by their places: the model's, and the optimizer's by number.  Counts of steps in buckets are not loaded."""
    def loaded(part):
        if isinstance(part, dict):
            return {key: loaded(value) for key, value in part.items() if not (key == "step" and isinstance(value, torch.Tensor))}
        return [loaded(value) for value in part] if isinstance(part, list) else part
    return {key: loaded(value) for key, value in state.items() if key in ("model", "optimizer")}


def load_both(rank, world, tp, pp, ep, experts, own, folders, with_optimizer):
    """In every rank of another layout: Megatron-Core loads the tool's folders as its own."""
    from megatron.core import dist_checkpointing
    content = dist_checkpointing.load_content_metadata(own)
    gpt, optimizer = part_of(tp, pp, ep, experts, content)

    def filled(folder, content):
        return dist_checkpointing.load(megatron_cpu.sharded(gpt, optimizer if with_optimizer else None, content, is_loading=True), folder)
    want = filled(own, content)
    assert len(want["model"]) > 5
    for folder in folders:
        got = filled(folder, dist_checkpointing.load_content_metadata(folder))
        same(tensors(want), tensors(got), folder)
        for key in ("iteration", "checkpoint_version"):
            assert want[key] == got[key], key


def plain_tensors(rank, world, folder, out):
    from megatron.core import dist_checkpointing
    torch.save({"tensors": dist_checkpointing.load_plain_tensors(folder), "common": dist_checkpointing.load_common_state_dict(folder)}, out)


def whole_model(rank, world, experts, folder, out):
    """The state dict of the whole model after Megatron-Core's load on one rank, and the optimizer's tensors by parameters."""
    from megatron.core import dist_checkpointing
    gpt, _ = part_of(1, 1, 1, experts, None)
    content = dist_checkpointing.load_content_metadata(folder)
    loaded = dist_checkpointing.load(megatron_cpu.sharded(gpt, None, content), folder)
    gpt.load_state_dict({k: v for k, v in loaded["model"].items() if "_extra_state" not in k}, strict=False)
    torch.save({k: v.detach().clone() for k, v in gpt.state_dict().items() if v is not None}, out)


def made(tmp, name, *more):
    world, *how = make_megatron.CASES[name]
    folder = os.path.join(tmp, name)
    megatron_cpu.run(world, make_megatron.make, *how, folder, *more)
    return folder


def loaded(folder, out):
    """The tensors and the common state that Megatron-Core's own load gives."""
    megatron_cpu.run(1, plain_tensors, folder, out)
    return torch.load(out, weights_only=False)


def like(tool, own, folder):
    """The folder is sound, and of the layout of `own`: it has the same files beside those of the ranks."""
    check("sound" in run(tool, "verify", folder), folder)
    for name in ("common.pt", "metadata.json"):
        check(os.path.exists(os.path.join(folder, name)) == os.path.exists(os.path.join(own, name)), f"{folder}: {name}")
    with open(os.path.join(own, "metadata.json"), encoding="utf-8") as a, open(os.path.join(folder, "metadata.json"), encoding="utf-8") as b:
        check(a.read() == b.read(), "metadata.json differs")


def read(tool, tmp, name):
    """verify, inspect, consolidate, diff: what Megatron-Core's own load gives."""
    own = made(tmp, name)
    check("sound" in run(tool, "verify", own), "not sound")
    check("megatron" in run(tool, "inspect", own), "not recognised")
    full = os.path.join(tmp, "full.pt")
    run(tool, "consolidate", own, full)
    run(tool, "diff", own, full)
    got, want = torch.load(full, weights_only=False), loaded(own, os.path.join(tmp, "truth.pt"))
    same({k: v for k, v in got.items() if isinstance(v, torch.Tensor)}, {k: v for k, v in want["tensors"].items() if isinstance(v, torch.Tensor)}, name)
    same({k: got[k] for k in want["common"]}, want["common"], name)
    check(len(want["tensors"]) > 10, "few tensors")
    os.remove(full)
    return own


def written(tool, tmp, name, layouts, with_optimizer=True):
    """reshard, convert and set: Megatron-Core loads the results at other sizes.  Returns its own folder."""
    own = read(tool, tmp, name)
    rewritten(tool, tmp, own, name, layouts, with_optimizer)
    return own


def rewritten(tool, tmp, own, name, layouts, with_optimizer=True):
    folders = [os.path.join(tmp, word) for word in ("resharded", "converted", "changed")]
    run(tool, "reshard", own, folders[0], "-w", 3)
    run(tool, "convert", own, folders[1], "--to", "dcp", "-w", 2)
    run(tool, "set", own, folders[2], "num_floating_point_operations_so_far=5")
    for folder in folders:
        like(tool, own, folder)
    for tp, pp, ep in layouts:
        megatron_cpu.run(tp * pp * ep, load_both, tp, pp, ep, "ep" in name, own, folders, with_optimizer)
    changed = loaded(folders[2], os.path.join(tmp, "changed.pt"))["common"]
    check(changed["num_floating_point_operations_so_far"] == 5, changed)


def buckets(tool, tmp, name, layouts):
    """An optimizer in buckets stays as it is in folders of its layout, and elsewhere gets the names of its parameters: what Megatron-Core
    saves of it by parameters."""
    whole, apart, full, truth = (os.path.join(tmp, word) for word in ("whole", "apart", "full.pt", "truth.pt"))
    own = made(tmp, name, whole)
    check("sound" in run(tool, "verify", own) and ("pp2" in name or "bucket_idx_1" in run(tool, "inspect", own)), "not recognised")
    if layouts:
        rewritten(tool, tmp, own, name, layouts)
    check("found by their float32 copies" in run(tool, "convert", own, apart, "--to", "torch_dist", "-w", 3), "not said")
    like(tool, own, apart)
    run(tool, "consolidate", own, full)
    want, got, joined = loaded(whole, truth), loaded(apart, truth), torch.load(full, weights_only=False)
    states = {k: v for k, v in want["tensors"].items() if isinstance(v, torch.Tensor)}
    check(sum(k.startswith("optimizer.state.") for k in states) > 20, sorted(states))
    same({k: v for k, v in got["tensors"].items() if isinstance(v, torch.Tensor)}, states, "convert")
    same({k: v for k, v in joined.items() if isinstance(v, torch.Tensor)}, states, "consolidate")
    same(got["common"]["optimizer"], want["common"]["optimizer"], "groups")
    megatron_cpu.run(1, load_both, 1, 1, 1, "ep" in name, whole, [apart], True)
    # By a map, which names the tensors of another model's code.
    sizes = ("--set", f"n_heads={megatron_cpu.HEADS}", "--set", f"n_kv_heads={megatron_cpu.GROUPS}")
    maps = [os.path.join(tmp, word) for word in ("a.pt", "b.pt")]
    for folder, out in ((own, maps[0]), (whole, maps[1])):
        run(tool, "map", f"megatron-{'mixtral' if 'ep' in name else 'llama'}-hf", folder, out, *sizes)
    mapped = [{k: v for k, v in flat(torch.load(out, weights_only=False)).items() if isinstance(v, torch.Tensor)} for out in maps]
    check(sum(k.endswith("exp_avg_sq") for k in mapped[0]) > 10, sorted(mapped[0]))
    same(*mapped, "map")
    refused_buckets(tool, tmp, own)


def refused_buckets(tool, tmp, own):
    """What no longer fits is refused, and the optimizer can be left out."""
    out, changed, full = (os.path.join(tmp, word) for word in ("out", "changed", "whole.pt"))
    keys = [key for key in dcp_keys(own) if key.endswith(".param")]
    first = sorted(keys)[0]
    for rename, said in (((f"{first}={first[:-5]}copy",), "has no float32 copy"),
                         ((f"{first}={first[:-5]}exp_avg", f"{first[:-5]}exp_avg={first}"), "no parameter of the model begins"),
                         ((f"{first}={first.replace('bucket_idx_0', 'bucket_idx_7')}",), "float32 copy"),
                         ((f"{first}=optimizer.distributed.dp_group_idx_0.x",), "names no bucket")):
        run(tool, "rename", own, changed, *(word for one in rename for word in ("--rename", one)), "--force")
        check(said in run(tool, "consolidate", changed, out, "--to", "pt", expect=2), said)
    check(not os.path.exists(out), "a refused output is there")
    check("names of the parameters" in run(tool, "consolidate", own, out, "--to", "pt", "--names-from", short_list(tmp), expect=2), "a short list")
    run(tool, "consolidate", own, full, "--exclude", "**optimizer.**")
    check(not any("exp_avg" in key for key in torch.load(full, weights_only=False)), "the optimizer is there")


def rank_files(rank, world, tp, experts, run_folder, whole):
    """What --ckpt-format torch saves: the files of each rank of tensor parallelism; and the same model as a folder."""
    megatron_cpu.parallel(tp, 1, 1)
    config, gpt = megatron_cpu.model(tp, 1, 1, experts)
    wrapped, optimizer = megatron_cpu.with_optimizer(config, gpt)
    folder = os.path.join(run_folder, "iter_0000007", f"mp_rank_{rank % tp:02d}")
    os.makedirs(folder, exist_ok=True)
    if rank < tp:
        state = {"model": wrapped.state_dict_for_save_checkpoint(), "optimizer": optimizer.state_dict(), "iteration": 7, "checkpoint_version": 3.0, "args": None}
        torch.save(state, os.path.join(folder, "model_optim_rng.pt"))
    optimizer.save_parameter_state(os.path.join(folder, "distrib_optim.pt"))
    megatron_cpu.save(gpt, None, megatron_cpu.metadata("fully_reshardable"), whole)


def ranks_apart(tool, tmp):
    """The optimizer in the buffers of a rank is named with the command of Megatron's that converts it; the rest is read."""
    for number, (world, tp, experts) in enumerate(((2, 1, False), (2, 2, False), (1, 1, True))):
        folder, whole, out = (os.path.join(tmp, f"{word}{number}") for word in ("run", "whole", "out"))
        megatron_cpu.run(world, rank_files, tp, experts, folder, whole)
        step = os.path.join(folder, "iter_0000007")
        check("sound" in run(tool, "verify", step), step)
        check("buckets_coalesced" in run(tool, "inspect", step), step)
        for source in (step, *(os.path.join(step, name) for name in os.listdir(step))):
            for kind in ("torch_dist", "fsdp_dtensor"):
                said = run(tool, "convert", source, out, "--to", kind, expect=2)
                check("distrib_optim" in said and "--ckpt-convert-format torch_dist" in said, said)
                check(not os.path.exists(out), "a refused output is there")
        if tp == 1:
            run(tool, "convert", os.path.join(step, "mp_rank_00"), out, "--to", "torch_dist", "--exclude", "**distrib_optim**")
            # The layers that the tool writes are Transformer Engine's, in which the norm before experts has a name of its own.
            here, there = ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight") if experts else ("", "")
            want, got = ({k.replace(here, there): v for k, v in loaded(path, os.path.join(tmp, "truth.pt"))["tensors"].items() if isinstance(v, torch.Tensor)}
                         for path in (whole, out))
            same(got, want, "model")
            shutil.rmtree(out)


def short_list(tmp):
    path = os.path.join(tmp, "names.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"embedding.word_embeddings.weight": [16, 8]}')
    return path


def dcp_keys(folder):
    from torch.distributed.checkpoint import FileSystemReader
    return list(FileSystemReader(folder).read_metadata().state_dict_metadata)


def one(tool, tmp):
    """Beside that: folders with common.pt, which the newest version loads, too, and what the tool makes of one by an old version."""
    own = written(tool, tmp, "w1", [(1, 1, 1)])
    check(not os.path.exists(os.path.join(own, "common.pt")), "the newest version writes common.pt")
    with_file, of_old, truth = os.path.join(tmp, "file"), os.path.join(tmp, "of_old"), os.path.join(tmp, "truth.pt")
    check("with common.pt" in run(tool, "convert", own, with_file, "--to", "torch_dist-0.18", "-w", 2), "the layout is not named")
    like(tool, OLD_GPT, with_file)
    run(tool, "diff", own, with_file)
    megatron_cpu.run(1, load_both, 1, 1, 1, False, own, [with_file], True)
    check(f"as Megatron-Core {NEWEST} writes it" in run(tool, "convert", OLD_GPT, of_old, "--to", f"torch_dist-{NEWEST}", "-w", 3), "the layout is not named")
    like(tool, own, of_old)
    same(loaded(of_old, truth), loaded(OLD_GPT, truth), "of an old version")
    same(loaded(NEW_GPT, truth), loaded(OLD_GPT, truth), "the same model by two versions")


def older(tool, tmp, version):
    """This version's folder is read, and becomes one of the newest's layout and again one of its own; it loads that, and the newest's folder."""
    own = read(tool, tmp, "w1")
    check(os.path.exists(os.path.join(own, "common.pt")), "this version writes no common.pt")
    newest, back, of_newest, resharded = (os.path.join(tmp, word) for word in ("newest", "back", "of_newest", "resharded"))
    run(tool, "reshard", own, resharded, "-w", 3)
    run(tool, "convert", own, newest, "--to", f"torch_dist-{NEWEST}", "-w", 2)
    like(tool, NEW_GPT, newest)
    run(tool, "diff", own, newest)
    run(tool, "convert", newest, back, "--to", f"torch_dist-{version}", "-w", 3)
    run(tool, "convert", NEW_GPT, of_newest, "--to", f"torch_dist-{version}")
    for folder in (resharded, back, of_newest):
        like(tool, own, folder)
    megatron_cpu.run(1, load_both, 1, 1, 1, False, own, [resharded, back], True)
    got, want = loaded(of_newest, os.path.join(tmp, "truth.pt")), torch.load(NEW_GPT + ".pt", weights_only=False)
    same({**got["tensors"], **got["common"]}, want, "of the newest version")


def forms(tool, tmp, name, layouts):
    """To fsdp_dtensor and back: the same folder to Megatron-Core, but for the model, which has become float32."""
    own = made(tmp, name)
    fsdp, back = os.path.join(tmp, "fsdp"), os.path.join(tmp, "back")
    run(tool, "convert", own, fsdp, "--to", "fsdp_dtensor", "-w", 2)
    check("fsdp_dtensor" in run(tool, "inspect", fsdp), "not recognised")
    check("sound" in run(tool, "verify", fsdp), "not sound")
    run(tool, "convert", fsdp, back, "--to", "torch_dist", "-w", 3)
    check("sound" in run(tool, "verify", back), "not sound")
    for tp, pp, ep in layouts:
        megatron_cpu.run(tp * pp * ep, load_both, tp, pp, ep, "ep" in name, own, [back], True)


def models(tool, tmp, name):
    """To transformers and back: a model that Megatron-Core loads."""
    experts = "ep" in name
    own = made(tmp, name)
    state, whole = os.path.join(tmp, "state.pt"), os.path.join(tmp, "whole.pt")
    megatron_cpu.run(1, whole_model, experts, own, state)
    kind = "mixtral" if experts else "llama"
    sizes = ("--set", f"n_heads={megatron_cpu.HEADS}", "--set", f"n_kv_heads={megatron_cpu.GROUPS}")
    a, b = os.path.join(tmp, "a.safetensors"), os.path.join(tmp, "b.safetensors")
    run(tool, "map", f"megatron-local-{kind}-hf", state, a, *sizes)
    run(tool, "map", f"megatron-{kind}-hf", own, b, *sizes, "--drop-optimizer", "--drop-values")
    run(tool, "diff", a, b)
    exported = os.path.join(tmp, "hf")
    run(tool, "export", own, exported, *sizes)
    run(tool, "diff", a, exported)
    for ranks in (1, 2, 4):
        start = os.path.join(tmp, f"start{ranks}")
        run(tool, "import", exported, start, "--map", f"megatron-{kind}-hf", "--to", "torch_dist", "-w", ranks, *sizes)
        check("sound" in run(tool, "verify", start), "not sound")
        if not experts:
            megatron_cpu.run(1, whole_model, experts, start, whole)
            same(torch.load(whole), torch.load(state), start)


def flat(state, path=""):
    if isinstance(state, dict):
        return {k: v for key, value in state.items() for k, v in flat(value, f"{path}.{key}" if path else str(key)).items()}
    return {path: state}


def fsdp_loaded(rank, world, folders, out, engine_names):
    """What Megatron-FSDP's own state dict of another model is filled with by PyTorch's load on this rank, by flat keys: the same for all
    of the folders."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    first = None
    for number, folder in enumerate(folders):
        state = make_fsdp.state(world, seed=50)
        for name in ("model", "state", "param_to_group_meta"):
            of = state if name == "model" else state["optimizer"]
            if engine_names[number]:
                of[name] = {engine_name(key): value for key, value in of[name].items()}
        # PyTorch's AdamW counts the steps of each parameter, Megatron-Core's optimizers those of a group: partial, as Megatron-LM loads.
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), planner=DefaultLoadPlanner(allow_partial_load=True))
        part = {engine_name(key): value.to_local() if hasattr(value, "to_local") else value for key, value in flat(state).items()}
        part = {key: value for key, value in part.items() if not key.endswith(".step") or "param_to_group_meta" in key}
        first = first or part
        same(first, part, folder)
    if rank == 0 and out:
        torch.save(first, out)


def engine_name(key):
    """The name that Transformer Engine's layers give the norm of a local layer."""
    return key.replace(".input_layernorm.", ".self_attention.linear_qkv.layer_norm_").replace(".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_")


def fsdp(tool, tmp):
    """A folder by Megatron-FSDP, of which one of torch_dist is made, and one of fsdp_dtensor again."""
    own, full, truth = os.path.join(tmp, "own"), os.path.join(tmp, "full.pt"), os.path.join(tmp, "truth.pt")
    megatron_cpu.run(2, make_fsdp.make, own)
    check("sound" in run(tool, "verify", own) and "fsdp_dtensor" in run(tool, "inspect", own), "not recognised")
    megatron_cpu.run(1, fsdp_loaded, [own], truth, [False])
    want = torch.load(truth, weights_only=False)
    run(tool, "consolidate", own, full)
    got = {engine_name(k): v for k, v in flat(torch.load(full, weights_only=False)).items()}
    same({k: got[k] for k in want}, want, "consolidated")
    dist, again = os.path.join(tmp, "dist"), os.path.join(tmp, "again")
    run(tool, "convert", own, dist, "--to", "torch_dist", "-w", 3)
    check("sound" in run(tool, "verify", dist), "not sound")
    megatron_cpu.run(1, plain_tensors, dist, full)
    got = torch.load(full, weights_only=False)["tensors"]
    for there, key in (("decoder.layers.self_attention.linear_qkv.layer_norm_weight", "self_attention.linear_qkv.layer_norm_weight"),
                       ("decoder.layers.mlp.linear_fc2.weight", "mlp.linear_fc2.weight")):
        for state in ("exp_avg", "exp_avg_sq"):
            same(got[f"optimizer.state.{state}.{there}"],
                 torch.stack([want[f"optimizer.state.module.module.module.decoder.layers.{i}.{key}.{state}"] for i in range(megatron_cpu.LAYERS)]), there)
        layers = torch.stack([want[f"model.module.decoder.layers.{i}.{key}"] for i in range(megatron_cpu.LAYERS)])
        same(got[there], layers, there)
        same(got[f"optimizer.state.param.{there}"], layers, there)
    same(got["decoder.layers.mlp.linear_fc1.weight"][1],
         torch.cat([want[f"model.module.decoder.layers.1.mlp.linear_fc1.weight_{half}"] for half in "wv"]), "halves")
    run(tool, "convert", dist, again, "--to", "fsdp_dtensor", "-w", 2)
    for world in (1, 2):
        megatron_cpu.run(world, fsdp_loaded, [own, again], None, [False, True])


def adapters(tool, tmp):
    """A folder with adapters as Megatron-Bridge has them: merged in the names of modules, as it computes it."""
    own, truth, out = os.path.join(tmp, "own"), os.path.join(tmp, "truth.pt"), os.path.join(tmp, "merged.pt")
    rank, alpha = 4, 6
    megatron_cpu.run(2, make_megatron.make_with_adapters, rank, own)
    stacked = loaded(own, truth)["tensors"]
    pairs = [key[:-len(".adapter.linear_in.weight")] for key in stacked if key.endswith(".adapter.linear_in.weight")]
    check(len(pairs) == 3, pairs)
    run(tool, "merge-lora", own, out, "--alpha", alpha)
    got = {key: value for key, value in flat(torch.load(out, weights_only=False)).items() if isinstance(value, torch.Tensor)}
    check(not any(".adapter." in key for key in got), sorted(got))
    for module in pairs:
        weight, a, b = (stacked[module + end].float() for end in (".weight", ".adapter.linear_in.weight", ".adapter.linear_out.weight"))
        for layer in range(megatron_cpu.LAYERS):
            want = (weight[layer] + alpha / rank * (b[layer] @ a[layer])).bfloat16()
            name, = [key for key in got if key.endswith(module.replace("layers.", f"layers.{layer}.") + ".weight")]
            check(torch.allclose(got[name].float(), want.float(), rtol=2 ** -7, atol=1e-6), name)
            check(not torch.equal(got[name], weight[layer].bfloat16()), f"{name} is as before")


PARTS = {
    "adapters": adapters,
    "fsdp": fsdp,
    "one": one,
    "tp": lambda tool, tmp: written(tool, tmp, "w2_tp2", [(1, 1, 1)]),
    "pp": lambda tool, tmp: written(tool, tmp, "w2_pp2", [(2, 1, 1)]),
    "ep": lambda tool, tmp: written(tool, tmp, "w2_ep2", [(1, 1, 4)]),
    "tp_pp": lambda tool, tmp: written(tool, tmp, "w4_tp2_pp2", [(1, 1, 1)]),
    "tp_ep": lambda tool, tmp: written(tool, tmp, "w4_tp2_ep2", [(1, 1, 2)]),
    "buckets": lambda tool, tmp: buckets(tool, tmp, "w2_dp2_buckets", [(1, 1, 1)]),
    "rank_files": ranks_apart,
    "buckets_tp_pp": lambda tool, tmp: buckets(tool, tmp, "w4_tp2_pp2_buckets", []),
    "buckets_tp_ep": lambda tool, tmp: buckets(tool, tmp, "w4_tp2_ep2_buckets", []),
    "forms": lambda tool, tmp: forms(tool, tmp, "w4_tp2_pp2", [(1, 1, 1)]),
    "forms_ep": lambda tool, tmp: forms(tool, tmp, "w2_ep2", [(1, 1, 1)]),
    "models": lambda tool, tmp: models(tool, tmp, "w2_tp2"),
    "models_ep": lambda tool, tmp: models(tool, tmp, "w2_ep2"),
}


WRITTEN = ("verify, inspect, consolidate, diff, reshard, convert, set", "bit for bit what its load gives; it loads what is written at other parallel sizes")
FORMS = ("convert, inspect, verify", "to `fsdp_dtensor` and back; its load gives the same bits")
BUCKETS = "by parameters, bit for bit what it saves as `fully_reshardable`, which it loads"
MODELS = ("map, export, import", "to transformers and back on 1, 2 and 4 ranks")
# Layout, ranks, verbs and what was tried, by part.
TRIED = {
    "adapters": ("`torch_dist` with adapters of Megatron-Bridge's names", 2, "merge-lora", "merged in the names of modules, by alpha and the rank"),
    "fsdp": ("`fsdp_dtensor` by Megatron-FSDP's own code", 2, "verify, inspect, consolidate, convert", "to `torch_dist` and back; it loads the same bits on 1 and 2 ranks"),
    "one": ("`torch_dist`", 1, WRITTEN[0], WRITTEN[1] + "; with `common.pt`, too"),
    "tp": ("`torch_dist`, tensors cut in 2", 2, *WRITTEN),
    "pp": ("`torch_dist`, layers on 2 ranks", 2, *WRITTEN),
    "ep": ("`torch_dist`, experts on 2 ranks", 2, *WRITTEN),
    "tp_pp": ("`torch_dist`, tensors cut in 2, layers on 2 ranks", 4, *WRITTEN),
    "tp_ep": ("`torch_dist`, tensors cut in 2, experts on 2 ranks", 4, *WRITTEN),
    "buckets": ("`torch_dist`, optimizer in buckets", 2, WRITTEN[0] + ", map", BUCKETS),
    "buckets_tp_pp": ("`torch_dist`, optimizer in buckets, tensors cut in 2, layers on 2 ranks", 4, "consolidate, convert, map", BUCKETS),
    "buckets_tp_ep": ("`torch_dist`, optimizer in buckets, tensors cut in 2, experts on 2 ranks", 4, "consolidate, convert, map", BUCKETS),
    "rank_files": ("`--ckpt-format torch`, files of each rank", 2, "verify, inspect, convert",
                   "without the optimizer, the model of one rank; the optimizer is refused with the options of its own that convert it"),
    "forms": ("`torch_dist`, tensors cut in 2, layers on 2 ranks", 4, *FORMS),
    "forms_ep": ("`torch_dist`, experts on 2 ranks", 2, *FORMS),
    "models": ("`torch_dist`, tensors cut in 2", 2, *MODELS),
    "models_ep": ("`torch_dist`, experts on 2 ranks", 2, *MODELS),
}
OLDER_TRIED = ("`torch_dist`", 1, "verify, inspect, consolidate, diff, reshard, convert",
               f"bit for bit what its load gives; to the layout of {NEWEST} and back; it loads what is written, of folders by {NEWEST}, too")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("part", choices=[*PARTS, *OLDER])
    ap.add_argument("--tool", required=True)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        if args.part in OLDER:
            megatron_cpu.use(args.part)
            older(args.tool, tmp, args.part)
        else:
            PARTS[args.part](args.tool, tmp)
    layout, ranks, verbs, what = TRIED.get(args.part, OLDER_TRIED)
    tried.record("megatron-core", layout, verbs, what, ranks=ranks)
    print(args.part, "ok")


if __name__ == "__main__":
    main()
