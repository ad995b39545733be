# SPDX-License-Identifier: Apache-2.0
"""The runs that faults are injected into: each verb, its input, and the output that it replaces."""
import os
import shutil
import subprocess


class Case:
    """A run of the tool in a separate folder.

    Inputs lie in <folder>/in and are made once; outputs are written or replaced in <folder>/out.  `args` and `before`
    (a command that makes the old output) hold {in}, {out} and {data}.
    """

    def __init__(self, name, args, before=None, inputs=(), status=0, incomplete=None, passing=None, page=None, record=None, around=False):
        self.name, self.args_, self.before, self.inputs, self.status = name, args, before, inputs, status
        self.incomplete = incomplete   # the status of an answer that reports something as missing
        self.passing = passing         # words on standard error that explain why nothing was done
        self.page = page               # an output that tells which inputs could not be read
        self.around = around           # the configuration of a model is looked for around its checkpoint
        self.record = record           # an output that tells where data came from: what cannot be read comes from elsewhere

    def prepare(self, tool, data, folder):
        """`data`: None where no command asks for it."""
        self.tool, self.folder = tool, folder
        self.words = {"in": os.path.join(folder, "in"), "out": os.path.join(folder, "out")}
        if data:
            self.words["data"] = os.path.abspath(data)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(self.words["in"])
        os.makedirs(self.words["out"])
        for command in self.inputs:
            self.must(command)
        if self.before:
            self.must(self.before)
        os.rename(self.words["out"], os.path.join(folder, "old"))
        self.args = self.filled(self.args_)
        self.reset()

    def reset(self):
        """Restores the content of `out` from before the run."""
        shutil.rmtree(self.words["out"], ignore_errors=True)
        shutil.copytree(os.path.join(self.folder, "old"), self.words["out"], symlinks=True)

    def filled(self, command):
        return [word.format(**self.words) for word in command.split()]

    def must(self, command):
        words = self.filled(command)
        if words[0] == "cp":
            shutil.copytree(words[1], words[2]) if os.path.isdir(words[1]) else shutil.copy(words[1], words[2])
            return
        if words[0] == "rm":
            os.remove(words[1])
            return
        done = subprocess.run([self.tool, *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{words}: {done.returncode}: {done.stderr}")

    def writes(self):
        return "{out}" in self.args_


SHARDS = "cp {data}/golden/2.11.0/shards/ckpt {in}/ckpt"
MINIMAL = "{data}/golden/2.11.0/minimal/ckpt"
PT, H5, ST = "consolidate {in}/ckpt {in}/a.pt", "convert {in}/ckpt {in}/a.h5", "convert {in}/ckpt {in}/a.safetensors --drop-values"
ONE = "--force --threads 1"
ROWS = "-k *row*"
# A base and its adapter in one folder.
HELD = "set {data}/golden/2.15.0/fsdp2/ckpt {in}/h --take-from {data}/adapters/blocks/adapter_model.safetensors --take **"
ADAPTER = "--adapter-config {data}/adapters/blocks/adapter_config.json"


def writing(name, what, before, *inputs, **kw):
    return Case(name, f"{what} {ONE}", before, inputs or (SHARDS,), **kw)


def reading(name, what, *inputs, **kw):
    return Case(name, f"{what} --threads 1", None, inputs or (SHARDS,), **kw)


def chosen(names, cases=None):
    """Those of `cases`, else of CASES, with these names; `writing` and `reading` are all of a kind. Throws: KeyError."""
    cases = cases or CASES
    known = {case.name for case in cases} | {"writing", "reading"}
    for name in names:
        if name not in known:
            raise KeyError(f"no case is named {name}")
    return [case for case in cases if not names or case.name in names or ("writing" if case.writes() else "reading") in names]


CASES = [
    writing("consolidate", "consolidate {in}/ckpt {out}/o.pt", f"consolidate {MINIMAL} {{out}}/o.pt"),
    writing("consolidate_sealed", f"consolidate {{in}}/ckpt {{out}}/o.pt --seal {ROWS}", f"consolidate {MINIMAL} {{out}}/o.pt --seal"),
    writing("consolidate_new", f"consolidate {{in}}/ckpt {{out}}/o.pt {ROWS}", None),
    writing("consolidate_folder", f"consolidate {{in}}/ckpt {{out}}/o.safetensors.d --max-shard-size 100B {ROWS} --to safetensors",
            f"consolidate {MINIMAL} {{out}}/o.safetensors.d --to safetensors --max-shard-size 1MB -k w"),
    writing("reshard", "reshard {in}/ckpt {out}/o --world-size 3 --seal", f"reshard {MINIMAL} {{out}}/o --world-size 2 --seal"),
    writing("reshard_new", f"reshard {{in}}/ckpt {{out}}/o --world-size 2 {ROWS}", None),
    writing("shard", "shard {in}/a.pt {out}/o --world-size 2", f"reshard {MINIMAL} {{out}}/o --world-size 2", SHARDS, PT),
    writing("convert_safetensors", f"convert {{in}}/ckpt {{out}}/o.safetensors {ROWS}", f"convert {MINIMAL} {{out}}/o.safetensors -k w"),
    writing("convert_hdf5", "convert {in}/ckpt {out}/o.h5", f"convert {MINIMAL} {{out}}/o.h5"),
    writing("convert_from_hdf5", "convert {in}/a.h5 {out}/o.pt", f"convert {MINIMAL} {{out}}/o.pt", SHARDS, H5),
    writing("convert_torch_checkpointing", f"convert {{in}}/ckpt {{out}}/o --to torch-checkpointing --world-size 2 --seal {ROWS}",
            f"convert {MINIMAL} {{out}}/o --to torch-checkpointing"),
    writing("rename_file", "rename {in}/a.pt {out}/o.pt --rename grid=net", f"consolidate {MINIMAL} {{out}}/o.pt", SHARDS, PT),
    writing("rename_links", "rename {in}/ckpt {out}/o --rename grid=net", f"rename {MINIMAL} {{out}}/o --rename w=v --copy"),
    writing("rename_copy", "rename {in}/ckpt {out}/o --rename grid=net --copy --seal", f"rename {MINIMAL} {{out}}/o --rename w=v --copy"),
    writing("rekey", "rekey {in}/ckpt {out}/o --key-by id -k app.optim.**", f"rename {MINIMAL} {{out}}/o --rename w=v --copy",
            "cp {data}/golden/2.15.0/fsdp2/ckpt {in}/ckpt"),
    writing("set", "set {in}/ckpt {out}/o epoch=9", f"rename {MINIMAL} {{out}}/o --rename w=v --copy"),
    writing("set_tensor", "set {in}/ckpt {out}/o grid=9", f"reshard {MINIMAL} {{out}}/o --world-size 2"),
    writing("set_taken", "set {in}/ckpt {out}/o --drop epoch --take-from {in}/a.pt --take *row* --replace", f"reshard {MINIMAL} {{out}}/o --world-size 2",
            SHARDS, PT),
    writing("resize_vocab", f"resize-vocab {{in}}/ckpt {{out}}/o.pt --size 20 --table rows {ROWS}", f"consolidate {MINIMAL} {{out}}/o.pt"),
    writing("resize_vocab_folder", f"resize-vocab {{in}}/ckpt {{out}}/o --to dcp -w 2 --size 3 --table rows {ROWS}",
            f"reshard {MINIMAL} {{out}}/o --world-size 2"),
    writing("salvage", f"salvage {{in}}/ckpt {{out}}/o --from {{in}}/a.pt", f"reshard {MINIMAL} {{out}}/o --world-size 2", SHARDS, PT,
            "rm {in}/ckpt/__1_0.distcp", record="o.salvage.json"),
    writing("groups", "groups {in}/ckpt {out}/o --split **.bias weight_decay=0 -k app.optim.**", f"rename {MINIMAL} {{out}}/o --rename w=v --copy",
            "cp {data}/golden/2.15.0/fsdp2/ckpt {in}/ckpt"),
    writing("map", "map {data}/rules/shards.toml {in}/ckpt {out}/o.pt", f"consolidate {MINIMAL} {{out}}/o.pt"),
    writing("map_folder", "map {data}/rules/shards.toml {in}/ckpt {out}/o --to dcp -w 2", f"reshard {MINIMAL} {{out}}/o --world-size 2"),
    writing("export", "export {in}/ckpt {out}/o --max-shard-size 100B --config {data}/published",
            f"consolidate {MINIMAL} {{out}}/o --to safetensors --max-shard-size 100B -k w"),
    writing("import", "import {data}/golden/2.11.0/hf_map/ckpt {out}/o --map none -w 2", f"reshard {MINIMAL} {{out}}/o --world-size 2"),
    writing("merge_lora", "merge-lora {data}/golden/2.15.0/fsdp2/ckpt {data}/adapters/blocks {out}/o.pt", f"consolidate {MINIMAL} {{out}}/o.pt"),
    writing("merge_lora_held", f"merge-lora {{in}}/h {{out}}/o.pt {ADAPTER} --config {{data}}/published/config.json --untied",
            f"consolidate {MINIMAL} {{out}}/o.pt", HELD),
    writing("merge_lora_adapter", f"merge-lora {{in}}/h {{out}}/o --adapter-only {ADAPTER}",
            f"merge-lora {{in}}/h {{out}}/o --adapter-only --alpha 2", HELD),
    writing("export_held", "export {in}/held/h {out}/o", f"consolidate {MINIMAL} {{out}}/o --to safetensors --max-shard-size 1MB -k w",
            "cp {data}/adapters/blocks {in}/held", HELD.replace("{in}/h", "{in}/held/h")),
    writing("extract_lora", "extract-lora {data}/golden/2.15.0/fsdp2/ckpt {in}/m.pt {out}/o --rank 4 -k blocks.0.*.weight",
            "extract-lora {data}/golden/2.15.0/fsdp2/ckpt {in}/m.pt {out}/o --rank 1 -k blocks.0.*.weight",
            "merge-lora {data}/golden/2.15.0/fsdp2/ckpt {data}/adapters/blocks {in}/m.pt"),
    writing("average", f"average {{in}}/ckpt {{in}}/a.pt {{out}}/o.pt {ROWS}", f"consolidate {MINIMAL} {{out}}/o.pt", SHARDS, PT),
    writing("average_folder", f"average {{in}}/ckpt {{in}}/a.pt {{out}}/o --to dcp -w 2 {ROWS}", f"reshard {MINIMAL} {{out}}/o --world-size 2",
            SHARDS, PT),
    writing("seal", "seal {out}/ckpt", "cp {data}/golden/2.11.0/shards/ckpt {out}/ckpt"),
    writing("seal_file", "seal {out}/a.pt", f"consolidate {MINIMAL} {{out}}/a.pt"),
    Case("prune", "prune {out}/run --keep 1 --threads 1", "cp {in}/run {out}/run",
         [f"cp {MINIMAL} {{in}}/run/step-{step}" for step in (1, 2)], passing="passed over: "),
    writing("extract", "extract {in}/ckpt rows {out}/o.npy", f"extract {MINIMAL} w {{out}}/o.npy"),
    writing("stats_html", "stats {in}/ckpt --html {out}/o.html", f"stats {MINIMAL} --html {{out}}/o.html"),
    writing("inspect_html", "inspect {in}/ckpt --html {out}/o.html", f"inspect {MINIMAL} --html {{out}}/o.html"),
    reading("inspect", "inspect {in}/ckpt --chunks"),
    reading("inspect_globals", "inspect {in}/ckpt --globals", incomplete=1),
    writing("inspect_run_html", "inspect {in}/ckpt {in}/other --html {out}/o.html", f"inspect {MINIMAL} --html {{out}}/o.html",
            SHARDS, "cp {data}/golden/2.15.0/fsdp2/ckpt {in}/other", page="o.html"),
    writing("verify_html", "verify {in}/ckpt --html {out}/o.html", f"inspect {MINIMAL} --html {{out}}/o.html", page="o.html"),
    reading("verify", "verify {in}/ckpt --json"),
    reading("latest", "latest {in}/run", *[f"cp {MINIMAL} {{in}}/run/step-{step}" for step in (1, 2)], passing="passed over: "),
    reading("verify_sealed", "verify {in}/sealed", SHARDS, "reshard {in}/ckpt {in}/sealed --world-size 2 --seal"),
    reading("verify_linked", "verify {in}/linked", SHARDS, "rename {in}/ckpt {in}/linked --rename grid=net"),
    reading("verify_hdf5", "verify {in}/a.h5", SHARDS, H5),
    reading("verify_deepspeed", "verify {data}/golden/frameworks/deepspeed_zero2_w2/ckpt"),
    reading("verify_torch_checkpointing", "verify {data}/golden/frameworks/torch_checkpointing_safetensors_w2/ckpt"),
    reading("verify_safetensors", "verify {data}/golden/2.11.0/hf_sharded/ckpt"),
    reading("diff_same", "diff {in}/ckpt {in}/a.pt", SHARDS, PT),
    reading("diff_other", "diff {in}/ckpt {in}/a.pt", SHARDS, "rename {in}/ckpt {in}/b --rename grid=net", "consolidate {in}/b {in}/a.pt", status=1, around=True),
    reading("diff_export", "diff {in}/ckpt {in}/a.pt --map {data}/rules/shards.toml", SHARDS, "map {data}/rules/shards.toml {in}/ckpt {in}/a.pt", around=True),
    reading("stats", "stats {in}/ckpt"),
    reading("extract_text", "extract {in}/ckpt rows"),
]
