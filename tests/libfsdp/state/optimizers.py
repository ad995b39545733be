#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what state_dicts_of_optimizers prints against PyTorch: keys, options, dtypes, shapes and values; then
gives it PyTorch's state, and holds what it makes of it in a few more steps against PyTorch's own.

usage: optimizers.py PROGRAM
"""
import ast
import subprocess
import sys

import torch

STEPS = 3
# Options that PyTorch chooses by itself, and C++ lacks.
KERNELS = ("foreach", "fused")


def random_values(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Odd(torch.nn.Module):
    """OddImpl of tests/libfsdp/models.h."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones([]))
        self.empty = torch.nn.Parameter(torch.ones(0, 3))
        self.spare = torch.nn.Parameter(torch.ones(2, 3, 3))
        self.a = torch.nn.Linear(7, 5)
        self.b = torch.nn.Linear(5, 1)
        self.unused = torch.nn.Linear(3, 3)
        with torch.no_grad():
            for seed, parameter in enumerate(self.parameters(), 1):
                parameter.copy_(random_values(list(parameter.shape), seed) * 0.3)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) * self.scale + self.empty.sum()


def optimizers():
    """tests/libfsdp/state/optimizers.h."""
    optim = torch.optim
    adamw = dict(lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    return {
        "SGD": (optim.SGD, dict(lr=0.05)),
        "SGD momentum": (optim.SGD, dict(lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True)),
        "Adam": (optim.Adam, dict(lr=0.01, amsgrad=True, eps=1e-7)),
        "AdamW": (optim.AdamW, adamw),
        "fused AdamW": (optim.AdamW, adamw),
        "capturable AdamW": (optim.AdamW, adamw),
        "Adagrad": (optim.Adagrad, dict(lr=0.05, lr_decay=0.1, initial_accumulator_value=0.2)),
        "RMSprop": (optim.RMSprop, dict(lr=0.01)),
        "RMSprop all": (optim.RMSprop, dict(lr=0.01, momentum=0.5, centered=True)),
    }


def trained(name, steps):
    kind, options = optimizers()[name]
    module = Odd()
    named = dict(module.named_parameters())
    groups = [[n for n in named if not n.startswith("a.")], [n for n in named if n.startswith("a.")]]
    lrs = (options["lr"], options["lr"] / 10)
    optimizer = kind([dict(params=[named[n] for n in g], lr=lr) for g, lr in zip(groups, lrs)], **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss = (module(random_values([4, 7], 100 + step)) - random_values([4, 1], 500 + step)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return module.state_dict(), optimizer.state_dict(), groups


def cases(text):
    found = None
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "case":
            if found:
                yield found
            found = {"title": rest, "model": {}, "state": {}, "group": {}}
            continue
        keys, _, value = rest.partition(" =")
        keys = keys.split(" ")
        if kind == "group":
            found["group"].setdefault(int(keys[0]), {})[keys[1]] = ast.literal_eval(value.strip())
            continue
        shape = ast.literal_eval(keys[-1])
        numbers = [float(word) for word in value.split()]
        tensor = torch.tensor(numbers, dtype=torch.float64).reshape(shape).to(getattr(torch, keys[-2]))
        if kind == "model":
            found["model"][keys[0]] = tensor
        else:
            found["state"].setdefault(keys[0], {})[keys[1]] = tensor
    yield found


class Checker:
    def __init__(self):
        self.failures = []
        self.count = 0

    def check(self, good, *what):
        self.count += 1
        if not good:
            self.failures.append(" ".join(str(word) for word in what))

    def tensor(self, found, expected, *what):
        same = found.shape == expected.shape and found.dtype == expected.dtype
        self.check(same and torch.allclose(found, expected.detach(), rtol=1e-5, atol=1e-6), *what,
                   f"expected {expected}, found {found}")

    def keys(self, found, expected, *what):
        self.check(list(found) == list(expected), *what, f"expected {list(expected)}, found {list(found)}")

    def case(self, case, steps):
        name, kind = case["title"].split("|")
        model, optimizer, groups = trained(name, steps)
        title = case["title"]
        self.keys(case["model"], model, title, "keys of the model")
        # Beside used parameters of its unit its gradient is zero, and AdamW decays it.
        beside = [] if kind == "unsharded" else ["spare"]
        for key, expected in model.items():
            if key not in beside:
                self.tensor(case["model"][key], expected, title, key)
        names = [n for group in groups for n in group]
        of_name = (lambda i: str(i)) if kind == "unsharded" else (lambda i: names[i])
        states = {of_name(i): state for i, state in optimizer["state"].items() if state}
        self.check(set(case["state"]) - set(beside) == set(states) - set(beside), title,
                   f"states: expected {sorted(states)}, found {sorted(case['state'])}")
        for parameter, state in states.items():
            if parameter in beside:
                continue
            self.keys(case["state"][parameter], state, title, parameter)
            for key, expected in state.items():
                self.tensor(case["state"][parameter][key], expected, title, parameter, key)
        for number, group in enumerate(optimizer["param_groups"]):
            self.keys(case["group"][number], group, title, "group", number)
            for key, expected in group.items():
                if key == "params":
                    expected = [i if kind == "unsharded" else names[i] for i in expected]
                    self.check(sorted(case["group"][number][key]) == sorted(expected), title, "params", number,
                               f"expected {expected}, found {case['group'][number][key]}")
                elif key not in KERNELS:
                    self.check(case["group"][number][key] == expected, title, key,
                               f"expected {expected}, found {case['group'][number][key]}")


def given(name):
    """PyTorch's state in the form that the program reads."""
    model, optimizer, groups = trained(name, STEPS)
    names = [n for group in groups for n in group]
    def line(kind, keys, tensor):
        numbers = "".join(f" {x!r}" for x in tensor.double().reshape(-1).tolist())
        shape = ",".join(str(n) for n in tensor.shape)
        return f"{kind} {keys} {str(tensor.dtype).removeprefix('torch.')} [{shape}] ={numbers}"
    yield f"case {name}"
    for key, tensor in model.items():
        yield line("model", key, tensor)
    for i, state in optimizer["state"].items():
        # It has no step of its own; its neighbours in a flat parameter have other steps.
        if names[i] == "spare":
            continue
        for key, tensor in state.items():
            yield line("state", f"{names[i]} {key}", tensor)


def main():
    torch.set_num_threads(1)
    run = dict(check=True, capture_output=True, text=True)
    checker = Checker()
    titles = []
    for case in cases(subprocess.run([sys.argv[1]], **run).stdout):
        titles.append(case["title"])
        checker.case(case, STEPS)
    state = "\n".join(line for name in optimizers() for line in given(name)) + "\n"
    for case in cases(subprocess.run([sys.argv[1], "resume"], input=state, **run).stdout):
        titles.append(case["title"])
        checker.case(case, 2 * STEPS)
    expected = [f"{name}|{kind}" for kinds in (("unsharded", "flat", "original"), ("flat", "original"))
                for name in optimizers() for kind in kinds]
    checker.check(titles == expected, "expected the cases", expected, "found", titles)
    if checker.failures:
        sys.exit("\n".join(checker.failures))
    print(f"{len(titles)} state dicts, {checker.count} checks")


main()
