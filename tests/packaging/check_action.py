#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gates for other people's pipelines: the GitHub Action, GitLab's template, the hook of pre-commit.

  check_action.py CASE --tool PROGRAM --golden GOLDEN [--static PROGRAM] [--python PYTHON]     PYTHON has those of
                                                                          tests/support/requirements-release.txt

  metadata     action.yml, gitlab.yml, .pre-commit-hooks.yaml: YAML, members, every input used, no input in the text of a script
  runs         the action's steps in the environment that GitHub sets: verdicts, annotations, summary, outputs, statuses
  hostile      names of keys, files and folders that would be commands, markdown, HTML, mentions, links, outputs or options
  program      --binary; a release that is downloaded from a server, by tag or number, and ones with wrong checksums and of another version
  gitlab       the template's job: what it runs, and its report
  pre_commit   pre-commit try-repo on a clone
  workflows    .github/workflows: GitHub's schema, zizmor, actions pinned to commits, the rights of each job, scripts that are there

Exit: 0 passed, 1 failed, 77 skipped, with the reason.
"""
import argparse
import collections
import glob
import hashlib
import http.server
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import threading

from machine import Skipped, check, main, run, wanted

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOOD, OTHER = "2.15.0/fsdp2/ckpt", "2.15.0/fsdp1/ckpt"
DATA_BYTE = 27000   # of __1_0.distcp: in a tensor's data
DEFAULTS = {"FSDP_VERB": "verify", "FSDP_SEAL": "optional", "FSDP_STRICT": "false", "FSDP_FAST": "false", "FSDP_CLOSE": "false",
            "FSDP_ANNOTATIONS": "9"}


def yaml_of(options, *names):
    """The files as Python's own values; whoever runs the test need not have a parser of YAML."""
    if not options.python:
        raise Skipped("no Python with PyYAML and pre-commit: tests/run.sh makes one")
    code = "import json, sys, yaml; print(json.dumps([yaml.safe_load(open(name, encoding='utf-8')) for name in sys.argv[1:]]))"
    return json.loads(wanted([options.python, "-c", code, *(os.path.join(ROOT, name) for name in names)]))


def safetensors(path, tensors):
    """Writes a file with a float32 vector for each name."""
    header, data = {}, b""
    for name, numbers in tensors.items():
        header[name] = {"dtype": "F32", "shape": [len(numbers)], "data_offsets": [len(data), len(data) + 4 * len(numbers)]}
        data += struct.pack(f"<{len(numbers)}f", *numbers)
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


class Left(collections.namedtuple("Left", "status log notes summary outputs")):
    """What a step left: exit status, lines of the log, annotations, summary, outputs."""

    def expect(self, status, verdict, commands=(), findings=None):
        """Checks the exit status, the verdict, the kinds of annotations, and how many findings there are."""
        found = (self.status, self.outputs.get("status"), self.outputs.get("verdict"), sorted({note["command"] for note in self.notes}))
        check(found == (status, str(status), verdict, sorted(commands)), f"{found}: {self.outputs} {self.notes} {self.log[-10:]}")
        check(findings is None or self.outputs["findings"] == str(findings), f"{self.outputs}, not {findings} findings")
        # One line says what passed, in the log and above the summary.
        line, = [line for line in self.log if re.match(r"(verify|diff|stats|inspect): \d+ of \d+ checkpoints? passed", line)] or [None]
        check(verdict == "failed" or f"### fsdp-ckpt {line}" in self.summary, (line, self.summary))
        check(line is None or (status == 0) == (";" not in line), line)


class Runner:
    """A workspace, and what GitHub's runner makes of what a step leaves."""

    def __init__(self, options, folder):
        self.options, self.folder, self.steps = options, os.path.join(folder, "workspace"), 0
        self.temporary = os.path.join(folder, "temporary")
        os.mkdir(self.folder)
        os.mkdir(self.temporary)
        self.copy(GOOD, "step-1")
        self.copy(GOOD, "step-2")
        self.copy(OTHER, "other")
        self.copy(GOOD, "damaged")
        self.flip("damaged")

    def copy(self, case, name):
        shutil.copytree(os.path.join(self.options.golden, case), os.path.join(self.folder, name))
        wanted(["chmod", "-R", "u+w", os.path.join(self.folder, name)])

    def flip(self, name):
        with open(os.path.join(self.folder, name, "__1_0.distcp"), "r+b") as file:
            file.seek(DATA_BYTE)
            byte = file.read(1)[0]
            file.seek(DATA_BYTE)
            file.write(bytes([byte ^ 0x10]))

    def step(self, part="gate", **settings):
        """Runs a part of the action; returns what it left."""
        self.steps += 1
        files = {name: os.path.join(self.temporary, f"{name}-{self.steps}") for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for path in files.values():
            with open(path, "w", encoding="utf-8") as file:
                file.write("before\n" if "SUMMARY" in path else "")
        environment = {"PATH": os.environ["PATH"], "HOME": self.temporary, "LANG": "C", "CI": "true", "GITHUB_ACTIONS": "true",
                       "GITHUB_WORKSPACE": self.folder, "RUNNER_TEMP": self.temporary, "GITHUB_ACTION_PATH": ROOT, **files, **DEFAULTS,
                       "FSDP_PROGRAM": os.path.abspath(self.options.tool), "PYTHONDONTWRITEBYTECODE": "1", **settings}
        done = subprocess.run(["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", f'python3 "$GITHUB_ACTION_PATH/tools/ci/github.py" {part}'],
                              cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        log = re.split(r"\r\n|\r|\n", done.stdout.decode("utf-8"))
        with open(files["GITHUB_STEP_SUMMARY"], encoding="utf-8") as file:
            summary = file.read()
        check(summary.startswith("before\n"), "the summary was overwritten")
        with open(files["GITHUB_OUTPUT"], encoding="utf-8") as file:
            outputs = self.outputs(file.read())
        return Left(done.returncode, log, self.annotations(log), summary[len("before\n"):], outputs)

    @staticmethod
    def outputs(text):
        found, lines = {}, text.splitlines()
        while lines:
            name, end = lines.pop(0).split("<<")
            value = []
            while lines[0] != end:
                value.append(lines.pop(0))
            lines.pop(0)
            check(name not in found and len(end) >= 32, f"output {name} twice, or with an end that can be guessed")
            found[name] = "\n".join(value)
        return found

    @staticmethod
    def annotations(log):
        """What the runner takes for commands: lines with :: in front, and ##[ anywhere, unless they are stopped."""
        found, stopped = [], None
        for line in log:
            text = line.lstrip()
            if stopped:
                stopped = None if text.startswith(f"::{stopped}::") else stopped
                continue
            match = re.match(r"::([\w-]+)(?: ([^:]*))?::(.*)", text)
            if match and match[1] == "stop-commands":
                stopped = match[3]
                check(re.fullmatch(r"[0-9a-f]{32}", stopped), f"the word that ends a stop can be guessed: {stopped}")
            elif match:
                properties = dict(part.split("=", 1) for part in (match[2] or "").split(",") if part)
                decoded = {key: unescape(value, True) for key, value in properties.items()}
                found.append({"command": match[1], "text": unescape(match[3], False), **decoded})
            else:
                check("##[" not in text, f"a command of the old kind: {line}")
        check(not stopped, "the log ends with commands stopped")
        return found


def unescape(text, more):
    text = text.replace("%3A", ":").replace("%2C", ",") if more else text
    return text.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")


def metadata(options, folder):
    action, gitlab, hooks = yaml_of(options, "action.yml", "tools/ci/gitlab.yml", ".pre-commit-hooks.yaml")
    check(set(action) == {"name", "description", "author", "branding", "inputs", "outputs", "runs"}, action.keys())
    check(action["runs"]["using"] == "composite", action["runs"])
    steps = {step["id"]: step for step in action["runs"]["steps"]}
    check(list(steps) == ["program", "gate"], list(steps))
    used, set_by_us = set(), set()
    for step in steps.values():
        check(set(step) == {"id", "shell", "run", "env"} and step["shell"] == "bash", step)
        check("${{" not in step["run"], f"an expression in the text of a script: {step['run']}")
        for name, value in step["env"].items():
            expression = re.fullmatch(r"\$\{\{ ([\w.]+) \}\}", value)
            check(expression, f"{name}: {value}")
            set_by_us.add(name)
            if expression[1].startswith("inputs."):
                used.add(expression[1][len("inputs."):])
                check(name == "FSDP_" + expression[1][len("inputs."):].upper(), f"{name}: {value}")
            elif expression[1].startswith("steps."):
                check(expression[1] == "steps.program.outputs.program", value)
            else:
                check(expression[1] == "github.action_repository", value)
    check(used == set(action["inputs"]), f"inputs that nothing uses, or that are not declared: {used ^ set(action['inputs'])}")
    for name, entry in action["inputs"].items():
        check(set(entry) <= {"description", "required", "default"} and entry["description"], name)
        check(isinstance(entry.get("default", ""), str), f"the default of {name} is not text")
        check(("default" in entry) != entry.get("required", False), f"{name}: either a default or required")
    for name, entry in action["outputs"].items():
        step = "program" if name == "program" else "gate"
        check(set(entry) == {"description", "value"} and entry["value"] == f"${{{{ steps.{step}.outputs.{name} }}}}", name)
    # What the script reads is what the action sets, and the other way round.
    with open(os.path.join(ROOT, "tools/ci/gate.py"), encoding="utf-8") as file:
        source = file.read()
    names = set(re.search(r"NAMES = \((.*?)\)", source, re.S)[1].replace('"', "").replace("\n", "").replace(" ", "").split(","))
    with open(os.path.join(ROOT, "tools/ci/github.py"), encoding="utf-8") as file:
        source = file.read()
    read = {"FSDP_" + name for name in names} | set(re.findall(r'"(FSDP_\w+)"', source))
    check(read == set_by_us, f"only read or only set: {read ^ set_by_us}")
    check(DEFAULTS == {f"FSDP_{name.upper()}": entry["default"] for name, entry in action["inputs"].items() if entry.get("default")}, "other defaults")

    job = gitlab[".fsdp-ckpt"]
    check(list(gitlab) == [".fsdp-ckpt"] and {"before_script", "script", "artifacts", "variables"} <= set(job), gitlab)
    check({"FSDP_" + name for name in names} <= set(job["variables"]), {"FSDP_" + name for name in names} - set(job["variables"]))
    check(all(isinstance(value, str) for value in job["variables"].values()), job["variables"])
    check(job["artifacts"]["reports"] == {"codequality": "gl-code-quality-report.json"} and job["artifacts"]["when"] == "always", job["artifacts"])
    hook, = hooks
    check(os.access(os.path.join(ROOT, hook["entry"]), os.X_OK), hook)
    for name in ("a/.metadata", "a/__0_0.distcp", "model.safetensors", "x.pt", "model.safetensors.index.json", "a.pt.fsdp_seal.json",
                 "a/fsdp_seal.json", "pytorch_model-00001-of-00002.bin", "a.h5"):
        check(re.search(hook["files"], name), f"the hook leaves {name} out")
    for name in ("README.md", "data.bin", "apt", "metadata", "x.json", "a.pt.txt"):
        check(not re.search(hook["files"], name), f"the hook takes {name}")


def runs(options, folder):
    runner = Runner(options, folder)
    left = runner.step(FSDP_PATHS="step-1")
    left.expect(0, "sound", findings=0)
    check("step-1: sound, 150 items, 205,844 bytes with checksums, no seal, 0 findings" in left.log, left.log)
    check("verify: 1 of 1 checkpoint passed" in left.log and "sound" in left.summary, (left.log, left.summary))
    report = json.load(open(left.outputs["report"], encoding="utf-8"))
    check([entry["path"] for entry in report] == ["step-1"] and report[0]["report"]["schema"] == "fsdp-ckpt/verify/1", report)
    # Several paths, globs, and one of them damaged.
    left = runner.step(FSDP_PATHS="step-*\ndamaged\n\n  step-1\n")
    left.expect(1, "damaged", ["error"], findings=1)
    check("verify: 2 of 3 checkpoints passed; 1 damaged" in left.log, left.log)
    note, = left.notes
    check(note["file"] == "damaged/__1_0.distcp" and "ZIP_CRC" in note["title"] and "app.model.blocks.0.up.weight" in note["text"], note)
    report = json.load(open(left.outputs["report"], encoding="utf-8"))
    check([entry["path"] for entry in report] == ["step-1", "step-2", "damaged"], report)
    check(len([line for line in left.summary.splitlines() if line.startswith("| <code>")]) == 4, left.summary)
    # A folder of runs is several checkpoints in one answer.
    os.mkdir(os.path.join(runner.folder, "runs"))
    for name in ("step-1", "damaged"):
        shutil.copytree(os.path.join(runner.folder, name), os.path.join(runner.folder, "runs", name))
    left = runner.step(FSDP_PATHS="runs")
    left.expect(1, "damaged", ["error"], findings=1)
    check(left.notes[0]["file"] == "runs/damaged/__1_0.distcp", left.notes)
    # A globstar, and a path outside the workspace, which annotations have no file for.
    left = runner.step(FSDP_PATHS="**/damaged")
    left.expect(1, "damaged", ["error"], findings=2)
    left = runner.step(FSDP_PATHS=os.path.join(runner.folder, "damaged"), GITHUB_WORKSPACE=runner.temporary)
    left.expect(1, "damaged", ["error"])
    check("file" not in left.notes[0], left.notes)
    # Seals, warnings, selections.
    left = runner.step(FSDP_PATHS="step-1", FSDP_SEAL="required")
    left.expect(1, "unsealed", ["error"], findings=1)
    check("has no seal" in left.notes[0]["text"] and "UNSEALED" in left.notes[0]["title"], left.notes)
    check("damage" not in left.summary + "".join(left.log), "a missing seal is called damage")
    left = runner.step(FSDP_PATHS="damaged", FSDP_SEAL="required")
    left.expect(1, "damaged", ["error"], findings=2)
    wanted([options.tool, "seal", "step-1"], cwd=runner.folder)
    left = runner.step(FSDP_PATHS="step-1", FSDP_SEAL="required")
    left.expect(0, "sound", findings=0)
    with open(os.path.join(runner.folder, "step-2/__7_0.distcp"), "wb") as file:
        file.write(b"stray")
    left = runner.step(FSDP_PATHS="step-2")
    left.expect(0, "sound", ["warning"])
    left = runner.step(FSDP_PATHS="step-2", FSDP_STRICT="true")
    left.expect(1, "damaged", ["error"])
    left = runner.step(FSDP_PATHS="damaged", FSDP_EXCLUDE="app.model.blocks.0.**", FSDP_KEYS="app.model.**\nstep")
    check(left.status == 0 and "error" not in {note["command"] for note in left.notes}, (left.status, left.notes))
    left = runner.step(FSDP_PATHS="damaged", FSDP_FAST="true")
    check(left.status == 0 and "error" not in {note["command"] for note in left.notes}, (left.status, left.notes))
    # Numbers.
    safetensors(os.path.join(runner.folder, "odd.safetensors"), {"a.w": [1.0, float("nan")], "b.w": [float("inf"), 2.0], "z.w": [0.0, 0.0]})
    left = runner.step(FSDP_VERB="stats", FSDP_PATHS="step-1")
    left.expect(0, "passed", findings=0)
    check("step-1: passed, 80 tensors, 44,260 elements: inf, nan, 0 findings" in left.log, left.log)
    left = runner.step(FSDP_VERB="stats", FSDP_PATHS="step-1\nodd.safetensors")
    left.expect(1, "tripped", ["error"], findings=2)
    check([(note["title"], note["text"], note["file"]) for note in left.notes] ==
          [("fsdp-ckpt NAN", "odd.safetensors: 'a.w': 1 NaN", "odd.safetensors"), ("fsdp-ckpt INF", "odd.safetensors: 'b.w': 1 infinite", "odd.safetensors")], left.notes)
    left = runner.step(FSDP_VERB="stats", FSDP_PATHS="odd.safetensors", FSDP_FAIL_ON="zero")
    left.expect(1, "tripped", ["error"], findings=1)
    check("'z.w': 2 zeros and nothing else" in left.notes[0]["text"], left.notes)
    runner.step(FSDP_VERB="stats", FSDP_PATHS="odd.safetensors", FSDP_KEYS="z.*").expect(0, "passed", findings=0)
    # Sizes.
    size = sum(os.path.getsize(path) for path in glob.glob(os.path.join(runner.folder, "damaged/*.distcp")))
    left = runner.step(FSDP_VERB="inspect", FSDP_PATHS="damaged", FSDP_MAX_BYTES=str(size))
    left.expect(0, "passed", findings=0)
    check(f"damaged: passed, {size:,} bytes in 2 files, {size} allowed, 0 findings" in left.log, left.log)
    left = runner.step(FSDP_VERB="inspect", FSDP_PATHS="damaged", FSDP_MAX_BYTES=str(size - 1))
    left.expect(1, "tripped", ["error"], findings=1)
    check(left.notes[0]["title"] == "fsdp-ckpt SIZE" and f"{size:,} bytes in 2 files" in left.notes[0]["text"], left.notes)
    check("tensors" not in json.load(open(left.outputs["report"], encoding="utf-8"))[0]["report"], "the report has every tensor")
    runner.copy(GOOD, "torn")
    os.remove(os.path.join(runner.folder, "torn/__1_0.distcp"))
    left = runner.step(FSDP_VERB="inspect", FSDP_PATHS="torn", FSDP_MAX_BYTES="1GiB")
    left.expect(1, "tripped", ["error"], findings=1)
    check("1 missing" in left.notes[0]["text"], left.notes)
    # diff
    left = runner.step(FSDP_VERB="diff", FSDP_PATHS="step-1", FSDP_AGAINST="step-2")
    left.expect(0, "same", findings=0)
    safetensors(os.path.join(runner.folder, "a.safetensors"), {"w": [1.0, 2.0], "gone": [1.0]})
    safetensors(os.path.join(runner.folder, "b.safetensors"), {"w": [1.0, 2.001], "come": [1.0]})
    left = runner.step(FSDP_VERB="diff", FSDP_PATHS="b.safetensors", FSDP_AGAINST="a.safetensors")
    texts = " ".join(note["text"] for note in left.notes)
    left.expect(1, "different", ["error"], findings=3)
    check("'gone': is only in the reference" in texts and "'come': is not in the reference" in texts, left.notes)
    check("'w': 1 of 2 elements differ, by up to 0.000999" in texts, left.notes)
    left = runner.step(FSDP_VERB="diff", FSDP_PATHS="b.safetensors", FSDP_AGAINST="a.safetensors", FSDP_RTOL="1e-2", FSDP_KEYS="w")
    left.expect(0, "same", findings=0)
    pair = {"FSDP_VERB": "diff", "FSDP_PATHS": "b.safetensors", "FSDP_AGAINST": "a.safetensors"}
    runner.step(**pair, FSDP_OPTIONS="--ulp=100000\n--exclude=come\n--exclude=gone").expect(0, "same", findings=0)
    # Damage is no difference: the comparison could not be made.
    left = runner.step(FSDP_VERB="diff", FSDP_PATHS="damaged", FSDP_AGAINST="step-1")
    left.expect(2, "failed", ["error"])
    check("ZIP_CRC" in left.notes[0]["title"], left.notes)
    # What cannot begin says so, and an earlier file's left.outputs are complete.
    refused = [({"FSDP_PATHS": "nowhere*"}, "nothing is called 'nowhere*'"), ({"FSDP_PATHS": " \n"}, "names no checkpoint"),
               ({"FSDP_VERB": "rm"}, "is not one of verify, diff, stats, inspect"), ({"FSDP_VERB": "inspect"}, "max_bytes: inspect needs"),
               ({"FSDP_FAIL_ON": "nan"}, "fail_on: is of stats"), ({"FSDP_VERB": "stats", "FSDP_FAIL_ON": "all"}, "--fail-on knows"),
               ({"FSDP_MAX_BYTES": "1"}, "max_bytes: is of inspect"), ({"FSDP_VERB": "inspect", "FSDP_MAX_BYTES": "much"}, "size 'much' is not"),
               ({"FSDP_VERB": "inspect", "FSDP_MAX_BYTES": "1", "FSDP_PATHS": "runs"}, "--max-bytes takes one PATH"),
               ({"FSDP_VERB": "stats", "FSDP_PATHS": "runs"}, "is not a checkpoint"), ({"FSDP_VERB": "diff"}, "against"), ({"FSDP_RTOL": "1"}, "rtol: is of diff"),
               ({"FSDP_STRICT": "yes"}, "neither true nor false"), ({"FSDP_SEAL": "maybe"}, "neither optional"), ({"FSDP_ANNOTATIONS": "-1"}, "is not a number"),
               ({"FSDP_PROGRAM": "/nowhere"}, "is not a program"), ({"FSDP_PROGRAM": "/bin/true"}, "is not a report"),
               ({"FSDP_OPTIONS": "--nonsense"}, "unknown option"), ({"FSDP_OPTIONS": "--help"}, "is not a report")]
    for settings, said in refused:
        left = runner.step(**{"FSDP_PATHS": "step-1", **settings})
        left.expect(2, "failed", ["error"])
        check(said in left.notes[0]["text"], (said, left.notes))
    # Many findings: annotations and the summary have limits, the report has none.
    names = {f"layer.{i}.{'n' * 200}": [float(i)] for i in range(3000)}
    safetensors(os.path.join(runner.folder, "many.safetensors"), names)
    safetensors(os.path.join(runner.folder, "more.safetensors"), {name: [numbers[0] + 1] for name, numbers in names.items()})
    left = runner.step(FSDP_VERB="diff", FSDP_PATHS="more.safetensors", FSDP_AGAINST="many.safetensors", FSDP_ANNOTATIONS="3")
    left.expect(1, "different", ["error"], findings=3000)
    check(len(left.notes) == 4 and "2997 more" in left.notes[3]["text"], left.notes)
    check(len(left.summary.encode()) < 300000 and re.search(r"^\d+ more rows are not shown", left.summary, re.M), len(left.summary))
    check(len(json.load(open(left.outputs["report"], encoding="utf-8"))[0]["findings"]) == 3000, "report")


HOSTILE = [
    "::set-output name=verdict::sound", "\n::set-output name=verdict::sound", "\r::add-mask::a", "##[set-env name=PATH]/evil", " ::error::fake",
    "%0A::error::fake", "a\u2028b", "x|y|z", "<img src=x onerror=alert(1)>", "</code></td><script>alert(1)</script>", "[link](javascript:alert(1))",
    "![image](https://example.org/x.png)", "https://example.org/", "@everyone", "#1", "`code`", "**bold**", "# head", "| --- |", "$(touch pwned)", "`touch pwned`",
    "${{ secrets.GITHUB_TOKEN }}", "\u202egnp.exe", "\u200b", "&lt;b&gt;", "&#60;b&#62;", "~~~", "---", ":smile:", "a,file=b::c", "<<EOF\nEOF\nverdict=sound", "\x1b[31m", "\\n",
    "x" * 3000,
]


def hostile_file(options, path, number):
    """A torch.save file with a key of each hostile name; safetensors files with control characters in names are refused."""
    plain = path + ".safetensors"
    safetensors(plain, {f"k{i}": [number] for i in range(len(HOSTILE))})
    wanted([options.tool, "convert", plain, path + ".plain.pt"])
    words = [word for i, name in enumerate(HOSTILE) for word in ("--rename", f"k{i}={name}")]
    wanted([options.tool, "rename", path + ".plain.pt", path, *words], said=f"{len(HOSTILE)} keys")


# Not the tool: it prints names as they are, which the tool never does.
CARELESS = """#!/usr/bin/env python3
import json, sys
names = {names!r}
for name in names:
    print("fsdp-ckpt: note: " + name, file=sys.stderr)
print(json.dumps({{"schema": "fsdp-ckpt/verify/1", "path": "x", "format": "torch", "sound": False, "verdict": "damaged", "items": 1, "bytes_checked": 0,
                  "bytes_unchecked": 0, "seal": None, "integrity": None,
                  "findings": [{{"severity": "damage", "code": name, "file": name, "key": name, "begin": None, "end": None, "message": name}} for name in names]}}))
sys.exit(1)
"""


def harmless(summary):
    """Nothing but our own tags and tables is left in the Markdown, however it is read."""
    text = re.sub(r"</?code>", "", summary)
    check("<" not in text and ">" not in text, f"HTML: {text[:500]}")
    for line in text.splitlines():
        if line.startswith("|"):
            check(re.fullmatch(r"\|(---\|)+|(\| (&#\d+;|[\w ]|…)* ?)+\|", line), f"a row of the table: {line[:500]}")
        else:
            check(line == "" or line.startswith("### fsdp-ckpt ") or re.fullmatch(r"\d+ more rows .*", line), f"a line of its own: {line[:300]}")
    check(not re.search(r"[`*_\[\]@~$\\]|//", re.sub(r"^\|(---\|)+$", "", text, flags=re.M)), f"markdown: {text[:500]}")


def hostile(options, folder):
    runner = Runner(options, folder)
    for name, number in (("a.pt", 1.0), ("b.pt", 2.0)):
        hostile_file(options, os.path.join(runner.folder, name), number)
    left = runner.step(FSDP_VERB="diff", FSDP_PATHS="b.pt", FSDP_AGAINST="a.pt", FSDP_ANNOTATIONS="1000")
    left.expect(1, "different", ["error"], findings=len(HOSTILE))
    check(len(left.notes) == len(HOSTILE), len(left.notes))
    check({note["file"] for note in left.notes} == {"b.pt"} and {note["title"] for note in left.notes} == {"fsdp-ckpt DIFFERENT"}, left.notes)
    check(all("elements differ" in note["text"] or "…" in note["text"] for note in left.notes), left.notes)
    check(any("%0A::error::fake" in note["text"] for note in left.notes), "a name with %0A is shown as it is")
    check(not re.search("[\x00-\x1f\u2028\u202e\u200b]", "".join(left.log)), "a control character in the log")
    harmless(left.summary)
    # Damage: keys in findings.
    wanted([options.tool, "shard", "a.pt", "sharded", "--world-size", "2"], cwd=runner.folder)
    for path in glob.glob(os.path.join(runner.folder, "sharded/*.distcp")):
        with open(path, "r+b") as file:
            data = file.read().replace(struct.pack("<f", 1.0), struct.pack("<f", 3.0))
            file.seek(0)
            file.write(data)
    left = runner.step(FSDP_PATHS="sharded", FSDP_ANNOTATIONS="1000")
    left.expect(1, "damaged", ["error", "warning"])
    check(sum(note["title"] == "fsdp-ckpt ZIP_CRC" for note in left.notes) == len(HOSTILE), left.notes)
    harmless(left.summary)
    # Even if the tool escaped nothing.
    careless = os.path.join(folder, "careless")
    with open(careless, "w", encoding="utf-8") as file:
        file.write(CARELESS.format(names=HOSTILE))
    os.chmod(careless, 0o755)
    left = runner.step(FSDP_PATHS="a.pt", FSDP_PROGRAM=careless, FSDP_ANNOTATIONS="1000")
    left.expect(1, "damaged", ["error"], findings=len(HOSTILE))
    check(len(left.notes) == len(HOSTILE) and all(set(note) == {"command", "file", "text", "title"} for note in left.notes), left.notes)
    check(not re.search("[\x00-\x1f\u2028\u202e\u200b]", "".join(left.log)), "a control character in the log")
    harmless(left.summary)
    # A report and an exit status that contradict each other are no answer.
    with open(careless, "w", encoding="utf-8") as file:
        file.write(CARELESS.format(names=HOSTILE).replace("sys.exit(1)", "sys.exit(0)"))
    runner.step(FSDP_PATHS="a.pt", FSDP_PROGRAM=careless).expect(2, "failed", ["error"], findings=1)
    # Names of folders, found by a glob; some names are options, some have line breaks.
    names = [name.replace("/", "\u2215")[:200] for name in HOSTILE]
    names += ["--help", "-q", "--strict", "*", "[a]", "a b ", b"\xff\xfe".decode("utf-8", "surrogateescape")]
    os.mkdir(os.path.join(runner.folder, "named"))
    for name in names:
        shutil.copytree(os.path.join(runner.folder, "damaged"), os.path.join(runner.folder, "named", name))
    left = runner.step(FSDP_PATHS="named/*", FSDP_ANNOTATIONS="1000")
    left.expect(1, "damaged", ["error"], findings=len(names))
    check(len(left.notes) == len(names) and all(set(note) == {"command", "file", "text", "title"} for note in left.notes), left.notes)
    check(not re.search("[\x00-\x1f\u2028\u202e\u200b]", "".join(left.log)), "a control character in the log")
    harmless(left.summary)
    # In the workspace itself, where a name can begin with a dash.
    for name in ("--help", "--json", "-k"):
        shutil.copytree(os.path.join(runner.folder, "damaged"), os.path.join(runner.folder, name))
        left = runner.step(FSDP_PATHS=name)
        left.expect(1, "damaged", ["error"], findings=1)
    # Settings that a workflow takes from elsewhere, such as the name of a branch.
    for text in HOSTILE[:-1]:
        left = runner.step(FSDP_PATHS="nowhere/" + text)
        left.expect(2, "failed", ["error"])
        check(not re.search(r"^[^#|]*[<*@\[]", re.sub(r"</?code>", "", left.summary)), left.summary)
    check(not glob.glob(os.path.join(runner.folder, "**/pwned"), recursive=True), "a name was run")


class Server(http.server.BaseHTTPRequestHandler):
    files = {}

    def do_GET(self):  # noqa: N802
        data = self.files.get(self.path)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *_):
        pass


def serve():
    """Starts a server of Server.files."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def program(options, folder):
    runner = Runner(options, folder)
    left = runner.step("program", FSDP_BINARY=os.path.abspath(options.tool))
    check(left.status == 0 and left.outputs == {"program": os.path.abspath(options.tool)}, (left.status, left.log, left.outputs))
    left = runner.step("program", FSDP_BINARY="/bin/true")
    check(left.status == 2 and "is not fsdp-ckpt" in left.notes[0]["text"] and not left.outputs, (left.status, left.log, left.outputs))
    left = runner.step("program", FSDP_BINARY="x", FSDP_VERSION="0.1.0")
    check(left.status == 2 and "only one" in left.notes[0]["text"], left.log)
    for version in ("../../x", "1.0/..", "a b", "v", "vv0.1.0", "main"):
        left = runner.step("program", FSDP_VERSION=version)
        check(left.status == 2 and "is not a version" in left.notes[0]["text"], left.log)
    data = bytes_of(options.static or options.tool)
    version, digest = wanted([options.tool, "--version"]).split()[1], hashlib.sha256(data).hexdigest()
    name = f"fsdp-ckpt-{version}-linux-{platform.machine()}"
    server = serve()
    settings = {"GITHUB_SERVER_URL": f"http://127.0.0.1:{server.server_port}", "FSDP_REPOSITORY": "group/fsdp", "FSDP_VERSION": version,
                "no_proxy": "127.0.0.1"}
    place = f"/group/fsdp/releases/download/v{version}/"
    good = {place + name: data, place + "SHA256SUMS": f"{'0' * 64}  other\n{digest}  {name}\n".encode()}
    try:
        Server.files = good
        left = runner.step("program", **settings)
        check(left.status == 0 and left.outputs["program"].endswith("/fsdp-ckpt"), (left.status, left.log))
        left = runner.step(FSDP_PROGRAM=left.outputs["program"], FSDP_PATHS="damaged")
        check(left.status == 1, left.log)
        left = runner.step("program", **{**settings, "FSDP_VERSION": "v" + version})   # as the tag is written
        check(left.status == 0, (left.status, left.log))
        # As the template of GitLab asks for it.
        asked = {**os.environ, "no_proxy": "127.0.0.1", "FSDP_CKPT": "", "FSDP_REPOSITORY": settings["GITHUB_SERVER_URL"] + "/group/fsdp.git"}
        script = [sys.executable, os.path.join(ROOT, "tools/ci/program.py")]
        found = subprocess.run(script, env={**asked, "FSDP_VERSION": "v" + version}, stdout=subprocess.PIPE, text=True, check=True).stdout
        check(bytes_of(found.rstrip("\n")) == data, found)
        done = run(script, env={**asked, "FSDP_VERSION": "9.9"})
        check(done.returncode == 2 and "/v9.9/SHA256SUMS: HTTP Error 404" in done.stdout, done.stdout)
        # A program of another version under that name.
        other = {path.replace(version, "9.9"): data.replace(version.encode(), b"9.9") for path, data in good.items() if path.endswith("SUMS")}
        Server.files = {**other, f"/group/fsdp/releases/download/v9.9/{name.replace(version, '9.9')}": data}
        left = runner.step("program", **{**settings, "FSDP_VERSION": "9.9"})
        check(left.status == 2 and f"is fsdp-ckpt {version}, not 9.9" in left.notes[0]["text"] and not left.outputs, left.log)
        for changed, said in (({place + name: data[:-1]}, "SHA-256 is"), ({place + "SHA256SUMS": b"nonsense"}, "does not list"),
                              ({place + "SHA256SUMS": b"\xff" * 99}, "does not list"), ({place + "SHA256SUMS": None}, "404"), ({place + name: None}, "404")):
            Server.files = {**good, **changed}
            left = runner.step("program", **settings)
            check(left.status == 2 and said in left.notes[0]["text"] and not left.outputs, (said, left.status, left.log, left.outputs))
    finally:
        server.shutdown()
    left = runner.step("program", **{**settings, "GITHUB_SERVER_URL": "http://127.0.0.1:1"})
    check(left.status == 2 and "127.0.0.1" in left.notes[0]["text"], left.log)


def gitlab(options, folder):
    template, = yaml_of(options, "tools/ci/gitlab.yml")
    job = template[".fsdp-ckpt"]
    runner = Runner(options, folder)
    runner.flip("step-2")
    source = os.path.join(folder, "source")
    report = os.path.join(runner.folder, "gl-code-quality-report.json")
    # The commands of the job, in its environment; the repository is cloned from this one, if this is a clone.
    cloned = run(["git", "-C", ROOT, "rev-parse", "HEAD"]).returncode == 0
    if cloned:
        wanted(["git", "clone", "-q", "--bare", "--shared", ROOT, os.path.join(folder, "origin")])
        wanted(["git", "-C", os.path.join(folder, "origin"), "update-ref", "refs/heads/main", "HEAD"])
        # Not committed yet?
        cloned = run(["git", "-C", os.path.join(folder, "origin"), "cat-file", "-e", "HEAD:tools/ci/program.py"]).returncode == 0

    def start(**settings):
        values = {**job["variables"], "FSDP_SOURCE": source if cloned else ROOT, "FSDP_REPOSITORY": "file://" + os.path.join(folder, "origin"),
                  "FSDP_CKPT": os.path.abspath(options.tool), **settings}
        before = job["before_script"] if cloned and not os.path.exists(source) else []   # once, for the time it takes
        script = "\n".join(["set -eo pipefail", *before, *job["script"]])
        done = subprocess.run(["bash", "-c", script], cwd=runner.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              env={"PATH": os.environ["PATH"], "HOME": folder, "CI_PROJECT_DIR": runner.folder, "PYTHONDONTWRITEBYTECODE": "1", **values})
        with open(report, encoding="utf-8") as file:
            return done.returncode, done.stdout.decode("utf-8"), json.load(file)

    status, said, entries = start(FSDP_PATHS="step-1")
    check((status, entries) == (0, []), (status, said, entries))
    status, said, entries = start(FSDP_PATHS="step-*\ndamaged")
    paths = [entry["location"]["path"] for entry in entries]
    check(status == 1 and paths == ["step-2/__1_0.distcp", "damaged/__1_0.distcp"], (status, said, entries))
    for entry in entries:
        check(set(entry) == {"description", "check_name", "fingerprint", "severity", "location"}, entry)
        check(entry["severity"] == "critical" and entry["check_name"] == "ZIP_CRC" and entry["location"]["lines"] == {"begin": 1}, entry)
    check(len({entry["fingerprint"] for entry in entries}) == 2, entries)
    check(start(FSDP_PATHS="damaged")[2][0]["fingerprint"] == entries[1]["fingerprint"], "the fingerprint changes")
    check("verify: 1 of 3 checkpoints passed; 2 damaged" in said, said)
    status, said, entries = start(FSDP_PATHS="step-1", FSDP_SEAL="required")
    check(status == 1 and [(entry["check_name"], entry["severity"]) for entry in entries] == [("UNSEALED", "major")] and "damage" not in said, (said, entries))
    status, said, entries = start(FSDP_VERB="inspect", FSDP_PATHS="step-1", FSDP_MAX_BYTES="100KiB")
    check(status == 1 and [(entry["check_name"], entry["severity"]) for entry in entries] == [("SIZE", "major")], (said, entries))
    status, said, entries = start(FSDP_VERB="stats", FSDP_PATHS="step-1")
    check(status == 0 and "stats: 1 of 1 checkpoint passed" in said and not entries, (said, entries))
    status, said, entries = start(FSDP_PATHS="nowhere")
    check(status == 2 and entries == [] and "nothing is called" in said, (status, said))
    status, said, entries = start(FSDP_VERB="diff", FSDP_PATHS="other", FSDP_AGAINST="step-1")
    check(status == 1 and entries and {entry["check_name"] for entry in entries} == {"DIFFERENT"}, (status, said))
    for name, number in (("a.pt", 1.0), ("b.pt", 2.0)):
        hostile_file(options, os.path.join(runner.folder, name), number)
    status, said, entries = start(FSDP_VERB="diff", FSDP_PATHS="b.pt", FSDP_AGAINST="a.pt")
    check(status == 1 and len(entries) == len(HOSTILE) and not re.search("[\x00-\x09\x0b-\x1f\u2028\u202e]", said), (status, len(entries)))
    print("cloned as a job does" if cloned else "not a clone with these files: the scripts of this folder ran")


def pre_commit(options, folder):
    if not options.python:
        raise Skipped("no Python with PyYAML and pre-commit: tests/run.sh makes one")
    if run(["git", "-C", ROOT, "cat-file", "-e", "HEAD:.pre-commit-hooks.yaml"]).returncode != 0:
        raise Skipped("this is not a clone whose commit has .pre-commit-hooks.yaml")
    runner = Runner(options, folder)
    hooks = os.path.join(folder, "hooks")
    wanted(["git", "clone", "-q", "--shared", "--no-checkout", ROOT, hooks])
    wanted(["git", "-C", hooks, "sparse-checkout", "set", "tools/ci"])
    wanted(["git", "-C", hooks, "checkout", "-q"])
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    wanted(["git", "init", "-q"], cwd=runner.folder)
    os.mkdir(os.path.join(folder, "bin"))
    os.symlink(os.path.abspath(options.tool), os.path.join(folder, "bin/fsdp-ckpt"))
    environment = {"PATH": os.path.join(folder, "bin") + ":" + os.environ["PATH"], "HOME": folder, "LC_ALL": "C.UTF-8",
                   "PRE_COMMIT_HOME": os.path.join(folder, "cache"), "PYTHONDONTWRITEBYTECODE": "1", "PIP_NO_INDEX": "1"}

    def tried(**more):
        return run([options.python, "-m", "pre_commit", "try-repo", hooks, "fsdp-ckpt-verify", "--verbose"], cwd=runner.folder, env={**environment, **more})

    def configured(**more):
        return run([options.python, "-m", "pre_commit", "run", "--verbose"], cwd=runner.folder, env={**environment, **more})

    with open(os.path.join(runner.folder, "README.md"), "w", encoding="utf-8") as file:
        file.write("text\n")
    wanted(["git", "add", "README.md"], cwd=runner.folder)
    done = tried()
    check(done.returncode == 0 and "no files to check" in done.stdout, done.stdout)
    # What is added is looked at: every file of step-1, once as a whole.
    wanted(["git", "add", "step-1"], cwd=runner.folder)
    done = tried()
    check(done.returncode == 0 and "Passed" in done.stdout, done.stdout)
    # As a repository has it from then on.
    revision = wanted(["git", "-C", hooks, "rev-parse", "HEAD"]).strip()
    with open(os.path.join(runner.folder, ".pre-commit-config.yaml"), "w", encoding="utf-8") as file:
        file.write(f"repos:\n- repo: {hooks}\n  rev: {revision}\n  hooks:\n  - id: fsdp-ckpt-verify\n")
    wanted(["git", "add", ".pre-commit-config.yaml"], cwd=runner.folder)
    wanted(["git", *identity, "commit", "-qm", "sound"], cwd=runner.folder)
    wanted(["git", "add", "damaged/__1_0.distcp"], cwd=runner.folder)
    done = configured()
    check(done.returncode == 1 and "ZIP_CRC" in done.stdout and done.stdout.count("damaged: damaged") == 1, done.stdout)
    safetensors(os.path.join(runner.folder, "--help.safetensors"), {"w": [1.0]})
    safetensors(os.path.join(runner.folder, "--allow-global=os.system.pt"), {"w": [1.0, 2.0]})
    with open(os.path.join(runner.folder, "--allow-global=os.system.pt"), "r+b") as file:
        file.truncate(os.path.getsize(file.name) - 4)
    wanted(["git", *identity, "commit", "-qm", "damaged"], cwd=runner.folder)
    wanted(["git", "add", "--", "--help.safetensors"], cwd=runner.folder)
    done = configured()
    check(done.returncode == 0 and "Passed" in done.stdout, done.stdout)
    wanted(["git", "add", "--", "--allow-global=os.system.pt"], cwd=runner.folder)
    done = configured()
    check(done.returncode == 1 and "damaged" in done.stdout, done.stdout)
    # Without the program the hook says what to do.
    done = configured(PATH=os.environ["PATH"], FSDP_CKPT="/nowhere/fsdp-ckpt")
    check(done.returncode == 1 and "is not a program here" in done.stdout and "install.md" in done.stdout, done.stdout)
    # Options go to verify.
    hook = os.path.join(ROOT, "tools/ci/pre_commit.py")
    done = run([hook, "--require-checksums", "--help.safetensors"], cwd=runner.folder, env=environment)
    check(done.returncode == 1 and "UNCHECKED" in done.stdout, done.stdout)
    done = run([hook, "nowhere.pt"], cwd=runner.folder, env=environment)
    check(done.returncode == 2 and "neither a file nor an option" in done.stdout, done.stdout)
    print(wanted([options.python, "-m", "pre_commit", "--version"]).strip())


# Which jobs may write what; the others may read contents.
WRITES = {"github": {"contents", "id-token", "attestations"}, "images": {"packages", "id-token", "attestations"}, "pypi": {"id-token"}}


def workflows(options, folder):
    place = os.path.join(ROOT, ".github/workflows")
    names = sorted(os.listdir(place))
    check(names == ["release.yml", "tests.yml"], names)
    for name, document in zip(names, yaml_of(options, *(os.path.join(place, name) for name in names))):
        text = bytes_of(os.path.join(place, name)).decode("utf-8")
        check(document["permissions"] == {} and "secrets." not in text and "secrets:" not in text, f"{name}: permissions, secrets")
        for title, job in document["jobs"].items():
            writes = {right for right, level in job["permissions"].items() if level != "read"}
            check(writes == WRITES.get(title, set()), f"{name}: {title} may write {writes}")
            for step in job.get("steps", []):
                check("${{" not in step.get("run", ""), f"{name}: {title}: an expression in the text of a script: {step}")
                if "uses" in step:
                    check(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), f"{name}: {step['uses']} is not pinned")
                    check(re.search(re.escape(step["uses"]) + r" # v\d+\.\d+\.\d+$", text, re.M), f"{name}: {step['uses']}: no version beside it")
                    check("checkout" not in step["uses"] or step["with"] == {"persist-credentials": False}, step)
                for script in re.findall(r"(?:^|[\s\"])((?:tools|tests|\.ci)/[\w./$-]+)", step.get("run", "")):
                    check("$" in script or os.access(os.path.join(ROOT, script), os.X_OK), f"{name}: {script} is not a program")
    programs = os.path.dirname(options.python)
    zizmor = [os.path.join(programs, "zizmor"), "--offline", "--no-progress", "--strict-collection", "--quiet"]
    schema = [os.path.join(programs, "check-jsonschema"), "--builtin-schema"]
    files = [os.path.join(place, name) for name in names]
    wanted([*zizmor, *files, os.path.join(ROOT, "action.yml")])
    wanted([*schema, "vendor.github-workflows", *files])
    wanted([*schema, "vendor.github-actions", os.path.join(ROOT, "action.yml")])
    wanted([*schema, "vendor.gitlab-ci", os.path.join(ROOT, "tools/ci/gitlab.yml")])
    # The workflow and the job of docs/ci.md.
    blocks = re.findall(r"^```yaml\n(.*?)^```$", bytes_of(os.path.join(ROOT, "docs/ci.md")).decode("utf-8"), flags=re.S | re.M)
    for word, kind in (("runs-on:", "github-workflows"), ("extends: .fsdp-ckpt", "gitlab-ci")):
        block, = (block for block in blocks if word in block)
        with open(os.path.join(folder, "block.yml"), "w", encoding="utf-8") as file:
            file.write(block)
        wanted([*schema, "vendor." + kind, file.name])
    # Both do say no.
    good, wrong = bytes_of(os.path.join(place, "release.yml")).decode("utf-8"), os.path.join(folder, "release.yml")
    for change, words in ((lambda t: re.sub(r"checkout@[0-9a-f]{40} #.*", "checkout@v7", t), zizmor), (lambda t: t.replace("persist-credentials: false", "clean: true"), zizmor),
                          (lambda t: t.replace('"$GITHUB_REF_NAME" dist/*', '"${{ github.ref_name }}" dist/*'), zizmor),
                          (lambda t: t.replace("runs-on:", "run-on:"), [*schema, "vendor.github-workflows"]), (lambda t: t.replace("id-token: write", "token: write"), [*schema, "vendor.github-workflows"])):
        check(change(good) != good, "a change that changes nothing")
        with open(wrong, "w", encoding="utf-8") as file:
            file.write(change(good))
        done = run([*words, wrong])
        check(done.returncode not in (0, 2, 3), f"{words[0]}: {done.returncode}: {done.stdout[-1000:]}")
    print(wanted([zizmor[0], "--version"]).strip(), wanted([schema[0], "--version"]).strip())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = {case.__name__: case for case in (metadata, runs, hostile, program, gitlab, pre_commit, workflows)}
    parser.add_argument("case", choices=cases)
    for option in ("tool", "golden", "static", "python"):
        parser.add_argument("--" + option)
    arguments = parser.parse_args()
    arguments.golden = os.path.abspath(arguments.golden)
    sys.exit(main(cases[arguments.case], arguments))
