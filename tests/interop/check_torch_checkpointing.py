#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the tool reports of folders by torch_checkpointing that are damaged, each in one way.

  python check_torch_checkpointing.py CORPUS --tool PATH      CORPUS is the output of make_frameworks.py
"""
import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import traceback
import zipfile


class Folder:
    """A copy of a checkpoint, to be damaged."""

    def __init__(self, tool, corpus, case, tmp, name="ckpt"):
        self.tool, self.path = tool, os.path.join(tmp, name)
        shutil.copytree(os.path.join(corpus, f"torch_checkpointing_{case}", "ckpt"), self.path)

    def __truediv__(self, name):
        return os.path.join(self.path, name)

    def metadata(self, change):
        with open(self / "metadata.pkl", "rb") as f:
            said = pickle.load(f)
        change(said)
        with open(self / "metadata.pkl", "wb") as f:
            pickle.dump(said, f)

    def run(self, *args):
        done = subprocess.run([self.tool, *args], capture_output=True, text=True)
        assert done.returncode in (0, 1, 2), done
        return done.returncode, done.stdout, done.stderr

    def found(self):
        """Returns status, codes and messages of verify."""
        status, out, err = self.run("verify", self.path, "--json")
        findings = json.loads(out).get("findings", []) if out else []
        codes = {f["code"] for f in findings} | ({err.split("[")[1].split("]")[0]} if "error[" in err else set())
        return status, codes, "\n".join(f"{f.get('file')}: {f.get('key')}: {f['message']}" for f in findings) + err

    def expect(self, *codes, said=(), status=None, lost=True):
        status = (2 if "UNSUPPORTED" in codes else 1) if status is None else status
        got, found, text = self.found()
        assert got == status and set(codes) <= found, f"exit {got}, {found}: {text}"
        for words in [said] if isinstance(said, str) else said:
            assert words in text, f"{words!r} is not in: {text}"
        if lost:
            out = self.path + ".pt"
            status, _, err = self.run("consolidate", self.path, out)
            assert status == 2 and not os.path.exists(out), f"consolidate: exit {status}: {err}"


def item(said, name="model"):
    return said["metadata"][name]["nested_path_to_metadata"]


def layout(said, path='["0.weight"]', name="model"):
    return item(said, name)[path][0]["sharding_metadata"]["data"]


def missing_files_are_named(folder):
    for case, file in (("w3", "model_1.pt"), ("w3", "optimizer_2.pt"), ("safetensors_w3", "weights/1.safetensors"), ("boxes_w3", "bare_2.safetensors")):
        f = folder(case)
        os.remove(f / file)
        f.expect("SHARD_MISSING", "HOLE", said=file)
    f = folder("undescribed_w2")
    os.remove(f / "model_1.pt")
    f.expect("SHARD_MISSING", "HOLE", said="rank 1")


def an_item_without_files_is_named(folder):
    f = folder("w2")
    os.remove(f / "model_0.pt"), os.remove(f / "model_1.pt")
    f.expect("SHARD_MISSING", said=["model_0.pt", "model_1.pt"])


def flipped_bytes_are_found(folder):
    for file, code in (("model_1.pt", "ZIP_CRC"), ("optimizer_0.pt", "ZIP_CRC"), ("train_0.pt", "ZIP_CRC")):
        f = folder("w2")
        with zipfile.ZipFile(f / file) as archive:
            record = next(i for i in archive.infolist() if "/data/" in i.filename and i.file_size >= 16)
        with open(f / file, "r+b") as data:
            data.seek(record.header_offset + 26)
            lengths = data.read(4)
            at = record.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little") + 5
            data.seek(at)
            byte = data.read(1)
            data.seek(at)
            data.write(bytes([byte[0] ^ 1]))
        f.expect(code, said=file, lost=False)


def metadata_that_disagree_with_a_file_are_named(folder):
    def change(**values):
        return lambda said: layout(said).update(values)

    for case, how, code, words in (
            ("w2", change(dtype="torch.float64"), "DTYPE", "float64"),
            ("w2", change(global_shape=[8, 5]), "SHAPE", "[8, 5]"),
            ("w2", change(placements=[{"type": "Shard", "dim": 1}]), "BOUNDS", "[0:7, 0:3]"),
            ("w2", change(placements=[{"type": "Replicate"}]), "BOUNDS", "[0:7, 0:5]"),
            ("w2", change(placements=[{"type": "Shard", "dim": 2}]), "BOUNDS", "dimension 2"),
            ("w2", change(placements=[{"type": "Partial"}]), "UNSUPPORTED", "Partial"),
            ("w2", change(placements=[]), "META_TYPE", "placements"),
            ("w2", change(dtype="os.system"), "DTYPE", "os.system"),
            ("w2", change(global_shape=[2**40, 2**40]), "META_TYPE", "shape"),
            ("safetensors_w2", change(dtype="torch.float16"), "DTYPE", "weights/0.safetensors"),
            ("safetensors_w2", change(global_shape=[9, 5]), "SHAPE", "[5, 5]"),
            ("safetensors_w2", change(global_shape=[35], stride=[1]), "RANK", "2 dimensions")):
        f = folder(case)
        f.metadata(how)
        f.expect(code, said=["0.weight", words])


def names_that_a_file_lacks_are_named(folder):
    for case in ("w2", "safetensors_w2"):
        f = folder(case)
        f.metadata(lambda said: item(said).update({'["gone"]': item(said)['["0.weight"]']}))
        f.expect("KEY", said=["model.gone", "rank 0", "rank 1"])


def tensors_outside_the_metadata_are_told(folder):
    f = folder("w2")
    f.metadata(lambda said: item(said).pop('["0.weight"]'))
    f.expect("META_TYPE", said="0.weight", status=0, lost=False)
    # A bare tensor says nothing of the whole.
    f = folder("safetensors_w2")
    f.metadata(lambda said: item(said).pop('["1.running_mean"]'))
    f.expect("META_TYPE", said="1.running_mean", status=0, lost=False)
    f = folder("safetensors_w2")
    f.metadata(lambda said: item(said).pop('["0.weight"]'))
    f.expect("SHAPE", said=["0.weight", "weights/1.safetensors", "does not say how it is cut"])


def overlaps_and_holes_are_named(folder):
    for name in ("table", "bare"):
        f = folder("boxes_w3")
        f.metadata(lambda said: layout(said, '["even"]', name).update(global_offsets=[[0, 0], [4, 1]], local_sizes=[[1, 3], [1, 2]]))
        f.expect("OVERLAP", "HOLE", said=f"{name}.even")
        f = folder("boxes_w3")
        f.metadata(lambda said: layout(said, '["even"]', name).update(global_offsets=[[0, 0]], local_offsets=[[0, 0]], local_sizes=[[1, 3]]))
        f.expect("HOLE", said=f"{name}.even")
        f = folder("boxes_w3")
        f.metadata(lambda said: layout(said, '["even"]', name).update(local_offsets=[[0, 0], [2, 0]]))
        f.expect("BOUNDS", said="even")
        f = folder("boxes_w3")
        f.metadata(lambda said: layout(said, '["even"]', name).update(global_offsets=[[0, 0], [6, 0]]))
        f.expect("BOUNDS", said="outside")


def metadata_of_another_shape_are_refused(folder):
    def group(said, **values):
        item(said)['["0.weight"]'][0].update(values)

    for how, code in ((lambda said: said.update(version="3.0"), "UNSUPPORTED"), (lambda said: said.update(world_size=3), "META_TYPE"),
                      (lambda said: said.update(world_size=1), "BOUNDS"), (lambda said: said.update(world_size=10**9), "BOUNDS"),
                      (lambda said: said.update(metadata=[]), "META_TYPE"), (lambda said: said.pop("world_size"), "META_TYPE"),
                      (lambda said: group(said, ranks=(0, 0)), "META_TYPE"), (lambda said: group(said, ranks=(0, 7)), "BOUNDS"),
                      (lambda said: group(said, ranks="01"), "META_TYPE"),
                      (lambda said: group(said, sharding_metadata={"type": "Other", "data": layout(said)}), "UNSUPPORTED"),
                      (lambda said: layout(said)["mesh_spec"].update(mesh_data=(0, 0)), "META_TYPE"),
                      (lambda said: layout(said)["mesh_spec"].update(mesh_shape=(2**40, 2**40)), "BOUNDS"),
                      (lambda said: item(said).update({"0.weight": item(said)['["0.weight"]']}), "JSON")):
        f = folder("w2")
        f.metadata(how)
        f.expect(code, said="metadata.pkl")


def metadata_cannot_name_code_or_files_elsewhere(folder):
    class Call:
        def __reduce__(self):
            return os.system, ("touch " + marker,)

    f = folder("w2")
    marker = f.path + ".ran"
    f.metadata(lambda said: said.update(more=Call()))
    f.expect("GLOBAL", said="system")
    assert not os.path.exists(marker)
    for path, code in (("../ckpt2/model_0.pt", "PATH_ESCAPE"), ("/etc/passwd", "PATH_ESCAPE"), ("", "PATH"), ("a\0b", "PATH")):
        f = folder("w2")
        f.metadata(lambda said: said["metadata"]["model"]["rank_to_layout_info"].update(
            {0: {"file_path": path, "serialization_format": {"type": "TorchSerialization"}}}))
        f.expect(code)


def truncated_metadata_are_refused(folder):
    f = folder("w2")
    size = os.path.getsize(f / "metadata.pkl")
    for bytes_left in (size - 1, size // 2, 20):
        os.truncate(f / "metadata.pkl", bytes_left)
        f.expect("TRUNCATED", said="metadata.pkl")


def the_first_version_is_read(folder):
    f = folder("safetensors_w2")
    want = f.run("stats", f.path, "--json")

    def older(said):
        flat, layouts = {}, {rank: {} for rank in range(said["world_size"])}
        for name, described in said["metadata"].items():
            for path, groups in described["nested_path_to_metadata"].items():
                flat[json.dumps([name, *json.loads(path)], separators=(",", ":"))] = groups
            for rank, how in described["rank_to_layout_info"].items():
                layouts[rank][name] = how
        said.pop("version")
        said.update(metadata=flat, rank_to_layout_info_mappings=layouts)

    f.metadata(older)
    f.expect(status=0, lost=False)
    assert f.run("stats", f.path, "--json") == want


def an_unfinished_save_is_told(folder):
    f = folder("w2", "tmp_step")
    f.expect("NO_METADATA", said="tmp_", status=0, lost=False)


def other_files_are_told(folder):
    f = folder("w2")
    for name in ("tensors_0.dat", "raw_0.bin"):
        open(f / name, "w").close()
    with open(f / "broken_0.json", "w") as out:
        out.write('{"a": NaN}')
    f.expect("EXTRA_FILE", "JSON", said=["tensors_0.dat", "raw_0.bin", "broken"], status=0, lost=False)
    f = folder("w2")
    os.remove(f / "config_1.json")
    os.symlink("..", f / "config_1.json")
    f.expect("PATH_ESCAPE", said="config_1.json", status=0, lost=False)


CHECKS = [missing_files_are_named, an_item_without_files_is_named, flipped_bytes_are_found, metadata_that_disagree_with_a_file_are_named,
          names_that_a_file_lacks_are_named, tensors_outside_the_metadata_are_told, overlaps_and_holes_are_named, metadata_of_another_shape_are_refused,
          metadata_cannot_name_code_or_files_elsewhere, truncated_metadata_are_refused, the_first_version_is_read, an_unfinished_save_is_told,
          other_files_are_told]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("corpus")
    ap.add_argument("--tool", required=True)
    args = ap.parse_args()
    passed = True
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as tmp:
            made = iter(range(1000))
            try:
                check(lambda case, name="ckpt": Folder(args.tool, args.corpus, case, os.path.join(tmp, str(next(made))), name))
                print(f"PASS  {check.__name__}", flush=True)
            except Exception as why:
                passed = False
                print(f"FAIL  {check.__name__}: {why if isinstance(why, AssertionError) else traceback.format_exc()}", flush=True)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
