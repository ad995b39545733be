#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs a build into a fresh prefix and uses all of it: command, library, completions, manual page.

    check_install.py --build BUILD --golden GOLDEN --version VERSION --cmake CMAKE --generator G --compiler CXX --flags=FLAGS
                     [--torch TORCH]
"""
import argparse
import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SHELL_LINES = [  # the typed words, the words that must be offered
    (["fsdp-ckpt", ""], {"inspect", "ls", "verify", "consolidate", "--help", "--version"}),
    (["fsdp-ckpt", "veri"], {"verify"}),
    (["fsdp-ckpt", "help", "veri"], {"verify"}),
    (["fsdp-ckpt", "inspect", "--fo"], {"--fold", "--force"}),
    (["fsdp-ckpt", "ls", "--values", ""], {"auto", "always", "never"}),
    (["fsdp-ckpt", "verify", "--color", "=", "a"], {"auto", "always"}),
    (["fsdp-ckpt", "verify", "--qui"], {"--quiet"}),
]


API = "include/torch/csrc/api/include/torch/torch.h"
VERSIONS = "include/torch/csrc/api/include/torch/version.h", "include/torch/headeronly/version.h"


class Checks:
    def __init__(self):
        self.passed, self.failed = 0, []

    def that(self, what, holds, shown=""):
        if holds:
            self.passed += 1
        else:
            self.failed.append(f"{what}: {shown!s:.1000}")


def run(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


def check_bash(checks, script):
    for words, wanted in SHELL_LINES:
        code = (f'source "{script}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fsdp_ckpt; '
                'printf "%s\\n" "${COMPREPLY[@]}"')
        done = run("bash", "--norc", "-c", code, "bash", *words)
        offered = set(done.stdout.split())
        exact = words[-1] not in ("", "a")
        checks.that(f"bash completes {words}", offered == wanted if exact else wanted <= offered, done.stdout)
    done = run("bash", "--norc", "-c", f'source "{script}"; complete -p fsdp-ckpt')
    checks.that("bash knows the completion", "-F _fsdp_ckpt fsdp-ckpt" in done.stdout, done.stdout)
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "step 400"))
        code = f'source "{script}"; COMP_WORDS=(fsdp-ckpt verify st); COMP_CWORD=2; _fsdp_ckpt; printf "%s|" "${{COMPREPLY[@]}}"'
        done = run("bash", "--norc", "-c", code, cwd=folder)
        checks.that("bash completes a path with a blank", done.stdout == "step 400|", done.stdout)


def check_other_shells(checks, share):
    zsh, fish = shutil.which("zsh"), shutil.which("fish")
    if zsh:
        done = run(zsh, "-n", os.path.join(share, "zsh/site-functions/_fsdp-ckpt"))
        checks.that("zsh takes the script", done.returncode == 0 and not done.stdout, done.stdout)
    if fish:
        script = os.path.join(share, "fish/vendor_completions.d/fsdp-ckpt.fish")
        with tempfile.TemporaryDirectory() as home:
            done = run(fish, "--no-config", "-c", f"source {script}; complete -C 'fsdp-ckpt inspect --fo'",
                       env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home})
            words = {line.split("\t")[0] for line in done.stdout.splitlines()}
            checks.that("fish completes", words == {"--fold", "--force"}, done.stdout)
    print(f"zsh: {zsh or 'not here'}, fish: {fish or 'not here'}")


def check_manual(checks, page, tool):
    with open(page, encoding="utf-8") as file:
        text = file.read()
    checks.that("no date", '.TH FSDP\\-CKPT 1 ""' in text, text[:200])
    man = shutil.which("man")
    if not man:
        print("man: not here")
        return
    done = subprocess.run([man, "--warnings", "-l", page], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""})
    shown = "".join(character for i, character in enumerate(done.stdout)
                    if character != "\b" and done.stdout[i + 1:i + 2] != "\b")
    checks.that("man shows it without a warning", done.returncode == 0 and not done.stderr and "VERBS" in shown, done.stderr)
    help_text = run(tool, "--help").stdout
    verbs = [line.split()[0].rstrip(",") for line in help_text.split("Verbs:\n")[1].split("\n\n")[0].splitlines()
             if line.startswith("  ") and line[2] != " "]
    checks.that("the help lists verbs", {"inspect", "verify"} <= set(verbs), help_text)
    for verb in verbs:
        lines = run(tool, verb, "--help").stdout.splitlines()
        usage = next((line.removeprefix("Usage: ") for line in lines if line.startswith(f"Usage: fsdp-ckpt {verb} ")), "no usage")
        # The manual shows optional words in brackets; PATH is not one.
        usage = usage[:usage.find(" PATH") + len(" PATH")] if " PATH" in usage else usage
        checks.that(f"the manual explains {verb}", usage in " ".join(shown.split()), shown[:3000])
        for line in lines:
            names = [word.rstrip(",") for word in line.split() if word.startswith("--")] if line.startswith(("  -", "      --")) else []
            checks.that(f"the manual has {names} of {verb}", all(name in shown for name in names))


def guides_project(folder):
    """Writes the first program of docs/guide.md and its CMakeLists.txt, as they are there."""
    with open(os.path.join(HERE, "../../docs/guide.md"), encoding="utf-8") as file:
        guide = file.read()
    os.mkdir(folder)
    for language, name in (("cpp", "train.cpp"), ("cmake", "CMakeLists.txt")):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(re.search(rf"`{re.escape(name)}`:\n\n```{language}\n(.*?)```", guide, re.S)[1])


def built_project(checks, arguments, prefix, folder, name, *options):
    """Returns the program of a project that finds the package in `prefix`, or None if that fails, and what find_package said."""
    build = os.path.join(folder, os.path.basename(name) + ".build")
    done = configured(arguments, prefix, name, build, *options)
    said = " ".join(done.stdout.split())
    checks.that(f"the {name} is configured", done.returncode == 0, done.stdout)
    if done.returncode == 0:
        done = run(arguments.cmake, "--build", build)
        checks.that(f"the {name} is built", done.returncode == 0, done.stdout[-1500:])
    program = os.path.join(build, os.path.basename(name))
    return program if os.path.exists(program) else None, said


def configured(arguments, prefix, name, build, *options):
    source = name if os.path.isabs(name) else os.path.join(HERE, name)
    return run(arguments.cmake, "-S", source, "-B", build, "-G", arguments.generator,
               f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={arguments.compiler}",
               f"-DCMAKE_CXX_FLAGS={arguments.flags}", "-DCMAKE_BUILD_TYPE=Debug", *options)


def version_of(torch):
    """Returns the three numbers of a LibTorch, from the header that has them."""
    for header in VERSIONS:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(torch, header), encoding="utf-8") as file:
            numbers = re.findall(r"^#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", file.read(), re.MULTILINE)
            if len(numbers) == 3:
                return numbers
    raise SystemExit(f"{torch}: no header says the version of LibTorch")


def check_trainer(checks, arguments, prefix, folder):
    guides = os.path.join(folder, "train")
    guides_project(guides)
    program, said = built_project(checks, arguments, prefix, folder, guides, f"-DFSDP_TORCH={arguments.torch}")
    if program:
        # PyPI's torch has the launcher beside it.
        torchrun = os.path.join(arguments.torch, "../../../../bin/torchrun")
        launch = [torchrun, "--no-python", "--nproc-per-node", "2"] if os.path.exists(torchrun) else ["env", "RANK=0", "WORLD_SIZE=1"]
        done = run(*launch, program, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
        losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step ")]
        checks.that("the guide's program trains", done.returncode == 0 and len(losses) == 3 and losses[-1] < losses[0] / 4, done.stdout)
        done = run(os.path.join(prefix, "bin/fsdp-ckpt"), "verify", os.path.join(folder, "step-100"))
        checks.that("the guide's program saves", done.returncode == 0, done.stdout)
    with open(os.path.join(HERE, "../../libfsdp/torch.cmake"), encoding="utf-8") as file:
        tried = re.search(r"^set\(FSDP_TRIED_TORCH ([\d. ]+)\)$", file.read(), re.MULTILINE)[1].split()
    names = " and ".join(tried)
    version = ".".join(version_of(arguments.torch))
    wanted = f"-- LibTorch {version}: libfsdp was tried with {names} " if version in tried else f"is LibTorch {version}; libfsdp was tried with {names} "
    checks.that("find_package names the LibTorch and those that were tried", wanted in said, said)
    # Another LibTorch: of one, find_package reads no more than this before it refuses it.
    other = os.path.join(folder, "other")
    for header, text in ((API, ""), *((name, "#define TORCH_VERSION_MAJOR 9\n#define TORCH_VERSION_MINOR 8\n#define TORCH_VERSION_PATCH 7\n") for name in VERSIONS)):
        path = os.path.join(other, header)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    done = configured(arguments, prefix, guides, os.path.join(folder, "refused"), f"-DFSDP_TORCH={other}")
    said = " ".join(done.stdout.split())
    checks.that("another LibTorch is refused", done.returncode != 0 and f"libfsdp was built with LibTorch {version}, and" in said, said)
    checks.that("find_package warns of a LibTorch that was not tried", f"FSDP_TORCH ({other}) is LibTorch 9.8.7; libfsdp was tried with {names} " in said
                and "CMake Warning" in said, said)


def check_headers(checks, include):
    """The interface is complete, and nothing internal is in it."""
    headers = glob.glob(os.path.join(include, "**/*.h"), recursive=True)
    names = {os.path.relpath(path, include) for path in headers}
    checks.that("the front doors are installed", {"formats/open.h", "formats/create.h"} <= names, names)
    checks.that("no internal header is installed", not [name for name in names if "internal/" in name], names)
    for path in headers:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        wanted = set(re.findall(r'#include "((?:formats|libfsdp)/[^"]+)"', text))
        checks.that(f"all that {os.path.relpath(path, include)} includes is installed", wanted <= names, wanted - names)
        spaces = set(re.findall(r"^namespace ([\w:]+)", text, re.M))
        checks.that(f"{os.path.relpath(path, include)} stays in its namespace",
                    all(space.split("::")[0] in ("fsdp", "internal", "torch", "c10", "c10d") for space in spaces), spaces)


def check_consumer(checks, arguments, prefix, folder, golden, tool):
    program, _ = built_project(checks, arguments, prefix, folder, "consumer")
    if not program:
        return
    for case in ("2.15.0/fsdp2/ckpt", "2.11.0/nested_pt/full.pt", "2.15.0/hf_safetensors/ckpt"):
        path = os.path.join(golden, case)
        index = json.loads(subprocess.run([tool, "inspect", path, "--json", "--values", "never"], stdout=subprocess.PIPE,
                                          check=True).stdout)
        expected = [f"{t['key']} {t['dtype']} {t['bytes']}" for t in index["tensors"]]
        done = run(program, path)
        checks.that(f"the consumer reads {case}", done.stdout.splitlines() == expected and expected, done.stdout)
    checks.that("its errors are caught", run(program, "nowhere").stdout == "NOT_FOUND\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("build", "golden", "version", "cmake", "generator", "compiler"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--flags", default="")
    parser.add_argument("--torch", help="the LibTorch of a build that has libfsdp")
    arguments = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "prefix")
        done = run(arguments.cmake, "--install", arguments.build, "--prefix", prefix)
        checks.that("cmake --install", done.returncode == 0, done.stdout[-1500:])
        if done.returncode != 0:
            print(checks.failed)
            return 1
        # A prefix that was moved works as well.
        moved = os.path.join(folder, "moved")
        os.rename(prefix, moved)
        prefix = moved
        tool = os.path.join(prefix, "bin/fsdp-ckpt")
        share = os.path.join(prefix, "share")
        checks.that("version", run(tool, "--version").stdout.splitlines()[:1] == [f"fsdp-ckpt {arguments.version}"])
        libraries = glob.glob(os.path.join(prefix, "lib*/**/libfsdp_formats.a"), recursive=True)
        checks.that("library", len(libraries) == 1, libraries)
        check_headers(checks, os.path.join(prefix, "include"))
        stray = [path for path in glob.glob(os.path.join(prefix, "**/*"), recursive=True)
                 if os.path.isfile(path) and not path.endswith((".h", ".a", ".cmake", "fsdp-ckpt", "fsdp-ckpt-mpi", ".fish", ".1", "_fsdp-ckpt"))]
        checks.that("nothing else is installed", not stray, stray)
        for path in glob.glob(os.path.join(prefix, "lib*/cmake/fsdp/*.cmake")):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            checks.that(f"{os.path.basename(path)} knows no build folder", arguments.build not in text and folder not in text)
        check_bash(checks, os.path.join(share, "bash-completion/completions/fsdp-ckpt"))
        check_other_shells(checks, share)
        check_manual(checks, os.path.join(share, "man/man1/fsdp-ckpt.1"), tool)
        check_consumer(checks, arguments, prefix, folder, arguments.golden, tool)
        if arguments.torch:
            check_trainer(checks, arguments, prefix, folder)
    for problem in checks.failed:
        print(problem)
    print(f"{checks.passed} checks passed, {len(checks.failed)} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
