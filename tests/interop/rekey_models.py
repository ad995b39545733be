# SPDX-License-Identifier: Apache-2.0
"""Small models and optimizers for the checks of rekey and rename, and PyTorch's own rekeying of them."""
import copy
import os

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

import models
from rekey_tool import check, same


def unordered(osd):
    """The lists of parameters sorted, as PyTorch's rekey leaves them."""
    return {"state": osd["state"], "param_groups": [{**g, "params": sorted(g["params"])} for g in osd["param_groups"]]}


def with_text_keys(osd):
    """Returns the form that a folder gives back."""
    return {"state": {str(k): v for k, v in osd["state"].items()}, "param_groups": osd["param_groups"]}


def groups_of(model, kind):
    named = list(model.named_parameters())
    if kind == "one":
        return [p for _, p in named]
    if kind == "named":
        return named
    matrices = [p for _, p in named if p.dim() > 1]
    rest = [p for _, p in named if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 0.05}]


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=0.01),
    "tensor_lr": lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01)),
}


def trained(optimizer="adamw", groups="one", steps=2, unused=False, seed=0):
    torch.manual_seed(seed)
    model = models.Net()
    if unused:   # frozen: the optimizer lists it and keeps no state of it
        model.one.bias.requires_grad_(False)
    opt = OPTIMIZERS[optimizer](groups_of(model, groups))
    losses(model, opt, steps)
    return model, opt


def losses(model, opt, steps):
    out = []
    torch.manual_seed(7)
    for _ in range(steps):
        opt.zero_grad()
        loss = model(torch.randn(4, models.IN)).square().mean()
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out


def by_pytorch(osd, to, model, opt):
    return FSDP.rekey_optim_state_dict(copy.deepcopy(osd), to, model, optim=opt)


def named_order(model, tmp):
    path = os.path.join(tmp, "names.txt")
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(n + "\n" for n, _ in model.named_parameters())
    return path


def takes(osd, model, opt, want, what):
    """A fresh optimizer takes all of the state: PyTorch silently ignores unknown entries."""
    opt.load_state_dict(osd)
    params = [p for g in opt.param_groups for p in g["params"]]
    check(len(opt.state) == len(want["state"]) > 0, f"{what}: {len(opt.state)} of {len(want['state'])} states were taken")
    check(all(isinstance(k, int) for k in osd["state"]), f"{what}: keys are {list(osd['state'])}")
    for number, kept in want["state"].items():
        same(opt.state[params[int(number)]], kept, f"{what}: {number}")


class Equal(nn.Module):
    """Layers of one shape."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(3, 3, bias=False) for _ in range(3))

    def forward(self, x):
        return self.c(self.b(self.a(x)))
