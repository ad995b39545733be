# SPDX-License-Identifier: Apache-2.0
"""Trains what train_gpt trains, from the same weights, by PyTorch's FSDP2; its options are those of train_gpt.

Beside them: --optimizer-key and --first, the key of the optimizer's state in a checkpoint to resume, and its step.  With both --resume and
--save it saves what it loaded.  Starts like a rank of torchrun.
"""
import argparse
import json
import os
import sys
import warnings

warnings.simplefilter("ignore")
sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "parity"))

import torch
import torch.distributed as dist

from gpt_twin import Sizes, Training


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in "vocab", "dim", "layers", "heads", "seq", "batch", "steps":
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in "data", "metrics":
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--resume")
    parser.add_argument("--optimizer-key")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--save")
    args = parser.parse_args()
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo")
    sizes = Sizes(vocab=args.vocab, dim=args.dim, layers=args.layers, heads=args.heads, seq=args.seq, batch=args.batch * dist.get_world_size(),
                  lr=1e-3, weight_decay=0.01)
    training = Training("fsdp2", sizes, args.data, device=device, seed=0)
    if args.resume:
        training.resume(args.resume, args.optimizer_key, args.first)
        if args.save:
            training.save(args.save)
    losses = training.train(args.steps)
    if args.save and not args.resume:
        training.save(args.save)
    if dist.get_rank() == 0:
        with open(args.metrics, "w") as f:
            for step, loss in enumerate(losses, args.first):
                f.write(json.dumps({"step": step, "loss": loss}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


main()
