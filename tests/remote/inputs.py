# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that the tests put on servers."""
import os
import shutil

import commands
import server

FSDP2 = "@golden/2.15.0/fsdp2/ckpt"


def make(tool, data, folder):
    """A tree of the golden checkpoints and of what is made of them."""
    for name in ("golden", "adapters", "rules", "published"):
        shutil.copytree(os.path.join(data, name), os.path.join(folder, name))

    def must(*words):
        done = commands.run(tool, words, server.environment(), folder)
        assert done.returncode == 0, f"{words}: {done.stderr}"
    fsdp2 = FSDP2[1:]
    must("resize-vocab", fsdp2, "large.pt", "--size", "100000", "--table", "app.model.emb.*")
    must("convert", "large.pt", "large.safetensors", "--drop-values")
    must("convert", "large.pt", "large.h5")
    must("resize-vocab", fsdp2, "middle.pt", "--size", "25000", "--table", "app.model.emb.*")
    must("convert", "middle.pt", "middle.safetensors", "--drop-values")
    must("merge-lora", fsdp2, "adapters/blocks", "tuned.pt")
    os.mkdir(os.path.join(folder, "run"))
    for step in (1, 2):
        shutil.copytree(os.path.join(folder, fsdp2), os.path.join(folder, "run", f"step-{step}"))
    must("seal", "run/step-1")
    os.remove(os.path.join(folder, "run/step-2/.metadata"))
