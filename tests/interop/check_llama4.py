#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built-in maps of Llama 4 against torchtitan 0.2, the last one that has it.

  python check_llama4.py --tool PATH

torchtitan's own adapter converts what it knows: models whose every layer has experts.  For the others, torchtitan's model and its image
in transformers compute the same.
"""
import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
import transformers
from safetensors.torch import load_file

import rekey_tool
import titan_llama4
from check_maps import both_ways, mapped, write_config
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
        heads, kv, head, layers, step, experts = sizes
        titan = dict(model.state_dict())
        hf = expected(adapter, titan, step)
        block = next(b for b in model.layers.values() if b.moe_enabled)
        inner = block.moe.experts.w1.shape[1]
        dense = next((b.feed_forward.w1.weight.shape[0] for b in model.layers.values() if not b.moe_enabled), 1)
        theirs = transformers_of(sizes, heads * head, dense, inner)
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
    theirs = transformers_of(SHAPES[0], 24, 1, model.layers["0"].moe.experts.w1.shape[1])
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


CHECKS = {"text": text, "whole": whole, "chosen": chosen}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS])
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    return 1 if rekey_tool.run_checks(args.tool, CHECKS, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
