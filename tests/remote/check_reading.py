#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every verb that reads, on every golden checkpoint at s3:// and https://: the answers and the bytes are those of the local files.

    check_reading.py --tool PROGRAM --commands PROGRAM --data FOLDER [--every]

SeaweedFS is asked all verbs, half of them of each checkpoint; rclone and moto every twelfth command, the plain server of https half of
those that it can answer.  --every: all of all.  Requests are counted too (check_requests.py).
"""
import concurrent.futures
import contextlib
import os
import shutil
import sys
import tempfile
import time

import check_requests
import commands
import files
import inputs
import listener
import server

FSDP2 = inputs.FSDP2
MINIMAL = "@golden/2.11.0/minimal/ckpt"
# A server that cannot list its files has what names them all.
UNLISTED = ("golden/2.15.0/fsdp1/ckpt", "golden/2.15.0/fsdp2/ckpt", "golden/2.15.0/odd/ckpt", "golden/2.4.1/fsdp1/ckpt",
            "golden/2.11.0/shards/ckpt", "golden/2.11.0/threads/ckpt", "golden/2.11.0/many_files/ckpt", "golden/2.11.0/zstd/ckpt",
            "golden/2.11.0/hf_map/ckpt", "golden/2.11.0/zip_pt/full.pt", "golden/2.11.0/legacy_pt/full.pt", "large.safetensors")


def reading(at):
    """What is asked about one checkpoint."""
    return [["inspect", at, "--json", "--chunks"], ["inspect", at, "--globals", "--json"], ["verify", at, "--json"], ["stats", at, "--json"],
            ["diff", at, MINIMAL, "--json"], ["extract", at, "*", "{}/folder", "--to", "npy"], ["consolidate", at, "{}/full.pt", "--no-sync"],
            ["convert", at, "{}/folder", "--to", "dcp", "-w", "2", "--no-sync"]]


# The other verbs read the same way: one input of theirs each.
OTHERS = [
    ["inspect", FSDP2], ["verify", FSDP2], ["stats", FSDP2], ["diff", FSDP2, "@run/step-1"], ["extract", FSDP2, "app.model.head.bias"],
    ["convert", FSDP2, "{}/full.h5"], ["latest", "@run"], ["latest", "@run/"], ["inspect", "@run", "--json"], ["verify", "@run", "--json"], ["verify", "@run/step-1"],
    ["inspect", "@large.pt", "--json"], ["convert", "@large.pt", "{}/full.safetensors"], ["verify", "@large.h5"], ["stats", "@large.h5", "--json"],
    ["diff", "@large.h5", "@large.pt", "--json"], ["verify", FSDP2 + "/.metadata"], ["inspect", FSDP2 + "/__0_0.distcp"],
    ["extract", FSDP2, "app.model.*", "{}/folder", "--to", "npy"], ["consolidate", FSDP2, "{}/folder", "--to", "safetensors", "--drop-values",
                                                                   "--max-shard-size", "2K"],
    ["shard", "@golden/2.11.0/zip_pt/full.pt", "{}/folder", "-w", "3"], ["reshard", "@golden/2.11.0/shards/ckpt", "{}/folder", "-w", "3"],
    ["rename", FSDP2, "{}/folder", "--rename", "blocks=layers", "--copy"], ["rekey", FSDP2, "{}/folder", "--key-by", "id", "--copy"],
    ["set", FSDP2, "{}/folder", "step=4", "--copy"], ["groups", FSDP2, "{}/folder", "--split", "**.bias", "weight_decay=0", "--copy"],
    ["resize-vocab", FSDP2, "{}/full.pt", "--size", "40", "--table", "app.model.emb.*"],
    ["average", FSDP2, FSDP2, "{}/full.pt", "--optimizer"], ["merge-lora", FSDP2, "@adapters/blocks", "{}/full.pt"],
    ["map", "@rules/shards.toml", "@golden/2.11.0/shards/ckpt", "{}/full.pt"], ["export", FSDP2, "{}/folder"],
    ["import", "@golden/2.11.0/hf_plain/ckpt", "{}/folder", "--map", "none", "-w", "2"],
    ["extract-lora", FSDP2, "@tuned.pt", "{}/folder", "--rank", "2"],
    ["inspect", "@golden/none"], ["verify", "@golden/2.11.0/none/ckpt", "--json"], ["convert", "@none.pt", "{}/full.pt"],
]


def main():
    parser = commands.arguments(__doc__)
    parser.add_argument("--every", action="store_true", help="all commands on rclone and moto too")
    args = parser.parse_args()
    failures = []
    with tempfile.TemporaryDirectory() as work:
        tree = os.path.join(work, "in")
        os.mkdir(tree)
        inputs.make(args.tool, args.data, tree)
        names = commands.fixtures(args.data)
        lines = list(OTHERS)
        for number, name in enumerate(names + ["large.safetensors"]):
            asked = reading("@" + name)
            lines += asked if args.every else [words for i, words in enumerate(asked) if (i + number) % 2 == 0]

        def answers(label, place, environment, chosen):
            begin = time.monotonic()
            folder = os.path.join(work, label)
            os.mkdir(folder)
            found = commands.run_all(args.commands, chosen, place, environment, folder)
            shutil.rmtree(folder)
            print(f"{label}: {len(chosen)} commands, {time.monotonic() - begin:.1f} s", flush=True)
            return found

        with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(1) as pool:
            local = pool.submit(answers, "here", tree, server.environment(), lines)
            # In this thread: a server ends with the thread that started it.
            servers = [stack.enter_context(kind()) for kind in server.ALL]
            for running in servers:
                commands.upload(running.client(), commands.BUCKET, tree, "a folder")
            expected = local.result()
            succeeded = sum(status in (0, 1) for status, _, _ in expected)
            assert len(names) > 60 and succeeded > 0.8 * len(lines), f"{succeeded} of {len(lines)} commands succeed"
            for part, running in enumerate(servers):
                every = args.every or part == 0
                chosen = [i for i in range(len(lines)) if every or i % 12 == part]
                found = answers(running.name, f"s3://{commands.BUCKET}/a folder", server.s3_environment(running.endpoint),
                                [lines[i] for i in chosen])
                failures += [f"{running.name}: {text}"
                             for text in commands.differing([lines[i] for i in chosen], [expected[i] for i in chosen], found)]
            check_requests.check_requests(args.tool, args.data, f"s3://{commands.BUCKET}/a folder", servers[-1])
            check_requests.check_ending(args.tool, f"s3://{commands.BUCKET}/a folder", servers[-1])
            check_requests.check_loading(args.tool, tree, f"s3://{commands.BUCKET}/a folder", servers[-1])

        authority, context = listener.certificates(work)
        unlisted = [i for i, line in enumerate(lines) if any(line in reading("@" + name) for name in UNLISTED)]
        with files.Files(tree, context) as plain:
            found = answers("https", f"https://localhost:{plain.port}", server.environment(SSL_CERT_FILE=authority), [lines[i] for i in unlisted])
            assert not plain.failures, plain.failures
        failures += [f"https: {text}"
                     for text in commands.differing([lines[i] for i in unlisted], [expected[i] for i in unlisted], found)]
    print("\n".join(failures[:20]))
    print(f"{len(failures)} differ; {succeeded} of {len(lines)} commands had a result, the others an error")
    return len(failures) != 0


if __name__ == "__main__":
    sys.exit(main())
