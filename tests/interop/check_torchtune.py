#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtune's checkpoints and conversions.

  python check_torchtune.py --tool PATH

The built-in maps give the bits of torchtune's own conversions, both ways.  What its checkpointers write is read, and they load what the
tool makes of it.
"""
import argparse
import json
import logging
import os
import shutil
import sys
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", TORCH_CPP_LOG_LEVEL="ERROR")
logging.disable(logging.WARNING)
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import rekey_tool
import tried
import tune_code
from ranks import run_ranks
from rekey_tool import check, load, run, same

checkpointing = tune_code.load("training.checkpointing")


def hf_model(kind, heads, kv, dim, layers):
    """A random model under transformers' names."""
    torch.manual_seed(layers)
    each, inner = dim // heads, 10
    layer = {"self_attn.o_proj.weight": (dim, dim), "mlp.down_proj.weight": (dim, inner), "input_layernorm.weight": (dim,), "post_attention_layernorm.weight": (dim,)}
    if kind == "phi3":
        layer |= {"self_attn.qkv_proj.weight": (dim + 2 * kv * each, dim), "mlp.gate_up_proj.weight": (2 * inner, dim)}
    else:
        layer |= {f"self_attn.{p}_proj.weight": (n * each, dim) for p, n in (("q", heads), ("k", kv), ("v", kv))}
        layer |= {"mlp.gate_proj.weight": (inner, dim), "mlp.up_proj.weight": (inner, dim)}
    if kind == "qwen2":
        layer |= {f"self_attn.{p}_proj.bias": (n * each,) for p, n in (("q", heads), ("k", kv), ("v", kv))}
    if kind == "gemma2":
        layer |= {"pre_feedforward_layernorm.weight": (dim,), "post_feedforward_layernorm.weight": (dim,)}
    shapes = {"model.embed_tokens.weight": (13, dim), "model.norm.weight": (dim,), "lm_head.weight": (13, dim)}
    shapes |= {f"model.layers.{i}.{k}": s for i in range(layers) for k, s in layer.items()}
    return {k: torch.randn(s) for k, s in shapes.items()}


def config_of(kind, heads, kv, dim, layers):
    return {"model_type": kind, "num_attention_heads": heads, "num_key_value_heads": kv, "hidden_size": dim, "num_hidden_layers": layers,
            "vocab_size": 13, "intermediate_size": 10, "tie_word_embeddings": False}


def converted(kind, state, heads, kv, dim, back=False):
    """torchtune's own conversion, to its names or `back`."""
    sizes = {"num_heads": heads, "num_kv_heads": kv, "dim": dim}
    if kind == "phi3":
        module = tune_code.load("models.phi3._convert_weights")
        return module.phi3_tune_to_hf(state) if back else module.phi3_hf_to_tune(state, **sizes)
    if kind in ("qwen2", "gemma2"):
        module = tune_code.load(f"models.{kind}._convert_weights")
        return getattr(module, f"{kind}_tune_to_hf" if back else f"{kind}_hf_to_tune")(state, **sizes)
    module = tune_code.load("models.convert_weights")
    return (module.tune_to_hf if back else module.hf_to_tune)(state, **sizes)


def with_states(state):
    """The model beside an optimizer whose moments are made of the parameters."""
    return {"model": state, "optimizer": {
        "state": {n: {"step": torch.tensor(7.0), "exp_avg": t * 2, "exp_avg_sq": t * 4} for n, t in state.items()},
        "param_groups": [{"lr": 0.1, "params": sorted(state)}]}}


def in_order(saved):
    saved["optimizer"]["param_groups"][0]["params"].sort()
    return saved


def maps(tmp):
    for name, kinds in (("llama3", ("llama", "mistral", "gemma")), ("gemma2", ("gemma2",)), ("phi3", ("phi3",)), ("qwen2", ("qwen2",))):
        for kind in kinds:
            for sizes in ((4, 2, 24, 3), (6, 1, 48, 11), (2, 2, 20, 1))[:3 if kind == kinds[0] else 1]:
                one_map(tmp, f"torchtune-{name}-hf", kind, sizes)
        tried.record("torchtune", f"`torchtune-{name}-hf`", "map, verify", "equal to its own conversions, both ways, from files and folders, with the state of AdamW")


def one_map(tmp, name, kind, sizes):
    hf = hf_model(kind, *sizes)
    tune = {k: v.contiguous() for k, v in converted(kind, dict(hf), *sizes[:3]).items()}
    same({k: v.contiguous() for k, v in converted(kind, dict(tune), *sizes[:3], back=True).items()}, hf, "torchtune itself")
    config, a, b, out = (os.path.join(tmp, n) for n in ("config.json", "tune.pt", "hf.safetensors", "out"))
    with open(config, "w", encoding="utf-8") as file:
        json.dump(config_of(kind, *sizes), file)
    save_file(hf, b)
    torch.save(with_states(tune), a)
    run("map", name, b, out + ".pt", "--reverse", "--config", config, "--force")
    same(load(out + ".pt"), tune, f"{name} to torchtune")
    run("map", name, a, out + "-hf.pt", "--config", config, "--force")
    same(in_order(load(out + "-hf.pt")), in_order(with_states(hf)), f"{name} from torchtune, with an optimizer")
    run("map", name, a, out + "-dcp", "--to", "dcp", "--world-size", "3", "--config", config, "--force")
    check("sound" in run("verify", out + "-dcp"), name)
    run("map", name, out + "-dcp", out + "-back.pt", "--reverse", "--config", config, "--force")
    same(in_order(load(out + "-back.pt")), in_order(with_states(tune)), f"{name} from a folder, and back")


SIZES = (4, 2, 24, 3)


def recipe(model, more=()):
    """What a recipe hands to its checkpointer in the middle of a training."""
    return {"model": dict(model), "optimizer": with_states(model)["optimizer"], "epochs_run": 1, "seed": 7, "total_epochs": 3, "max_steps_per_epoch": 9} | dict(more)


def published(tmp, name="base"):
    """A folder as it is downloaded, in two files."""
    folder, hf = os.path.join(tmp, name), hf_model("llama", *SIZES)
    os.makedirs(folder)
    parts = [dict(list(hf.items())[:9]), dict(list(hf.items())[9:])]
    files = [f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)]
    for part, file in zip(parts, files):
        save_file(part, os.path.join(folder, file))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": {k: f for part, f in zip(parts, files) for k in part}}, file)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config_of("llama", *SIZES), file)
    return folder, files, hf


def own_format(tmp):
    """FullModelTorchTuneCheckpointer: one file of the model, one of the recipe's state."""
    folder, _, hf = published(tmp)
    tune = converted("llama", dict(hf), *SIZES[:3])
    torch.save(tune, os.path.join(folder, "first.bin"))
    made = checkpointing.FullModelTorchTuneCheckpointer(folder, ["first.bin"], "LLAMA3", os.path.join(tmp, "out"))
    made.save_checkpoint(recipe(tune), epoch=0, intermediate_checkpoint=True)
    epoch, state = os.path.join(tmp, "out", "epoch_0"), os.path.join(tmp, "out", "recipe_state", "recipe_state.pt")
    file = os.path.join(epoch, "model-00001-of-00001.bin")
    for path in (file, state):
        check("sound" in run("verify", path), path)
    # Through folders of two ranks and back; then its own checkpointer resumes from there.
    for path in (file, state):
        run("shard", path, path + "-2", "--world-size", "2")
        run("consolidate", path + "-2", path + ".pt")
        shutil.move(path + ".pt", path)
        shutil.rmtree(path + "-2")
    again = checkpointing.FullModelTorchTuneCheckpointer(folder, ["epoch_0/model-00001-of-00001.bin"], "LLAMA3", os.path.join(tmp, "out"), should_load_recipe_state=True)
    same(again.load_checkpoint(), recipe(tune), "resumed")
    tried.record("torchtune", "FullModelTorchTuneCheckpointer", "verify, shard, consolidate", "model and recipe_state.pt by way of 2 ranks; it resumes from them")
    # To its other format.
    out = os.path.join(tmp, "hf")
    run("map", "torchtune-llama3-hf", file, out, "--to", "safetensors", "--max-shard-size", "20KB", "--config", os.path.join(folder, "config.json"))
    shutil.copy(os.path.join(folder, "config.json"), out)
    files = sorted(f for f in os.listdir(out) if f.endswith(".safetensors"))
    check(len(files) > 1, files)
    loaded = checkpointing.FullModelHFCheckpointer(out, files, "LLAMA3", os.path.join(tmp, "never")).load_checkpoint()
    same(loaded["model"], tune, "by FullModelHFCheckpointer")
    tried.record("torchtune", "FullModelTorchTuneCheckpointer", "map", "to safetensors, which its FullModelHFCheckpointer loads as the same bits")


def hf_format(tmp):
    """FullModelHFCheckpointer: the names and files of the published model, and adapters."""
    folder, files, hf = published(tmp)
    made = checkpointing.FullModelHFCheckpointer(folder, files, "LLAMA3", os.path.join(tmp, "out"))
    tune = made.load_checkpoint()["model"]
    trained = {k: v + 1 for k, v in tune.items()}
    made.save_checkpoint(recipe(trained), epoch=2, intermediate_checkpoint=True)
    epoch = os.path.join(tmp, "out", "epoch_2")
    check("sound" in run("verify", epoch), epoch)
    out = os.path.join(tmp, "tune.pt")
    run("map", "torchtune-llama3-hf", epoch, out, "--reverse", "--config", os.path.join(epoch, "config.json"))
    same(load(out), trained, "its epoch folder")
    check("sound" in run("verify", os.path.join(tmp, "out", "recipe_state", "recipe_state.pt")), "recipe_state.pt")
    tried.record("torchtune", "FullModelHFCheckpointer", "verify, map", "`epoch_<n>` goes back to torchtune's names with the same bits")


def adapters(tmp):
    """LoRA of torchtune: its own file, and the folder of peft beside it."""
    folder, files, hf = published(tmp)
    made = checkpointing.FullModelHFCheckpointer(folder, files, "LLAMA3", os.path.join(tmp, "out"))
    tune, rank, alpha = made.load_checkpoint()["model"], 3, 6
    lora, want = {}, dict(tune)
    for key in [k for k in tune if "attn.q_proj" in k or "attn.v_proj" in k or "mlp.w2" in k]:
        a, b = torch.randn(rank, tune[key].shape[1]), torch.randn(tune[key].shape[0], rank)
        lora |= {key.replace(".weight", ".lora_a.weight"): a, key.replace(".weight", ".lora_b.weight"): b}
        want[key] = tune[key] + alpha / rank * (b @ a)
    config = {"r": rank, "lora_alpha": alpha, "target_modules": ["q_proj", "v_proj", "w2"], "peft_type": "LORA"}
    made.save_checkpoint({"model": dict(tune), "adapter": dict(lora), "adapter_config": config}, epoch=0, adapter_only=True)
    epoch, out = os.path.join(tmp, "out", "epoch_0"), os.path.join(tmp, "merged.safetensors")
    own = os.path.join(epoch, "adapter_model.pt")
    check("sound" in run("verify", own), own)
    run("consolidate", own, os.path.join(tmp, "own.pt"))
    same(load(os.path.join(tmp, "own.pt")), lora, "adapter_model.pt")
    check("sound" in run("verify", os.path.join(epoch, "adapter_model.safetensors")), epoch)
    run("merge-lora", folder, epoch, out)
    back = os.path.join(tmp, "merged.pt")
    run("map", "torchtune-llama3-hf", out, back, "--reverse", "--config", os.path.join(folder, "config.json"))
    got = load(back)
    check(set(got) == set(want) and all(torch.allclose(got[k], want[k], rtol=1e-5, atol=1e-5) for k in want), "merged")
    check(sum(not torch.equal(got[k], tune[k]) for k in tune) == len(lora) // 2, "what was merged")
    tried.record("torchtune", "adapters: `adapter_model.*`, `adapter_config.json`", "verify, consolidate, merge-lora", "merged into the published model as torch computes it")


def held_adapters(tmp):
    """State dicts of modules with LoRA and DoRA of torchtune, against its own get_merged_lora_ckpt."""
    from torchtune.modules.peft import DoRALinear, LoRALinear, get_merged_lora_ckpt
    rank, alpha = 3, 6
    for kind in LoRALinear, DoRALinear:
        torch.manual_seed(4)
        model = nn.ModuleDict({"q_proj": kind(8, 10, rank, alpha), "k_proj": nn.Linear(8, 4, bias=False)})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.rand_like(parameter) + 0.5)
        state = {f"layers.0.attn.{key}": value.clone() for key, value in model.state_dict().items()}
        own, out = os.path.join(tmp, f"{kind.__name__}.pt"), os.path.join(tmp, f"{kind.__name__}-merged.pt")
        torch.save({"model": state, "epochs_run": 1}, own)
        run("merge-lora", own, out, "--alpha", str(alpha))
        got = load(out)["model"]
        want = get_merged_lora_ckpt({key: value.clone() for key, value in state.items()}, rank, alpha)
        check(set(got) == set(want) and all(torch.allclose(got[k], want[k], rtol=1e-5, atol=1e-6) for k in want), f"merged {kind.__name__}")
        check(not torch.equal(got["layers.0.attn.q_proj.weight"], state["layers.0.attn.q_proj.weight"]), "what was merged")
    tried.record("torchtune", "a model with its `LoRALinear`, `DoRALinear`", "merge-lora", "merged as its own `get_merged_lora_ckpt` does")


def distributed(rank, world, out, load_from):
    """DistributedCheckpointer under FSDP2: saves, or loads into other weights what `load_from` holds.  Returns whole tensors."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(9 if load_from else 3)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5 if load_from else 0.1)
    model(torch.randn(2, 5)).square().mean().backward()
    optimizer.step()
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer), "epochs_run": 0 if load_from else 2, "seed": 5}
    checkpointer = checkpointing.DistributedCheckpointer(out, out)
    if load_from:
        state = checkpointer.load_checkpoint(state, load_from)
    else:
        checkpointer.save_checkpoint(state, epoch=2)

    def whole(x):
        if isinstance(x, dict):
            return {k: whole(v) for k, v in x.items()}
        if isinstance(x, list):
            return [whole(v) for v in x]
        return x.full_tensor() if hasattr(x, "full_tensor") else x
    return whole(state)


def distributed_format(tmp):
    want = run_ranks(2, distributed, tmp, None)[0]
    folder = os.path.join(tmp, "dist_epoch_2")
    check("sound" in run("verify", folder), folder)
    out = os.path.join(tmp, "whole.pt")
    run("consolidate", folder, out)
    same(load(out), want, "consolidated")
    for world in (1, 3):
        cut = os.path.join(tmp, f"on_{world}")
        run("reshard", folder, cut, "--world-size", str(world))
        for got in run_ranks(2, distributed, tmp, cut):
            same(got, want, f"loaded from {world}")
    run("shard", out, os.path.join(tmp, "again"), "--world-size", "2")
    for got in run_ranks(2, distributed, tmp, os.path.join(tmp, "again")):
        same(got, want, "from one file")
    tried.record("torchtune", "DistributedCheckpointer", "verify, consolidate, reshard, shard", "to a file, to 1 and 3 ranks and from the file; it loads the same bits on 2", ranks=2)


CHECKS = {"maps": maps, "own_format": own_format, "hf_format": hf_format, "adapters": adapters, "held_adapters": held_adapters,
          "distributed_format": distributed_format}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS])
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    return 1 if rekey_tool.run_checks(args.tool, CHECKS, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
