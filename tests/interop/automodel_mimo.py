# SPDX-License-Identifier: Apache-2.0
"""MiMo 2.5 of NeMo Automodel, whose published files have the rows of fused attention by parts, each with queries, keys and values.

Its from_hf puts them into the model's order where they are FP8, and its to_hf writes the model's order: what is published is from_hf backwards.
"""
import json
import os
import types

import torch

QKV = ".self_attn.qkv_proj.weight"
LAYER, SINKS = "model.layers.{i:int}.self_attn.qkv_proj.weight", "model.layers.{i}.self_attn.attention_sink_bias"
PARAMETERS = {
    "parts": '{ config = "num_key_value_heads" }', "hidden": '{ config = "hidden_size" }', "heads": '{ config = "num_attention_heads" }',
    "width": '{ config = "head_dim" }', "v_width": '{ config = "v_head_dim" }',
    "swa_heads": '{ config = "swa_num_attention_heads", value = "heads" }', "swa_kv": '{ config = "swa_num_key_value_heads", value = "parts" }',
    "swa_width": '{ config = "swa_head_dim", value = "width" }', "swa_v_width": '{ config = "swa_v_head_dim", value = "v_width" }'}
FULL = ["heads * width", "parts * width", "parts * v_width"]
SLIDING = ["swa_heads * swa_width", "swa_kv * swa_width", "swa_kv * swa_v_width"]


def turned(sizes, backwards, stored=()):
    parts, rows = '["parts", -1, "hidden"]', '[-1, "hidden"]'
    shares = json.dumps([size + " / parts" for size in sizes])
    together = f'{{ op = "split", sizes = {json.dumps(sizes)} }}', f'{{ op = "concatenate", sizes = {json.dumps(sizes)} }}'
    apart = f'{{ op = "concatenate", dim = 1, sizes = {shares} }}', f'{{ op = "split", dim = 1, sizes = {shares} }}'
    into, out = f'{{ op = "reshape", to = {parts}, from = {rows} }}', f'{{ op = "reshape", to = {rows}, from = {parts} }}'
    return ", ".join([*(stored or [into]), apart[1], out, together[1]] if backwards else [together[0], into, apart[0], out])


def rule(names, to, do, *more):
    return "\n".join(["[[rule]]", f"from = {json.dumps(names)}", f"to = {json.dumps(to)}", *more, f"do = [{do}]", "optional = true"])


def rules():
    """Layers with a window are those with sinks.  FP8 first: what has no scale is left to the rules behind."""
    scaled, reverse, beside = ["skip_lone = true", 'only = "reverse"'], 'only = "reverse"', f'beside = "{SINKS}"'
    stored = ['{ op = "reshape", of = [0], to = ["parts", -1, "hidden"] }', '{ op = "reshape", of = [1], to = ["parts", -1, "hidden / 128"] }', '"dequantize"']
    pair, own = [LAYER, LAYER.replace(":int", "") + "_scale_inv"], LAYER.replace(":int", "")
    expert = "model.layers.{i}.mlp.experts.{e}.%s_proj.weight"
    gate, up, down = (expert % name for name in ("gate", "up", "down"))
    over, experts = 'over = "e"', "model.layers.{i}.mlp.experts."
    return [
        rule(pair, own, turned(SLIDING, True, stored), *scaled, beside), rule(pair, own, turned(FULL, True, stored), *scaled),
        rule(LAYER, own, turned(SLIDING, False), 'only = "forward"', beside), rule(LAYER, own, turned(SLIDING, True), reverse, beside),
        rule(LAYER, own, turned(FULL, False)),
        rule([gate.replace("{i}", "{i:int}"), up, gate + "_scale_inv", up + "_scale_inv"], experts + "gate_and_up_projs",
             '"stack", "dequantize", { op = "concatenate", dim = 1 }, { op = "transpose", dims = [1, 2] }', over, 'only = "reverse"',
             f'beside = "{gate.replace("{e}", "0")}_scale_inv"'),
        rule([down.replace("{i}", "{i:int}"), down + "_scale_inv"], experts + "down_projs",
             '"stack", "dequantize", { op = "transpose", dims = [1, 2] }', over, *scaled),
        rule(["{m:**}.weight", "{m}.weight_scale_inv"], "{m}.weight", '"dequantize"', *scaled)]


def scale_shape(tensor, parts):
    return parts * -(tensor.shape[0] // parts // -128), -(tensor.shape[1] // -128)


def published(config, code):
    """Its own code, with what is published on the other side."""
    parts = config.num_key_value_heads

    def from_hf(state):
        ones = {name + "_scale_inv": torch.ones(scale_shape(t, parts)) for name, t in state.items() if name.endswith(QKV)}
        return code.from_hf(state | ones)

    def to_hf(state):
        state = code.to_hf(state)
        for name in [n for n in state if n.endswith(QKV)]:
            rows, columns = state[name].shape
            order = from_hf({name: torch.arange(float(rows))[:, None].expand(rows, columns)})[name][:, 0].long()
            state[name] = torch.empty_like(state[name]).index_copy_(0, order, state[name])
        return state
    return types.SimpleNamespace(to_hf=to_hf, from_hf=from_hf, adapter=code.adapter)


def stored(state, parts):
    """The same names in FP8, with random scales of blocks of 128 x 128, which begin anew with each part of fused attention."""
    out = dict(state)
    for name, tensor in state.items():
        if name.endswith("proj.weight") and ".o_proj." not in name:
            shape = scale_shape(tensor, parts if name.endswith(QKV) else 1)
            out |= {name: tensor.to(torch.float8_e4m3fn), name + "_scale_inv": torch.rand(shape, generator=torch.Generator().manual_seed(len(name))) + 0.1}
    return out


def from_float8(tmp, family, variant):
    """What is published in FP8 gives what the trainer reads of it."""
    from rekey_tool import load, run, same
    from safetensors.torch import save_file
    files = stored(family.states(variant, 3)[1], family.config(variant)["num_key_value_heads"])
    source, config, out = (os.path.join(tmp, name) for name in ("model.safetensors", "config.json", "own.pt"))
    save_file(files, source)
    with open(config, "w", encoding="utf-8") as file:
        json.dump(family.config(variant), file)
    run("map", family.name, source, out, "--reverse", "--config", config, "--force")
    adapter = family.adapter(variant).adapter
    adapter.dtype = torch.bfloat16
    same(load(out), adapter.from_hf(files), f"{family.name} of FP8")
