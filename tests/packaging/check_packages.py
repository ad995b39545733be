#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users install, on machines that lack something.

  check_packages.py CASE --data tests/data [--tool PROGRAM | --dist FOLDER --version VERSION] --without without_calls [--userland ROOT]
                    [--module-test module_test.py]

of any program (--tool):
  old_kernel       without the system calls that came after Linux 3.10: everything works
  no_confinement   without seccomp filters: HDF5 is refused in words, and the rest works
  odd_places       a read-only home, no terminal, standard streams closed, an empty environment
of the wheels in FOLDER, and the static program in them:
  static           nothing to load, protections on, names of no folder of this machine, licences of all that is in it, 10 ms to start, 16.5 MB
  empty_root       an empty root folder: inspect, verify, consolidate, reshard, HDF5; no /proc, no /dev
  wheel            a clean environment without a compiler: the command, `python -m`, the module, completions, manual page
  native           pip's choice for each Python here: tensors as PyTorch saved them, from files and from s3, what a notebook shows; where there
                   is no native part, words
  processors       processors without AVX2, without carry-less multiplication, and an emulated old one
  old_userland     Debian 11

Exit: 0 passed, 1 failed, 77 skipped, with the reason.
"""
import argparse
import contextlib
import glob
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

from machine import SKIPPED, Failure, Skipped, check

FOLDER = "golden/2.15.0/fsdp2/ckpt"    # two ranks: FSDP2 and AdamW
STARTS_WITHIN = 0.010                  # seconds
MOST_BYTES = 16_500_000                # of the program

# By the kernel that brought them, from 3.15 to 5.14; and one that containers like to forbid.
LATER_CALLS = ["renameat2", "getrandom", "memfd_create", "membarrier", "copy_file_range", "statx", "rseq", "io_uring_setup", "clone3", "close_range", "openat2",
               "faccessat2", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "unshare"]


def run(words, **options):
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="backslashreplace", check=False, **options)


def wanted(words, status=0, said="", **options):
    """Runs a command that must end with the status and say that; returns its standard output."""
    done = run(words, **options)
    check(done.returncode == status and said in done.stdout + done.stderr,
          f"{words}: status {done.returncode}, not {status}; wanted {said!r}\n  stdout: {done.stdout[-800:]}\n  stderr: {done.stderr[-800:]}")
    return done.stdout


def content(path):
    with open(path, "rb") as file:
        return file.read()


def walk(command, source, folder, truth=None, hdf5=True, **options):
    """Takes a checkpoint through the verbs; `folder` is where `command` sees the current one. Returns the file that consolidate wrote."""
    wanted([*command, "inspect", source], said="80 tensors", **options)
    wanted([*command, "verify", source], said="sound, 150 items", **options)
    wanted([*command, "consolidate", source, "full.pt"], said="80 tensors", **options)
    wanted([*command, "reshard", source, "three", "--world-size", "3"], said="2 ranks to 3 ranks", **options)
    wanted([*command, "verify", "three"], said="sound", **options)
    wanted([*command, "diff", source, "three"], said="are the same", **options)
    wanted([*command, "diff", "full.pt", "three"], said="are the same", **options)
    wanted([*command, "rename", "three", "renamed", "--rename", "app.model=model"], said="23 keys", **options)
    wanted([*command, "consolidate", "three", "full.pt", "--force", "--seal"], said="80 tensors", **options)
    if hdf5:
        wanted([*command, "convert", source, "full.h5"], said="80 tensors", **options)
        wanted([*command, "verify", "full.h5"], said="sound", **options)
        wanted([*command, "diff", "full.h5", source], said="are the same", **options)
    # What is wrong is still found.
    damaged = os.path.join(folder, "flipped")
    shutil.copytree(os.path.join(folder, "three"), damaged)
    path = sorted(glob.glob(os.path.join(damaged, "__0_*.distcp")))[0]
    data = bytearray(content(path))
    data[len(data) // 2] ^= 1
    with open(path, "wb") as file:
        file.write(data)
    wanted([*command, "verify", "flipped"], status=1, said="damaged", **options)
    made = content(os.path.join(folder, "full.pt"))
    check(truth is None or made == truth, "consolidate writes other bytes here")
    left = [name for name in os.listdir(folder) if "fsdp-tmp" in name]
    check(not left, f"left behind: {left}")
    return made


def truth_of(tool, source):
    with tempfile.TemporaryDirectory() as folder:
        wanted([tool, "consolidate", source, "full.pt"], cwd=folder)
        return content(os.path.join(folder, "full.pt"))


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.source = os.path.join(os.path.abspath(options.data), FOLDER)
        self.without = os.path.abspath(options.without)
        self.tool = os.path.abspath(options.tool) if options.tool else None
        self.wheel = None
        if options.dist:
            wheels = glob.glob(os.path.join(options.dist, f"fsdp_ckpt-{options.version}-py3-none-*.whl"))
            check(len(wheels) == 1, f"one wheel of version {options.version} for any Python is wanted: {wheels}")
            self.wheel = os.path.abspath(wheels[0])
            with zipfile.ZipFile(self.wheel) as archive:
                name, = [name for name in archive.namelist() if name.endswith("/scripts/fsdp-ckpt")]
                self.tool = os.path.join(folder, "fsdp-ckpt")
                with open(self.tool, "wb") as file:
                    file.write(archive.read(name))
                os.chmod(self.tool, 0o755)
                licences, = [name for name in archive.namelist() if name.endswith("/THIRD_PARTY")]
                self.third_party = archive.read(licences).decode("utf-8")

    def wheels(self):
        """Returns the wheels by their tags: cp312-abi3."""
        return {os.path.basename(path).split("-", 2)[2].split("-manylinux")[0]: path
                for path in glob.glob(os.path.join(self.options.dist, f"fsdp_ckpt-{self.options.version}-*.whl"))}

    def place(self, name):
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        return path

    def has_hdf5(self):
        return "no HDF5" not in wanted([self.tool, "--version"])


def old_kernel(bench):
    truth = truth_of(bench.tool, bench.source)
    # One by one, and all together.
    for i, calls in enumerate([LATER_CALLS, *([call] for call in LATER_CALLS)]):
        place = bench.place(f"without{i}")
        command = [bench.without, *calls, "--", bench.tool]
        probe = run([*command, "--version"])
        if probe.returncode == SKIPPED:
            raise Skipped(probe.stderr.strip())
        walk(command, bench.source, place, truth, hdf5=bench.has_hdf5(), cwd=place)
        # --force of a folder: two names are exchanged where renameat2 can.
        done = run([*command, "reshard", bench.source, "three", "--world-size", "2", "--force"], cwd=place)
        if "renameat2" in calls:
            check(done.returncode == 2 and "error[" in done.stderr, f"{calls}: --force of a folder: {done.returncode} {done.stderr}")
            wanted([bench.tool, "diff", "three", bench.source], cwd=place)
        else:
            check(done.returncode == 0, f"{calls}: {done.stderr}")
        # Without openat2 links are refused by other means.
        escaping = os.path.join(place, "escaping")
        shutil.copytree(bench.source, escaping)
        os.rename(os.path.join(escaping, "__0_0.distcp"), os.path.join(place, "elsewhere"))
        os.symlink("../elsewhere", os.path.join(escaping, "__0_0.distcp"))
        done = run([*command, "verify", "escaping"], cwd=place)
        check(done.returncode == 1 and "damaged" in done.stdout + done.stderr, f"{calls}: a link out of the folder: {done.returncode} {done.stderr}")
        # A name that appears meanwhile is not replaced.
        wanted([*command, "consolidate", bench.source, "full.pt"], status=2, said="EXISTS", cwd=place)
    print(f"{len(LATER_CALLS)} calls, each missing and all missing")


def no_confinement(bench):
    place = bench.place("place")
    if not bench.has_hdf5():
        raise Skipped("this program is built without HDF5, the only thing that is confined")
    wanted([bench.tool, "convert", bench.source, "a.h5"], cwd=place)
    command = [bench.without, "seccomp", "--", bench.tool]
    probe = run([*command, "--version"])
    if probe.returncode == SKIPPED:
        raise Skipped(probe.stderr.strip())
    walk(command, bench.source, place, hdf5=False, cwd=place)
    for words in (["inspect", "a.h5"], ["verify", "a.h5"], ["consolidate", "a.h5", "b.pt"], ["convert", "three", "b.h5"]):
        done = run([*command, *words], cwd=place)
        check(done.returncode in (1, 2) and "could not be confined" in done.stdout + done.stderr, f"{words}: {done.returncode} {done.stdout}{done.stderr}")
    check(not os.path.exists(os.path.join(place, "b.h5")), "an output of a run that was refused")
    print("HDF5 is refused, the rest works")


def odd_places(bench):
    truth = truth_of(bench.tool, bench.source)
    bare = bench.place("bare")
    walk([bench.tool], bench.source, bare, truth, hdf5=bench.has_hdf5(), cwd=bare, env={})
    home = bench.place("home")
    os.chmod(home, 0o555)
    place = bench.place("place")
    walk([bench.tool], bench.source, place, truth, hdf5=bench.has_hdf5(), cwd=place,
         env={"HOME": home, "TMPDIR": "/nowhere", "TERM": "dumb", "LC_ALL": "xx_YY.UTF-8"})
    check(os.listdir(home) == [], f"the home folder has {os.listdir(home)}")
    # No standard stream at all: the output is whole, and no message is in it.
    closed = bench.place("closed")
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', bench.tool, "consolidate", bench.source, "full.pt"], cwd=closed, check=False)
    check(done.returncode == 0 and content(os.path.join(closed, "full.pt")) == truth, f"closed streams: {done.returncode}")
    # No controlling terminal.
    alone = bench.place("alone")
    walk(["setsid", "--wait", bench.tool], bench.source, alone, truth, hdf5=bench.has_hdf5(), cwd=alone)
    print("an empty environment, a read-only home, no streams, no terminal")


def segments(path):
    data = content(path)
    check(data[:6] == b"\x7fELF\2\1", "not a 64-bit ELF file")
    (table,), (size, count) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<HH", data, 54)
    for i in range(count):
        kind, flags, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, table + i * size)
        yield kind, flags, data[offset:offset + length]


def static(bench):
    dynamic, interpreter, stack, relro = 2, 3, 0x6474E551, 0x6474E552
    found = {kind: (flags, part) for kind, flags, part in segments(bench.tool)}
    check(interpreter not in found, f"a loader is asked for: {found.get(interpreter)}")
    check(dynamic in found, "the program is not position-independent")
    tags = [struct.unpack_from("<Q", found[dynamic][1], at)[0] for at in range(0, len(found[dynamic][1]), 16)]
    check(1 not in tags[:tags.index(0)], "a library is needed")
    check(found[stack][0] & 1 == 0 and relro in found, "an executable stack, or relocations that stay writable")
    data = content(bench.tool)
    check(len(data) <= MOST_BYTES, f"it has {len(data)} bytes")
    check(struct.unpack_from("<H", data, 60)[0] < 40 and b".symtab" not in data[-8192:], "it is not stripped")
    root = os.path.abspath(os.path.join(bench.options.data, "../.."))
    for folder in (root, os.path.abspath(bench.options.dist), tempfile.gettempdir() + "/tmp", os.path.expanduser("~") + "/"):
        check(folder.encode() not in data, f"it names the folder {folder}")
    said = wanted([bench.tool, "--version"]).splitlines()
    check(said[0] == f"fsdp-ckpt {bench.options.version}" and "statically linked" in said[1] and said[1].startswith("commit "), said)
    names = [library.split()[0] for library in said[2].split(", ")]
    check({"zlib", "isa-l", "zstd", "HDF5", "nettle", "nlohmann_json", "toml++", "CLI11", "curl", "OpenSSL", "c-ares", "expat"} <= set(names), said)
    shown = {"nlohmann_json": "JSON for Modern C++"}
    for name in [*(shown.get(name, name) for name in names), "GNU C Library", "libstdc++", "libaec"]:
        check(f"  {name}" in bench.third_party, f"THIRD_PARTY does not list {name}")
    for words in ("GNU LESSER GENERAL PUBLIC LICENSE", "GCC RUNTIME LIBRARY EXCEPTION", "Intel Corporation", "Jean-loup Gailly", "Daniel Stenberg", "The OpenSSL Project"):
        check(words in bench.third_party, f"THIRD_PARTY lacks the text with {words!r}")
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        wanted([bench.tool, "inspect", bench.source])
        times.append(time.perf_counter() - begun)
    check(min(times) <= STARTS_WITHIN, f"inspect takes {min(times) * 1000:.1f} ms at best")
    print(f"static, {len(data)} bytes; inspect takes {statistics.median(times) * 1000:.1f} ms, {min(times) * 1000:.1f} at best")


def in_root(root, *words):
    return [shutil.which("chroot") or "/usr/sbin/chroot", root, *words]


def need_chroot():
    if os.geteuid() != 0 or run(["chroot", "/", "true"]).returncode != 0:
        raise Skipped("needs root, for chroot")


def empty_root(bench):
    need_chroot()
    root = bench.place("root")
    shutil.copy2(bench.tool, root)
    shutil.copytree(bench.source, os.path.join(root, "step"))
    truth = truth_of(bench.tool, bench.source)
    walk(in_root(root, "/fsdp-ckpt"), "step", root, truth)
    check(sorted(os.listdir(root)) == sorted(["flipped", "fsdp-ckpt", "full.h5", "full.pt", "full.pt.fsdp_seal.json", "renamed", "step", "three"]), os.listdir(root))
    # Without a /dev, too, no output takes the number of a closed stream.
    done = subprocess.run(["sh", "-c", 'exec chroot "$0" /fsdp-ckpt consolidate step closed.pt <&- >&- 2>&-', root], check=False)
    check(content(os.path.join(root, "closed.pt")) == truth, f"closed streams: {done.returncode}")
    print("nothing but the program and a checkpoint")


def environment(python, wheel, folder, wheels=None):
    """Makes an environment and installs the wheel, or pip's choice of those in a folder; its programs alone are on PATH."""
    wanted([python, "-m", "venv", folder])
    bare = {"PATH": os.path.join(folder, "bin"), "HOME": folder, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    wanted([os.path.join(folder, "bin/python"), "-m", "pip", "install", "-q", *([wheel] if wheel else ["--find-links", wheels, "fsdp-ckpt"])], env=bare)
    return bare


def wheel(bench):
    folder = os.path.join(bench.folder, "env")
    bare = environment(sys.executable, bench.wheel, folder)
    check(not shutil.which("cc", path=bare["PATH"]) and not shutil.which("c++", path=bare["PATH"]), "a compiler is on PATH")
    place = bench.place("place")
    truth = truth_of(bench.tool, bench.source)
    walk(["fsdp-ckpt"], bench.source, place, truth, cwd=place, env=bare)
    python = os.path.join(folder, "bin/python")
    check(content(os.path.join(folder, "bin/fsdp-ckpt")) == content(bench.tool), "another program was installed")
    second = bench.place("second")
    walk([python, "-m", "fsdp_ckpt"], bench.source, second, truth, cwd=second, env=bare)
    for name in ("bash-completion/completions/fsdp-ckpt", "zsh/site-functions/_fsdp-ckpt", "fish/vendor_completions.d/fsdp-ckpt.fish", "man/man1/fsdp-ckpt.1"):
        check("verify" in content(os.path.join(folder, "share", name)).decode(), f"share/{name}")
    check(wanted([python, "-c", "import importlib.metadata as m; print(m.version('fsdp-ckpt'))"], env=bare).strip() == bench.options.version, "version")
    check(wanted([python, "-c", "import fsdp_ckpt; print(fsdp_ckpt.program())"], env=bare).strip() == os.path.join(folder, "bin/fsdp-ckpt"), "program()")
    wanted([python, os.path.abspath(bench.options.module_test)], env={**bare, "FSDP_TEST_DATA": os.path.abspath(bench.options.data)}, said="OK")
    wanted([python, "-m", "pip", "uninstall", "-q", "-y", "fsdp-ckpt"], env=bare)
    left = [name for name in glob.glob(folder + "/**", recursive=True) if "fsdp" in os.path.basename(name)]
    check(not left, f"left after uninstalling: {left}")
    print("installed, used and removed without a compiler")


# Prints the path, dtype, shape and digest of each tensor, as truth.json has them.
TENSORS = """
import hashlib, json, sys, fsdp_ckpt
opened = fsdp_ckpt.open(sys.argv[1])
def tensor(one):
    memory = memoryview(one._read(True)[0].memory).cast("B")[:one.nbytes]
    return {"dtype": "torch." + one.dtype, "shape": list(one.shape), "sha256": hashlib.sha256(memory).hexdigest()}
print(json.dumps({"/".join(map(str, one.path)): tensor(one) for one in opened.tensors.values()}))
"""


def pythons():
    """Yields (version, path) of the Pythons of this machine."""
    roots = glob.glob(os.path.join(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions/*/bin/python"))
    named = filter(None, (shutil.which(f"python3.{minor}", path="/usr/local/bin:/usr/bin") for minor in range(8, 20)))
    found = {}
    for path in [*named, *roots]:
        done = run([path, "-c", "import sys, venv, ensurepip; print(sys.implementation.name, *sys.version_info[:2])"])
        if done.returncode == 0 and done.stdout.startswith("cpython 3 ") and int(done.stdout.split()[2]) >= 8:
            found.setdefault(int(done.stdout.split()[2]), path)
    return sorted(found.items())


def truth_of_torch(bench):
    with open(os.path.join(os.path.dirname(bench.source), "truth.json"), encoding="utf-8") as file:
        return {path: item for path, item in json.load(file)["items"].items() if "sha256" in item}


def with_torch(bench, minor, env):
    """Runs tests/python/tensors_test.py in an environment that sees PyTorch, where there is one for this Python; returns its version."""
    places = [os.path.join(bench.options.torches or "", name) for name in (f"3.{minor}", "shared")]
    if not bench.options.torches or not os.path.isdir(places[0]):
        return ""
    python = os.path.join(env["PATH"], "python")
    site = wanted([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], env=env).strip()
    with open(os.path.join(site, "pytorch.pth"), "w", encoding="utf-8") as file:
        file.write("".join(place + "\n" for place in (places[:1] if minor == 9 else places)))
    env = {**env, "FSDP_TEST_DATA": os.path.abspath(bench.options.data), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    wanted([python, os.path.abspath(bench.options.tensors_test)], env=env, said="OK")
    return " with PyTorch " + wanted([python, "-c", "import torch; print(torch.__version__)"], env=env).strip()


def native(bench):
    truth, wheels = truth_of_torch(bench), bench.wheels()
    if len(wheels) == 1:
        raise Skipped("no wheel with a native part: wheel.sh found no headers of Python")
    with contextlib.ExitStack() as stack:
        url, environments = None, {}
        if bench.options.remote:
            sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../remote"))
            import server   # pylint: disable=import-error
            store = stack.enter_context(server.Seaweed())
            server.make_bucket(store.client(), "bucket")
            server.upload_tree(store.client(), "bucket", bench.source, "step")
            url, environments = "s3://bucket/step", server.s3_environment(store.endpoint)
        seen = []
        for minor, path in pythons():
            tag = "cp312-abi3" if minor >= 12 else f"cp3{minor}-cp3{minor}"
            folder = os.path.join(bench.folder, f"env{minor}")
            bare = environment(path, None, folder, os.path.abspath(bench.options.dist))
            python = os.path.join(folder, "bin/python")
            # pip has chosen: the native part is that of this Python.
            parts = glob.glob(os.path.join(folder, "lib/python*/site-packages/fsdp_ckpt/_native*.so"))
            check(len(parts) == int(tag in wheels), f"Python 3.{minor}: {parts}, of {sorted(wheels)}")
            check(content(os.path.join(folder, "bin/fsdp-ckpt")) == content(bench.tool), f"Python 3.{minor}: another program was installed")
            if not parts:
                wanted([python, "-c", TENSORS, bench.source], status=1, said="fsdp-ckpt convert CHECKPOINT weights.safetensors", env=bare)
                seen.append(f"3.{minor} without")
                continue
            for source in filter(None, (bench.source, url)):
                said = json.loads(wanted([python, "-c", TENSORS, source], env={**environments, **bare}))
                check(said == truth, f"Python 3.{minor}, {source}: tensors differ from PyTorch's")
            page = wanted([python, "-c", "import sys, fsdp_ckpt; print(fsdp_ckpt.inspect(sys.argv[1])._repr_html_())", bench.source], env=bare)
            check("<table" in page and "app.model.emb.weight" in page, f"Python 3.{minor}: the page for notebooks")
            seen.append(f"3.{minor}" + with_torch(bench, minor, bare))
    check(any("without" not in one for one in seen), f"no Python here has a wheel with a native part: {seen}, {sorted(wheels)}")
    print(f"Python {', '.join(seen)}; wheels {', '.join(sorted(wheels))}; {'files and s3' if url else 'files'}")


def processors(bench):
    truth = truth_of(bench.tool, bench.source)
    # The C library's own choice, as it would be on processors without these.
    for i, without in enumerate(("-AVX2", "-AVX2,-AVX,-AVX512F,-AVX512VL,-ERMS,-SSE4_2")):
        place = bench.place(f"tuned{i}")
        walk([bench.tool], bench.source, place, truth, cwd=place, env={"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={without}"})
    machine = os.uname().machine
    emulator = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if not emulator:
        raise Skipped(f"the C library's choice passed; no qemu-{machine}-static here for the rest")
    # The emulator gives programs no seccomp filters, so HDF5 is left out.
    models = {"x86_64": ["qemu64", "Nehalem", "Westmere", "Haswell,-avx2"], "aarch64": ["cortex-a53", "max"]}[machine]
    for model in models:
        place = bench.place(model)
        walk([emulator, "-cpu", model, bench.tool], bench.source, place, truth, hdf5=False, cwd=place)
    print(f"as the C library chooses without AVX2; emulated: {', '.join(models)}")


def old_userland(bench):
    need_chroot()
    root = bench.options.userland
    if not root:
        raise Skipped("no root file system of Debian 11: tests/run.sh makes one with debootstrap where it can")
    with tempfile.TemporaryDirectory(dir=os.path.join(root, "tmp")) as folder:
        inside = folder[len(root.rstrip("/")):]
        shutil.copytree(bench.source, os.path.join(folder, "step"))
        wheels = bench.wheels()
        for path in wheels.values():
            shutil.copy2(path, folder)
        env = {"PATH": "/usr/bin:/bin", "HOME": inside, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        wanted(in_root(root, "python3", "-m", "venv", f"{inside}/env"), env=env)
        wanted(in_root(root, f"{inside}/env/bin/python", "-m", "pip", "install", "-q", "--find-links", inside, "fsdp-ckpt"), env=env)
        place = os.path.join(folder, "place")
        os.mkdir(place)
        shutil.move(os.path.join(folder, "step"), place)
        # chroot(8) starts in the new root, so a shell changes the folder.
        command = in_root(root, "sh", "-c", f'cd {inside}/place && exec {inside}/env/bin/fsdp-ckpt "$@"', "sh")
        walk(command, "step", place, truth_of(bench.tool, bench.source), env=env)
        name = wanted(in_root(root, "cat", "/etc/debian_version")).strip()
        glibc = wanted(in_root(root, "getconf", "GNU_LIBC_VERSION")).strip()
        said = wanted(in_root(root, f"{inside}/env/bin/python", "-c", "import fsdp_ckpt, sys; print(sys.version.split()[0], fsdp_ckpt.verify(sys.argv[1]).verdict)",
                              f"{inside}/place/step"), env=env)
        check(said.split()[1:] == ["sound"], said)
        number = "".join(said.split()[0].split(".")[:2])
        native = f"cp{number}-cp{number}" in wheels
        if native:
            read = json.loads(wanted(in_root(root, f"{inside}/env/bin/python", "-c", TENSORS, f"{inside}/place/step"), env=env))
            check(read == truth_of_torch(bench), "tensors differ from PyTorch's")
    print(f"Debian {name}, {glibc}, Python {said.split()[0]}, {'with' if native else 'without'} the native part")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case")
    for name in ("tool", "dist", "version", "userland", "module-test", "torches", "tensors-test"):
        parser.add_argument("--" + name)
    parser.add_argument("--remote", action="store_true", help="this Python has the packages of requirements-remote.txt")
    parser.add_argument("--data", required=True)
    parser.add_argument("--without", required=True, help="the program of without_calls.cpp")
    options = parser.parse_args()
    cases = {case.__name__: case for case in (old_kernel, no_confinement, odd_places, static, empty_root, wheel, native, processors, old_userland)}
    with tempfile.TemporaryDirectory() as folder:
        try:
            cases[options.case](Bench(options, folder))
        except Skipped as reason:
            print(f"skipped: {reason}")
            return SKIPPED
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
