#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel and sharded training on 2 x 2 ranks, beside PyTorch's parallelize_module and fully_shard.

  python parallel_llama.py --program parallel_llama

The same weights and data train here and by the program, with and without sequence parallelism.  Each saves a checkpoint on the
way, from which the other goes on.  Losses of both places, norms of gradients and the whole weights are compared: to TOLERANCE.
Experts over a mesh of their own: each one's checkpoint is loaded by the other, bit for bit.
"""
import argparse
import logging
import os
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), "interop"))

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, \
    set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional as F

from ranks import run_ranks

VOCABULARY, DIM, HIDDEN, HEADS, LAYERS, EXPERTS = 64, 16, 24, 4, 2, 4
SAVED_AT, LAST = 3, 6
TOLERANCE = 1e-6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x):
        def heads_of(layer):
            return layer(x).view(x.shape[0], x.shape[1], -1, DIM // HEADS).transpose(1, 2)
        scores = heads_of(self.wq) @ heads_of(self.wk).transpose(2, 3) / (DIM // HEADS) ** 0.5
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ heads_of(self.wv)
        return self.wo(mixed.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(*sizes, bias=False) for sizes in ((DIM, HIDDEN), (HIDDEN, DIM), (DIM, HIDDEN)))

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        for name, shape in (("w1", (HIDDEN, DIM)), ("w2", (DIM, HIDDEN)), ("w3", (HIDDEN, DIM))):
            self.register_parameter(name, nn.Parameter(torch.randn(EXPERTS, *shape)))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = Experts()


class Block(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.attention = Attention()
        if experts:
            self.moe = Mixture()
        else:
            self.feed_forward = FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    def __init__(self, experts=False):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList(Block(experts) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM, eps=1e-5)
        self.output = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.output(self.norm(x)).reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def parallel(model, mesh, sequence):
    """Divides the model along "tp" and shards it along "dp"."""
    tp = mesh["tp"]
    outside = Shard(1) if sequence else Replicate()    # what lies between layers
    parallelize_module(model, tp, {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside),
        "output": ColwiseParallel(input_layouts=outside, output_layouts=Replicate()),
        **({"norm": SequenceParallel()} if sequence else {}),
    })
    for block in model.layers:
        plan = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan["attention.wo"] = RowwiseParallel(output_layouts=outside)
        # Plain tensors elsewhere: activations become DTensors in the layers, and here.
        plan["attention"] = PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),), use_local_output=False)
        if hasattr(block, "feed_forward"):
            plan.update({"feed_forward": PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),),
                                                            use_local_output=False),
                         "feed_forward.w1": ColwiseParallel(), "feed_forward.w3": ColwiseParallel(),
                         "feed_forward.w2": RowwiseParallel(output_layouts=outside)})
        if sequence:
            plan.update(attention_norm=SequenceParallel(), ffn_norm=SequenceParallel())
        parallelize_module(block, tp, plan)
        if hasattr(block, "moe"):
            experts = init_device_mesh("cpu", (2, 2), mesh_dim_names=("edp", "ep"))
            own = block.moe.experts
            for name, weight in list(own.named_parameters()):
                own.register_parameter(name, nn.Parameter(distribute_tensor(weight, experts["ep"], [Shard(0)])))
            fully_shard(own, mesh=experts["edp"])
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model


def clip(model):
    """The norm of the whole gradients: clip_grad_norm_ of PyTorch does not take tensors of several meshes."""
    norm = sum(p.grad.full_tensor().double().pow(2).sum() for p in model.parameters()).sqrt()
    for p in model.parameters():
        p.grad.mul_(min(1.0, 0.5 / (norm.item() + 1e-6)))
    return norm.item()


def train(rank, world, source, tokens, first, last, to, save_at, sequence):
    """[(losses of both places, norm) of each step]"""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Llama()
    if first == 0:
        model.load_state_dict(torch.load(source, weights_only=True))
    parallel(model, mesh, sequence)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, foreach=False)
    if first > 0:
        load(model, optimizer, source)
    data = torch.load(tokens, weights_only=True)["tokens"]
    results = []
    for step in range(first, last):
        if step == save_at:
            dcp.save({"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=to)
        optimizer.zero_grad()
        loss = model(data[step][mesh["dp"].get_local_rank()])
        loss.backward()
        norm = clip(model)
        optimizer.step()
        results.append((loss.item(), norm))
    return results


def load(model, optimizer, source):
    """From the program's folder."""
    model_state, optimizer_state = get_model_state_dict(model), get_optimizer_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer_0": optimizer_state}, checkpoint_id=source)
    set_model_state_dict(model, model_state)
    set_optimizer_state_dict(model, optimizer, optimizer_state)


def by_torch(*args):
    ranks = run_ranks(4, train, *args)
    return [(ranks[0][i][0], ranks[2][i][0], ranks[0][i][1]) for i in range(len(ranks[0]))]


def by_program(program, source, tokens, first, last, to, save_at, sequence, experts=False):
    done = subprocess.run([program, source, tokens, str(first), str(last), to, str(save_at), str(int(sequence)), str(int(experts))],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"status {done.returncode}: {done.stdout[:3000]}{done.stderr[:1000]}")
    return [tuple(float(number) for number in line.split()) for line in done.stdout.splitlines()]


def compare(what, found, wanted):
    if len(found) != len(wanted):
        sys.exit(f"{what}: {len(found)} steps, expected {len(wanted)}")
    worst = max(abs(a - b) / max(1, abs(b)) for one, other in zip(found, wanted) for a, b in zip(one, other))
    print(f"{what}: losses and norms differ by at most {worst:.1e}")
    if not worst <= TOLERANCE:
        sys.exit(f"{what}: found {found}, expected {wanted}")


def whole(folder):
    """{name: tensor} of the model in a folder."""
    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {key: torch.empty(item.size, dtype=item.properties.dtype) for key, item in metadata.items() if hasattr(item, "properties")}
    dcp.load(state, checkpoint_id=folder)
    return {key.split(".", 1)[1]: tensor for key, tensor in state.items() if key.startswith("model.")}


def compare_weights(what, found, wanted, tolerance):
    if found.keys() != wanted.keys():
        sys.exit(f"{what}: {sorted(found.keys() ^ wanted.keys())}")
    worst = max((found[name].double() - wanted[name].double()).abs().max().item() for name in wanted)
    print(f"{what}: {len(wanted)} weights differ by at most {worst:.1e}")
    if not worst <= tolerance:
        sys.exit(f"{what}: expected at most {tolerance}")


def save_experts(rank, world, start, to):
    model = Llama(experts=True)
    model.load_state_dict(torch.load(start, weights_only=True))
    dcp.save({"model": get_model_state_dict(parallel(model, init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), True))},
             checkpoint_id=to)


def load_experts(rank, world, source, start):
    """Returns the names of tensors that differ from the whole ones."""
    model = Llama(experts=True)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    parallel(model, init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), True)
    state = get_model_state_dict(model)
    dcp.load({"model": state}, checkpoint_id=source)
    set_model_state_dict(model, state)
    wanted = torch.load(start, weights_only=True)
    return [name for name, p in model.named_parameters() if not torch.equal(p.full_tensor(), wanted[name])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    args = parser.parse_args()
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as folder:
        def path(name):
            return os.path.join(folder, name)
        torch.save({"tokens": torch.randint(VOCABULARY, (8, 2, 2, 9))}, path("tokens.pt"))
        torch.save(Llama().state_dict(), path("start.pt"))
        for sequence in (False, True):
            kind = "sequence parallel" if sequence else "tensor parallel"
            ours, theirs = path(f"ours{sequence}"), path(f"theirs{sequence}")
            wanted = by_torch(path("start.pt"), path("tokens.pt"), 0, LAST, theirs, SAVED_AT, sequence)
            compare(kind, by_program(args.program, path("start.pt"), path("tokens.pt"), 0, LAST, ours, SAVED_AT, sequence), wanted)
            compare_weights(f"{kind}, saved", whole(ours), whole(theirs), 2e-6)
            compare(f"{kind}, PyTorch's folder goes on here",
                    by_program(args.program, theirs, path("tokens.pt"), SAVED_AT, LAST, path("unused"), -1, sequence), wanted[SAVED_AT:])
            compare(f"{kind}, goes on in PyTorch",
                    by_torch(ours, path("tokens.pt"), SAVED_AT, LAST, path("unused"), -1, sequence), wanted[SAVED_AT:])
        start = path("experts.pt")
        torch.save(Llama(experts=True).state_dict(), start)
        run_ranks(4, save_experts, start, path("their_experts"))
        by_program(args.program, path("their_experts"), path("tokens.pt"), 0, 0, path("our_experts"), 0, True, experts=True)
        compare_weights("experts", whole(path("our_experts")), torch.load(start, weights_only=True), 0)
        wrong = sum(run_ranks(4, load_experts, path("our_experts"), start), [])
        if wrong:
            sys.exit(f"experts that PyTorch loads differ: {wrong}")
        print("experts: each loads the other's, bit for bit")


if __name__ == "__main__":
    main()
