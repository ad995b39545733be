#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completes command lines in bash, zsh and fish, as far as they are here.

    check_completion.py TOOL GOLDEN
"""
import os
import shutil
import subprocess
import sys
import tempfile

# The typed words; what must be offered, and whether nothing else may be.
LINES = [
    ([""], {"inspect", "ls", "verify", "consolidate"}, False),
    (["veri"], {"verify"}, True),
    (["help", "veri"], {"verify"}, True),
    (["inspect", "--fo"], {"--fold", "--force"}, True),
    (["verify", "--qui"], {"--quiet"}, True),
    (["ls", "--values", ""], {"auto", "always", "never"}, False),
    (["convert", "--dtype", "bf"], {"bf16", "bfloat16"}, True),
    (["export", "--dtype", "float8_e5m2f"], {"float8_e5m2fnuz"}, True),
    (["maps", "--show", "torchtitan-llama3"], {"torchtitan-llama3-hf"}, True),
    (["map", "torchtitan-llama3"], {"torchtitan-llama3-hf"}, True),
    (["export", "step 400", "hf", "--map", "torchtitan-llama3"], {"torchtitan-llama3-hf"}, True),
    (["stats", "step", "-k", ""], {"app.", "step"}, True),
    (["stats", "step", "--keys", "app.m"], {"app.model."}, True),
    (["extract", "step", "app.model.blocks.0.up."], {"app.model.blocks.0.up.bias", "app.model.blocks.0.up.weight"}, True),
    (["rename", "step", "out", "--drop", "app.model.l"], {"app.model.ln."}, True),
    (["stats", "-k", "app.m"], set(), True),
]


def run(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


class Shells:
    def __init__(self, tool, folder):
        self.wrong, self.count, self.folder = [], 0, folder
        self.environment = {**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_DATA_HOME": folder, "LC_ALL": "C.UTF-8",
                            "PATH": os.path.join(folder, ".bin") + os.pathsep + os.environ["PATH"]}
        for shell in ("bash", "zsh", "fish"):
            with open(self.script(shell), "w", encoding="utf-8") as file:
                file.write(run(tool, "--print-completion", shell).stdout)

    def script(self, shell):
        return os.path.join(self.folder, f".{shell}")

    def that(self, what, holds, shown=""):
        self.count += 1
        if not holds:
            self.wrong.append(f"{what}: {shown!s:.1000}")

    def run(self, *command):
        return run(*command, cwd=self.folder, env=self.environment).stdout

    def offered(self, shell, offer):
        for words, wanted, alone in LINES:
            found = set(offer(["fsdp-ckpt", *words]))
            self.that(f"{shell} completes {words}", found == wanted if alone else wanted <= found, found)

    def bash(self, words):
        code = (f'source {self.script("bash")}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fsdp_ckpt; '
                'printf "%s\\n" "${COMPREPLY[@]}"')
        return filter(None, self.run("bash", "--norc", "-c", code, "bash", *words).splitlines())

    def fish(self, words):
        line = " ".join(word.replace(" ", "\\ ") for word in words)
        return (one.split("\t")[0] for one in self.run("fish", "--no-config", "-c", f"source {self.script('fish')}; complete -C '{line}'").splitlines())

    # Its own completion system needs a line editor: this calls the function for keys with what that would have set.
    def zsh_keys(self, words):
        code = (f'_describe() {{}}; _arguments() {{}}; words=(fsdp-ckpt ""); CURRENT=2; source {self.script("zsh")}; '
                'compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -l -- "$@" }; words=("${@:2}"); PREFIX=${@[-1]}; _fsdp-ckpt_keys')
        return filter(None, self.run("zsh", "-f", "-c", code, "zsh", *words).splitlines())


def main():
    tool, golden = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, ".bin"))
        os.symlink(tool, os.path.join(folder, ".bin/fsdp-ckpt"))
        shutil.copytree(os.path.join(golden, "2.15.0/fsdp2/ckpt"), os.path.join(folder, "step"))
        os.mkdir(os.path.join(folder, "step 400"))
        shells = Shells(tool, folder)
        shells.offered("bash", shells.bash)
        shells.that("bash: --name=value", {"auto", "always"} <= set(shells.bash(["fsdp-ckpt", "verify", "--color", "=", "a"])))
        shells.that("bash: a path with a blank", list(shells.bash(["fsdp-ckpt", "verify", "step 4"])) == ["step 400"])
        shells.that("bash: a checkpoint behind an option", "step 400" in shells.bash(["fsdp-ckpt", "salvage", "step", "out", "--from", "ste"]))
        shells.that("bash: a glob in quotes", list(shells.bash(["fsdp-ckpt", "stats", "step", "-k", "'app.m"])) == ["app.model."])
        shells.that("bash knows the completion", "-F _fsdp_ckpt fsdp-ckpt" in
                    shells.run("bash", "--norc", "-c", f"source {shells.script('bash')}; complete -p fsdp-ckpt"))
        if shutil.which("fish"):
            shells.offered("fish", shells.fish)
        if shutil.which("zsh"):
            shells.that("zsh takes the script", not shells.run("zsh", "-n", shells.script("zsh")))
            found = set(shells.zsh_keys(["fsdp-ckpt", "stats", "step", "-k", "app.m"]))
            shells.that("zsh completes keys", found == {"app.model."}, found)
            with open(shells.script("zsh"), encoding="utf-8") as file:
                text = file.read()
            for spec in ("--dtype", "--map", ":RULES:", "--show"):
                line = next((line for line in text.splitlines() if spec in line), "")
                shells.that(f"zsh: {spec}", ("bf16" if spec == "--dtype" else "torchtitan-llama3-hf") in line, line)
    for problem in shells.wrong:
        print(problem)
    print(f"zsh: {shutil.which('zsh') or 'not here'}, fish: {shutil.which('fish') or 'not here'}: {shells.count} checks, {len(shells.wrong)} problems")
    return bool(shells.wrong)


if __name__ == "__main__":
    sys.exit(main())
