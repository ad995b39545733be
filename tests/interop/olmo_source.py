# SPDX-License-Identifier: Apache-2.0
"""OLMo-core's own conversion from and to Hugging Face, without the training that the package is for."""
import enum
import importlib
import importlib.util
import os
import re
import types

from learn_maps import Sizes
from titan_adapters import _module, _package
from trainer_family import Family

PRODUCER, VERSION = "OLMo-core", "ai2-olmo-core 3.0"
BY_HAND, CHECKS = {}, {}
REASONS = {
    "gemma3_text": "its conversion adds 1 to norms, which rounds: the way back gives other bits",
    "olmo3moe": "no class of transformers has this model_type",
    "olmo_hybrid": "OLMo-core only exports it",
    "qwen3_5": "OLMo-core only imports it",
}


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
    config = types.SimpleNamespace(model_type=v["type"], num_hidden_layers=v["layers"], num_experts=v.get("experts"), tie_word_embeddings=False)
    return types.SimpleNamespace(from_hf=lambda state: CODE.convert_state_from_hf(config, state, model_type=v["type"]),
                                 to_hf=lambda state: CODE.convert_state_to_hf(config, state))


def shapes(v):
    d, inner, heads = v["dim"], v["inner"], v["dim"] // 2
    out = {"model.embed_tokens.weight": (31, d), "model.norm.weight": (d,), "lm_head.weight": (31, d)}
    norms = ("input", "post_attention") if v["type"] in ("llama", "qwen3") else ("post_attention", "post_feedforward")
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


FAMILIES = [
    family("olmo-core-olmo-hf", "OLMo 2 and 3 to transformers' Olmo2ForCausalLM and Olmo3ForCausalLM", ("olmo2", "olmo3"), covers=("olmo2",)),
    family("olmo-core-llama-hf", "Llama and Qwen 3 to transformers' LlamaForCausalLM and Qwen3ForCausalLM", ("llama", "qwen3"), covers=("llama", "qwen3")),
    flex_olmo,
]
