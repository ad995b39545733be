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

API = "include/torch/csrc/api/include/torch/torch.h"
# What a launcher of one rank sets.
ONE_RANK = ["env", "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"]
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


def check_completions(checks, share, tool):
    for shell, path in (("bash", "bash-completion/completions/fsdp-ckpt"), ("zsh", "zsh/site-functions/_fsdp-ckpt"),
                        ("fish", "fish/vendor_completions.d/fsdp-ckpt.fish")):
        with open(os.path.join(share, path), encoding="utf-8") as file:
            checks.that(f"the completion of {shell}", file.read() == run(tool, "--print-completion", shell).stdout)


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
    verbs = re.findall(r"^  ([a-z][a-z-]*)", help_text, re.MULTILINE)
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


def configured(arguments, prefix, name, build, *options, env=None):
    source = name if os.path.isabs(name) else os.path.join(HERE, name)
    return run(arguments.cmake, "-S", source, "-B", build, "-G", arguments.generator,
               f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={arguments.compiler}",
               f"-DCMAKE_CXX_FLAGS={arguments.flags}", "-DCMAKE_BUILD_TYPE=Debug", *options, env=env)


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
        launch = [torchrun, "--no-python", "--nproc-per-node", "2"] if os.path.exists(torchrun) else ONE_RANK
        done = run(*launch, program, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
        losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step ")]
        checks.that("the guide's program trains", done.returncode == 0 and len(losses) == 3 and losses[-1] < losses[0] / 4, done.stdout)
        done = run(os.path.join(prefix, "bin/fsdp-ckpt"), "verify", os.path.join(folder, "step-100"))
        checks.that("the guide's program saves", done.returncode == 0, done.stdout)
    with open(os.path.join(HERE, "../../libfsdp/cmake/torch.cmake"), encoding="utf-8") as file:
        tried = re.search(r"^set\(FSDP_TRIED_TORCH ([\d. ]+)\)$", file.read(), re.MULTILINE)[1].split()
    names = " and ".join(tried)
    version = ".".join(version_of(arguments.torch))
    wanted = f"-- LibTorch {version}: libfsdp was tried with {names} " if version in tried else f"is LibTorch {version}; libfsdp was tried with {names} "
    checks.that("find_package names the LibTorch and those that were tried", wanted in said, said)


def fake_torch(folder, *libraries):
    """Makes what find_package reads of a LibTorch before it takes it: the headers of 9.8.7, and empty libraries."""
    numbers = "#define TORCH_VERSION_MAJOR 9\n#define TORCH_VERSION_MINOR 8\n#define TORCH_VERSION_PATCH 7\n"
    for name, text in ((API, ""), *((header, numbers) for header in VERSIONS), *(("lib/" + library, "") for library in libraries)):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return folder


class Finding:
    """What find_package says, in one build folder: only the first case asks for the compiler."""
    def __init__(self, checks, arguments, folder):
        self.checks, self.arguments, self.build = checks, arguments, os.path.join(folder, "found.build")

    def ask(self, prefix, how, *options, environment=()):
        forget = [f"-U{name}" for name in ("FSDP_*", "fsdp_DIR", "LINK", "CMAKE_DISABLE_*")]
        done = configured(self.arguments, prefix, "found", self.build, *forget, f"-DHOW={how}", *options, env={**os.environ, **dict(environment)})
        return done.returncode, " ".join(done.stdout.split())

    def finds(self, prefix, how, said, *options):
        status, text = self.ask(prefix, how, *options)
        self.checks.that(f"find_package(fsdp {how}) with {options}", status == 0 and said in text and "CMake Warning at" not in text, text)

    def refuses(self, prefix, how, reason, *options, environment=()):
        """CMake warns with the reason, which a variable has, too, and has no error."""
        status, text = self.ask(prefix, how, *options, environment=environment)
        what = f"{how} with {options} {environment}"
        self.checks.that(f"what find_package says of {what}", f"Reason given by package: {reason}" in text, text)
        self.checks.that(f"no error of {what}", status == 0 and re.search(rf"-- found 0, torch \w*, cuda \w*: {re.escape(reason)}", text)
                         and f"{how.split(';')[-1]} TRUE" not in text, text)

    def refuses_required(self, prefix, how, reason, *options):
        """The reason is CMake's only error."""
        status, text = self.ask(prefix, f"REQUIRED;{how}", *options)
        self.checks.that(f"the one error of REQUIRED {how} with {options}",
                         status != 0 and text.count("CMake Error") == 1 and f"Reason given by package: {reason}" in text, text)


def check_reasons(checks, arguments, prefix, folder):
    """find_package says why it does not find the package or a component, and what to do."""
    finding = Finding(checks, arguments, folder)
    package = os.path.relpath(glob.glob(os.path.join(prefix, "lib*/cmake/fsdp"))[0], prefix)
    with open(os.path.join(prefix, package, "fsdp-config.cmake"), encoding="utf-8") as file:
        hdf5 = ", hdf5 (Debian: libhdf5-dev)" if "if(ON)" in file.read() else ""
    linked = "fsdp::formats is linked with libraries that were not found: "
    remedy = ". Install them, or name in CMAKE_PREFIX_PATH where they are."
    # First, as pkg_check_modules remembers what it found.
    finding.refuses(prefix, "", linked + "pkg-config (Debian: pkg-config)" + remedy, "-DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON")
    finding.refuses(prefix, "", linked + "libisal (Debian: libisal-dev), libzstd (Debian: libzstd-dev), nettle (Debian: nettle-dev)" + hdf5 + remedy,
                    environment=[("PKG_CONFIG_LIBDIR", folder)])
    finding.refuses(prefix, "", linked + "zlib (Debian: zlib1g-dev)" + remedy, "-DCMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON")
    finding.finds(prefix, "REQUIRED", "-- found 1, torch ,", "-DLINK=fsdp::formats")
    finding.refuses(prefix, "COMPONENTS;trch", "fsdp has no component `trch`. There are `torch` and `cuda`, and fsdp::formats needs none.")
    # What a build without libfsdp installs.
    bare = os.path.join(folder, "bare")
    shutil.copytree(prefix, bare, copy_function=os.link)
    for part in "torch", "cuda":
        for path in glob.glob(os.path.join(bare, package, f"fsdp-{part}*")):
            os.remove(path)
    reason = "this package was built without libfsdp. Build and install one with libfsdp"
    torch = arguments.torch or folder
    for name in "torch", "cuda":
        finding.refuses(bare, f"COMPONENTS;{name}", reason, f"-DFSDP_TORCH={torch}")
    finding.refuses_required(bare, "COMPONENTS;torch", reason, f"-DFSDP_TORCH={torch}")
    finding.finds(bare, "REQUIRED;OPTIONAL_COMPONENTS;torch", f"-- fsdp without torch: {reason}", "-DLINK=fsdp::formats")
    if arguments.torch:
        check_torch_reasons(finding, prefix, package, folder)


def check_torch_reasons(finding, prefix, package, folder):
    torch, version = finding.arguments.torch, ".".join(version_of(finding.arguments.torch))
    remedy = f"set it to the folder of LibTorch {version} that has include/ and lib/"
    finding.refuses(prefix, "COMPONENTS;torch", f"FSDP_TORCH is not set: {remedy}")
    finding.refuses_required(prefix, "COMPONENTS;torch", f"FSDP_TORCH is not set: {remedy}")
    finding.refuses(prefix, "COMPONENTS;torch", f"FSDP_TORCH ({folder}) holds no LibTorch: {remedy}", f"-DFSDP_TORCH={folder}")
    finding.finds(prefix, "REQUIRED;OPTIONAL_COMPONENTS;torch", "-- fsdp without torch: FSDP_TORCH is not set", "-DLINK=fsdp::formats")
    other = fake_torch(os.path.join(folder, "other"))
    finding.refuses(prefix, "COMPONENTS;torch", f"libfsdp was built with LibTorch {version}, and FSDP_TORCH ({other}) is 9.8.7; versions are not binary compatible: "
                    f"name a LibTorch {version}, or build libfsdp with this one (it was tried with ", f"-DFSDP_TORCH={other}")
    finding.finds(prefix, "REQUIRED;COMPONENTS;torch", "-- found 1, torch TRUE,", f"-DFSDP_TORCH={torch}", "-DLINK=fsdp::fsdp")

    # A package that was built with what was never tried.
    untried = os.path.join(folder, "untried")
    shutil.copytree(prefix, untried, copy_function=os.link)
    numbers = os.path.join(untried, package, "fsdp-torch-version.cmake")
    os.remove(numbers)
    with open(numbers, "w", encoding="utf-8") as file:
        file.write('set(FSDP_BUILT_WITH_TORCH "9.8.7")\n')
    finding.refuses(untried, "COMPONENTS;torch", f"FSDP_TORCH ({other}) has LibTorch's headers, but no lib/libc10.so: set it to the folder of LibTorch 9.8.7",
                    f"-DFSDP_TORCH={other}")
    fake_torch(other, "libtorch_cpu.so", "libc10.so")
    status, said = finding.ask(untried, "REQUIRED;COMPONENTS;torch", f"-DFSDP_TORCH={other}", "-DLINK=fsdp::fsdp")
    finding.checks.that("find_package warns of a LibTorch that was not tried", status == 0 and "CMake Warning" in said
                        and f"FSDP_TORCH ({other}) is LibTorch 9.8.7; libfsdp was tried with " in said, said)

    # fsdp::cuda.
    if not os.path.exists(os.path.join(prefix, package, "fsdp-cuda-targets.cmake")):
        finding.refuses(prefix, "COMPONENTS;cuda", "this package was built without fsdp::cuda. Build and install one", f"-DFSDP_TORCH={torch}")
        return
    finding.refuses(untried, "COMPONENTS;torch;cuda", f"FSDP_TORCH ({other}) is a LibTorch 9.8.7 without CUDA: name one that has lib/libtorch_cuda.so",
                    f"-DFSDP_TORCH={other}")
    finding.finds(prefix, "REQUIRED;COMPONENTS;torch;cuda", "-- found 1, torch TRUE, cuda TRUE", f"-DFSDP_TORCH={torch}", "-DLINK=fsdp::cuda")
    done = run(finding.arguments.cmake, "--build", finding.build)
    finding.checks.that("a program links fsdp::cuda", done.returncode == 0, done.stdout[-1500:])


def check_quickstart(checks, build):
    """What samples/quickstart.sh builds is all that `cmake --install` takes."""
    with open(os.path.join(HERE, "../../samples/quickstart.sh"), encoding="utf-8") as file:
        targets = [target for named in re.findall(r'^step .* build ("[^"]+"|\S+) -D', file.read(), re.M) for target in named.strip('"').split()]
    # Not `inputs`, which leaves out what is only to be there first.
    built = set(re.findall(r'\[label="([^"]+)"', run("ninja", "-C", build, "-t", "graph", *targets).stdout))
    made = {line.rsplit(": ", 1)[0] for line in run("ninja", "-C", build, "-t", "targets", "all").stdout.splitlines()}
    installed = set()
    for script in glob.glob(os.path.join(build, "**/cmake_install.cmake"), recursive=True):
        with open(script, encoding="utf-8") as file:
            installed |= {os.path.relpath(path, build) for path in re.findall(rf'"({re.escape(build)}/[^"]+)"', file.read())}
    parts = installed & made
    checks.that("what is installed is known", {"tools/fsdp-ckpt", "tools/share/fsdp-ckpt.1", "libfsdp/libfsdp.a"} <= parts, parts)
    checks.that(f"quickstart.sh builds, with {targets}, all that is installed", len(targets) >= 2 and parts <= built, parts - built)


def check_headers(checks, include):
    """The interface is complete, and nothing internal is in it."""
    headers = glob.glob(os.path.join(include, "**/*.h"), recursive=True)
    names = {os.path.relpath(path, include) for path in headers}
    checks.that("the front doors are installed", {"formats/front/open.h", "formats/front/create.h"} <= names, names)
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
        check_completions(checks, share, tool)
        check_manual(checks, os.path.join(share, "man/man1/fsdp-ckpt.1"), tool)
        check_consumer(checks, arguments, prefix, folder, arguments.golden, tool)
        check_reasons(checks, arguments, prefix, folder)
        if arguments.torch:
            check_trainer(checks, arguments, prefix, folder)
            if arguments.generator == "Ninja":
                check_quickstart(checks, arguments.build)
    for problem in checks.failed:
        print(problem)
    print(f"{checks.passed} checks passed, {len(checks.failed)} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
