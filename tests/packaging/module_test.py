#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python module fsdp_ckpt: FSDP_TEST_DATA is tests/data; the module is installed, or PYTHONPATH and FSDP_CKPT name it and its program."""
import ast
import dataclasses
import glob
import inspect
import json
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import fsdp_ckpt

DATA = os.environ["FSDP_TEST_DATA"]
FOLDER = os.path.join(DATA, "golden/2.15.0/fsdp2/ckpt")
SMALL = os.path.join(DATA, "golden/2.11.0/minimal/ckpt")
DOCS = os.path.join(DATA, "../../docs")
# Options that shape what people read, and --json itself.
FOR_PEOPLE = {"help", "json", "quiet", "color", "progress", "fold", "no-fold", "depth", "chunks", "files", "limit"}


class ModuleTest(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = place.name

    def path(self, name):
        return os.path.join(self.place, name)

    def damaged(self):
        path = self.path("damaged")
        shutil.copytree(FOLDER, path)
        with open(os.path.join(path, "__1_0.distcp"), "r+b") as file:
            file.seek(27000)
            byte = file.read(1)
            file.seek(27000)
            file.write(bytes([byte[0] ^ 1]))
        return path

    def test_reading_verbs(self):
        seen = fsdp_ckpt.inspect(SMALL)
        self.assertEqual([(t.key, t.dtype, t.shape) for t in seen.tensors], [("w", "float32", [2, 3])])
        self.assertEqual((seen.values[0].key, seen.values[0].value), ("step", 7))
        self.assertEqual(seen.tensors[0].chunks[0].file, "__0_0.distcp")
        self.assertEqual(seen.json["schema"], "fsdp-ckpt/inspect/1")
        self.assertEqual(fsdp_ckpt.inspect(FOLDER, keys=["app.model.head.*", "step"]).totals.tensors, 1)
        self.assertTrue(fsdp_ckpt.verify(FOLDER, max_memory="64MiB", threads=1).sound)
        stats = fsdp_ckpt.stats(SMALL, fail_on=["nan", "inf"])
        self.assertEqual((stats.tensors[0].max, stats.totals.parameters, stats.passed), (5.0, 6, True))
        self.assertEqual(fsdp_ckpt.extract(SMALL, "w[1]").elements, [3.0, 4.0, 5.0])
        self.assertTrue(fsdp_ckpt.inspect_globals(FOLDER).complete)

    def test_writing_verbs(self):
        out = fsdp_ckpt.consolidate(FOLDER, self.path("full.pt"))
        self.assertEqual((out.tensors, out.files[0].bytes), (80, os.path.getsize(self.path("full.pt"))))
        three = fsdp_ckpt.reshard(FOLDER, self.path("three"), world_size=3, sync=False)
        self.assertEqual((three.source_ranks, three.world_size), (2, 3))
        self.assertTrue(fsdp_ckpt.diff(self.path("three"), self.path("full.pt")).same)
        self.assertEqual(fsdp_ckpt.shard(self.path("full.pt"), self.path("two"), world_size=2).world_size, 2)
        renamed = fsdp_ckpt.rename(FOLDER, self.path("renamed"), names={"app.model": "model"})
        self.assertEqual((renamed.renamed, renamed.renames[0].from_.split(".")[0]), (23, "app"))
        self.assertEqual(fsdp_ckpt.convert(FOLDER, self.path("full.safetensors"), drop_values=True, keys="app.model.**").format, "safetensors")
        fsdp_ckpt.consolidate(FOLDER, self.path("model.safetensors"), keys="app.model.**", strip_prefix="app.model", drop_values=True)
        same = fsdp_ckpt.diff(FOLDER, self.path("model.safetensors"), html=self.path("diff.html"))
        self.assertEqual((same.through.origin, same.through.model_a, same.through.rounded, same.tensors), ("a", "app.model", [], 23))
        self.assertTrue(os.path.exists(self.path("diff.html")))
        self.assertTrue(fsdp_ckpt.seal(self.path("three")).sealed)
        self.assertEqual(fsdp_ckpt.verify(self.path("three"), require_seal=True).seal.state, "matches")
        ids = fsdp_ckpt.rekey(FOLDER, self.path("ids"), key_by="id", dry_run=True)
        self.assertEqual((ids.to, ids.dry_run, os.path.exists(self.path("ids"))), ("by id", True, False))
        saved = fsdp_ckpt.extract(SMALL, "w", self.path("w.npy"))
        self.assertEqual(saved.bytes, os.path.getsize(self.path("w.npy")))

    def test_what_is_wrong_is_one_exception(self):
        with self.assertRaises(fsdp_ckpt.FsdpCkptError) as raised:
            fsdp_ckpt.verify(self.damaged())
        error = raised.exception
        self.assertEqual((error.status, error.code, len(error.findings)), (1, "FINDINGS", 1))
        self.assertEqual((error.findings[0].code, error.findings[0].file), ("ZIP_CRC", "__1_0.distcp"))
        self.assertEqual(error.answer.verdict, "damaged")
        self.assertIn("damage[ZIP_CRC]", str(error))
        self.assertFalse(fsdp_ckpt.verify(self.path("damaged"), check=False).sound)
        for call, status, code in ((lambda: fsdp_ckpt.inspect(self.path("nowhere")), 2, "NOT_FOUND"),
                                   (lambda: fsdp_ckpt.inspect(FOLDER, max_bytes=1), 1, "LIMIT"),
                                   (lambda: fsdp_ckpt.diff(FOLDER, SMALL), 1, "DIFFERENT"),
                                   (lambda: fsdp_ckpt.stats(SMALL, fail_on="bogus"), 2, "USAGE"),
                                   (lambda: fsdp_ckpt.inspect(FOLDER, keys="nothing"), 2, "NOT_FOUND"),
                                   (lambda: fsdp_ckpt.consolidate(self.path("damaged"), self.path("x.pt")), 2, "ZIP_CRC"),
                                   (lambda: fsdp_ckpt.verify(self.place + "/-x"), 2, "NOT_FOUND")):
            with self.assertRaises(fsdp_ckpt.FsdpCkptError) as raised:
                call()
            self.assertEqual((raised.exception.status, raised.exception.code), (status, code), raised.exception)
            self.assertTrue(raised.exception.message)
        self.assertFalse(os.path.exists(self.path("x.pt")))
        self.assertEqual(len(fsdp_ckpt.diff(FOLDER, SMALL, check=False).differences), 94)

    def test_runs(self):
        for step in (100, 200):
            shutil.copytree(SMALL, self.path(f"run/step-{step}"))
        shutil.copytree(SMALL, self.path("run/step-300"))
        os.truncate(self.path("run/step-300/__0_0.distcp"), 1000)
        found = fsdp_ckpt.verify_run(self.path("run"), check=False)
        self.assertEqual((found.sound, os.path.basename(found.newest_sound), len(found.checkpoints)), (False, "step-200", 3))
        self.assertEqual([one.step for one in fsdp_ckpt.inspect_run(self.path("run")).checkpoints], [100, 200, 300])
        for call, path in ((fsdp_ckpt.verify, self.path("run")), (fsdp_ckpt.verify_run, SMALL)):
            with self.assertRaisesRegex(fsdp_ckpt.FsdpCkptError, "verify(_run)? takes"):
                call(path, check=False)
        with self.assertRaises(fsdp_ckpt.FsdpCkptError) as raised:
            fsdp_ckpt.verify_run(self.path("run"))
        self.assertTrue(raised.exception.findings)

    def test_odd_paths_and_names(self):
        odd = self.path("-o \n=é")
        shutil.copytree(SMALL, odd)
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.place)
        self.assertTrue(fsdp_ckpt.verify(os.path.basename(odd)).sound)
        fsdp_ckpt.consolidate(os.path.basename(odd), "-full.pt")
        self.assertTrue(os.path.exists(self.path("-full.pt")))

    def test_progress(self):
        seen = []
        # Many small blocks, so that some time passes.
        fsdp_ckpt.consolidate(FOLDER, self.path("full.pt"), progress=seen.append)
        self.assertGreaterEqual(len(seen), 1)
        self.assertRegex(seen[0].text, r"^consolidate  .* of 172.9 KiB")
        self.assertTrue(0 <= seen[0].percent <= 100 and seen[0].seconds_left >= 0)
        with self.assertRaisesRegex(fsdp_ckpt.FsdpCkptError, "EXISTS"):
            fsdp_ckpt.consolidate(FOLDER, self.path("full.pt"), progress=seen.append)

    def test_what_progress_raises_is_raised(self):
        def refuse(_):
            raise RuntimeError("stop")
        with self.assertRaisesRegex(RuntimeError, "stop"):
            fsdp_ckpt.consolidate(FOLDER, self.path("full.pt"), progress=refuse)
        self.assertEqual([name for name in os.listdir(self.place) if "tmp" in name], [])

    def test_ctrl_c_ends_the_program_too(self):
        script = self.path("slow")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\nimport signal, sys, time\n"
                       f"signal.signal(signal.SIGINT, lambda *_: (open({self.path('ended')!r}, 'w').close(), sys.exit(130)))\n"
                       f"open({self.path('began')!r}, 'w').close()\ntime.sleep(60)\n")
        os.chmod(script, 0o755)
        code = "import fsdp_ckpt; fsdp_ckpt.verify('x')"
        process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "FSDP_CKPT": script}, stderr=subprocess.PIPE)
        waited = threading.Event()
        while not os.path.exists(self.path("began")):
            self.assertIsNone(process.poll())
            waited.wait(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        self.assertIn(b"KeyboardInterrupt", err)
        self.assertTrue(os.path.exists(self.path("ended")))

    def test_programs_that_are_not_one(self):
        for name, words in (("missing", None), ("broken", "#!/bin/sh\necho '{\"schema'\nexit 0\n"), ("silent", "#!/bin/sh\nexit 0\n"),
                            ("killed", "#!/bin/sh\nkill -9 $$\n"), ("words", "#!/bin/sh\necho out of order >&2\nexit 3\n")):
            path = self.path(name)
            if words:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(words)
                os.chmod(path, 0o755)
            with mock.patch.dict(os.environ, {"FSDP_CKPT": path}), self.assertRaises(fsdp_ckpt.FsdpCkptError) as raised:
                fsdp_ckpt.verify(FOLDER)
            expected = {"missing": (127, "NOT_FOUND"), "killed": (-9, "FAILED"), "words": (3, "FAILED")}.get(name, (0, "FAILED"))
            self.assertEqual((raised.exception.status, raised.exception.code), expected, name)

    def test_threads_may_run_verbs_together(self):
        verdicts = []
        threads = [threading.Thread(target=lambda: verdicts.append(fsdp_ckpt.verify(FOLDER).verdict)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(verdicts, ["sound"] * 8)

    def test_a_version(self):
        self.assertEqual(fsdp_ckpt.__version__, fsdp_ckpt.version().split()[1])

    def test_the_home_folder_and_paths(self):
        shutil.copytree(SMALL, self.path("ckpt"))
        with mock.patch.dict(os.environ, {"HOME": self.place}):
            self.assertTrue(fsdp_ckpt.verify("~/ckpt").sound)
            self.assertTrue(fsdp_ckpt.verify(pathlib.Path("~/ckpt")).sound)
            fsdp_ckpt.inspect("~/ckpt", html="~/page.html")
            fsdp_ckpt.consolidate("~/ckpt", pathlib.Path("~/full.pt"))
        self.assertEqual(sorted(os.listdir(self.place)), ["ckpt", "full.pt", "page.html"])

    def test_names_of_the_verbs(self):
        self.assertIs(fsdp_ckpt.export, fsdp_ckpt.export_model)
        self.assertIs(fsdp_ckpt.set, fsdp_ckpt.set_values)
        scope = {}
        exec("from fsdp_ckpt import *", scope)  # pylint: disable=exec-used
        self.assertEqual({"open", "set", "export"} & set(scope), set(), "Python's own stay")

    def test_members_are_made_when_they_are_asked_for(self):
        found = fsdp_ckpt.inspect(FOLDER)
        self.assertEqual(set(found.__dict__), {"json", "notes"}, "20,000 tensors would take a second")
        self.assertEqual(len(found.tensors), found.totals.tensors)
        self.assertIs(found.tensors, found.tensors)
        self.assertEqual(found, pickle.loads(pickle.dumps(found)))
        with self.assertRaises(AttributeError):
            found.nothing

    def test_notebooks_show_tables(self):
        page = fsdp_ckpt.inspect(FOLDER)._repr_html_()
        self.assertIn("<td>app.model.emb.weight</td>", page)
        many = fsdp_ckpt.diff(FOLDER, SMALL, check=False)
        self.assertEqual(many._repr_html_().split("<caption>")[1].count("<tr>"), 1 + 94)
        hostile = fsdp_ckpt.inspect(FOLDER)
        hostile.json["tensors"] = [{**hostile.json["tensors"][0], "key": f"<script>{i}"} for i in range(150)]
        page = hostile._repr_html_()
        self.assertIn("&lt;script&gt;99", page)
        self.assertNotIn("<script>", page)
        self.assertNotIn("script&gt;100", page)
        self.assertIn("50 more", page)

    def test_every_parameter_is_documented(self):
        for name in fsdp_ckpt.__all__:
            function = getattr(fsdp_ckpt, name)
            if inspect.isfunction(function) and function.__module__ == "fsdp_ckpt._verbs":
                for parameter in inspect.signature(function).parameters:
                    self.assertRegex(function.__doc__, rf"(?m)^    {parameter} +\S", name)

    def test_without_the_native_part(self):
        code = ("import sys; sys.modules['fsdp_ckpt._native'] = None\nimport fsdp_ckpt\n"
                "try:\n    fsdp_ckpt.open('x')\nexcept ImportError as error:\n    print(error)")
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout
        self.assertIn("no native part here", said)
        self.assertIn("FSDP_PYTHON=ON", said)

    def test_no_torch_is_imported(self):
        code = "import fsdp_ckpt, sys; sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
        self.assertEqual(subprocess.run([sys.executable, "-c", code], check=False).returncode, 0)

    def test_python_m(self):
        done = subprocess.run([sys.executable, "-m", "fsdp_ckpt", "verify", self.path("nowhere")], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("error[NOT_FOUND]", done.stderr)
        self.assertIn(fsdp_ckpt.version().splitlines()[0], subprocess.run([sys.executable, "-m", "fsdp_ckpt", "--version"], capture_output=True,
                                                                          text=True, check=False).stdout)

    def test_checkpoints_of_a_run(self):
        for step in (1, 2, 3):
            shutil.copytree(SMALL, self.path(f"run/step-{step}"))
        os.remove(self.path("run/step-3/__0_0.distcp"))
        latest = fsdp_ckpt.latest(self.path("run"))
        self.assertEqual((latest.step, latest.newest_sound, latest.passed_over[0].code), (2, self.path("run/step-2"), "SHARD_MISSING"))
        pruned = fsdp_ckpt.prune(self.path("run"), keep=1)
        self.assertEqual([one.step for one in pruned.removed], [1])
        self.assertEqual(sorted(os.listdir(self.path("run"))), ["step-2", "step-3"])
        os.remove(self.path("run/step-2/.metadata"))
        with self.assertRaises(fsdp_ckpt.FsdpCkptError) as caught:
            fsdp_ckpt.latest(self.path("run"))
        self.assertEqual((caught.exception.status, caught.exception.code), (1, "FINDINGS"))

    def test_salvage(self):
        shutil.copytree(FOLDER, self.path("damaged"))
        os.remove(self.path("damaged/__1_0.distcp"))
        with self.assertRaises(fsdp_ckpt.FsdpCkptError) as caught:
            fsdp_ckpt.salvage(self.path("damaged"), self.path("part"))
        part = caught.exception.answer
        self.assertEqual((caught.exception.code, part.partly + part.lost > 0, part.sources[1].bytes), ("FAILED", True, None))
        rescued = fsdp_ckpt.salvage(self.path("damaged"), self.path("rescued"), from_=FOLDER)
        self.assertEqual((rescued.taken, rescued.from_), (part.partly + part.lost, FOLDER))
        self.assertEqual({one.origin for one in rescued.keys}, {FOLDER, self.path("damaged")})
        self.assertTrue(fsdp_ckpt.diff(FOLDER, self.path("rescued")).same)

    def test_arithmetic(self):
        mean = fsdp_ckpt.average([FOLDER, FOLDER], self.path("mean.pt"), weights=[-1, 2])
        self.assertEqual((mean.summed, mean.weights, mean.divisor), (22, [-1.0, 2.0], None))
        merged = fsdp_ckpt.merge_lora(FOLDER, [os.path.join(DATA, "adapters/blocks")], self.path("merged.pt"))
        self.assertEqual((merged.merged, merged.prefix), (2, "app.model."))
        adapter = fsdp_ckpt.extract_lora(FOLDER, self.path("merged.pt"), self.path("adapter"), rank=4)
        self.assertEqual([one.name for one in adapter.weights], ["blocks.0.dn.weight", "blocks.0.up.weight"])
        self.assertLess(max(one.error for one in adapter.weights), 1e-5)
        changed = fsdp_ckpt.set_values(FOLDER, self.path("set"), {"step": 0, "app.optim.param_groups.*.lr": 1e-4})
        self.assertEqual([(one.was, one.now) for one in changed.changes], [(0.01, 1e-4), (2, 0)])
        taken = fsdp_ckpt.set_values(FOLDER, self.path("taken"), drop="step", take_from=FOLDER, take=["step", "app.model.emb.*"],
                                     replace=True)
        self.assertEqual([(one.key, one.what, one.replaced) for one in taken.taken],
                         [("app.model.emb.weight", "float32 [38, 26]", "float32 [38, 26]"), ("step", "a value", None)])
        larger = fsdp_ckpt.resize_vocab(FOLDER, self.path("larger.pt"), 40, table="app.model.emb.*", fill="noise", std=0.5, seed=3)
        self.assertEqual((larger.old_size, larger.size, larger.fill, larger.guessed, len(larger.resized), larger.alike),
                         (38, 40, "noise", False, 3, ["app.model.head.weight"]))
        groups = fsdp_ckpt.groups(FOLDER, self.path("groups"), {"weight_decay": 0.0}, split="**.bias").optimizers[0]
        self.assertEqual((groups.key, groups.old_groups, [one.from_ for one in groups.groups], groups.changes[0].option),
                         ("app.optim", 1, [[0], [0]], "weight_decay"))
        names = [one.name for one in fsdp_ckpt.maps()]
        self.assertIn("nanogpt-gpt2", names)
        self.assertIn("[[rule]]", fsdp_ckpt.map_rules("nanogpt-gpt2"))
        with open(self.path("rules.toml"), "w", encoding="utf-8") as file:
            file.write('parameters.rows = {}\n[[rule]]\nfrom = "emb.weight"\nto = "e"\ndo = [{ op = "pad", to = "rows" }]\n'
                       '[rename]\n"{name:**}" = "{name}"\n')
        mapped = fsdp_ckpt.map_model(self.path("rules.toml"), FOLDER, self.path("mapped.pt"), parameters={"rows": 40})
        self.assertEqual((mapped.parameters, mapped.optimizers), ({"rows": 40}, 1))
        self.assertEqual([(one.from_[0].shape, one.to[0].shape, one.do) for one in mapped.steps if one.to[0].key == "e"],
                         [([38, 26], [40, 26], ["pad"])])
        exported = fsdp_ckpt.export_model(FOLDER, self.path("exported"), dtype="bf16", read_again=True)
        self.assertTrue(exported.check)
        self.assertEqual((exported.model, exported.map, exported.guessed, exported.steps), ("app.model", None, True, None))
        imported = fsdp_ckpt.import_model(self.path("exported"), self.path("imported"), map="none", under="model", world_size=2)
        self.assertEqual((imported.under, imported.format, imported.tensors), ("model", "dcp", 23))
        with self.assertRaises(fsdp_ckpt.FsdpCkptError) as caught:
            fsdp_ckpt.average([FOLDER, SMALL], self.path("none.pt"))
        self.assertEqual((caught.exception.status, caught.exception.code), (2, "MISMATCH"))

    def test_every_option_is_a_parameter(self):
        known = {"rename": "names", "no_sync": "sync", "no_verify": "verify_rest", "all": "all_elements", "globals": None,
                 "set": "parameters", "from": "from_", "check": "read_again"}
        functions = {"set": "set_values", "map": "map_model", "export": "export_model", "import": "import_model"}
        status, text, _ = fsdp_ckpt.run("--help")
        self.assertEqual(status, 0)
        verbs = re.findall(r"^  ([a-z][a-z-]*)", text, re.MULTILINE)
        self.assertGreater(len(verbs), 10)
        for verb in verbs:
            parameters = set(inspect.signature(getattr(fsdp_ckpt, functions.get(verb, verb.replace("-", "_")))).parameters)
            if verb == "stats":   # a function of its own for another answer
                parameters |= {"quantization", *inspect.signature(fsdp_ckpt.quantization).parameters}
            for option in re.findall(r"^ {2,6}(?:-[a-z], )?--([a-z-]+)", fsdp_ckpt.run(verb, "--help")[1], re.MULTILINE):
                name = option.replace("-", "_")
                name = known.get(name, name)
                if option in FOR_PEOPLE or name is None or verb == "maps" or (verb in ("prune", "seal") and option in ("keys", "exclude")):
                    continue
                self.assertIn(name, parameters, f"{verb} --{option}")

    def test_every_member_of_the_schemas_is_a_field(self):
        if not os.path.isdir(DOCS):
            self.skipTest("the schemas are not here")
        kinds = {"inspect": "Inspection", "inspect-run": "RunInspection", "globals": "Globals", "verify": "Verification", "verify-run": "RunVerification",
                 "average": "Averaged", "map": "Mapped", "maps": "BuiltinMaps", "export": "Exported", "import": "Imported",
                 "merge-lora": "Merged", "extract-lora": "ExtractedAdapter", "set": "ValuesSet", "resize-vocab": "VocabularyResized", "groups": "GroupsEdited", "latest": "Latest", "prune": "Pruned",
                 "seal": "Sealed", "consolidate": "Output", "convert": "Output", "shard": "Resharded", "reshard": "Resharded", "rename": "Renamed",
                 "rekey": "Rekeyed", "diff": "Comparison", "stats": "Statistics", "quantization": "QuantizationLoss", "extract": "Extraction", "salvage": "Salvaged", "error": None}
        for path in glob.glob(os.path.join(DOCS, "schemas/*.json")):
            with open(path, encoding="utf-8") as file:
                schema = json.load(file)
            kind = kinds[os.path.basename(path)[:-len("-1.json")]]
            if kind is None:
                continue
            fields = {field.name.rstrip("_") for field in dataclasses.fields(getattr(fsdp_ckpt, kind))}
            self.assertEqual(set(schema["properties"]) - {"schema"} - fields, set(), path)

    def test_python_3_8_understands_it(self):
        for path in glob.glob(os.path.join(os.path.dirname(fsdp_ckpt.__file__), "*.py")):
            with open(path, encoding="utf-8") as file:
                ast.parse(file.read(), feature_version=(3, 8))
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(fsdp_ckpt.__file__), "py.typed")))


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1, argv=sys.argv[:1]).result
    print("OK" if result.wasSuccessful() and result.testsRun > 10 else "FAILED")
    sys.exit(not result.wasSuccessful())
