# SPDX-License-Identifier: Apache-2.0
"""Small versions of what people write with LibTorch: twins of resnet.cpp, llama.cpp and so on, with the same names and arithmetic."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from models import Linear, VOCABULARY, Model


class BasicBlock(nn.Module):
    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.downsample = None
        if stride != 1 or channels_in != channels_out:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1))
        self.layer2 = nn.Sequential(BasicBlock(8, 12, 2), BasicBlock(12, 12, 1))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), Linear(12, 6)

    def forward(self, x):
        x = self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x)))))
        return self.fc(self.avgpool(x).flatten(1))


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotated(x, turns):
    """x [B, T, heads, D]; each pair of numbers is a complex one, rotated by its place."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.view(1, x.shape[1], 1, -1)).flatten(3)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, head = heads, kv_heads, width // heads
        self.wq, self.wo = Linear(width, width, bias=False), Linear(width, width, bias=False)
        self.wk, self.wv = Linear(width, kv_heads * head, bias=False), Linear(width, kv_heads * head, bias=False)

    def forward(self, x, turns):
        batch, length, width = x.shape
        q = rotated(self.wq(x).view(batch, length, self.heads, -1), turns).transpose(1, 2)
        k = rotated(self.wk(x).view(batch, length, self.kv_heads, -1), turns).transpose(1, 2)
        v = self.wv(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(seen.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.w1, self.w3 = Linear(width, hidden, bias=False), Linear(width, hidden, bias=False)
        self.w2 = Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.attention, self.feed_forward = Attention(width, heads, kv_heads), FeedForward(width, hidden)
        self.attention_norm, self.ffn_norm = RMSNorm(width), RMSNorm(width)

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, width=24, heads=4, kv_heads=2, hidden=40, layers=2, context=16):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(TransformerBlock(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm, self.output = RMSNorm(width), Linear(width, VOCABULARY, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(context, dtype=torch.float), 10000.0 ** (-torch.arange(half, dtype=torch.float) / half))
        self.turns = torch.polar(torch.ones_like(angles), angles)  # not a buffer, as in the original

    def forward(self, x):
        y = self.tok_embeddings(x)
        for layer in self.layers:
            y = layer(y, self.turns[:x.shape[1]])
        return self.output(self.norm(y))


class EncoderBlock(nn.Module):
    """qkv has no bias: see "Left out" in docs/parity.md."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = Linear(width, 3 * width, bias=False), Linear(width, width)
        self.mlp = nn.Sequential(Linear(width, 2 * width), nn.GELU(), Linear(2 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q.matmul(k.transpose(-2, -1)) / math.sqrt(q.shape[-1]), -1)
        x = x + self.proj(weights.matmul(v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A class token and places with one row, of which most ranks have nothing."""

    def __init__(self, width=16, heads=2, patch=4, patches=4):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, patches + 1, width))
        self.patch_embed = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(EncoderBlock(width, heads), EncoderBlock(width, heads))
        self.norm, self.head = nn.LayerNorm(width), Linear(width, 6)

    def forward(self, x):
        y = self.patch_embed(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.cls_token.expand(y.shape[0], -1, -1), y], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(y)).select(1, 0))


class DoubleConv(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.GroupNorm(2, channels_out)
        self.conv2, self.norm2 = nn.Conv2d(channels_out, channels_out, 3, padding=1), nn.GroupNorm(2, channels_out)

    def forward(self, x):
        x = F.silu(self.norm1(self.conv1(x)))
        return F.silu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = DoubleConv(3, 6), DoubleConv(6, 8), DoubleConv(8, 10)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.merge2 = nn.ConvTranspose2d(10, 8, 2, 2), DoubleConv(16, 8)
        self.up1, self.merge1 = nn.ConvTranspose2d(8, 6, 2, 2), DoubleConv(12, 6)
        self.out = nn.Conv2d(6, 4, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(self.pool(first))
        y = self.up2(self.middle(self.pool(second)))
        y = self.up1(self.merge2(torch.cat([y, second], 1)))
        y = self.out(self.merge1(torch.cat([y, first], 1)))
        return y.permute(0, 2, 3, 1)


class NormedConv2d(nn.Module):
    """A convolution whose weight is made anew in every forward; the one it was built with stays registered, unused."""

    def __init__(self, channels_in, channels_out, kernel, bias=True):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, bias=bias)
        self.v = nn.Parameter(self.conv.weight.detach().clone())
        self.g = nn.Parameter(self.conv.weight.detach().norm(2, (1, 2, 3), keepdim=True))

    def forward(self, x):
        weight = self.g * self.v / self.v.norm(2, (1, 2, 3), keepdim=True).clamp(min=1e-10)
        return F.conv2d(x, weight, self.conv.bias)


class CausalConv2d(nn.Module):
    """Sees rows above, and the left part of its own row; forward itself writes zeros over the rest of the parameter."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.reach = kernel // 2
        self.conv = NormedConv2d(channels_in, channels_out, (self.reach + 1, kernel))

    def forward(self, x):
        x = F.pad(x, (self.reach, self.reach, self.reach, 0))
        self.conv.v.data[:, :, -1, self.reach:].zero_()
        return self.conv(x)


class GatedResBlock(nn.Module):
    def __init__(self, channels, hidden, kernel):
        super().__init__()
        self.conv1, self.conv2 = CausalConv2d(channels, hidden, kernel), CausalConv2d(hidden, 2 * channels, kernel)

    def forward(self, x):
        y = self.conv2(F.elu(self.conv1(F.elu(x))))
        return F.glu(y, 1) + x


class PixelSNAIL(nn.Module):
    def __init__(self, channels=6, levels=4):
        super().__init__()
        self.first = CausalConv2d(1, channels, 5)
        self.blocks = nn.ModuleList(GatedResBlock(channels, 5, 3) for _ in range(2))
        self.query, self.key, self.value = (NormedConv2d(channels, channels, (1, 1), bias=False) for _ in range(3))
        self.out = NormedConv2d(channels, levels, (1, 1))

    def forward(self, x):
        y = self.first(x)
        for block in self.blocks:
            y = block(y)
        batch, channels, height, width = y.shape
        q, k, v = (m(y).flatten(2).transpose(1, 2) for m in (self.query, self.key, self.value))
        scores = q.matmul(k.transpose(1, 2)) / math.sqrt(channels)
        later = torch.ones(height * width, height * width).triu(1)
        seen = torch.softmax(scores.masked_fill(later == 1, -1e4), -1).matmul(v)
        y = y + seen.transpose(1, 2).reshape(batch, channels, height, width)
        return self.out(F.elu(y)).permute(0, 2, 3, 1)


def tokens(generator, lead):
    text = torch.randint(VOCABULARY, (*lead, 2, 12), generator=generator)
    return {"x": text[..., :-1].contiguous(), "y": text[..., 1:].contiguous()}


def images(generator, lead):
    return {"x": torch.randn(*lead, 3, 3, 8, 8, generator=generator), "y": torch.randint(6, (*lead, 3), generator=generator)}


def maps(generator, lead):
    return {"x": torch.randn(*lead, 2, 3, 8, 8, generator=generator), "y": torch.randint(4, (*lead, 2, 8, 8), generator=generator)}


def pixels(generator, lead):
    """Each pixel is one of four greys, to be told from those before it."""
    grey = torch.randint(4, (*lead, 2, 6, 6), generator=generator)
    return {"x": grey.unsqueeze(-3) / 3, "y": grey}


PUBLIC = {
    "resnet": Model(ResNet, (BasicBlock,), images),
    "llama": Model(Llama, (TransformerBlock,), tokens),
    "vit": Model(ViT, (EncoderBlock,), images),
    "unet": Model(UNet, (DoubleConv,), maps),
    "pixelsnail": Model(PixelSNAIL, (GatedResBlock,), pixels),
}
