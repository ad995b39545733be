# SPDX-License-Identifier: Apache-2.0
"""OLMo-core's own conversion from and to Hugging Face, without the training that the package is for."""
import enum
import importlib
import importlib.util
import os
import re
import types

import learn_maps
from learn_maps import Sizes
from titan_adapters import _module, _package
from trainer_family import Family

PRODUCER, VERSION = "OLMo-core", "ai2-olmo-core 3.0"
BY_HAND, CHECKS = {}, {}
REASONS = {}


class StrEnum(str, enum.Enum):
    """As that of olmo_core.config."""

    def __str__(self):
        return self.value


def code():
    """The module of the conversion.  What it imports beside needs more packages, and is used as a name alone."""
    name = "olmo_core.nn.hf.convert"
    root = os.path.dirname(importlib.util.find_spec("olmo_core").origin)
    for package in ("olmo_core", "olmo_core.nn", "olmo_core.nn.hf"):
        _package(package, os.path.join(root, *package.split(".")[1:]))
    _module("olmo_core.config", StrEnum=StrEnum)
    return importlib.import_module(name)


CODE = code()


def found():
    """The model types for which the conversion has tables or functions of its own, and those of its common tables."""
    tables = [table for name, table in vars(CODE).items() if name.startswith("MODEL_TYPE_SPECIFIC_")]
    functions = {part[1] for part in (re.fullmatch(r"convert_(\w+)_state_(from|to)_hf", name) for name in vars(CODE)) if part}
    names = {key.removesuffix("_text") if key.startswith("qwen3_5") else key for table in tables for key in table}
    return names | {{"hybrid": "olmo_hybrid"}.get(name, name) for name in functions} | {"olmo2"}


def converter(v):
    config = types.SimpleNamespace(model_type=v["type"], num_hidden_layers=v["layers"], num_experts=v.get("experts"), tie_word_embeddings=False,
                                   **v.get("config", {}))
    return types.SimpleNamespace(from_hf=lambda state: CODE.convert_state_from_hf(config, state, model_type=v["type"]),
                                 to_hf=lambda state: CODE.convert_state_to_hf(config, state))


PRE, POST = ("input", "post_attention"), ("post_attention", "post_feedforward")


def shapes(v):
    d, inner, heads = v["dim"], v["inner"], v["dim"] // 2
    out = {"model.embed_tokens.weight": (31, d), "model.norm.weight": (d,), "lm_head.weight": (31, d)}
    norms = {"llama": PRE, "qwen3": PRE, "gemma3_text": PRE + ("pre_feedforward", "post_feedforward")}.get(v["type"], POST)
    for i in range(v["layers"]):
        at = f"model.layers.{i}."
        out |= {f"{at}{norm}_layernorm.weight": (d,) for norm in norms}
        out |= {at + "self_attn.q_proj.weight": (d, d), at + "self_attn.k_proj.weight": (heads, d), at + "self_attn.v_proj.weight": (heads, d),
                at + "self_attn.o_proj.weight": (d, d)}
        if v["type"] != "llama":
            out |= {at + "self_attn.q_norm.weight": (d,), at + "self_attn.k_norm.weight": (heads,)}
        if "experts" in v:
            out[at + "mlp.gate.weight"] = (v["experts"], d)
        for front in [f"mlp.experts.{e}." for e in range(v["experts"])] if "experts" in v else ["mlp."]:
            out |= {at + front + "gate_proj.weight": (inner, d), at + front + "up_proj.weight": (inner, d), at + front + "down_proj.weight": (d, inner)}
    return out


SMALL, LARGE = {"dim": 12, "inner": 10, "layers": 3}, {"dim": 16, "inner": 6, "layers": 12}


def family(name, what, kinds, **more):
    def make():
        def variants(sizes):
            return [sizes | {"type": kind} for kind in kinds]
        return Family(name, f"OLMo-core's {what}", list(kinds), converter, shapes, variants(SMALL), variants(LARGE), absent=("lm_head.weight",),
                      variant_of=dict(zip(kinds, variants(LARGE))), **more)
    return make


def flex_olmo():
    small, large = SMALL | {"type": "flex_olmo", "experts": 3}, LARGE | {"type": "flex_olmo", "experts": 12}
    return Family(
        "olmo-core-flex-olmo-hf", "OLMo-core's FlexOlmo to the files of transformers' FlexOlmoForCausalLM", ["flex_olmo"], converter, shapes,
        [small, small | {"experts": 2, "dim": 8}], [large],
        parameters={"experts": '{ config = "num_experts" }', "width": '{ config = "hidden_size" }'},
        numbers=lambda v: {"experts": v["experts"], "width": v["dim"]}, config=lambda v: {"num_experts": v["experts"], "hidden_size": v["dim"]},
        sizes=Sizes(reshapes=[(("experts", "width"), ("experts * width",)), (("experts", "width", -1), ("experts * width", -1)),
                              (("experts", -1, "width"), (-1, "width"))]),
        absent=("lm_head.weight",), covers=("flex_olmo",))


def moe_shapes(v):
    d, inner, config = v["dim"], v["inner"], v["config"]
    out = {"model.embed_tokens.weight": (31, d), "model.norm.weight": (d,), "lm_head.weight": (31, d)}
    out |= {"model.embed_norm.weight": (d,)} if config.get("embed_norm") else {}
    peri = ("pre_attention", "pre_feedforward") if config.get("use_peri_ln") else ()
    latent = config.get("latent_moe_dim")
    for i in range(v["layers"]):
        at = f"model.layers.{i}."
        out |= {f"{at}{norm}_layernorm.weight": (d,) for norm in POST + peri}
        if config["layer_types"][i] == "linear_attention":
            out |= {f"{at}self_attn.{part}_proj.weight": (6, d) for part in "qkv"}
            out |= {f"{at}self_attn.{part}_conv1d.weight": (6, 1, 4) for part in "qkv"}
            out |= {f"{at}self_attn.{part}_proj_{k}.weight": (6, d) for part in "fg" for k in (1, 2)}
            out |= {at + "self_attn.beta_proj.weight": (3, d), at + "self_attn.A_log": (3,), at + "self_attn.dt_bias": (6,), at + "self_attn.g_proj_2.bias": (6,),
                    at + "self_attn.o_norm.weight": (2,), at + "self_attn.o_proj.weight": (d, 6)}
        else:
            out |= {f"{at}self_attn.{part}_proj.weight": (d, d) for part in "qkvo"} | {f"{at}self_attn.{part}_norm.weight": (4,) for part in "qk"}
            out |= {at + "self_attn.g_proj.weight": (5, d)} if config.get("attention_gate_type") else {}
            out |= {at + "self_attn.ssmax_scale": (5,)} if config.get("scalable_softmax") else {}

        def mlp(front, width, d):
            return {at + front + "gate_proj.weight": (width, d), at + front + "up_proj.weight": (width, d), at + front + "down_proj.weight": (d, width)}
        if i in config["dense_layers_indices"]:
            out |= mlp("mlp.", 3 * inner, d)
            continue
        out[at + "mlp.router.gate.weight"] = (v["experts"], d)
        for e in range(v["experts"]):
            out |= mlp(f"mlp.experts.{e}.", inner, latent or d)
        if latent:
            out |= {f"{at}mlp.latent_{way}_proj.{part}": shape for way, rows, columns in (("down", latent, d), ("up", d, latent))
                    for part, shape in (("weight", (rows, columns)), ("bias", (rows,)))} | {at + "mlp.latent_up_proj_input_norm.weight": (latent,)}
        if config.get("shared_expert_intermediate_size"):
            out |= mlp("mlp.shared_expert.", config["shared_expert_intermediate_size"], d)
    return out


def moe(sizes, experts, dense=(0,), linear=(), **more):
    config = {"n_routed_experts": experts, "hidden_size": sizes["dim"], "moe_intermediate_size": sizes["inner"], "dense_layers_indices": list(dense),
              "layer_types": ["linear_attention" if i in linear else "full_attention" for i in range(sizes["layers"])], **more}
    return sizes | {"type": "olmo3moe", "experts": experts, "config": config}


def olmo3_moe():
    every = {"shared_expert_intermediate_size": 14, "latent_moe_dim": 8, "latent_moe_bias": True, "latent_moe_up_proj_input_norm": True, "embed_norm": True,
             "use_peri_ln": True, "attention_gate_type": "head", "scalable_softmax": True}
    small = SMALL | {"layers": 5}
    return Family(
        "olmo-core-olmo3-moe-hf", "OLMo-core's mixture of experts to the files of its own Olmo3MoeForCausalLM", ["olmo3moe"], converter, moe_shapes,
        [moe(small, 3, (0, 2), (1, 3), **every), moe(small | {"dim": 10}, 2, ())],
        [moe(LARGE, 12, (0, 11), (2, 5), **every), moe(LARGE, 3, (), shared_expert_intermediate_size=8)],
        parameters={"experts": '{ config = "n_routed_experts" }', "width": '{ config = "hidden_size" }'},
        numbers=lambda v: {"experts": v["experts"], "width": v["dim"]}, config=lambda v: v["config"],
        sizes=Sizes(reshapes=[(("experts", "width"), ("experts * width",)), (("width", -1), (1, "width", -1))]),
        absent=("lm_head.weight",), covers=("olmo3moe",))


LINEAR, FULL = "linear_attention", "full_attention"


def linear_config(kinds, heads, size):
    return {"layer_types": kinds, "linear_num_key_heads": heads, "linear_key_head_dim": size, "linear_num_value_heads": heads, "linear_value_head_dim": 2 * size,
            "num_attention_heads": heads + 1, "head_dim": size + 2}


def mlp_shapes(at, names, d, inner):
    return {f"{at}{name}.weight": (d, inner) if name in ("w2", "down_proj") else (inner, d) for name in names}


def qwen3_5_shapes(v):
    """The files' names: OLMo-core only reads them."""
    d, config = v["dim"], v["config"]
    heads, size = config["num_attention_heads"], config["head_dim"]
    keys, values = (config[f"linear_num_{part}_heads"] * config[f"linear_{part}_head_dim"] for part in ("key", "value"))
    out = {"model.embed_tokens.weight": (31, d), "model.norm.weight": (d,), "lm_head.weight": (31, d)}
    for i, kind in enumerate(config["layer_types"]):
        at = f"model.layers.{i}."
        out |= {f"{at}{norm}_layernorm.weight": (d,) for norm in PRE} | mlp_shapes(at + "mlp.", ("gate_proj", "up_proj", "down_proj"), d, v["inner"])
        if kind == FULL:
            out |= {at + "self_attn.q_proj.weight": (2 * heads * size, d), at + "self_attn.k_proj.weight": (size, d), at + "self_attn.v_proj.weight": (size, d),
                    at + "self_attn.o_proj.weight": (d, heads * size), at + "self_attn.q_norm.weight": (size,), at + "self_attn.k_norm.weight": (size,)}
        else:
            at += "linear_attn."
            out |= {at + "in_proj_qkv.weight": (2 * keys + values, d), at + "conv1d.weight": (2 * keys + values, 1, 4), at + "in_proj_z.weight": (values, d),
                    at + "in_proj_a.weight": (4, d), at + "in_proj_b.weight": (4, d), at + "A_log": (4,), at + "dt_bias": (4,), at + "norm.weight": (5,),
                    at + "out_proj.weight": (d, values)}
    return out


def qwen3_5_converter(v):
    from_hf = converter(v).from_hf
    return types.SimpleNamespace(from_hf=from_hf, to_hf=learn_maps.undone(from_hf, qwen3_5_shapes(v)))


def qwen3_5():
    variants = [sizes | {"type": "qwen3_5_text", "config": linear_config(kinds, heads, size)} for sizes, kinds, heads, size in (
        (SMALL, [LINEAR, FULL, LINEAR], 2, 4), (LARGE, [LINEAR, LINEAR, LINEAR, FULL] * 3, 3, 6))]
    return Family("olmo-core-qwen3-5-hf", "", ["qwen3_5_text"], qwen3_5_converter, qwen3_5_shapes, [], variants, config=lambda v: v["config"], adds=True,
                  handwritten=True, covers=("qwen3_5",))


def hybrid_shapes(v):
    """OLMo-core's names: it only writes the files."""
    d = v["dim"]
    out = {"embeddings.weight": (31, d), "lm_head.norm.weight": (d,), "lm_head.w_out.weight": (31, d)}
    for i, kind in enumerate(v["kinds"]):
        at = f"blocks.{i}."
        out |= {at + "attention_norm.weight": (d,), at + "feed_forward_norm.weight": (d,)} | mlp_shapes(at + "feed_forward.", ("w1", "w2", "w3"), d, v["inner"])
        at += "attention."
        out |= {f"{at}w_{part}.weight": (d, d) for part in ("q", "k", "v", "out")}
        if kind == FULL:
            out |= {f"{at}{part}_norm.weight": (d,) for part in "qk"}
        else:
            out |= {f"{at}w_{part}.weight": (3, d) for part in "abg"} | {f"{at}{part}_conv1d.weight": (6, 1, 4) for part in "qkv"}
            out |= {at + "o_norm.weight": (4,), at + "A_log": (3,), at + "dt_bias": (3,)}
    return out


def hybrid_converter(v):
    def to_hf(state):
        return CODE.convert_hybrid_state_to_hf(state, v["kinds"])
    return types.SimpleNamespace(to_hf=to_hf, from_hf=learn_maps.undone(to_hf, hybrid_shapes(v)))


def hybrid():
    variants = [SMALL | {"kinds": [LINEAR, FULL, LINEAR]}, LARGE | {"kinds": [LINEAR, LINEAR, LINEAR, FULL] * 3}]
    return Family("olmo-core-olmo-hybrid-hf", "", ["olmo_hybrid"], hybrid_converter, None, [], variants, own_shapes=hybrid_shapes, handwritten=True,
                  covers=("olmo_hybrid",))


FAMILIES = [
    family("olmo-core-olmo-hf", "OLMo 2 and 3 to transformers' Olmo2ForCausalLM and Olmo3ForCausalLM", ("olmo2", "olmo3"), covers=("olmo2",)),
    family("olmo-core-llama-hf", "Llama and Qwen 3 to transformers' LlamaForCausalLM and Qwen3ForCausalLM", ("llama", "qwen3"), covers=("llama", "qwen3")),
    family("olmo-core-gemma3-hf", "Gemma 3 to transformers' Gemma3ForCausalLM", ("gemma3_text",), adds=True, covers=("gemma3_text",)),
    flex_olmo, olmo3_moe, qwen3_5, hybrid,
]
