#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the decisions of PyTorch's GradScaler: writes grad_scaler_cases.txt, or with --check compares with the existing one.

A case is a line "case <init_scale> <growth_factor> <backoff_factor> <growth_interval>", then a line an iteration:
  <what the gradients hold> <whether the step was taken> <the parameter> <the scale> <the growth tracker>
The loss is parameter * factor, for SGD with a rate of 0.5 from a parameter of 1; factor is 2, inf, nan or, for an overflow of the scaled
gradient, 1e38.  After every fifth iteration the scale is set to 1024.
"""
import pathlib
import random
import sys

import torch

CASES = pathlib.Path(__file__).with_name("grad_scaler_cases.txt")


class CountingSGD(torch.optim.SGD):
    def step(self):
        self.steps += 1
        return super().step()


def case(rng):
    init, growth, backoff, interval = rng.choice([65536.0, 3.0, 1e38]), rng.choice([2.0, 1.1]), rng.choice([0.5, 0.3]), rng.randint(1, 4)
    yield f"case {init!r} {growth!r} {backoff!r} {interval}"
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    parameter = torch.ones(1, requires_grad=True)
    optimizer = CountingSGD([parameter], lr=0.5)
    for iteration in range(12):
        factor = rng.choice(["2", "2", "2", "inf", "nan", "1e38"])
        optimizer.zero_grad()
        scaler.scale((parameter * float(factor)).sum()).backward()
        if iteration % 2:
            scaler.unscale_(optimizer)
        optimizer.steps = 0
        scaler.step(optimizer)
        if iteration % 5 == 4:
            scaler.update(1024.0)
        else:
            scaler.update()
        state = scaler.state_dict()
        yield f"{factor} {optimizer.steps} {parameter.item()!r} {state['scale']!r} {state['_growth_tracker']}"


def main():
    rng = random.Random(7)
    text = "".join(line + "\n" for _ in range(20) for line in case(rng))
    if "--check" not in sys.argv:
        CASES.write_text(text)
    elif CASES.read_text() != text:
        sys.exit(f"{CASES.name} is not what torch {torch.__version__} says: run {pathlib.Path(__file__).name}")


main()
