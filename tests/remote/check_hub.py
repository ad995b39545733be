#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""verify --against hf://, on a server that answers as the Hugging Face Hub: what is told, how it is asked, and who gets the token.

    check_hub.py --tool PROGRAM --data FOLDER

Digests are those of hashlib and, where git is installed, of git hash-object.  check_hub_client.py compares with huggingface_hub.
"""
import contextlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import commands
import hub
import server

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path[1:1] = [os.path.join(ROOT, "tests/docs"), os.path.join(ROOT, "tools/python")]
import check_schemas   # noqa: E402
import fsdp_ckpt   # noqa: E402

REPOSITORY = "models/org/name"
URL = "hf://org/name"
TOKEN = "hf_token+of/tests"
CONFIG = "published/config.json"
MERGES = "published/merges.txt"


def safetensors(names, numel, seed):
    each = 4 * numel
    header = json.dumps({name: {"dtype": "F32", "shape": [numel], "data_offsets": [i * each, (i + 1) * each]} for i, name in enumerate(names)}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(each * len(names))


def model(data):
    """The files of a repository: of each kind that models have."""
    shards = {"model-00001-of-00002.safetensors": ["a", "b"], "model-00002-of-00002.safetensors": ["c"]}
    files = {name: safetensors(keys, 350_000, i) for i, (name, keys) in enumerate(shards.items())}
    index = {"metadata": {"total_size": 4 * 3 * 350_000}, "weight_map": {key: name for name, keys in shards.items() for key in keys}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    for name, path in (("config.json", CONFIG), ("merges.txt", MERGES)):
        with open(os.path.join(data, path), "rb") as file:
            files[name] = file.read()
    files["tokenizer.json"] = json.dumps({"model": {"vocab": {str(i): i for i in range(500)}}}).encode()
    files["README.md"] = "# a model\n\u00e9\n".encode()
    files[".gitattributes"] = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
    files["original/empty.json"] = b""
    return files


def write(folder, files):
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


class Checks:
    def __init__(self, args, work, running, elsewhere):
        self.args, self.work, self.running, self.elsewhere = args, work, running, elsewhere
        with open(os.path.join(ROOT, "docs/schemas/verify-1.json"), encoding="utf-8") as file:
            self.schema = json.load(file)
        self.files = model(args.data)
        self.commit = running.commit(REPOSITORY, self.files, "main")
        self.folder = self.copy("sound", self.files)

    def copy(self, name, files):
        folder = os.path.join(self.work, name)
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, files)
        return folder

    def environment(self, **more):
        return server.environment(HF_ENDPOINT=self.running.endpoint, HF_TOKEN_PATH="/nonexistent/token", HF_HOME="/nonexistent", **more)

    def run(self, *words, status=0, **variables):
        self.running.asked.clear()
        self.running.tokens.clear()
        done = commands.run(self.args.tool, ["verify", *words], self.environment(**variables))
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert TOKEN not in done.stdout + done.stderr
        return done

    def asked(self, folder, *words, status=0, url=URL, **variables):
        """The member `against` of the answer, and the findings about the hub by file."""
        answer = json.loads(self.run(folder, "--against", url, "--json", *words, status=status, **variables).stdout)
        assert answer["sound"] == (status == 0), answer
        wrong = list(check_schemas.problems(self.schema, answer))
        assert not wrong, wrong
        found = {finding["file"]: finding for finding in answer["findings"] if finding["code"].startswith("HUB_")}
        return answer["against"], found, answer

    def states(self, against):
        return {file["name"]: file["state"] for file in against["files"]}

    def same(self):
        against, found, answer = self.asked(self.folder)
        assert self.states(against) == dict.fromkeys(self.files, "same") and not found, against
        assert (against["url"], against["revision"], against["commit"], against["whole"]) == (URL, "main", self.commit, True), against
        assert [against[name] for name in ("same", "same_size", "differing", "missing", "extra", "unchecked")] == [len(self.files), 0, 0, 0, 0, 0]
        for file in against["files"]:
            content = self.files[file["name"]]
            large = file["name"].endswith(".safetensors")
            digest = hub.sha256(content) if large else hub.git_digest(content)
            assert file == {"name": file["name"], "state": "same", "algorithm": "sha256" if large else "git-sha1", "expected": digest, "found": digest,
                            "expected_bytes": len(content), "found_bytes": len(content), "reason": None}, file
        # A digest of every byte is a checksum of every byte.
        assert answer["bytes_unchecked"] and self.run(self.folder, "--require-checksums", status=1)
        self.asked(self.folder, "--require-checksums")
        said = self.run(self.folder, "--against", URL).stdout
        assert f"{URL}: main is commit {self.commit}; {len(self.files)} files: {len(self.files)} the same\n" in said, said
        assert f"the same: {', '.join(sorted(self.files))}\n" in said and f"sound, matches {URL} at {self.commit[:12]}, " in said, said
        assert self.run(self.folder, "--against", URL, "-q").stdout == ""

    def git(self):
        """The digests that the server gives are git's."""
        if not shutil.which("git"):
            return print("git is not installed: its digests are those of hashlib alone", flush=True)
        for name, content in self.files.items():
            done = subprocess.run(["git", "hash-object", "--no-filters", os.path.join(self.folder, name)], capture_output=True, text=True, check=True)
            assert done.stdout.strip() == hub.git_digest(content), name

    def requests(self):
        """One for the commit, one for each page, none for a file; and at the commit, wherever the revision leads meanwhile."""
        folders = len({os.path.dirname(name) for name in self.files} - {""})
        for page, pages in ((1000, 1), (3, -(-(len(self.files) + folders) // 3))):
            self.running.page = page
            self.asked(self.folder)
            assert len(self.running.asked) == 1 + pages, self.running.asked
            assert self.running.asked[0] == "GET /api/models/org/name/revision/main?expand=sha", self.running.asked
            begin = f"GET /api/models/org/name/tree/{self.commit}?recursive=true"
            assert all(line.startswith(begin) for line in self.running.asked[1:]), self.running.asked
        self.running.page = 1000
        assert not self.elsewhere.seen, self.elsewhere.seen
        moved = dict(self.files, **{"config.json": b"{}"})

        def move(running, request):
            if "/revision/" in request.path:
                running.commit(REPOSITORY, moved, "main")
        self.running.changed = move
        against, _, _ = self.asked(self.folder)
        self.running.changed = None
        assert against["commit"] == self.commit, against
        against, found, _ = self.asked(self.folder, status=1)
        assert against["commit"] != self.commit and list(found) == ["config.json"], found
        against, _, _ = self.asked(self.folder, url=f"{URL}@{self.commit}")
        assert against["revision"] == self.commit, against
        self.running.revisions[REPOSITORY]["main"] = self.commit

    def changed(self):
        """One byte of each file, at its begin, in its middle, at its end; without the option nobody notices those that leave the structure whole."""
        unnoticed = 0
        for name, content in self.files.items():
            for at in sorted({0, len(content) // 2, len(content) - 1}) if content else ():
                folder = self.copy("changed", {**self.files, name: content[:at] + bytes([content[at] ^ 1]) + content[at + 1:]})
                against, found, _ = self.asked(folder, status=1)
                with open(os.path.join(folder, name), "rb") as file:
                    now = file.read()
                digest = (hub.sha256 if name.endswith(".safetensors") else hub.git_digest)
                one = next(file for file in against["files"] if file["name"] == name)
                assert (one["state"], one["expected"], one["found"], one["found_bytes"]) == ("differs", digest(content), digest(now), len(now)), one
                assert list(found) == [name] and (found[name]["code"], found[name]["severity"]) == ("HUB_MISMATCH", "damage"), found
                message = found[name]["message"]
                assert digest(content) in message and digest(now) in message and f"has {len(now)} bytes as on the hub" in message, message
                assert f"hf download --revision {self.commit} --force-download org/name {name} downloads it" in message, message
                assert [file["name"] for file in against["files"] if file["state"] != "same"] == [name], against
                unnoticed += commands.run(self.args.tool, ["verify", folder, "-q"], server.environment()).returncode == 0
        assert unnoticed > 10, unnoticed
        for name, content in (("config.json", self.files["config.json"] + b"\n"), ("tokenizer.json", self.files["tokenizer.json"][:-1]),
                              ("original/empty.json", b"1")):
            _, found, _ = self.asked(self.copy("changed", {**self.files, name: content}), status=1)
            assert f"has {len(content)} bytes, on the hub {len(self.files[name])}; git's SHA-1 computed" in found[name]["message"], found
        # What cannot be opened as a checkpoint is compared all the same.
        shard = "model-00001-of-00002.safetensors"
        for content in (b"", b"\0" * 100):
            _, found, _ = self.asked(self.copy("changed", {**self.files, shard: content}), status=1)
            assert list(found) == [shard], found
        # The pointer that git leaves without git-lfs.
        large = self.files[shard]
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{hub.sha256(large)}\nsize {len(large)}\n".encode()
        _, found, _ = self.asked(self.copy("changed", {**self.files, shard: pointer}), status=1)
        assert "is git LFS's pointer to the file, not the file: git lfs pull fetches it" in found[shard]["message"], found

    def names(self):
        """Files that only one side has."""
        folder = self.copy("names", {name: content for name, content in self.files.items() if name not in ("README.md", "original/empty.json")})
        write(folder, {"notes.txt": b"n", "a/b.txt": b"b", ".git/config": b"", "x/.git": b"gitdir: ..", ".cache/huggingface/download/config.json.metadata": b""})
        against, found, _ = self.asked(folder)
        assert {name: finding["code"] for name, finding in found.items()} == {
            "README.md": "HUB_MISSING", "original/empty.json": "HUB_MISSING", "notes.txt": "HUB_EXTRA", "a/b.txt": "HUB_EXTRA"}, found
        assert {finding["severity"] for finding in found.values()} == {"warning"}
        assert (against["missing"], against["extra"], against["same"]) == (2, 2, len(self.files) - 2), against
        assert f"the hub has it with {len(self.files['README.md'])} bytes" in found["README.md"]["message"], found
        self.asked(folder, "--strict", status=1)
        # What has no digest proves nothing.
        self.asked(folder, "--require-checksums", status=1)
        said = self.run(folder, "--against", URL).stdout
        assert "warning[HUB_MISSING]: README.md: is not here" in said and "warning[HUB_EXTRA]: notes.txt: is not on the hub" in said, said
        assert f"{len(self.files) - 2} the same, 2 not here, 2 not on the hub\n" in said, said
        # A shard that is not here is damage without the hub, too.
        _, found, _ = self.asked(self.copy("names", {name: content for name, content in self.files.items() if "00002-of" not in name}), status=1)
        assert found["model-00002-of-00002.safetensors"]["code"] == "HUB_MISSING", found
        # A seal is of the folder.
        folder = self.copy("names", self.files)
        assert commands.run(self.args.tool, ["seal", folder], server.environment()).returncode == 0
        against, found, _ = self.asked(folder)
        assert not found and against["extra"] == 0, found
        # Nothing of PyTorch in it: only files.
        against, found, answer = self.asked(self.copy("names", {"config.json": self.files["config.json"]}))
        assert (against["same"], answer["verdict"], answer["format"]) == (1, "unknown", None), answer
        self.asked(self.copy("names", {"config.json": b""}), status=1)

    def unchecked(self):
        """Files without a usable digest, or that cannot be read."""
        def altered(entry):
            if entry["path"] == "merges.txt":
                entry = {**entry, "oid": "of another kind"}
            if entry["path"].endswith("00002.safetensors"):
                entry = {**entry, "lfs": {**entry["lfs"], "oid": entry["lfs"]["oid"][:-1]}}
            return entry
        plain, self.running.altered = self.running.altered, altered
        against, found, answer = self.asked(self.folder)
        assert against["unchecked"] == 3 and answer["verdict"] == "unknown", against
        assert found["merges.txt"]["code"] == "HUB_UNCHECKED" and "the hub does not name git's SHA-1 of it" in found["merges.txt"]["message"], found
        self.asked(self.folder, "--strict", status=1)
        _, found, _ = self.asked(self.copy("changed", {**self.files, "merges.txt": b"m"}), status=1)
        assert found["merges.txt"]["code"] == "HUB_MISMATCH", found
        for broken, said in (({"path": 3}, "is not a list of files"), ({"size": -1}, "is not a list of files"), ({"path": "config.json"}, "is not a list of files")):
            self.running.altered = lambda entry, broken=broken: {**entry, **broken}
            assert said in self.run(self.folder, "--against", URL, status=2).stderr
        # A name from the hub that leads out of the folder is not followed.
        for name in ("../secret", "/etc/passwd", "a\0b"):
            self.running.altered = lambda entry, name=name: {**entry, "path": name} if entry["path"] == "merges.txt" else entry
            against, found, _ = self.asked(self.folder)
            assert self.states(against)[name] == "missing" and self.states(against)["merges.txt"] == "extra", against
        self.running.altered = plain
        folder = self.copy("changed", self.files)
        os.remove(os.path.join(folder, "merges.txt"))
        os.symlink("/etc/passwd", os.path.join(folder, "merges.txt"))
        against, _, answer = self.asked(folder, status=1)
        one = next(file for file in against["files"] if file["name"] == "merges.txt")
        assert one["state"] == "unchecked" and "leads outside" in one["reason"], one
        assert [finding["code"] for finding in answer["findings"]] == ["PATH_ESCAPE"], answer

    def fast(self):
        """Sizes of large files, digests of small ones."""
        large = "model-00001-of-00002.safetensors"
        folder = self.copy("changed", {**self.files, large: self.files[large][:-1] + b"?"})
        for words in (["--fast"], ["-k", "c"]):
            against, found, _ = self.asked(folder, *words)
            assert (against["whole"], against["same_size"], self.states(against)[large]) == (False, 2, "same-size") and not found, against
            said = self.run(folder, "--against", URL, *words).stdout
            assert f"sizes and small files match {URL}" in said and f"of the same size: {large}, " in said, said
        self.asked(self.copy("changed", {**self.files, large: self.files[large] + b"?"}), "--fast", status=1)
        self.asked(self.copy("changed", {**self.files, "config.json": self.files["config.json"].replace(b"{", b"[", 1)}), "--fast", status=1)

    def snapshot(self):
        """The hub's cache: links into blobs, here and in folders, and into blobs that repositories share."""
        cache = os.path.join(self.work, "hub")
        for shared in (False, True):
            shutil.rmtree(cache, ignore_errors=True)
            repository = os.path.join(cache, "models--org--name")
            snapshot = os.path.join(repository, "snapshots", self.commit)
            blobs = {}
            for name, content in self.files.items():
                digest = hub.sha256(content) if name.endswith(hub.LARGE) else hub.git_digest(content)
                blobs[name] = os.path.join(repository, "blobs", digest)
                if shared and name.endswith(hub.LARGE):
                    xet = hub.xet_hash(content)
                    write(cache, {f"blobs/{xet[:2]}/{xet}": content, "blobs/.huggingface-shared-blobs": b"1\n"})
                    os.makedirs(os.path.dirname(blobs[name]), exist_ok=True)
                    os.symlink(f"../../blobs/{xet[:2]}/{xet}", blobs[name])
                else:
                    write(os.path.dirname(blobs[name]), {digest: content})
                link = os.path.join(snapshot, name)
                os.makedirs(os.path.dirname(link), exist_ok=True)
                os.symlink(os.path.relpath(blobs[name], os.path.dirname(link)), link)
            against, found, _ = self.asked(snapshot)
            assert not found and against["same"] == len(self.files), (shared, found)
            for name in ("config.json", "model-00002-of-00002.safetensors"):
                content = bytearray(self.files[name])
                content[-1] ^= 1
                with open(blobs[name], "r+b") as file:
                    file.write(content)
                _, found, _ = self.asked(snapshot, status=1)
                assert list(found) == [name], found
                with open(blobs[name], "r+b") as file:
                    file.write(self.files[name])
            # Other verbs read it, too.
            done = commands.run(self.args.tool, ["diff", snapshot, self.folder], server.environment())
            assert done.returncode == 0 and "are the same" in done.stdout, done
            os.remove(blobs["README.md"])
            _, found, _ = self.asked(snapshot)
            assert found["README.md"]["code"] == "HUB_MISSING", found
        os.remove(os.path.join(cache, "blobs/.huggingface-shared-blobs"))
        assert "PATH_ESCAPE" in self.run(snapshot, "--against", URL, status=1).stdout

    def places(self):
        """Other kinds, revisions and folders; what names none of them."""
        inner = {name[len("original/"):]: content for name, content in self.files.items() if name.startswith("original/")}
        self.running.commit("datasets/org/name", {"d.bin": b"d"}, "main", "refs/pr/1")
        self.running.commit(REPOSITORY, {**self.files, "README.md": b"old"}, "v1.0", "a/b")
        folder = self.copy("places", {"d.bin": b"d"})
        for url in ("hf://datasets/org/name", "hf://datasets/org/name@refs/pr/1", "hf://datasets/org/name/"):
            against, _, _ = self.asked(folder, url=url)
            assert against["same"] == 1, against
        _, found, _ = self.asked(self.copy("places", {"d.bin": b"e"}), url="hf://datasets/org/name@refs/pr/1", status=1)
        assert "hf download --repo-type dataset --revision" in found["d.bin"]["message"], found
        for url in (f"{URL}@v1.0", f"{URL}@a%2Fb", "hf://models/org/name@v1.0"):
            _, found, _ = self.asked(self.folder, url=url, status=1)
            assert list(found) == ["README.md"], found
        against, _, _ = self.asked(self.copy("places", inner), url=f"{URL}/original")
        assert self.states(against) == {"empty.json": "same"}, against
        for url, code in ((f"{URL}@none", "NOT_FOUND"), ("hf://org/none", "NOT_FOUND"), (f"{URL}/none", "NOT_FOUND"), ("hf://org", "USAGE"), ("sound", "USAGE"),
                          ("https://127.0.0.1:1/a", "USAGE"), ("hf://buckets/org/name", "UNSUPPORTED")):
            done = self.run(self.folder, "--against", url, status=2)
            assert f"error[{code}]" in done.stderr and not self.elsewhere.seen, done.stderr
        for words, said in (([os.path.join(self.folder, "config.json")], "is a file; --against compares a folder"), ([self.folder, self.folder], "compares one folder"),
                            ([self.folder + "-none"], "no such folder")):
            assert said in self.run(*words, "--against", URL, status=2).stderr
            assert not self.running.asked, self.running.asked

    def token(self):
        """It goes to the hub alone, with each request; a redirect to another host gets none, and a next page there is not asked for."""
        self.running.token = TOKEN
        self.asked(self.folder, HF_TOKEN=TOKEN)
        assert self.running.tokens == [f"Bearer {TOKEN}"] * 2, self.running.tokens
        done = self.run(self.folder, "--against", URL, status=2)
        assert "error[ACCESS]" in done.stderr and self.running.tokens == [None], done.stderr
        done = self.run(self.folder, "--against", URL, status=2, HF_TOKEN="hf_another")
        assert "error[ACCESS]" in done.stderr and "hf_another" not in done.stderr, done.stderr
        tree = f"/api/models/org/name/tree/{self.commit}"
        # Moved repositories: within the hub, and to another host.
        self.running.moved = {"/api/models/org/old/revision/main": f"{self.running.endpoint}/api/models/org/name/revision/main",
                              f"/api/models/org/old/tree/{self.commit}": f"{tree}?recursive=true"}
        self.asked(self.folder, url="hf://org/old", HF_TOKEN=TOKEN)
        assert self.running.tokens == [f"Bearer {TOKEN}"] * 4, self.running.tokens
        self.running.moved = {tree: f"{self.elsewhere.endpoint}/list"}
        self.elsewhere.contents["list"] = b"[]"
        self.elsewhere.seen.clear()
        against, _, _ = self.asked(self.folder, HF_TOKEN=TOKEN)
        assert against["extra"] == len(self.files) and self.elsewhere.seen == ["GET /list"] and not self.elsewhere.leaked, (against, self.elsewhere.leaked)
        self.running.moved = {}
        self.running.page = 3
        self.elsewhere.seen.clear()
        self.running.next_at = self.elsewhere.endpoint
        done = self.run(self.folder, "--against", URL, status=2, HF_TOKEN=TOKEN)
        assert "error[NETWORK]" in done.stderr and not self.elsewhere.seen, (done.stderr, self.elsewhere.seen)
        self.running.page, self.running.token, self.running.next_at = 1000, None, None

    def python(self):
        """The module has the option, and what it finds."""
        os.environ.update(self.environment(), FSDP_CKPT=self.args.tool)
        found = fsdp_ckpt.verify(self.folder, against=URL)
        assert (found.against.commit, found.against.same, len(found.against.files)) == (self.commit, len(self.files), len(self.files)), found.against
        assert fsdp_ckpt.verify(self.folder).against is None
        folder = self.copy("changed", {**self.files, "config.json": b"{}"})
        try:
            fsdp_ckpt.verify(folder, against=URL)
            raise AssertionError("nothing was raised")
        except fsdp_ckpt.FsdpCkptError as error:
            assert (error.status, [finding.code for finding in error.findings]) == (1, ["HUB_MISMATCH"]), error
        found = fsdp_ckpt.verify(folder, against=URL, check=False).against
        one = next(file for file in found.files if file.state == "differs")
        assert (one.name, one.found, one.expected) == ("config.json", hub.git_digest(b"{}"), hub.git_digest(self.files["config.json"])), one

    def effort(self):
        """Files are read once, in bounded memory, several at a time."""
        size = 100 << 20
        folder = self.copy("effort", self.files)
        large = os.path.join(folder, "large.data")
        with open(large, "wb") as file:
            file.truncate(size)
        with open(large, "rb") as file:
            content = file.read()
        self.running.commit("models/org/large", {**self.files, "large.data": content}, "main")
        words = ["verify", folder, "--against", "hf://org/large", "--threads", "2", "--json"]
        trace = os.path.join(self.work, "trace")
        done = subprocess.run(["strace", "-f", "-y", "-e", "trace=pread64,read", "-o", trace, self.args.tool, *words], env=self.environment(),
                              capture_output=True, text=True, timeout=200)
        assert done.returncode == 0 and json.loads(done.stdout)["against"]["same"] == len(self.files) + 1, done
        with open(trace, encoding="latin-1") as file:
            lines = file.read().splitlines()
        for name in ("large.data", "tokenizer.json", "model-00001-of-00002.safetensors"):
            # A call that another thread interrupts ends in a line of its own.
            begun, total = {}, 0
            for line in lines:
                thread = line.split(" ")[0]
                got = re.search(r"= (\d+)$", line)
                if "resumed>" in line:
                    total += int(got[1]) if got and begun.pop(thread, False) else 0
                elif f"/effort/{name}>" in line:
                    begun[thread] = "unfinished" in line
                    total += int(got[1]) if got else 0
            real = os.path.getsize(os.path.join(folder, name))
            assert real <= total <= real + (64 << 10), f"{name}: {total} bytes read of {real}"
        threads = {line.split(" ")[0] for line in lines if f"/effort/" in line}
        assert len(threads) > 1, threads
        # The number counts the parent before exec, too, and this process is a large one.
        measure = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); " \
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        done = subprocess.run([sys.executable, "-c", measure, self.args.tool, *words, "--max-memory", "16MiB"], env=self.environment(), capture_output=True,
                              text=True, timeout=200)
        assert done.returncode == 0 and int(done.stdout) < 64 << 10, done
        print(f"100 MiB: {int(done.stdout) >> 10} MiB of memory", flush=True)


def main():
    args = commands.arguments(__doc__).parse_args()
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory())
        elsewhere = stack.enter_context(hub.Elsewhere())
        running = stack.enter_context(hub.Hub(elsewhere))
        checks = Checks(args, work, running, elsewhere)
        for check in (checks.same, checks.git, checks.requests, checks.changed, checks.names, checks.unchecked, checks.fast, checks.snapshot, checks.places,
                      checks.token, checks.python, checks.effort):
            check()
            print(check.__name__, flush=True)
        assert not running.failures and not elsewhere.failures and not elsewhere.leaked, (running.failures, elsewhere.failures, elsewhere.leaked)


if __name__ == "__main__":
    sys.exit(main())
