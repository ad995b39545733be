# SPDX-License-Identifier: Apache-2.0
"""Starts MPI jobs, and compares what they wrote."""
import argparse
import hashlib
import os
import random
import struct
import subprocess


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    for name in ("mpirun", "data", "plain", "tool", "other-version", "commands"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--injector", help="fault_failing_call")
    parser.add_argument("--hold", help="the library fault_held_call")
    parser.add_argument("--every", action="store_true", help="every fixture and command at every number of ranks")
    parser.add_argument("--others", type=int, default=40, help="kills at each kind of call that only talks or waits, and before the first file")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def environment():
    """Open MPI runs more ranks than cores, and as root, only where it is told to; it binds ranks to cores, of which there are few here."""
    return dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none",
                # Between processes of one machine, in a container too.
                OMPI_MCA_btl="self,tcp", OMPI_MCA_btl_base_warn_component_unused="0")


def job(mpirun, groups, cwd, seconds=120, **more):
    """Runs a job whose ranks are given as (count, words); returns the completed process."""
    words = [mpirun]
    for number, (count, program) in enumerate(groups):
        words += ([":"] if number else []) + ["-n", str(count), *program]
    return subprocess.run(words, cwd=cwd, env=environment(), capture_output=True, text=True, errors="replace", timeout=seconds, **more)


def tree(path):
    """Returns the bytes at a path as a text that is equal for equal files and folders."""
    if not os.path.exists(path):
        return "nothing"
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            at = os.path.join(folder, name)
            found.append(f"{os.path.relpath(at, path)} {tree(at)}")
    return "\n".join(sorted(found))


def write_safetensors(path, tensors, seed=3):
    """Writes float32 tensors of these shapes with random bytes that are no NaN."""
    generator = random.Random(seed)
    header, data = [], b""
    for name, shape in tensors.items():
        numel = 1
        for size in shape:
            numel *= size
        values = struct.pack(f"<{numel}f", *(generator.uniform(-1, 1) for _ in range(numel)))
        header.append(f'"{name}":{{"dtype":"F32","shape":{list(shape)},"data_offsets":[{len(data)},{len(data) + len(values)}]}}')
        data += values
    text = ("{" + ",".join(header) + "}").encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
