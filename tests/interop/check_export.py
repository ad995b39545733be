#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""export and import against transformers and PyTorch.

  python check_export.py --tool PATH

from_pretrained loads every export, and its logits are those of the model that was saved; a run of FSDP2 goes on from what import
wrote on another number of ranks, with the same loss.  What is incomplete or contradicts its configuration is refused.
"""
import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, save_file
from torch import multiprocessing as mp

import rekey_tool
import titan_adapters
import tried
from rekey_tool import check, load, run, same

SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 37, "num_hidden_layers": 3,
         "intermediate_size": 40, "max_position_embeddings": 32}


def llama(tied=False, seed=3):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=tied)).eval()


def companions(tmp, model, name="published"):
    """What stands beside the weights of a published model, and something that does not."""
    folder = os.path.join(tmp, name)
    os.makedirs(folder, exist_ok=True)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    for file, text in (("tokenizer.json", '{"version": "1.0"}'), ("tokenizer_config.json", "{}"), ("chat_template.jinja", "{{ messages }}"),
                       ("generation_config.json", '{"do_sample": false}'), ("modeling_x.py", "raise SystemExit"), ("README.md", "#")):
        with open(os.path.join(folder, file), "w", encoding="utf-8") as out:
            out.write(text)
    return folder


def export(*args):
    said = run("export", *args, "--force", "--check")
    check("checked: " in said and "loads with: " in said, said)
    return said


def same_model(folder, model, dtype=torch.float32):
    loaded, info = type(model).from_pretrained(folder, output_loading_info=True)
    check(not any(info.values()), info)
    check(loaded.dtype == dtype, loaded.dtype)
    ids = torch.arange(12).reshape(2, 6)
    check(torch.equal(loaded.eval()(ids).logits, model.to(dtype)(ids).logits), f"{folder}: other logits")


def by_map(tmp):
    """torchtitan's model, as its adapter makes it, in a folder of three ranks beside an optimizer."""
    model = llama()
    cls = titan_adapters.adapter("llama3", "Llama3StateDictAdapter")
    adapter = cls(titan_adapters.config([0] * 3, 24, n_heads=4, n_kv_heads=2, head_dim=6), None)
    titan = {k: v.contiguous() for k, v in adapter.from_hf(dict(model.state_dict())).items()}
    path, folder, out = os.path.join(tmp, "titan.pt"), os.path.join(tmp, "titan"), os.path.join(tmp, "out")
    torch.save(titan | {"optimizer": {"state": {}, "param_groups": []}, "train_state": {"step": 5}}, path)
    run("shard", path, folder, "--world-size", "3")
    published = companions(tmp, model)
    said = export(folder, out, "--config", published)
    check("torchtitan-llama3-hf, the only one that takes these names" in said and "model: the top level" in said, said)
    check(sorted(os.listdir(out)) == ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                      "tokenizer_config.json"], os.listdir(out))
    same(load_file(os.path.join(out, "model.safetensors")), dict(model.state_dict()), "by_map")
    same_model(out, model)
    # Cast, in several files; config.json says so.
    said = export(folder, out + "-bf16", "--config", published, "--dtype", "bf16", "--max-shard-size", "9KB")
    check("dtype float32 -> bfloat16" in said, said)
    check(len([n for n in os.listdir(out + "-bf16") if n.endswith(".safetensors")]) > 3, os.listdir(out + "-bf16"))
    same_model(out + "-bf16", llama(), torch.bfloat16)
    # Back to torchtitan's names, on two ranks.
    run("import", out, os.path.join(tmp, "back"), "--map", "torchtitan-llama3-hf", "-w", "2")
    same(load(os.path.join(tmp, "back")), titan, "import")
    said = run("import", out, os.path.join(tmp, "never"), expect=2)
    check("error[USAGE]" in said and "torchtitan-llama3-hf" in said and "megatron-llama-hf" in said, said)
    tried.record("torchtitan", "DCP", "export, import", "from_pretrained loads the export with the same logits; import goes back to the same bits", ranks=3)


def wrapped(tmp):
    """Names of a model that was compiled and wrapped by FSDP1, and Lightning's place for it."""
    model = llama()
    state = {"_orig_mod._fsdp_wrapped_module." + k: v for k, v in model.state_dict().items()}
    path, out = os.path.join(tmp, "w.pt"), os.path.join(tmp, "out")
    torch.save({"state_dict": state, "epoch": 4}, path)
    said = export(path, out, "--config", companions(tmp, model))
    check("map: none" in said, said)
    same_model(out, model)


def ties(tmp):
    tied, path, out = llama(tied=True), os.path.join(tmp, "t.pt"), os.path.join(tmp, "out")
    state = dict(tied.state_dict())
    for name, one in (("shared", state), ("copied", state | {"lm_head.weight": state["lm_head.weight"].clone()}),
                      ("left out", {k: v for k, v in state.items() if k != "lm_head.weight"})):
        torch.save({"model": one}, path)
        export(path, out, "--config", companions(tmp, tied))
        check("lm_head.weight" not in load_file(os.path.join(out, "model.safetensors")), name)
        same_model(out, tied)
    torch.save({"model": state | {"lm_head.weight": state["lm_head.weight"] + 1}}, path)
    said = run("export", path, out + "-never", "--config", companions(tmp, tied), expect=2)
    check("error[MISMATCH]" in said and "tie_word_embeddings" in said and not os.path.exists(out + "-never"), said)
    # A model that does not tie them has both, though they are one tensor in the checkpoint.
    apart = llama()
    apart.lm_head.weight = apart.model.embed_tokens.weight
    torch.save({"model": dict(apart.state_dict())}, path)
    export(path, out, "--config", companions(tmp, apart))
    same_model(out, apart)


def quantized(tmp):
    """A published FP8 folder: to bfloat16 with a configuration that says so, and as the checkpoint of a trainer."""
    import transformers.quantizers.quantizer_finegrained_fp8 as quantizer
    quantizer.is_accelerate_available = lambda: True   # it is asked for, and not needed on a CPU
    torch.manual_seed(5)
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 384}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=False)).to(torch.bfloat16).eval()
    model.config.quantization_config = transformers.FineGrainedFP8Config(weight_block_size=(128, 128)).to_dict()
    folder, path, out = companions(tmp, model), os.path.join(tmp, "wide.safetensors"), os.path.join(tmp, "out")
    save_file(dict(model.state_dict()), path)
    run("map", "fp8-to-bf16", path, os.path.join(folder, "model.safetensors"), "--reverse")
    want = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    said = export(folder, out, "--config", folder, "--map", "fp8-to-bf16")
    check("config.json: left out its quantization_config, fp8" in said and "dtype float32 -> bfloat16" in said, said)
    same(load_file(os.path.join(out, "model.safetensors")), dict(want), "to bfloat16")
    loaded, info = transformers.LlamaForCausalLM.from_pretrained(out, output_loading_info=True)
    check(not any(info.values()) and loaded.dtype == torch.bfloat16 and not hasattr(loaded.config, "quantization_config"), info)
    # As it is, it stays quantized, and a configuration without a word of it is refused.
    said = export(folder, out + "-same", "--config", folder, "--map", "none")
    check("quantization_config" not in said and "dtype float32 -> bfloat16" in said, said)
    same(load_file(os.path.join(out + "-same", "model.safetensors")), load_file(os.path.join(folder, "model.safetensors")), "as it is")
    again = transformers.LlamaForCausalLM.from_pretrained(out + "-same", dtype=torch.bfloat16).state_dict()
    same(dict(again), dict(want), "as it is, loaded")
    said = run("export", folder, out + "-never", "--config", out, "--map", "none", expect=2)
    check("error[UNSUPPORTED]" in said and "no quantization_config" in said and "_scale_inv" in said and not os.path.exists(out + "-never"), said)
    # A map that knows nothing of scales gets the model in bfloat16.
    cls = titan_adapters.adapter("llama3", "Llama3StateDictAdapter")
    adapter = cls(titan_adapters.config([0] * 3, 256, n_heads=4, n_kv_heads=2, head_dim=64), None)
    titan = {k: v.contiguous() for k, v in adapter.from_hf(dict(want)).items()}
    said = run("import", folder, out + "-titan", "--map", "torchtitan-llama3-hf", "-w", "2", "--under", "model")
    check("first fp8-to-bf16" in said, said)
    said = run("import", folder, out + "-never", expect=2)
    check("error[USAGE]" in said and "torchtitan-llama3-hf" in said, said)
    same(load(out + "-titan")["model"], titan, "import")
    json.loads(run("import", folder, out + "-titan", "--map", "torchtitan-llama3-hf", "-w", "2", "--force", "--json"))


def refused(tmp):
    model, path, never = llama(), os.path.join(tmp, "r.pt"), os.path.join(tmp, "never")
    published, state = companions(tmp, model), dict(model.state_dict())

    def says(code, words, state, *options):
        torch.save(state, path)
        said = run("export", path, never, "--config", published, *options, expect=2)
        check(f"error[{code}]" in said and all(w in said for w in words) and not os.path.exists(never), said)

    def without(*parts):
        return {"model": {k: v for k, v in state.items() if not any(p in k for p in parts)}}
    says("KEY", ["'model.layers.1.mlp.up_proj.weight'", "--incomplete"], without("layers.1.mlp.up_proj"))
    says("KEY", ["'model.layers.2."], without("layers.2."))
    says("KEY", ["'model.layers.0."], without("layers.0."))
    says("KEY", ["'lm_head.weight'"], without("lm_head"))
    says("SHAPE", ["'model.embed_tokens.weight' [40, 24], expected [37, 24]", "fsdp-ckpt resize-vocab --size 37 gives them that many"],
         {"model": state | {"model.embed_tokens.weight": torch.zeros(40, 24)}})
    says("KEY", ["has no 'model.layers.0.self_attn.q_proj.base_layer.weight'"],
         {key.replace("q_proj.weight", "q_proj.base_layer.weight"): tensor for key, tensor in state.items()})
    says("UNSUPPORTED", ["'student'", "'teacher'", "--model"], {"student": state, "teacher": state})
    says("KEY", ["no model"], {"step": 3})
    says("KEY", ["model_type 'llama'"], {"model": state}, "--map", "nanogpt-gpt2")
    torch.save({"student": state, "teacher": state}, path)
    export(path, never, "--config", published, "--model", "teacher")
    same_model(never, model)
    # Names that lack nothing but have a front too many, or names of an adapter around them.
    for front in "model.", "base_model.model.":
        torch.save({front + key: tensor for key, tensor in state.items()}, path)
        export(path, never + "1", "--config", published)
        same_model(never + "1", model)
    torch.save(without("layers.1.mlp.up_proj"), path)
    export(path, never, "--config", published, "--incomplete")
    # The names of nanoGPT are those of transformers: the shapes tell them apart.
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=24, n_head=4, n_layer=2, vocab_size=23, n_positions=9))
    torch.save(gpt2.state_dict(), path)
    said = run("export", path, never + "2", "--config", companions(tmp, gpt2, "gpt2"))
    check("map: none, the names are those of GPT2LMHeadModel" in said, said)
    same_model(never + "2", gpt2.eval())


def loss_of(model, step):
    torch.manual_seed(100 + step)
    ids = torch.randint(0, 37, (2, 8))
    return model(ids, labels=ids).loss


def trained(rank, world, meeting, folder, losses, steps, load_from):
    """Trains by FSDP2 from a start that all share, or goes on from a folder; saves, and writes the losses of later steps."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    model = llama()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    if load_from:
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=load_from)
        set_model_state_dict(model, state["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    if folder:
        own, state = get_state_dict(model, optimizer)
        dcp.save({"model": own, "optim": state}, checkpoint_id=folder)
    with torch.no_grad():
        found = [loss_of(model, step).item() for step in range(50, 53)]
    if rank == 0:
        with open(losses, "w", encoding="utf-8") as file:
            json.dump(found, file)
    dist.barrier()
    os._exit(0)


def crosses(tmp):
    """FSDP2 on 2 ranks -> export -> transformers -> import on 3 ranks -> FSDP2: the same loss, all the way."""
    def at(name):
        return os.path.join(tmp, name)

    def losses(name):
        with open(at(name), encoding="utf-8") as file:
            return json.load(file)
    mp.spawn(trained, (2, at("meet2"), at("ckpt"), at("two"), 4, None), 2)
    export(at("ckpt"), at("hf"), "--config", companions(tmp, llama()))
    model = transformers.LlamaForCausalLM.from_pretrained(at("hf")).eval()
    with torch.no_grad():
        own = [loss_of(model, step).item() for step in range(50, 53)]
        start = [loss_of(llama(), step).item() for step in range(50, 53)]
    check(max(abs(a - b) for a, b in zip(own, start)) > 0.01, "nothing was trained")
    run("import", at("hf"), at("again"), "--map", "none", "--under", "model", "-w", "3")
    mp.spawn(trained, (3, at("meet3"), None, at("three"), 0, at("again")), 3)
    for name in ("two", "three"):
        check(max(abs(a - b) for a, b in zip(own, losses(name))) < 1e-5, f"{name}: {losses(name)} and {own}")
    tried.record("transformers", "folders of `from_pretrained`", "export, import",
                 "from FSDP2 on 2 ranks to from_pretrained, and to FSDP2 on 3 ranks: the same loss")


CHECKS = {"by_map": by_map, "wrapped": wrapped, "ties": ties, "quantized": quantized, "refused": refused, "crosses": crosses}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS])
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    return 1 if rekey_tool.run_checks(args.tool, CHECKS, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
