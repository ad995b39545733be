# SPDX-License-Identifier: Apache-2.0
"""The adapters of torchtitan that check_maps.py does not compare, and which others there are."""
import glob
import importlib.util
import os
import types

import torch

import titan_adapters
from learn_maps import Sizes
from rekey_tool import load, run, same
from trainer_family import Family, from_shapes

PRODUCER, VERSION = "torchtitan", "torchtitan 0.3"
BACKEND_RULES = '[rename]\n"model.{rest:**}" = "{rest}"\n'
BY_HAND = {"experiments/transformers_modeling_backend": "rules of one line: " + BACKEND_RULES.split("\n")[1],
           "llama3": "torchtitan-llama3-hf", "qwen3": "torchtitan-qwen3-hf", "deepseek_v3": "torchtitan-deepseek-v3-hf",
           "gpt_oss": "torchtitan-gpt-oss-hf"}
REASONS = {
    "qwen3_5 with experts": "its adapter makes [experts, inputs, outputs] of them, which transformers does not load: there it is [experts, outputs, inputs]",
}


def found():
    """Every folder of the package that has an adapter."""
    root = os.path.dirname(importlib.util.find_spec("torchtitan").origin)
    files = glob.glob(os.path.join(root, "**", "*state_dict_adapter*.py"), recursive=True)
    names = {os.path.relpath(os.path.dirname(f), root) for f in files}
    return {n.removeprefix("models/").removesuffix("/model") for n in names if n != "protocols"}


def qwen3_5_shapes(v):
    d, head, kd, vd, kv = v["dim"], v["head"], v["kd"], v["vd"], v["kv"]
    out = {"model.language_model.embed_tokens.weight": (31, d), "model.language_model.norm.weight": (d,), "lm_head.weight": (31, d)}
    for i in range(v["layers"]):
        at = f"model.language_model.layers.{i}."
        out |= {at + "input_layernorm.weight": (d,), at + "post_attention_layernorm.weight": (d,), at + "mlp.gate_proj.weight": (18, d),
                at + "mlp.up_proj.weight": (18, d), at + "mlp.down_proj.weight": (d, 18)}
        if i % 2:
            out |= {at + "self_attn.q_proj.weight": (8 * head, d), at + "self_attn.k_proj.weight": (kv * head, d),
                    at + "self_attn.v_proj.weight": (kv * head, d), at + "self_attn.o_proj.weight": (d, 4 * head),
                    at + "self_attn.q_norm.weight": (head,), at + "self_attn.k_norm.weight": (head,)}
        else:
            out |= {at + "linear_attn.in_proj_qkv.weight": (2 * kd + vd, d), at + "linear_attn.conv1d.weight": (2 * kd + vd, 1, 4),
                    at + "linear_attn.in_proj_z.weight": (vd, d), at + "linear_attn.in_proj_a.weight": (4, d), at + "linear_attn.in_proj_b.weight": (4, d),
                    at + "linear_attn.A_log": (4,), at + "linear_attn.dt_bias": (4,), at + "linear_attn.norm.weight": (vd // 4,),
                    at + "linear_attn.out_proj.weight": (d, vd)}
    if v.get("vision"):
        w, patch = v["vision"], v["patch"]
        out |= {"model.visual.patch_embed.proj.weight": (w, 3, 2, patch, patch), "model.visual.patch_embed.proj.bias": (w,), "model.visual.pos_embed.weight": (9, w)}
        for i in range(v["blocks"]):
            at = f"model.visual.blocks.{i}."
            for part, shape in (("norm1", (w,)), ("norm2", (w,)), ("attn.qkv", (3 * w, w)), ("attn.proj", (w, w)), ("mlp.linear_fc1", (13, w)), ("mlp.linear_fc2", (w, 13))):
                out |= {f"{at}{part}.weight": shape, f"{at}{part}.bias": shape[:1]}
        for part, shape in (("norm", (w,)), ("linear_fc1", (4 * w, 4 * w)), ("linear_fc2", (d, 4 * w))):
            out |= {f"model.visual.merger.{part}.weight": shape, f"model.visual.merger.{part}.bias": shape[:1]}
    return out


def qwen3_5_adapter(v):
    linear = types.SimpleNamespace(in_proj_q=types.SimpleNamespace(out_features=v["kd"]), in_proj_v=types.SimpleNamespace(out_features=v["vd"]))
    config = titan_adapters.config([0] * v["layers"], v["dim"])
    for layer in config.layers:
        layer.delta_net = linear
    config.vision_encoder = types.SimpleNamespace(in_channels=3, temporal_patch_size=2, patch_size=v.get("patch"))
    return titan_adapters.adapter("qwen3_5", "Qwen35StateDictAdapter")(config, None)


def qwen3_5():
    small = {"dim": 12, "head": 6, "kd": 8, "vd": 20, "kv": 2, "layers": 6}
    return Family(
        "torchtitan-qwen3-5-hf", "torchtitan's Qwen 3.5 without experts to transformers' Qwen3_5ForConditionalGeneration", ["qwen3_5"],
        qwen3_5_adapter, qwen3_5_shapes, [small, small | {"vision": 10, "patch": 4, "blocks": 3}],
        [small | {"dim": 20, "layers": 12, "kd": 6}, {"dim": 16, "head": 4, "kd": 12, "vd": 8, "kv": 1, "layers": 2, "vision": 6, "patch": 2, "blocks": 11}],
        parameters={
            "keys": '{ config = "text_config.linear_num_key_heads" }', "key_width": '{ config = "text_config.linear_key_head_dim" }',
            "values": '{ config = "text_config.linear_num_value_heads" }', "value_width": '{ config = "text_config.linear_value_head_dim" }',
            "channels": '{ config = "vision_config.in_channels", value = 3 }', "frames": '{ config = "vision_config.temporal_patch_size", value = 2 }',
            "patch": '{ config = "vision_config.patch_size" }'},
        numbers=lambda v: {"keys": 2, "key_width": v["kd"] // 2, "values": 4, "value_width": v["vd"] // 4, "channels": 3, "frames": 2, "patch": v.get("patch", 1)},
        config=lambda v: {"model_type": "qwen3_5", "text_config": {"linear_num_key_heads": 2, "linear_key_head_dim": v["kd"] // 2, "linear_num_value_heads": 4,
                                                                  "linear_value_head_dim": v["vd"] // 4},
                          "vision_config": {"in_channels": 3, "temporal_patch_size": 2, "patch_size": v.get("patch", 1)}},
        sizes=Sizes(splits=[["keys * key_width", "keys * key_width", "values * value_width"]],
                    reshapes=[((-1, "channels", "frames", "patch", "patch"), (-1, "channels * frames * patch * patch"))]),
        drops=["model.language_model.layers.{i:int}.self_attn.rotary_emb.inv_freq"], absent=("lm_head.weight",), covers=("qwen3_5",))


def muse_shapes(v):
    d, head, kv, w = v["dim"], v["head"], v["kv"], v["vision"]
    out = {"model.language_model.embed_tokens.weight": (31, d), "model.language_model.norm.weight": (d,), "lm_head.weight": (31, d)}
    for i in range(v["layers"]):
        at = f"model.language_model.layers.{i}."
        out |= {at + f"{n}_layernorm.weight": (d,) for n in ("input", "post_attention", "pre_feedforward", "post_feedforward")}
        out |= {at + "mlp.gate_proj.weight": (18, d), at + "mlp.up_proj.weight": (18, d), at + "mlp.down_proj.weight": (d, 18),
                at + "self_attn.q_proj.weight": (4 * head, d), at + "self_attn.k_proj.weight": (kv * head, d), at + "self_attn.v_proj.weight": (kv * head, d),
                at + "self_attn.o_proj.weight": (d, 4 * head), at + "self_attn.gate_proj.weight": (4 * head, d)}
    if not w:
        return out
    at = "model.vision_tower."
    out |= {at + "patch_embedder.patch_embedding.weight": (w, 24), at + "patch_embedder.position_embedding_table.weight": (9, w),
            "model.vision_adapter.fc1.weight": (22, w), "model.vision_adapter.fc2.weight": (22, 22), "model.vision_projection.weight": (d, 22)}
    for part in ("ln_pre", "ln_post"):
        out |= {f"{at}{part}.weight": (w,), f"{at}{part}.bias": (w,)}
    for i in range(v["blocks"]):
        for part, shape in (("norm1", (w,)), ("norm2", (w,)), ("attn.q_proj", (w, w)), ("attn.k_proj", (w, w)), ("attn.v_proj", (w, w)), ("attn.proj", (w, w)),
                            ("mlp.fc1", (13, w)), ("mlp.fc2", (w, 13))):
            out |= {f"{at}layers.{i}.{part}.weight": shape, f"{at}layers.{i}.{part}.bias": shape[:1]}
    return out


def muse_adapter(v):
    config = titan_adapters.config([0] * v["layers"], v["dim"], n_heads=4, n_kv_heads=v["kv"], head_dim=v["head"])
    config.vision_encoder = types.SimpleNamespace(num_heads=v["vision_heads"]) if v["vision"] else None
    return titan_adapters.adapter("muse_glimmer", "MuseGlimmerStateDictAdapter")(config, None)


def muse_glimmer():
    small = {"dim": 10, "head": 6, "kv": 2, "layers": 3, "vision": 0, "vision_heads": 3}
    seen = small | {"vision": 12, "blocks": 3}
    return Family(
        "torchtitan-muse-glimmer-hf", "torchtitan's Muse Glimmer to transformers' MuseGlimmerForConditionalGeneration", ["muse_glimmer"],
        muse_adapter, muse_shapes, [small, seen],
        [small | {"layers": 12, "kv": 1}, {"dim": 14, "head": 4, "kv": 4, "layers": 2, "vision": 16, "vision_heads": 2, "blocks": 11}],
        parameters={"n_heads": '{ config = "text_config.num_attention_heads" }', "n_kv_heads": '{ config = "text_config.num_key_value_heads", value = "n_heads" }',
                    "vision_heads": '{ config = "vision_config.num_attention_heads" }'},
        numbers=lambda v: {"n_heads": 4, "n_kv_heads": v["kv"], "vision_heads": v["vision_heads"]},
        config=lambda v: {"model_type": "muse_glimmer", "text_config": {"num_attention_heads": 4, "num_key_value_heads": v["kv"]},
                          "vision_config": {"num_attention_heads": v["vision_heads"]}},
        sizes=Sizes(heads=("n_heads", "n_kv_heads", "vision_heads")), covers=("muse_glimmer",))


def kimi_shapes(v):
    d = v["dim"]
    at = "language_model.model." if v["vision"] else "model."
    out = {at + "embed_tokens.weight": (31, d), at + "norm.weight": (d,), at.removesuffix("model.") + "lm_head.weight": (31, d)}
    for i in range(v["layers"]):
        here = f"{at}layers.{i}."
        out |= {here + "input_layernorm.weight": (d,), here + "post_attention_layernorm.weight": (d,), here + "self_attn.kv_a_proj_with_mqa.weight": (11, d),
                here + "self_attn.kv_a_layernorm.weight": (7,), here + "self_attn.kv_b_proj.weight": (24, 7), here + "self_attn.o_proj.weight": (d, 12),
                here + "self_attn.q_a_proj.weight": (5, d), here + "self_attn.q_a_layernorm.weight": (5,), here + "self_attn.q_b_proj.weight": (20, 5)}
        experts = v["experts"] if i > 1 else 0
        for part, name in [(18, "mlp.")] if not experts else [(8, "mlp.shared_experts.")] + [(6, f"mlp.experts.{e}.") for e in range(experts)]:
            out |= {f"{here}{name}gate_proj.weight": (part, d), f"{here}{name}up_proj.weight": (part, d), f"{here}{name}down_proj.weight": (d, part)}
        if experts:
            out |= {here + "mlp.gate.weight": (experts, d), here + "mlp.gate.e_score_correction_bias": (experts,)}
    w, patch = v["vision"], v["patch"]
    if not w:
        return out
    tower = "vision_tower."
    out |= {tower + "patch_embed.proj.weight": (w, 3, patch, patch), tower + "patch_embed.proj.bias": (w,), tower + "patch_embed.pos_emb.weight": (5, 6, w),
            tower + "encoder.final_layernorm.weight": (w,), tower + "encoder.final_layernorm.bias": (w,)}
    for i in range(v["blocks"]):
        for part, shape in (("norm0", (w,)), ("norm1", (w,)), ("wqkv", (3 * w, w)), ("wo", (w, w)), ("mlp.fc0", (13, w)), ("mlp.fc1", (w, 13))):
            out |= {f"{tower}encoder.blocks.{i}.{part}.weight": shape, f"{tower}encoder.blocks.{i}.{part}.bias": shape[:1]}
    for part, shape in (("pre_norm", (w,)), ("proj.0", (4 * w, 4 * w)), ("proj.2", (d, 4 * w))):
        out |= {f"mm_projector.{part}.weight": shape, f"mm_projector.{part}.bias": shape[:1]}
    return out


def kimi_adapter(v):
    config = titan_adapters.config([0, 0] + [v["experts"]] * (v["layers"] - 2), v["dim"], q_lora_rank=5)
    config.vision_encoder = types.SimpleNamespace(patch_size=v["patch"], in_channels=3) if v["vision"] else None
    titan_adapters.adapter("deepseek_v3", "DeepSeekV3StateDictAdapter")
    return titan_adapters.adapter("kimi_k2_7", "KimiK25StateDictAdapter")(config, None)


def kimi():
    small = {"dim": 10, "layers": 4, "experts": 3, "vision": 8, "patch": 4, "blocks": 3}
    return Family(
        "torchtitan-kimi-k2-5-hf", "torchtitan's Kimi K2.5 with images to the published files", ["kimi_k25"],
        kimi_adapter, kimi_shapes, [small, small | {"experts": 4}], [small | {"layers": 12, "experts": 2}, small | {"experts": 12, "blocks": 11, "patch": 2}],
        parameters={"patch": '{ config = "vision_config.patch_size" }', "channels": '{ config = "vision_config.in_channels", value = 3 }'},
        numbers=lambda v: {"patch": v["patch"], "channels": 3},
        config=lambda v: {"model_type": "kimi_k25", "vision_config": {"patch_size": v["patch"]}},
        sizes=Sizes(reshapes=[((-1, "channels", "patch", "patch"), (-1, "channels * patch * patch"))]),
        drops=["{at:**}.rotary_emb.inv_freq"], covers=("kimi_k2_7",))


def flux_shapes(v):
    d, mlp = v["dim"], 4 * v["dim"]
    out = {}

    def linear(name, rows, columns):
        out.update({f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)})
    linear("x_embedder", d, 6), linear("context_embedder", d, 7), linear("norm_out.linear", 2 * d, d), linear("proj_out", 6, d)
    for part, width in (("text_embedder", 9), ("timestep_embedder", 11)):
        linear(f"time_text_embed.{part}.linear_1", d, width), linear(f"time_text_embed.{part}.linear_2", d, d)
    for i in range(v["single"]):
        at = f"single_transformer_blocks.{i}."
        out.update({at + "attn.norm_k.weight": (3,), at + "attn.norm_q.weight": (3,)})
        linear(at + "norm.linear", 3 * d, d), linear(at + "proj_out", d, d + mlp), linear(at + "proj_mlp", mlp, d)
        for part in "qkv":
            linear(f"{at}attn.to_{part}", d, d)
    for i in range(v["double"]):
        at = f"transformer_blocks.{i}."
        out.update({f"{at}attn.{n}.weight": (3,) for n in ("norm_added_k", "norm_added_q", "norm_k", "norm_q")})
        for part in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"):
            linear(f"{at}attn.{part}", d, d)
        for part in ("ff", "ff_context"):
            linear(f"{at}{part}.net.0.proj", mlp, d), linear(f"{at}{part}.net.2", d, mlp)
        linear(at + "norm1.linear", 6 * d, d), linear(at + "norm1_context.linear", 6 * d, d)
    return out


def flux_adapter(v):
    return titan_adapters.adapter("flux.model", "FluxStateDictAdapter")(types.SimpleNamespace(hidden_size=v["dim"], mlp_ratio=4.0), None)


def flux():
    return Family(
        "torchtitan-flux-diffusers", "torchtitan's FLUX.1 to the transformer of diffusers' FluxPipeline", [], flux_adapter, flux_shapes,
        [{"dim": 6, "single": 3, "double": 2}, {"dim": 8, "single": 2, "double": 3}], [{"dim": 10, "single": 12, "double": 3}, {"dim": 4, "single": 2, "double": 11}],
        parameters={"width": '{ shape_of = "{at:img_in|x_embedder}.bias" }'}, numbers=lambda v: {"width": v["dim"]},
        sizes=Sizes(splits=[["width", "width", "width", "4 * width"]], swaps=True), covers=("flux",))


def transformers_backend(tmp):
    """transformers' own models inside torchtitan's: a prefix more."""
    hf = from_shapes(muse_shapes({"dim": 10, "head": 6, "kv": 2, "layers": 3, "vision": 0}), 4)
    cls = titan_adapters.backend_adapter()
    own = cls(types.SimpleNamespace(tie_word_embeddings=False), None).from_hf(dict(hf))
    path, out, rules = (os.path.join(tmp, name) for name in ("own.pt", "hf.pt", "rules.toml"))
    torch.save({"model": own}, path)
    with open(rules, "w", encoding="ascii") as file:
        file.write(BACKEND_RULES)
    run("map", rules, path, out)
    same(load(out), {"model": hf}, "without the prefix")
    run("map", rules, out, path, "--reverse", "--force")
    same(load(path), {"model": own}, "with it again")


CHECKS = {"transformers_modeling_backend": transformers_backend}
FAMILIES = [qwen3_5, muse_glimmer, kimi, flux]
