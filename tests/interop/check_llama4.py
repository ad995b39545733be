#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built-in maps of torchtitan 0.2, the last one that has Llama 4.

  python check_llama4.py --tool PATH

torchtitan's own adapter converts what it knows: models whose every layer has experts.  For the others, torchtitan's model and its image
in transformers compute the same.  Its own manager of checkpoints goes on from what the tool writes.
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file
from torch import multiprocessing as mp

import rekey_tool
import titan_llama4
from check_maps import both_ways, deepseek, gpt_oss, llama3, mapped, qwen3, write_config
from rekey_tool import check, load, run, same

TEXT, WHOLE = "torchtitan-llama4-hf", "torchtitan-llama4-multimodal-hf"
# heads, heads of keys, width of a head, layers, every how many have experts, experts
SHAPES = ((4, 2, 6, 2, 1, 3), (6, 1, 4, 11, 1, 2), (2, 2, 10, 4, 2, 12), (4, 1, 4, 3, 3, 5))


def transformers_of(sizes, width, dense, inner):
    """The model that has torchtitan's layers: no norm of queries and keys, a rotary embedding in every layer."""
    heads, kv, head, layers, step, experts = sizes
    config = transformers.Llama4TextConfig(
        hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv, head_dim=head, num_hidden_layers=layers, vocab_size=31,
        intermediate_size=inner, intermediate_size_mlp=dense, num_local_experts=experts, num_experts_per_tok=1, interleave_moe_layer_step=step,
        use_qk_norm=False, attn_temperature_tuning=False, no_rope_layers=[1] * layers, attention_chunk_size=64, max_position_embeddings=64,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, pad_token_id=0, tie_word_embeddings=False)
    return transformers.Llama4ForCausalLM(config).eval()


def expected(adapter, titan, step):
    """torchtitan's adapter, and the names of transformers' model for what it leaves out."""
    hf = {k.removeprefix("language_model."): v for k, v in adapter.to_hf(dict(titan)).items()}
    names = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
    dense = {f"model.{k.removesuffix(f'{w}.weight')}{n}.weight": v for k, v in titan.items() for w, n in names.items()
             if k.endswith(f".feed_forward.{w}.weight")}
    check(bool(dense) == (step > 1) and not dense.keys() & hf.keys(), dense.keys())
    return hf | dense


def text(tmp):
    for sizes in SHAPES:
        model, adapter = titan_llama4.model(*sizes)
        heads, _, head, _, step, _ = sizes
        titan = dict(model.state_dict())
        hf = expected(adapter, titan, step)
        theirs = transformers_of(sizes, heads * head, *inner_sizes(sizes))
        same({k: v.shape for k, v in theirs.state_dict().items()}, {k: v.shape for k, v in hf.items()}, "shapes")
        kept = {k: v for k, v in titan.items() if not k.endswith(".expert_bias")}
        check(len(kept) < len(titan), "no biases of experts")
        both_ways(tmp, TEXT, kept, hf, "--config", write_config(tmp, theirs))
        # With what only torchtitan has, and into transformers.
        path, out = os.path.join(tmp, "whole.pt"), os.path.join(tmp, "llama4")
        torch.save(titan, path)
        theirs.config.save_pretrained(out)
        mapped(TEXT, path, os.path.join(out, "model.safetensors"))
        loaded, info = transformers.Llama4ForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
        check(not any(info.values()), info)
        ids = torch.randint(0, 31, (2, 9))
        with torch.no_grad():
            ours, own = model(ids), loaded.eval()(ids).logits
        error = (ours - own).abs().max()
        check(error < 1e-4 * ours.abs().max(), f"{sizes}: logits differ by {error}")


def whole(tmp):
    """The names of the published models, which see images, too."""
    for sizes in SHAPES[:2]:
        model, adapter = titan_llama4.model(*sizes)
        titan = {k: v for k, v in model.state_dict().items() if not k.endswith(".expert_bias")}
        hf = adapter.to_hf(dict(titan))
        same({k: v.contiguous() for k, v in adapter.from_hf(dict(hf)).items()}, titan, "the adapter itself")
        both_ways(tmp, WHOLE, titan, hf)
        vision = {"vision_model.class_embedding": torch.randn(4), "multi_modal_projector.linear_1.weight": torch.randn(4, 6)}
        path, out = os.path.join(tmp, "seen.pt"), os.path.join(tmp, "text.pt")
        torch.save(hf | vision, path)
        mapped(WHOLE, path, out, "--reverse")
        same(load(out), titan, "without images")
    names = transformers.Llama4ForConditionalGeneration(transformers.Llama4Config(
        text_config=transformers_of(SHAPES[0], 24, 1, 8).config.to_dict(),
        vision_config={"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
                       "intermediate_size": 32, "vision_output_dim": 8, "projector_input_dim": 8, "projector_output_dim": 8})).state_dict()
    check({k for k in names if k.startswith("language_model.")} >= {k for k in hf if ".layers.0." in k}, "names of the published models")


def chosen(tmp):
    """export and import find the maps by names and config.json."""
    model, adapter = titan_llama4.model(*SHAPES[0])
    theirs = transformers_of(SHAPES[0], 24, *inner_sizes(SHAPES[0]))
    path, published, out = os.path.join(tmp, "titan.pt"), os.path.join(tmp, "published"), os.path.join(tmp, "out")
    torch.save({"model": dict(model.state_dict())}, path)
    theirs.config.save_pretrained(published)
    said = run("export", path, out, "--config", published, "--dtype", "bf16")
    check(f"{TEXT}, the only one that takes these names" in said, said)
    saved = load_file(os.path.join(out, "model.safetensors"))
    same(saved, {k: v.to(torch.bfloat16) for k, v in expected(adapter, dict(model.state_dict()), 1).items()}, "export")
    said = run("import", out, out + "-never", expect=2)
    check("error[USAGE]" in said and f"these take the names: {TEXT}" in said, said)
    run("import", out, out + "-dcp", "--map", TEXT, "-w", "3")
    same(load(out + "-dcp"), {k: v.to(torch.bfloat16) for k, v in model.state_dict().items() if "expert_bias" not in k}, "import")
    said = run("map", TEXT, os.path.join(out, "model.safetensors"), out + "-never.pt", expect=2)
    check("error[KEY]" in said and "another architecture" in said, said)


SHARDED = (4, 2, 6, 4, 2, 3)


def loss_of(logits, step):
    """Of the same tokens on every rank."""
    ids = torch.randint(0, 31, (2, 9), generator=torch.Generator().manual_seed(step))
    return torch.nn.functional.cross_entropy(logits(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def trained(rank, world, meeting, folder, saved, losses, seed):
    """Trains by FSDP2 with torchtitan's model and optimizer: two steps that its manager saves, or goes on from what it finds in `folder`.
    Writes the losses of two more steps."""
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    model, _ = titan_llama4.model(*SHARDED, balance=None, seed=seed)
    for layer in model.layers.values():
        fully_shard(layer)
    fully_shard(model)
    optimizers, manager = titan_llama4.trainer(model, folder)

    def train(step):
        loss = loss_of(model, step)
        loss.backward()
        optimizers.step()
        optimizers.zero_grad()
        return loss.item()
    if saved:
        train(0), train(1)
        manager.save(saved, last_step=False)
    elif not manager.load():
        os._exit(1)
    found = [train(step) for step in (2, 3)]
    if rank == 0:
        with open(losses, "w", encoding="utf-8") as file:
            json.dump(found, file)
    dist.barrier()
    os._exit(0)


def continues(tmp):
    """torchtitan's own manager of checkpoints goes on from what the tool wrote, with the same losses."""
    def at(*names):
        return os.path.join(tmp, *names)

    def losses(world, folder, saved=None, seed=0):
        mp.spawn(trained, (world, at(f"meet-{folder}-{world}"), at(folder), saved, at("losses.json"), seed), world)
        with open(at("losses.json"), encoding="utf-8") as file:
            return json.load(file)
    first = losses(2, "run", saved=500)
    # To transformers' names and back, with the optimizer: the same bits, and so the same losses; on another number of ranks up to rounding.
    run("map", TEXT, at("run", "step-500"), at("hf"), "--to", "dcp", "-w", "3")
    for world in (2, 3):
        run("map", TEXT, at("hf"), at(f"back{world}", "step-500"), "--reverse", "--to", "dcp", "-w", str(world))
    check(losses(2, "back2", seed=9) == first, "another loss after map and map --reverse")
    again = losses(3, "back3", seed=9)
    check(max(abs(a - b) for a, b in zip(again, first)) < 1e-5, f"{again} and {first}")
    # By way of a folder of transformers: the model alone.
    transformers_of(SHARDED, 24, *inner_sizes(SHARDED)).config.save_pretrained(at("published"))
    run("export", at("run", "step-500"), at("exported"), "--config", at("published"))
    theirs = transformers.Llama4ForCausalLM.from_pretrained(at("exported")).eval()
    with torch.no_grad():
        own = loss_of(lambda ids: theirs(ids).logits, 2).item()
    check(abs(own - first[0]) < 1e-5, f"transformers: {own}, torchtitan: {first[0]}")
    run("import", at("exported"), at("start", "step-0"), "--map", TEXT, "-w", "2")
    check(losses(2, "start", seed=9)[0] == first[0], "another loss after export and import")


def inner_sizes(sizes):
    model, _ = titan_llama4.model(*sizes)
    blocks = model.layers.values()
    return (next((b.feed_forward.w1.weight.shape[0] for b in blocks if not b.moe_enabled), 1),
            next(b.moe.experts.w1.shape[1] for b in blocks if b.moe_enabled))


def other_models(tmp):
    """What torchtitan 0.2 calls otherwise than later versions, by its own adapters."""
    for check_model in (llama3, qwen3, deepseek, gpt_oss):
        check_model(tmp, titan_llama4, "torchtitan-0.2")


CHECKS = {"other_models": other_models, "text": text, "whole": whole, "chosen": chosen, "continues": continues}


if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, lambda: CHECKS))
