# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes forked from one that has loaded PyTorch already: starting eight costs as much as starting one."""
import os
import pickle
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist


def run_ranks(world, body, *args):
    """Runs body(rank, world, *args) in `world` processes of one gloo group; returns the result of each."""
    with tempfile.TemporaryDirectory() as tmp:
        children = []
        for rank in range(world):
            sys.stdout.flush(), sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                _child(rank, world, tmp, body, args)
            children.append(pid)
        failed = [r for r, pid in enumerate(children) if os.waitpid(pid, 0)[1] != 0]
        results = []
        for rank in range(world):
            path = os.path.join(tmp, f"{rank}.result")
            if rank in failed or not os.path.exists(path):
                note = os.path.join(tmp, f"{rank}.error")
                raise RuntimeError(f"rank {rank} of {world}:\n{open(note).read() if os.path.exists(note) else 'died'}")
            with open(path, "rb") as f:
                results.append(pickle.load(f))
        return results


def _child(rank, world, tmp, body, args):
    status = 1
    try:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{tmp}/store", rank=rank, world_size=world)
        result = body(rank, world, *args)
        dist.barrier()
        dist.destroy_process_group()
        with open(os.path.join(tmp, f"{rank}.result"), "wb") as f:
            pickle.dump(result, f)
        status = 0
    except BaseException:
        with open(os.path.join(tmp, f"{rank}.error"), "w") as f:
            f.write(traceback.format_exc())
    finally:
        os._exit(status)
