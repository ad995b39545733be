#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""verify --against hf:// and hf://buckets/, beside huggingface_hub: on what it downloads, with the answers that it gives, from one server.

    check_hub_client.py --tool PROGRAM --data FOLDER      with a Python that has huggingface_hub and transformers
"""
import contextlib
import json
import os
import shutil
import sys
import tempfile

import commands
import hub
import server

TOKEN = "hf_token"


def make_model(folder):
    """As transformers publishes it: shards with their index, config, tokenizer."""
    import torch
    import transformers
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=100)
    transformers.LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="100KB")
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}, file)
    os.mkdir(os.path.join(folder, "original"))
    with open(os.path.join(folder, "original/params.json"), "w", encoding="utf-8") as file:
        file.write("{}\n")


def read_tree(folder):
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb") as file:
                found[os.path.relpath(os.path.join(at, name), folder)] = file.read()
    return found


class Client:
    def __init__(self, args, work, running, environment):
        import huggingface_hub
        self.args, self.work, self.running, self.environment = args, work, running, environment
        self.api = huggingface_hub.HfApi(endpoint=running.endpoint, token=TOKEN)
        print("huggingface_hub", huggingface_hub.__version__, flush=True)

    def verify(self, folder, url="hf://org/name"):
        done = commands.run(self.args.tool, ["verify", folder, "--against", url, "--json"], self.environment)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)

    def same_answers(self, folder, **where):
        """Their check of a folder, and ours: the same files differ, lack and are too many, with the same digests."""
        theirs = self.api.verify_repo_checksums("org/name", **where)
        status, answer = self.verify(folder)
        files = answer["against"]["files"]
        ours = [(file["name"], file["expected"], file["found"], file["algorithm"]) for file in files if file["state"] == "differs"]
        assert ours == sorted((one["path"], one["expected"], one["actual"], one["algorithm"]) for one in theirs.mismatches), (ours, theirs)
        for state, paths in (("missing", theirs.missing_paths), ("extra", theirs.extra_paths)):
            assert [file["name"] for file in files if file["state"] == state] == sorted(paths), (state, answer, theirs)
        assert sum(file["state"] in ("same", "differs") for file in files) == theirs.checked_count > 0, theirs
        assert (status == 1) == bool(theirs.mismatches), (status, theirs)
        return theirs, answer

    def downloads(self, files):
        """A snapshot of their cache, and their download to a folder: sound, and changed in every kind of file."""
        cache = os.path.join(self.work, "cache")
        for page in (1000, 4):
            self.running.page = page
            snapshot = self.api.snapshot_download("org/name", cache_dir=cache)
            assert any(os.path.islink(os.path.join(snapshot, name)) for name in files), os.listdir(snapshot)
            theirs, answer = self.same_answers(snapshot, cache_dir=cache)
            assert not theirs.mismatches and not theirs.missing_paths and not theirs.extra_paths and answer["verdict"] == "sound", (theirs, answer)
            assert os.path.basename(snapshot) == answer["against"]["commit"], (snapshot, answer["against"])
            shutil.rmtree(cache)
        self.running.page = 1000
        folder = self.api.snapshot_download("org/name", local_dir=os.path.join(self.work, "folder"))
        assert os.path.isdir(os.path.join(folder, ".cache/huggingface"))
        theirs, _ = self.same_answers(folder, local_dir=folder)
        assert not theirs.mismatches and not theirs.extra_paths, theirs
        for name, content in files.items():
            for changed in (content[:-1] + bytes([content[-1] ^ 1]), content + b"\n"):
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(changed)
                theirs, _ = self.same_answers(folder, local_dir=folder)
                assert [one["path"] for one in theirs.mismatches] == [name], theirs
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
        os.rename(os.path.join(folder, "tokenizer.json"), os.path.join(folder, "original/tokenizer.json"))
        theirs, _ = self.same_answers(folder, local_dir=folder)
        assert (theirs.missing_paths, theirs.extra_paths) == (["tokenizer.json"], ["original/tokenizer.json"]), theirs
        # What from_pretrained takes is not all that there is.
        partial = self.api.snapshot_download("org/name", cache_dir=cache, allow_patterns=["*.safetensors", "*.json"], ignore_patterns=["original/*"])
        theirs, answer = self.same_answers(partial, cache_dir=cache)
        assert theirs.missing_paths and answer["sound"], (theirs, answer)

    def buckets(self, files):
        """What their client says of a bucket, and what we read there."""
        inside = {f"runs/step 4/{name}": content for name, content in files.items()}
        self.running.fill("org/data", {**inside, "runs/step 40/a.bin": b"a", "runs/step 4.json": b"{}"})
        for prefix in ("runs/step 4", None):
            theirs = {entry.path: entry.size for entry in self.api.list_bucket_tree("org/data", prefix=prefix, recursive=True) if entry.type == "file"}
            assert set(inside) < set(theirs), theirs
        large = next(name for name in inside if name.endswith(hub.LARGE))
        told = self.api.get_bucket_file_metadata("org/data", large)
        assert (told.size, told.xet_file_data.file_hash) == (len(inside[large]), hub.xet_hash(inside[large])), told
        folder = os.path.join(self.work, "original")
        at = "hf://buckets/org/data/runs/step 4"
        for words in (["verify"], ["stats"], ["inspect", "--chunks"]):
            here, there = (commands.run(self.args.tool, [words[0], place, *words[1:], "--json"], self.environment) for place in (folder, at))
            assert there.returncode == 0, there.stderr
            assert [line for line in there.stdout.replace(at, folder).splitlines() if '"seconds"' not in line] == [
                line for line in here.stdout.splitlines() if '"seconds"' not in line], words
        done = commands.run(self.args.tool, ["diff", folder, at], self.environment)
        assert done.returncode == 0 and "are the same" in done.stdout, done
        # A single file, one that changes while it is read, and none.
        done = commands.run(self.args.tool, ["inspect", f"hf://buckets/org/data/{large}", "--json"], self.environment)
        assert done.returncode == 0, done.stderr
        done = commands.run(self.args.tool, ["inspect", "hf://buckets/org/data/runs/step 4/none.safetensors"], self.environment)
        assert done.returncode == 2 and "error[NOT_FOUND]" in done.stderr, done.stderr
        changed = {name: content[:-1] + b"?" if name == large else content for name, content in inside.items()}
        self.running.changed = lambda running, request: "resolve" in request.path and running.fill("org/data", changed)
        done = commands.run(self.args.tool, ["stats", at], self.environment)
        self.running.changed = None
        assert done.returncode == 2 and "error[CHANGED]" in done.stderr, done
        assert set(self.running.tokens) == {f"Bearer {TOKEN}"}, set(self.running.tokens)


def main():
    args = commands.arguments(__doc__).parse_args()
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory())
        elsewhere = stack.enter_context(hub.Elsewhere())
        running = stack.enter_context(hub.Hub(elsewhere, token=TOKEN))
        environment = server.environment(HF_ENDPOINT=running.endpoint, HF_TOKEN=TOKEN, HF_HOME=os.path.join(work, "home"))
        # Read when huggingface_hub is imported.
        os.environ.update(HF_ENDPOINT=running.endpoint, HF_HOME=os.path.join(work, "home"), HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1",
                          HF_HUB_DISABLE_PROGRESS_BARS="1", NO_PROXY="*")
        make_model(os.path.join(work, "original"))
        files = read_tree(os.path.join(work, "original"))
        assert sum(name.endswith(".safetensors") for name in files) > 1 and len(files) > 5, list(files)
        running.commit("models/org/name", files, "main")
        client = Client(args, work, running, environment)
        client.downloads(files)
        client.buckets(files)
        assert not running.failures and not elsewhere.failures and not elsewhere.leaked, (running.failures, elsewhere.failures, elsewhere.leaked)


if __name__ == "__main__":
    sys.exit(main())
