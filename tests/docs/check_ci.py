#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the recipes of docs/ci.md: on good checkpoints they must pass, on bad ones the right command must fail.

    check_ci.py CI_MD TOOL GOLDEN

The commands are those of the document: `run:` of GitHub's steps, `script:` of GitLab's, the targets of the
makefile, the program.  Steps that install are left out.
"""
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

GOOD = "2.15.0/fsdp2/ckpt"
OTHER = "2.15.0/fsdp1/ckpt"
DATA_BYTE = 27000  # of __1_0.distcp: in a tensor's data


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.S | re.M)


def github_steps(block):
    """(name, script) of each step with a run."""
    steps, lines = [], block.splitlines()
    for i, line in enumerate(lines):
        name = re.match(r"\s*- name: (.*)", line)
        if name:
            steps.append([name.group(1), ""])
        run = re.match(r"(\s*)run: (.*)", line)
        if not run:
            continue
        if run.group(2) != "|":
            steps[-1][1] = run.group(2)
            continue
        indent = len(run.group(1))
        for more in lines[i + 1:]:
            if more.strip() and len(more) - len(more.lstrip()) <= indent:
                break
            steps[-1][1] += more.strip() + "\n"
    return [(name, script) for name, script in steps if script and not name.startswith("Install")]


def gitlab_commands(block):
    lines = block.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.strip() == "script:")
    commands = []
    for line in lines[begin + 1:]:
        if not line.startswith("    - "):
            break
        commands.append((line[6:].split('"')[0].strip(), line[6:]))
    return commands


def write_safetensors(path, numbers):
    text = b'{"app.model.w":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}' % (len(numbers), 4 * len(numbers))
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(numbers)}f", *numbers))


class World:
    def __init__(self, folder, tool, golden):
        self.folder = folder
        programs = os.path.join(folder, ".bin")
        os.mkdir(programs)
        os.symlink(os.path.abspath(tool), os.path.join(programs, "fsdp-ckpt"))
        self.environment = {**os.environ, "PATH": programs + os.pathsep + os.environ["PATH"], "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
        self.copy(os.path.join(golden, GOOD), "good")
        self.copy(os.path.join(golden, GOOD), "reference")
        self.copy(os.path.join(golden, OTHER), "other")
        self.copy(os.path.join(golden, GOOD), "damaged")
        with open(os.path.join(folder, "damaged/__1_0.distcp"), "r+b") as file:
            file.seek(DATA_BYTE)
            byte = file.read(1)[0]
            file.seek(DATA_BYTE)
            file.write(bytes([byte ^ 0x10]))
        self.copy(os.path.join(golden, GOOD), "torn")
        os.remove(os.path.join(folder, "torn/__1_0.distcp"))
        write_safetensors(os.path.join(folder, "nan.safetensors"), [1.0, float("nan"), 3.0])
        write_safetensors(os.path.join(folder, "inf.safetensors"), [1.0, float("-inf"), 3.0])

    def copy(self, source, name):
        target = os.path.join(self.folder, name)
        shutil.copytree(source, target)
        for base, _, names in os.walk(target):
            os.chmod(base, 0o755)
            for file in names:
                os.chmod(os.path.join(base, file), 0o644)

    def run(self, command, **variables):
        done = subprocess.run(command, cwd=self.folder, env={**self.environment, **variables}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False, text=True)
        return done.returncode, done.stdout


# The checkpoint, the budget, and the commands that must fail: those whose text has one of these words.
SCENARIOS = [
    ("good", "1GiB", set()),
    ("damaged", "1GiB", {"verify"}),
    ("torn", "1GiB", {"verify"}),
    ("nan.safetensors", "1GiB", {"stats", "diff"}),
    ("inf.safetensors", "1GiB", {"stats", "diff"}),
    ("good", "100KiB", {"--max-bytes"}),
    ("other", "1GiB", {"diff"}),
]
# A checkpoint that is damaged may stop these too.
MAY_FAIL = {"damaged": {"stats", "diff"}, "torn": {"stats", "diff", "--max-bytes", "--html", "--json"}}


def check_snippets(root, text, yaml, expect):
    """The blocks that name the action, the template and the hook have only what these know; the tables have all of it."""
    def read(path):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            return file.read()

    def members(source, title):
        part = re.search(rf"^{title}:\n((?: .*\n)+)", source, flags=re.M)[1]
        return set(re.findall(r"^  (\w+):", part, flags=re.M))

    action, template, hooks = read("action.yml"), read("tools/ci/gitlab.yml"), read(".pre-commit-hooks.yaml")
    inputs, outputs = members(action, "inputs"), members(action, "outputs")
    steps = [step for block in yaml for step in re.split(r"^- ", block, flags=re.M) if step.startswith("uses: owner/fsdp@")]
    expect("steps of the action", len(steps) >= 2, steps)
    for step in steps:
        given = set(re.findall(r"^    (\w+):", step.split("with:\n")[1], flags=re.M))
        expect("the action has these inputs", given <= inputs, given - inputs)
    used = set(re.findall(r"steps\.checkpoints\.outputs\.(\w+)", text))
    expect("the action has these outputs", used and used <= outputs, used - outputs)
    rows = [re.findall(r"`([a-z_]+)`", row.split("|")[1]) for row in re.findall(r"^\| `[a-z_]+`.*$", text.split("## GitLab")[0], flags=re.M)]
    named = {name for row in rows for name in row}
    expect("the tables have the inputs and outputs", inputs | outputs <= named, (inputs | outputs) - named)
    job, = (block for block in yaml if "extends: .fsdp-ckpt" in block)
    variables = set(re.findall(r"^    (FSDP_\w+):", job, flags=re.M))
    expect("the template has these variables", variables and variables <= set(re.findall(r"^    (FSDP_\w+):", template, flags=re.M)), variables)
    expect("the template is there", "file: /tools/ci/gitlab.yml" in job, job)
    hook, = (re.findall(r"- id: (\S+)", block) for block in yaml if "repos:" in block)
    expect("the hook is there", hook == re.findall(r"^- id: (\S+)", hooks, flags=re.M), hook)


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    document, tool, golden = sys.argv[1:]
    with open(document, encoding="utf-8") as file:
        text = file.read()
    yaml = blocks(text, "yaml")
    makefile, = blocks(text, "make")
    program, = blocks(text, "python")
    recipes = [("GitHub", github_steps(next(b for b in yaml if "runs-on:" in b))),
               ("GitLab", gitlab_commands(next(b for b in yaml if "script:" in b)))]
    passed, wrong = 0, []

    def expect(what, holds, shown):
        nonlocal passed
        if holds:
            passed += 1
        else:
            wrong.append(f"{what}: {shown!s:.700}")

    root = os.path.dirname(os.path.dirname(os.path.abspath(document)))
    check_snippets(root, text, yaml, expect)
    for block in (block for block in yaml if "cmake -S" in block):
        built = set(re.findall(r"cmake -S (\S+)", block))
        checked_out = set(re.findall(r"^ *path: (\w+)$", block, flags=re.M)) | set(re.findall(r"git clone .* (\w+)$", block, flags=re.M))
        expect("what is built is checked out", built and built <= checked_out, (built, checked_out))
        for path in re.findall(r"(?:CHECKPOINT|REFERENCE): fsdp/(\S+)", block):
            expect(f"{path} is in the repository", os.path.isdir(os.path.join(root, path)), path)

    with tempfile.TemporaryDirectory() as folder:
        world = World(folder, tool, golden)
        for recipe, steps in recipes:
            expect(f"{recipe}: commands", len(steps) >= 5, steps)
            for checkpoint, budget, failing in SCENARIOS:
                for name, script in steps:
                    status, output = world.run(["bash", "-e", "-o", "pipefail", "-c", script], CHECKPOINT=checkpoint,
                                               REFERENCE="reference", BUDGET=budget)
                    what = f"{recipe}: {name!r} on {checkpoint} within {budget}"
                    if "|| true" not in script and any(word in script for word in failing):
                        expect(what + " must fail", status != 0 and output, (status, output))
                        if recipe == "GitHub":
                            expect(what + " annotates", re.search(r"^::error title=[^:]+::.", output, flags=re.M), output)
                        if checkpoint not in MAY_FAIL:
                            expect(what + " says no", status == 1, (status, output))
                    elif not any(word in script for word in MAY_FAIL.get(checkpoint, ())):
                        expect(what + " must pass", status == 0, (status, output))

        with open(os.path.join(folder, "Makefile"), "w", encoding="utf-8") as file:
            file.write(makefile)
        words = {"sound": "verify", "finite": "stats", "budget": "--max-bytes", "same": "diff"}
        for checkpoint, budget, failing in SCENARIOS:
            for target, word in words.items():
                status, output = world.run(["make", target, f"CHECKPOINT={checkpoint}", "REFERENCE=reference", f"BUDGET={budget}"])
                what = f"make {target} on {checkpoint} within {budget}"
                if word in failing:
                    expect(what + " must fail", status != 0, output)
                elif word not in MAY_FAIL.get(checkpoint, ()):
                    expect(what + " must pass", status == 0, output)
            status, output = world.run(["make", "check", f"CHECKPOINT={checkpoint}", "REFERENCE=reference", f"BUDGET={budget}"])
            expect(f"make check on {checkpoint} within {budget}", (status != 0) == bool(failing), output)
        status, output = world.run(["make", "release", "CHECKPOINT=good"])
        expect("make release", status == 0, output)
        expect("the release is there", sorted(os.listdir(os.path.join(folder, "release"))) ==
               ["model.safetensors", "model.safetensors.sha256"], os.listdir(os.path.join(folder, "release")))
        status, output = world.run(["bash", "-c", "cd release && sha256sum -c model.safetensors.sha256"])
        expect("its checksum", status == 0, output)
        for checkpoint in ("damaged", "nan.safetensors"):
            status, output = world.run(["make", "release", f"CHECKPOINT={checkpoint}", "RELEASE=other-release"])
            expect(f"no release of {checkpoint}", status != 0 and not os.path.exists(os.path.join(folder, "other-release/model.safetensors")),
                   output)

        with open(os.path.join(folder, "after_save.py"), "w", encoding="utf-8") as file:
            file.write(program)
        os.mkdir(os.path.join(folder, "old"))
        status, output = world.run([sys.executable, "after_save.py", "torn", "old"])
        expect("the old checkpoint stays", status != 0 and os.path.isdir(os.path.join(folder, "old")), output)
        status, output = world.run([sys.executable, "after_save.py", "good", "old"])
        expect("the old checkpoint goes", status == 0 and not os.path.exists(os.path.join(folder, "old")), output)
    for problem in wrong:
        print(problem)
    print(f"{passed} checks passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
