# SPDX-License-Identifier: Apache-2.0
"""The cases of the parity tests: one dict for each case, with these members. training.cpp runs the same."""
import itertools
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sample  # noqa: E402

OWN_LOOPS = ("dcgan", "rnnlm")
PUBLIC = ("resnet", "llama", "vit", "unet", "pixelsnail", *OWN_LOOPS)
WORLDS = (2, 3) if sample.is_on() else (1, 2, 3, 4)

DEFAULTS = {
    "strategy": "FULL_SHARD",
    "shard": 0,                 # hybrid strategies: ranks that share one copy of the parameters
    "use_orig_params": False,
    "backward_prefetch": "PRE",  # "PRE", "POST", "none"
    "forward_prefetch": False,
    "wrap": "units",            # by the module's class, "none", "all", "size"
    # Words joined by +: what is bfloat16 ("param", "reduce", "buffer"), "reduce32" (float32) and "keep" (low precision gradients).
    "mixed": "",
    "checkpoint": False,        # activation checkpointing of every block
    "frozen": [],               # parameters that require no gradient: names, or prefixes that end in a dot
    "ignored": [],              # modules
    "micro": 1,                 # batches whose gradients are accumulated before a step
    "no_sync": False,           # all but the last of them without reduction
    "forwards": 1,              # forwards before their one backward
    # A forward without gradients after every step.  Not between a backward and its step: FSDP1 keeps the parameters gathered by such a
    # forward and reuses them, so the next forward does not see the step.
    "evaluate": False,
    "clip": 0.0,                # largest norm, 0 for none
    "norm": 2.0,                # p of the norm, 0 for the maximum
    "optimizer": "adamw",       # "adam", without decay; "sgd", which unlike Adam depends on the scale of gradients
    "peer": "fsdp1",            # PyTorch's side; "ddp", if FSDP1 is wrong or refuses: see docs/parity.md; "fsdp2" (fully_shard)
    # fsdp2: modules with options of their own, "name=words": as in `mixed`, and "full" (computes in float32), "out" (its outputs are
    # bfloat16), "hold" (not resharded after forward), "reshard", "keep2" (kept by two ranks from forward to backward).
    "own": [],
    "divide": 0.0,              # fsdp2: what gradients are divided by instead of the number of ranks
    "no_all_reduce": False,     # fsdp2: where `no_sync` says, copies are not averaged, instead of no reduction
}

SHARDED = ("FULL_SHARD", "SHARD_GRAD_OP")
HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def strategies(world):
    """Every strategy that this world can run.  Hybrid ones need two ranks that share a copy: with fewer FSDP1 falls back
    to NO_SHARD inside the copy, and nothing averages the copies."""
    yield from ({"strategy": name} for name in (*SHARDED, "NO_SHARD"))
    for name in HYBRID:
        if world > 1:
            yield {"strategy": name, "shard": 2 if world == 4 else world}


def each(**choices):
    """The cross product, as dicts."""
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values))


def gpt_knobs(world):
    """The whole product."""
    for strategy, knobs in itertools.product(strategies(world), each(
            use_orig_params=(False, True), backward_prefetch=("PRE", "POST", "none"), forward_prefetch=(False, True))):
        yield {**strategy, **knobs}


EVERYWHERE = (
    {"optimizer": "sgd"},
    {"clip": 0.5},
    {"micro": 3, "no_sync": True},
    {"checkpoint": True},
    {"mixed": "param+reduce"},
)
SOMEWHERE = (
    {"micro": 2}, {"forwards": 2}, {"evaluate": True}, {"clip": 0.3, "norm": 0.0}, {"clip": 0.4, "norm": 1.0, "optimizer": "sgd"},
    {"wrap": "none"}, {"wrap": "all"}, {"wrap": "size"}, {"frozen": ["blocks.0."]}, {"ignored": ["blocks.1"]}, {"mixed": "param"},
    {"mixed": "reduce"}, {"mixed": "param+reduce32"}, {"mixed": "param+reduce+keep", "optimizer": "sgd"},
    {"micro": 2, "no_sync": True, "clip": 0.5, "checkpoint": True, "evaluate": True},
)


def gpt_programs(world):
    """Returns cases of a step's features, under every strategy or under one of the sharding two."""
    for i, (strategy, program) in enumerate(itertools.product(strategies(world), EVERYWHERE)):
        yield {**strategy, **program, "use_orig_params": i % 2 == 1}
        if strategy["strategy"] == "FULL_SHARD":
            yield {**strategy, **program, "use_orig_params": i % 2 == 0}
    for i, program in enumerate(SOMEWHERE):
        yield {"strategy": SHARDED[(i + world) % 2], "use_orig_params": i % 4 > 1, **program}
    yield {"use_orig_params": True, "frozen": ["blocks.0.qkv.", "blocks.1.ln1.weight", "emb."]}
    yield {"use_orig_params": True, "mixed": "param+reduce", "micro": 3, "no_sync": True, "clip": 0.5}
    if world > 1:
        yield from ({"peer": "fsdp2", "use_orig_params": True, **program} for program in composed(world))


def composed(world):
    """Cases of fully_shard(), which FSDP1 has nothing for."""
    yield {}
    yield {"strategy": "SHARD_GRAD_OP", "clip": 0.5, "micro": 3, "no_sync": True}
    yield {"own": ["blocks.0=hold", "=reshard"], "forwards": 2, "optimizer": "sgd"}
    yield {"frozen": ["blocks.0.", "blocks.1.ln1.weight"], "evaluate": True}
    yield {"mixed": "param+reduce32", "clip": 0.5}
    yield {"mixed": "param+reduce32", "own": ["blocks.0=full+out"]}
    yield {"own": ["blocks.0=keep2"] if world % 2 == 0 else [], "divide": 2.5, "optimizer": "sgd"}
    if world % 2 == 0:
        yield {"strategy": "HYBRID_SHARD", "shard": world // 2, "micro": 3, "no_sync": True, "no_all_reduce": True, "clip": 0.5}


def other_models(world, model):
    for i, strategy in enumerate(strategies(world)):
        yield {**strategy, "use_orig_params": (i + world) % 2 == 1}
    programs = [{"optimizer": "sgd"}, {"micro": 2, "no_sync": True, "clip": 0.5}, {"wrap": "none"}, {"evaluate": True},
                {"mixed": "param+reduce"}, {"mixed": "param"}]
    if model == "conv":
        programs += [{"mixed": "param+reduce+buffer"}, {"mixed": "buffer"}]
        if world > 1:
            yield {"peer": "fsdp2", "use_orig_params": True, "mixed": "param+reduce32", "own": [f"stages.{i}.bn=full+out" for i in (0, 1)]}
    for i, program in enumerate(programs):
        yield {"use_orig_params": i % 2 == 1, "strategy": SHARDED[(i + world) % 2], **program}


def public_models(world, model):
    """Programs as people write them."""
    if world == 4:
        return
    if model in OWN_LOOPS:  # they have their own options
        yield {}
        yield {"strategy": "SHARD_GRAD_OP", "use_orig_params": True, "peer": "ddp" if model == "dcgan" else "fsdp1"}
        yield {"strategy": "NO_SHARD"}
        return
    peer = {"peer": "ddp" if model == "pixelsnail" else "fsdp1"}
    yield {"optimizer": "adam", "clip": 0.5, **peer}
    yield {"strategy": "SHARD_GRAD_OP", "use_orig_params": True, "optimizer": "sgd", "clip": 0.5, **peer}


def name_of(case):
    words = []
    for key, default in DEFAULTS.items():
        value = case[key]
        if key == "strategy":
            words.append(value.strip("_").lower())
        elif value == default:
            continue
        elif value is True:
            words.append(key)
        else:
            value = "+".join(value) if isinstance(value, list) else value
            words.append(f"{key}_{value}")
    return "".join(c if c.isalnum() else "_" for c in "-".join(words).replace("-", "__"))


def steps(model):
    return 8 if model in PUBLIC else 20


def cases(model, world):
    """Name -> case."""
    if model == "gpt":
        chosen = (*gpt_knobs(world), *gpt_programs(world))
    else:
        chosen = public_models(world, model) if model in PUBLIC else other_models(world, model)
    found = ({**DEFAULTS, **members} for members in chosen)
    named = {name_of(case): case for case in found}
    if sample.is_on() and model in PUBLIC and (PUBLIC.index(model) + world) % 2:
        return {}   # at the other world size
    return {name: named[name] for name in sample.taken(named, world)}


def adds_bfloat16(world, case):
    """Returns whether ranks add gradients of bfloat16, where FSDP1 lets a hook do it instead."""
    words = case["mixed"].split("+")
    low = "reduce" in words or ("param" in words and "reduce32" not in words)
    return low and world > 1 and case["strategy"] in SHARDED


def is_for_level(model, case):
    """Returns whether a case is also trained at a second level of kernels: cases with bfloat16, and the GPT's features of a step."""
    plain = case["strategy"] == "FULL_SHARD" and case["backward_prefetch"] == "PRE" and not case["forward_prefetch"]
    return bool(case["mixed"]) or (model == "gpt" and plain and not case["use_orig_params"])
