# SPDX-License-Identifier: Apache-2.0
"""Starts programs as ranks like torchrun, without the seconds that torchrun takes to load."""
import os
import socket
import subprocess
import tempfile

TIMEOUT_S = 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(world, command, node_size=None, folder=None, timeout=TIMEOUT_S):
    """Runs `command` as every rank of a world; returns the exit statuses and the output of all ranks, by rank.

    `node_size`: ranks of a node, if the world is to look like several.  `folder`: keeps what the ranks say, one file each.
    """
    port, node_size = str(free_port()), node_size or world
    with tempfile.TemporaryDirectory() as tmp:
        folder = folder or tmp
        ranks = []
        try:
            for rank in range(world):
                env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank % node_size), "WORLD_SIZE": str(world),
                       "LOCAL_WORLD_SIZE": str(node_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                       "GLOO_SOCKET_IFNAME": "lo"}
                with open(os.path.join(folder, str(rank)), "w") as out:
                    ranks.append(subprocess.Popen([*map(str, command)], env=env, stdout=out, stderr=subprocess.STDOUT))
            statuses = [p.wait(timeout) for p in ranks]
        finally:
            for p in ranks:
                p.kill()
        said = []
        for rank in range(world):
            with open(os.path.join(folder, str(rank)), errors="replace") as out:
                said.append(out.read())
        return statuses, said


def must(world, command, **how):
    """The same, but every rank must succeed."""
    statuses, said = launch(world, command, **how)
    if any(statuses):
        text = "\n".join(f"rank {rank}, exit {status}: {words}" for rank, (status, words) in enumerate(zip(statuses, said)))
        raise RuntimeError(f"{' '.join(map(str, command))}\n{text}")
    return said
