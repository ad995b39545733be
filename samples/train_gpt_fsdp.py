# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on its own source text with PyTorch FSDP and saves it sharded.

  torchrun --standalone --nproc-per-node 2 train_gpt_fsdp.py OUT             (CPU and Gloo; a few seconds)
  torchrun --standalone --nproc-per-node 3 train_gpt_fsdp.py OUT --resume IN

OUT becomes a DCP folder: one .distcp file a rank, with model, AdamW state and the step, and .metadata.  IN is such a folder.
"""
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

WIDTH, HEADS, LAYERS, CONTEXT, VOCABULARY, STEPS = 128, 4, 4, 64, 256, 40


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):                                                    # x: [batch, time, WIDTH]
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):                                               # tokens: [batch, time]
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)                                                     # the same weights on every rank
    model = GPT()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    begin = 0
    if sys.argv[2:3] == ["--resume"]:
        model_state, optimizer_state = get_state_dict(model, opt)
        state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
        dcp.load(state, checkpoint_id=sys.argv[3])
        set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        begin = state["step"]

    with open(__file__, "rb") as f:
        text = torch.tensor(list(f.read()))
    torch.manual_seed(1 + dist.get_rank())                                   # other text on every rank
    for step in range(begin, begin + STEPS):
        starts = torch.randint(len(text) - CONTEXT - 1, (8,))
        batch = torch.stack([text[s:s + CONTEXT + 1] for s in starts])
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0 and (step % 10 == 0 or step == begin + STEPS - 1):
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)

    model_state, optimizer_state = get_state_dict(model, opt)
    dcp.save({"model": model_state, "optimizer": optimizer_state, "step": begin + STEPS}, checkpoint_id=sys.argv[1])
    dist.barrier()                                                           # no rank leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
