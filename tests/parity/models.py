# SPDX-License-Identifier: Apache-2.0
"""The models of the parity tests; models.cpp has the same, with the same names and the same arithmetic.

Every forward takes one tensor and returns logits, the classes last.
"""
from typing import Callable, NamedTuple, Optional

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, BLOCKS, HEADS, CONTEXT = 53, 24, 2, 4, 9


class Model(NamedTuple):
    build: Callable
    units: tuple               # classes of its modules
    data: Callable             # (generator, leading sizes) -> tensors by name
    loop: Optional[Callable] = None  # if a step is more than one loss of one module: see own_loops.py


class Linear(nn.Linear):
    """Computes like torch::nn::Linear: unless the input is a matrix, the product is rounded before the bias is added."""

    def forward(self, x):
        if self.bias is None:
            return x.matmul(self.weight.t())
        return super().forward(x) if x.dim() == 2 else x.matmul(self.weight.t()) + self.bias


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.qkv, self.proj = nn.LayerNorm(width), Linear(width, 3 * width), Linear(width, width)
        self.ln2, self.up, self.down = nn.LayerNorm(width), Linear(width, 4 * width), Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(BLOCKS))
        self.ln, self.head = nn.LayerNorm(WIDTH), Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.emb.weight

    def forward(self, x):
        x = self.emb(x) + self.pos(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class Recurrent(nn.Module):
    """Rows that no world size above 1 divides: 4 * 11 gates divide by 2 and 4, 53 tokens by none."""

    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(VOCABULARY, 10), Linear(22, VOCABULARY)
        self.lstm = nn.LSTM(10, 11, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.head(self.lstm(self.emb(x))[0])


class Stage(nn.Module):
    """No bias before the batch norm: its gradient would be zero, and Adam would amplify its rounding noise."""

    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels_out)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([Stage(3, 5, 1), Stage(5, 7, 2)])
        self.head = Linear(7, 6)
        self.register_buffer("shift", torch.tensor([0.1, -0.2, 0.3]).view(3, 1, 1))

    def forward(self, x):
        x = x + self.shift.to(x.dtype)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


class Layer(nn.Module):
    def __init__(self, width_in, width_out):
        super().__init__()
        self.lin = Linear(width_in, width_out)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.tanh(self.lin(x)) * self.gain


class Odd(nn.Module):
    """Sizes that no world size divides, and parameters with fewer rows than ranks."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(5, 7), Layer(7, 1), Layer(1, 3)])
        self.shift = nn.Parameter(torch.zeros(2, 3))
        self.out = Linear(3, 6)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x + self.shift.sum(0))


class Experts(nn.Module):
    """Every expert answers, and the answers are weighed."""

    def __init__(self, count, width, hidden):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(count, width) * 0.3)
        self.up, self.down = (nn.Parameter(torch.randn(count, *shape) * 0.3) for shape in ((width, hidden), (hidden, width)))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights = torch.softmax(flat.matmul(self.gate.t()), -1)
        answers = torch.matmul(torch.tanh(torch.matmul(flat, self.up)), self.down)
        weighed = (answers * weights.t().unsqueeze(-1)).sum(0)
        return x + weighed.view_as(x) * self.scale


class Stacks(nn.Module):
    """Parameters of fewer rows than ranks: stacks of experts [E, D, F], a table [1, N, D], single numbers."""

    def __init__(self):
        super().__init__()
        self.emb, self.places = nn.Embedding(VOCABULARY, 10), nn.Parameter(torch.zeros(1, CONTEXT, 10))
        self.blocks = nn.ModuleList([Experts(2, 10, 7), Experts(3, 10, 7)])
        self.head = Linear(10, VOCABULARY)

    def forward(self, x):
        x = self.emb(x) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Unused(nn.Module):
    """One unit that forward never calls, and one unused parameter in a unit that is called."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(5, 8), Layer(8, 8), Layer(8, 9)])
        self.spare = nn.Parameter(torch.ones(4, 3))
        self.out = Linear(9, 6)

    def forward(self, x):
        return self.out(self.layers[2](self.layers[0](x)))


def tokens(generator, lead):
    text = torch.randint(VOCABULARY, (*lead, 2, CONTEXT + 1), generator=generator)
    return {"x": text[..., :-1].contiguous(), "y": text[..., 1:].contiguous()}


def images(generator, lead):
    return {"x": torch.randn(*lead, 4, 3, 8, 8, generator=generator), "y": torch.randint(6, (*lead, 4), generator=generator)}


def vectors(generator, lead):
    return {"x": torch.randn(*lead, 5, 5, generator=generator), "y": torch.randint(6, (*lead, 5), generator=generator)}


MODELS = {
    "gpt": Model(GPT, (Block,), tokens),
    "tied": Model(lambda: GPT(tied=True), (Block,), tokens),
    "lstm": Model(Recurrent, (nn.LSTM,), tokens),
    "conv": Model(Convolutional, (Stage,), images),
    "odd": Model(Odd, (Layer,), vectors),
    "stacks": Model(Stacks, (Experts,), tokens),
    "unused": Model(Unused, (Layer,), vectors),
}
