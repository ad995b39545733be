# SPDX-License-Identifier: Apache-2.0
"""Rules of a map out of the mappings of a bridge: one for each that a sample uses."""
import re


class NoRule(Exception):
    """Why a mapping has no rule."""


# The parts of one tensor that a folder of torch_dist keeps apart (sharded_state_dict of megatron/core/ssm), and their sizes.
SPLIT = {
    "mixer.in_proj.weight": (".z .x .B .C .dt", ["m_inner", "m_inner", "m_state", "m_state", "m_heads"]),
    "mixer.conv1d_weight": (".x .B .C", ["m_inner", "m_state", "m_state"]),
    "mixer.conv1d_bias": (".x .B .C", ["m_inner", "m_state", "m_state"]),
    "self_attention.in_proj.weight": (".query .key .value .z .beta .alpha", ["g_key", "g_key", "g_value", "g_value", "g_v_heads", "g_v_heads"]),
    "self_attention.conv1d.weight": (".query .key .value", ["g_key", "g_key", "g_value"]),
}

# Parameters of rules: their names in config.json, and the value without them.
PARAMETERS = {
    "n_heads": ("num_attention_heads", None),
    "n_kv_heads": ("num_key_value_heads", "n_heads"),
    "hidden": ("hidden_size", None),
    "head_dim": ("head_dim", "hidden / n_heads"),
    "v_head_dim": ("v_head_dim", None),
    "inner": ("intermediate_size", None),
    "m_heads": ("mamba_num_heads", None),
    "m_head_dim": ("mamba_head_dim", None),
    "m_inner": (None, "m_heads * m_head_dim"),
    "m_groups": ("n_groups", None),
    "m_state_size": ("ssm_state_size", None),
    "m_state": (None, "m_groups * m_state_size"),
    "g_k_heads": ("linear_num_key_heads", None),
    "g_v_heads": ("linear_num_value_heads", None),
    "g_k_dim": ("linear_key_head_dim", None),
    "g_v_dim": ("linear_value_head_dim", None),
    "g_key": (None, "g_k_heads * g_k_dim"),
    "g_value": (None, "g_v_heads * g_v_dim"),
    "v_heads": ("vision_config.num_heads", None),
    "v_kv_heads": ("vision_config.num_key_value_heads", "v_heads"),
    "v_hidden": ("vision_config.hidden_size", None),
    "n_experts": ("moe_num_experts", None),
}


def folder_names(name):
    """The names of a parameter in a folder of torch_dist, layers and experts taken apart."""
    name = re.sub(r"^((?:.*\.)?mtp\.layers\.(?:\*|\d+)\.)mtp_model_layer\.", r"\1transformer_layer.", name)
    for end, (parts, _) in SPLIT.items():
        if name.endswith(end):
            return [name.replace("conv1d_", "conv1d.") + part for part in parts.split()]
    return [name]


def split_sizes(name):
    return next(sizes for end, (_, sizes) in SPLIT.items() if name.endswith(end))


def captures(name, stars, bare=False):
    """A name with captures for its stars.  `stars`: the names of the captures, of those in Megatron's name.  `bare`: without what they stand for,
    which is the same on both sides."""
    parts = re.split(r"(\*\*|\*)", name)
    out, used = "", iter(stars)
    for part in parts:
        out += "{%s%s}" % (next(used), "" if bare else {"*": ":int", "**": ":**"}[part]) if part.startswith("*") else part
    return out


def star_names(name):
    count = len(re.findall(r"\*\*|\*", name))
    return [*"ijk"[:count - 1], "e"] if re.search(r"(weight|bias)\*$", name) else [*"ijk"[:count]]


def reshape(to, back):
    return {"op": "reshape", "to": to, "from": back}


def heads(name, grouped):
    """`grouped`: those of the tower have fewer keys than queries."""
    in_tower = re.match(r"(vision_model|visual|.*\.vision_model)\.", name)
    return ("v_heads", "v_kv_heads" if grouped else "v_heads") if in_tower else ("n_heads", "n_kv_heads")


def interleaved_gate(do, weight):
    """GPT-OSS has gate and up in turns, and matrices as [in, out]."""
    if weight:
        return [*do, reshape([-1, 2, "inner", "hidden"], [-1, "2 * inner", "hidden"]), {"op": "permute", "order": [0, 3, 2, 1]},
                reshape([-1, "hidden", "2 * inner"], [-1, "hidden", "inner", 2])]
    return [*do, reshape([-1, 2, "inner"], [-1, "2 * inner"]), {"op": "permute", "order": [0, 2, 1]},
            reshape([-1, "2 * inner"], [-1, "inner", 2])]


def operations(mapping, task, sample):
    """The operations from Megatron's side to Hugging Face's."""
    kind, name = type(mapping).__name__, mapping.megatron_param
    gated = getattr(sample.model.config, "attention_output_gate", False)   # queries have a gate beside them
    n, kv = heads(name, getattr(getattr(sample.config, "vision_config", None), "num_key_value_heads", None))
    qkv = [{"op": "split_qkv", "heads": n, "kv_heads": kv}]
    if kind in ("AutoMapping", "ColumnParallelMapping", "RowParallelMapping", "ReplicatedMapping", "DirectMapping", "_PPSafeAutoMapping",
                "_PPSafeReplicatedMapping", "_FullDimQKNormMapping", "_OffsetRowParallelMapping"):
        order = getattr(mapping, "permute_dims", None)
        if len(folder_names(name)) > 1:
            raise NoRule(f"{kind} of a tensor that folders keep in parts")
        if name.endswith("eh_proj.weight") and "input_proj" in mapping.hf_param:   # MiMo has the hidden state before the embedding
            return [{"op": "swap", "dim": 1}]
        return [{"op": "permute", "order": list(order)}] if order else []
    if kind in ("QKVMapping", "_Gemma4QKVMapping"):
        if gated and n == "n_heads":
            if task.param_weight.ndim == 1:
                raise NoRule("gated queries with biases")
            return [{"op": "split_qkv", "heads": "2 * n_heads", "kv_heads": kv},
                    {**reshape([kv, 2, f"n_heads / {kv}", "head_dim", -1], ["2 * n_heads * head_dim", -1]), "of": [0]},
                    {"op": "permute", "order": [0, 2, 1, 3, 4], "of": [0]},
                    {**reshape(["2 * n_heads * head_dim", -1], [kv, f"n_heads / {kv}", 2, "head_dim", -1]), "of": [0]}]
        return qkv
    if kind == "MiMoV2FlashQKVMapping":   # layers differ in the heads of keys, and values have heads of another size
        return [{"op": "split_qkv", "heads": n, "kv_heads": -1, "head_dim": "head_dim", "value_dim": "v_head_dim"}]
    if kind == "QKVGMapping":   # layers differ in the heads of queries
        if not task.megatron_module.config.attention_output_gate:
            raise NoRule("a gate of each head after queries, keys and values")
        return [{"op": "split_qkv", "heads": -1, "kv_heads": kv, "head_dim": "head_dim", "gated": True}, {"op": "every", "count": "head_dim", "of": [1]}]
    if kind == "StackedExpertAutoMapping":
        return ["stack"]
    if kind == "StackedExpertGatedMLPMapping":
        return ["stack", {"op": "split", "dim": 1}]
    if kind == "ConcatenatedQKVMapping":
        keys = "v_hidden / v_heads * v_kv_heads" if kv == "v_kv_heads" else f"{kv} * head_dim"
        sizes = ["v_hidden"] * 3 if n == kv else ["v_hidden" if n == "v_heads" else f"{n} * head_dim", keys, keys]
        return [*qkv, {"op": "concatenate", "sizes": sizes}]
    if kind in ("GatedMLPMapping", "_PPSafeGatedMLPMapping", "_OffsetGatedMLPMapping"):
        return ["split"]
    if kind in ("MambaInProjMapping", "MambaConv1dMapping", "GDNConv1dMapping"):
        return [{"op": "concatenate", "sizes": split_sizes(name)}]
    if kind == "GDNLinearMappingSeparate":
        return None   # several rules, see rules_of
    if kind == "GDNLinearMapping":
        return None
    if kind == "RMSNorm2ZeroCenteredRMSNormMapping":
        return [{"op": "add", "value": 1}]
    if kind == "_SqueezeBiasMapping":
        return [reshape([1, -1], [-1])]
    if kind in ("FusedExpertMapping", "FusedGatedExpertMapping"):
        turned = task.param_weight.shape != sample.files[task.mapping.hf_param].shape[1:]
        return ["stack", {"op": "transpose", "dims": [1, 2]}] if turned else ["stack"]
    if kind == "GPTOSSMLPDownProjMapping":
        return ["stack"] if task.param_weight.ndim == 1 else ["stack", {"op": "transpose", "dims": [1, 2]}]
    if kind == "GPTOSSMLPGateUpProjMapping":
        return interleaved_gate(["stack"], task.param_weight.ndim == 2)
    raise NoRule(f"no rule says what {kind} does")


def gdn_rules(mapping, left, stars):
    """Gated delta nets: folders hold six tensors for the one of in_proj."""
    right = {k: captures(v, stars, bare=True) for k, v in mapping.hf_param.items()}
    query, key, value, z, beta, alpha = left
    if "qkv" in right:
        return [{"from": [query, key, value], "to": [right["qkv"]], "do": [{"op": "concatenate", "sizes": ["g_key", "g_key", "g_value"]}]},
                {"from": [z], "to": [right["z"]]}, {"from": [beta], "to": [right["b"]]}, {"from": [alpha], "to": [right["a"]]}]
    each = "g_v_heads / g_k_heads"
    by_heads = reshape(["g_k_heads", -1, "hidden"], [-1, "hidden"])
    def joined(names, to, sizes):
        return {"from": names, "to": [to], "do": [by_heads, {"op": "concatenate", "dim": 1, "sizes": sizes},
                                                   reshape([-1, "hidden"], ["g_k_heads", -1, "hidden"])]}
    return [joined([query, key, value, z], right["qkvz"], ["g_k_dim", "g_k_dim", f"{each} * g_v_dim", f"{each} * g_v_dim"]),
            joined([beta, alpha], right["ba"], [each, each])]


# Layers of multi-token prediction come after the others in Hugging Face's names, of which the configuration or the names tell how many.
AFTER = "{i+layers}"
EXPERTS_BEFORE = "n_experts"
LAYER = "decoder.layers.{i:int}.self_attention.linear_proj.weight"   # each layer has one


def any_mtp_layer(rule, layers):
    """The rule for every layer of multi-token prediction, of one for the layer that its names say.  `layers`: how many layers there are before them."""
    number = re.match(r"mtp\.layers\.(\d+)\.", rule["from"][0])
    there = f"model.layers.{int(number[1]) + layers}." if number else None
    if not number or not all(name.startswith(there) for name in rule["to"]):
        return rule
    return {**rule, "from": [name.replace(number[0], "mtp.layers.{i:int}.") for name in rule["from"]],
            "to": [name.replace(there, f"model.layers.{AFTER}.") for name in rule["to"]]}


# Layers inside a layer of multi-token prediction, which Hugging Face counts through.  There is one outer layer: repeated, if several are predicted.
LAST = "{i+mtp_last}"
INNER = "mtp.layers.0.mtp_model_layer.layers.{i:int}."
EACH_INNER = [INNER + end for end in ("self_attention.linear_proj.weight", "mlp.router.weight", "mlp.linear_fc2.weight", "mixer.out_proj.weight")]


def inner_rules(mapping):
    """The rule of a mapping of such layers."""
    left, right = mapping.megatron_param, mapping.hf_param
    right = [right] if isinstance(right, str) else [*right.values()]
    if "mtp_model_layer.layers." in left:
        left, kind = left.replace("mtp.layers.*.mtp_model_layer.layers.*.", INNER), "{i}"
    else:
        left, kind = left.replace("*", "{i:int}"), LAST if mapping._inner_override else "{i}"
    left, right = left.replace("*", "{e:int}"), [one.replace("*", kind, 1).replace("*", "{e}") for one in right]
    return [{"from": [left], "to": right, "do": [{"op": "split_qkv", "heads": "n_heads", "kv_heads": "n_kv_heads"}] if len(right) == 3 else []}]


def rules_of(mapping, task, sample):
    """The rules for a mapping with its stars, of which a sample uses `task`."""
    if type(mapping).__name__ in ("_MTPFlatteningMapping", "_MTPFlatteningQKVMapping"):
        return inner_rules(mapping)
    # Folders do not tell experts in one module from experts with a module each.
    name = re.sub(r"\.local_experts\.\*\.(linear_fc\d\.weight)$", r".\1*", mapping.megatron_param)
    stars = star_names(name)
    left = [captures(one, stars) for one in folder_names(name)]
    if type(mapping).__name__ in ("GDNLinearMapping", "GDNLinearMappingSeparate"):
        return gdn_rules(mapping, left, stars)
    right = [mapping.hf_param] if isinstance(mapping.hf_param, str) else [*mapping.hf_param.values()]
    if type(mapping).__name__ == "QKVGMapping":
        right.insert(1, right.pop())   # the gate follows the queries
    right = [captures(one, stars, bare=True) for one in right]
    if type(mapping).__name__ == "_ConcatBiasMapping":   # one of two, and both are one tensor
        pools = [left[0].replace(f".{mapping._slice_name}_moe_layer.", f".{pool}_moe_layer.") for pool in ("text", "vision")]
        return [{"from": pools, "to": right, "do": ["stack"]}]
    if type(mapping).__name__.startswith("_Offset"):   # experts of one kind come after those of another
        right = [one.replace("{e}", "{e+%s}" % EXPERTS_BEFORE) for one in right]
    rule = {"from": left, "to": right, "do": operations(mapping, task, sample)}
    over = {s for s in stars if "{%s" % s not in right[0]}
    if over:
        rule["over"] = over.pop()
    if "deepstack_merger_list" in name:   # folders join them as layers
        at = re.search(r"deepstack_merger_list\.\{(\w):int\}\.", left[0])
        rule = {"from": [left[0].replace(at[0], "deepstack_merger_list.")], "to": right, "do": ["unstack"], "over": at[1]}
    return [rule]


def mapping_of(registry, name):
    """The first mapping whose pattern takes the name, which is the one that Megatron-Bridge takes."""
    for mapping in registry.get_all_mappings():
        pattern = re.escape(mapping.megatron_param).replace(r"\*\*", ".*").replace(r"\*", r"\d+")
        if re.fullmatch(pattern, name):
            return mapping
    return None


def sample_rules(sample):
    """The rules that a sample needs, by their text, in the order of the bridge's mappings."""
    registry = sample.bridge.mapping_registry()
    order = {id(m): i for i, m in enumerate(registry.get_all_mappings())}
    used = {}
    for task in sample.tasks():
        mapping = mapping_of(registry, task.global_param_name)
        used.setdefault(order[id(mapping)], (mapping, task))
    layers = getattr(sample.config, "num_hidden_layers", 0)
    rules = [any_mtp_layer(rule, layers) for at in sorted(used) for rule in rules_of(*used[at], sample)]
    return [rule for at, rule in enumerate(rules) if rule not in rules[:at]]


# Norms that Megatron-Core names by what comes after them, and Hugging Face does not: the first of a pair is that of layers with the second.
# The others need no sign.
TOLD_BY = {"pre_mlp_layernorm.weight": ("mlp.router.weight", "mlp.text_moe_layer.router.weight"),
           "self_attention.in_proj.layer_norm_weight": ("self_attention.dt_bias",), "mixer.in_proj.layer_norm_weight": ("mixer.dt_bias",),
           "self_attention.linear_qkv.layer_norm_weight": ("self_attention.linear_proj.weight",)}


def told_apart(rules):
    """The rules, in which one Hugging Face name of two Megatron names says what has to be beside it."""
    out, targets = [], [rule["to"] for rule in rules]
    for rule in rules:
        told = next((end for end in TOLD_BY if rule["from"][0].endswith(end)), None)
        if told is None or targets.count(rule["to"]) == 1:
            rule = {**rule, "optional": True} if targets.count(rule["to"]) > 1 else rule
            # Names of layers from a number on are names of layers as well.
            out.insert(0 if "+" in rule["to"][0] else len(out), rule)
            continue
        companions = [[rule["from"][0][:-len(told)] + end] for end in TOLD_BY[told]]
        beside = next(other["to"] for other in rules if other["from"] in companions)
        back = {"from": [with_kinds(rule["to"][0], rule["from"][0])], "to": [re.sub(r":int|:\*\*", "", rule["from"][0])], "beside": beside}
        out = [{**rule, "only": "forward", "optional": True}, {**back, "only": "reverse", "optional": True}, *out]
    return out


def with_kinds(name, other):
    """A name whose captures are restricted as those of another are."""
    kinds = dict(re.findall(r"\{(\w)(:int|:\*\*)\}", other))
    return re.sub(r"\{(\w)\}", lambda m: "{%s%s}" % (m[1], kinds.get(m[1], "")), name)


# Text.

def number_or_text(value):
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(number_or_text(v) for v in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else '"%s"' % value


def operation_text(operation):
    if isinstance(operation, str):
        return '"%s"' % operation
    return "{ " + ", ".join(f"{k} = {number_or_text(v)}" for k, v in operation.items()) + " }"


def names_text(names):
    return number_or_text(names[0] if len(names) == 1 else names)


def any_layer(name):
    return re.sub(r"\.\d+\.", ".{i:int}.", name)


def is_rename(rule):
    return not rule.get("do") and not rule.get("over") and not rule.get("only")


def rename_text(rule):
    return f"\"{rule['from'][0]}\" = \"{rule['to'][0]}\"\n"


def rule_text(rule, optional):
    text = f"from = {names_text(rule['from'])}\nto = {names_text(rule['to'])}\n"
    if rule.get("over"):
        text += f"over = \"{rule['over']}\"\n"
    if rule.get("do"):
        text += "do = [" + ", ".join(operation_text(o) for o in rule["do"]) + "]\n"
    if rule.get("only"):
        text += (f"beside = {names_text(rule['beside'])}\n" if "beside" in rule else "") + f"only = \"{rule['only']}\"\n"
    return "[[rule]]\n" + text + ("optional = true\n" if optional else "")


def parameters_text(rules, own):
    """`own`: the family's names in config.json, instead of those above; "" in front of all: text_config."""
    words = set(re.findall(r"[a-z]\w*", " ".join(str(operation) for rule in rules for operation in [*rule.get("do", []), *re.findall(r"\+\w+", rule["to"][0])])))
    needed = []
    def need(name):
        if name in PARAMETERS and name not in needed:
            for word in re.findall(r"[a-z]\w*", PARAMETERS[name][1] or ""):
                need(word)
            needed.append(name)
    for name in PARAMETERS:
        if name in words:
            need(name)
    lines = []
    for name in needed:
        config, value = PARAMETERS[name]
        if config and "." not in config:
            config = own.get("", "") + config
        config = own.get(name, config)
        if isinstance(config, int):
            config, value = None, config
        members = ([f'config = "{config}"'] if config else []) + ([f'value = "{value}"'] if value else [])
        lines.append(f"{name} = {{ {', '.join(members)} }}\n")
    every_layer = next((rule for rule in rules if rule["from"] == [LAYER]), None)
    first = next((rule["to"][0] for rule in rules if AFTER in rule["to"][0] and rule["from"][0].endswith("eh_proj.weight")), None)
    if first:
        lines += [f"every_layer = {{ count_of = {number_or_text([LAYER, with_kinds(every_layer['to'][0], LAYER)])} }}\n",
                  f"mtp_layers = {{ count_of = \"{first.replace(AFTER, '{i:int}')}\" }}\n",
                  f"layers = {{ config = \"{own.get('', '')}num_hidden_layers\", value = \"every_layer - mtp_layers\" }}\n"]
    if any(LAST in rule["to"][0] for rule in rules):
        lines += [f"mtp_inner = {{ count_of = {number_or_text([*EACH_INNER, 'mtp.layers.{i:int}.norm.weight'])} }}\n",
                  "mtp_outer = { count_of = \"mtp.layers.{i:int}.eh_proj.weight\" }\n", "mtp_last = { value = \"mtp_inner - mtp_outer\" }\n"]
    return "[parameters]\n" + "".join(lines) + "\n" if lines else ""
