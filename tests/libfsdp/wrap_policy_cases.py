#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records which modules real PyTorch wraps: writes wrap_policy_cases.txt, or with --check compares with the existing one.

A line is: tree | policy | names that are ignored | names that become units.  Trees are random:
  leaf:N  a module with one parameter of N elements      tied:K  the same with the K-th leaf's parameter
  mha:E   MultiheadAttention(E, 1)                       seq(..), list(..), dict(..)  containers
Policies: size:N, always, type:kind[,kind].
"""
import functools
import pathlib
import random
import sys

import torch
from torch import nn
from torch.distributed.fsdp import wrap

CASES = pathlib.Path(__file__).with_name("wrap_policy_cases.txt")


class Leaf(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight


KINDS = {"leaf": Leaf, "mha": nn.MultiheadAttention, "seq": nn.Sequential, "list": nn.ModuleList, "dict": nn.ModuleDict}


def random_tree(rng, depth, leaves):
    kind = rng.choice(["leaf", "leaf", "tied", "mha"]) if depth == 0 else rng.choice(["leaf", "mha", "seq", "seq", "list", "dict"])
    if kind == "tied" and leaves[0] == 0:
        kind = "leaf"
    if kind == "leaf":
        leaves[0] += 1
        return f"leaf:{rng.randint(1, 40)}"
    if kind == "tied":
        return f"tied:{rng.randrange(leaves[0])}"
    if kind == "mha":
        return f"mha:{rng.randint(1, 3)}"
    return f"{kind}({','.join(random_tree(rng, rng.randint(0, depth - 1), leaves) for _ in range(rng.randint(1, 4)))})"


def build(text, leaves):
    """Returns the module at the start of `text`, and the rest."""
    end = min(i for i, c in enumerate(text + ",") if c in ",()")
    word, rest = text[:end], text[end:]
    if ":" in word:
        kind, number = word.split(":")
        if kind == "mha":
            return nn.MultiheadAttention(int(number), 1), rest
        if kind == "leaf":
            leaves.append(nn.Parameter(torch.zeros(int(number))))
        return Leaf(leaves[-1] if kind == "leaf" else leaves[int(number)]), rest
    children = []
    while rest[0] != ")":
        child, rest = build(rest[1:], leaves)
        children.append(child)
    rest = rest[1:]
    if word == "dict":
        return nn.ModuleDict({f"k{i}": child for i, child in enumerate(children)}), rest
    return (nn.Sequential(*children) if word == "seq" else nn.ModuleList(children)), rest


def units(tree, policy, ignored_names):
    root, _ = build(tree, [])
    names = {module: name for name, module in root.named_modules()}
    ignored = {m for name in ignored_names for m in root.get_submodule(name).modules()}
    ignored_parameters = {p for module in ignored for p in module.parameters()}
    kind, _, argument = policy.partition(":")
    if kind == "type":
        classes = {KINDS[k] for k in argument.split(",")}
        wrapped = set(wrap.ModuleWrapPolicy(classes)._run_policy(root, ignored, {})) - {root}
    else:
        wrapped = set()

        def wrapper(module):
            wrapped.add(module)
            return module

        function = wrap.always_wrap_policy if kind == "always" else functools.partial(
            wrap.size_based_auto_wrap_policy, min_num_params=int(argument))
        wrap._recursive_wrap(root, function, wrapper, ignored, ignored_parameters, only_wrap_children=True)
    return [name for module, name in names.items() if module in wrapped]


def line(rng):
    leaves = [0]
    tree = f"seq({','.join(random_tree(rng, 3, leaves) for _ in range(rng.randint(1, 4)))})"
    policy = rng.choice([f"size:{rng.randint(1, 150)}"] * 4 + ["always", "type:leaf", "type:seq,mha"])
    root, _ = build(tree, [])
    names = [name for name, module in root.named_modules() if name and "out_proj" not in name]
    ignored = rng.sample(names, 1) if rng.random() < 0.3 else []
    return " | ".join([tree, policy, " ".join(ignored), " ".join(units(tree, policy, ignored))])


def main():
    rng = random.Random(20231)
    text = "".join(line(rng) + "\n" for _ in range(120))
    if "--check" not in sys.argv:
        CASES.write_text(text)
    elif CASES.read_text() != text:
        sys.exit(f"{CASES.name} is not what torch {torch.__version__} says: run {pathlib.Path(__file__).name}")


main()
