#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian packages.

  check_debs.py make --build BUILD --out OUT      runs cpack
  check_debs.py again --build BUILD --out OUT     the same build gives the same bytes
  check_debs.py fields --out OUT --version V      control fields, files, modes; lintian finds no error
  check_debs.py install --out OUT --version V --golden GOLDEN --install tests/install --compiler CXX [--torch TORCH]
                                                  dpkg installs both in a copy of this machine; they are used there, and removed

Exit: 0 passed, 1 failed, 77 skipped, with the reason.
"""
import argparse
import glob
import gzip
import os
import shutil
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "install"))

from check_install import ONE_RANK, guides_project
from machine import Root, Skipped, check, main, run, wanted

PACKAGES = ("fsdp-ckpt", "libfsdp-dev")
FOLDER = "2.15.0/fsdp2/ckpt"


def debs(options):
    found = {}
    for package in PACKAGES:
        names = glob.glob(os.path.join(options.out, f"{package}_{options.version}_*.deb"))
        check(len(names) == 1, f"one {package} of {options.version} is wanted in {options.out}: {names}")
        found[package] = names[0]
    return found


def make(options, folder):
    if not shutil.which("dpkg-deb") or not shutil.which("dpkg-shlibdeps"):
        raise Skipped("dpkg-dev is not here")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    shutil.rmtree(options.out, ignore_errors=True)
    config = os.path.join(options.build, "CPackConfig.cmake")
    wanted([options.cpack, "--config", config, "-B", options.out], env=environment)
    shutil.rmtree(os.path.join(options.out, "_CPack_Packages"))
    check(len(os.listdir(options.out)) == 2, os.listdir(options.out))
    print(sorted(os.listdir(options.out)))


def again(options, folder):
    """The same build gives the same bytes a second time; one package stands for both."""
    config = os.path.join(options.build, "CPackConfig.cmake")
    wanted([options.cpack, "--config", config, "-B", folder, "-D", "CPACK_COMPONENTS_ALL=tool"], env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
    first, second = (glob.glob(os.path.join(where, "fsdp-ckpt_*.deb")) for where in (options.out, folder))
    check(len(first) == len(second) == 1, (first, second))
    with open(first[0], "rb") as a, open(second[0], "rb") as b:
        check(a.read() == b.read(), f"{first[0]} and {second[0]} differ")
    print("the same bytes")


def field(deb, name):
    return wanted(["dpkg-deb", "-f", deb, name]).strip()


def fields(options, folder):
    found = debs(options)
    for package, deb in found.items():
        check(field(deb, "Package") == package and field(deb, "Version") == options.version, deb)
        check(field(deb, "Architecture") == wanted(["dpkg", "--print-architecture"]).strip(), deb)
        check("<" in field(deb, "Maintainer") and "localhost" not in field(deb, "Maintainer"), field(deb, "Maintainer"))
        check("Fully sharded" not in field(deb, "Description").splitlines()[0], field(deb, "Description"))
        place = os.path.join(folder, package)
        wanted(["dpkg-deb", "-x", deb, place])
        doc = os.path.join(place, "usr/share/doc", package)
        with open(os.path.join(doc, "copyright"), encoding="utf-8") as file:
            copyright_text = file.read()
        check("Apache" in copyright_text and "nlohmann" in copyright_text, copyright_text[:300])
        with gzip.open(os.path.join(doc, "changelog.gz"), "rt", encoding="utf-8") as file:
            check(file.read().startswith(f"fsdp ({options.version}) "), "changelog")
        for base, names, files in os.walk(place):
            for name in names + files:
                path = os.path.join(base, name)
                mode = os.lstat(path).st_mode & 0o7777
                right = 0o755 if os.path.isdir(path) or path.endswith("/bin/fsdp-ckpt") else 0o644
                check(mode == right, f"{path} has mode {mode:o}, not {right:o}")
                if name.endswith(".cmake"):
                    with open(path, encoding="utf-8") as file:
                        check(os.path.dirname(os.path.abspath(options.build)) not in file.read(), f"{path} names the build")
    tool = os.path.join(folder, "fsdp-ckpt/usr")
    check(sorted(os.listdir(os.path.join(tool, "bin"))) == ["fsdp-ckpt"], "bin")
    check("CLI11" in open(os.path.join(tool, "share/doc/fsdp-ckpt/copyright"), encoding="utf-8").read(), "no licence of CLI11")
    depends = field(found["fsdp-ckpt"], "Depends")
    needed = [line.split()[-1].strip("[]") for line in wanted(["readelf", "-d", os.path.join(tool, "bin/fsdp-ckpt")]).splitlines() if "(NEEDED)" in line]
    for library in needed:
        if library.startswith("ld-linux"):
            continue
        path = wanted(["sh", "-c", f"ldconfig -p | sed -n 's/^[[:space:]]*{library} .*x86-64.* => //p; s/^[[:space:]]*{library} .*AArch64.* => //p' | head -n 1"]).strip()
        # A folder of the root may be a link into /usr, and the package knows either name.
        owners = [run(["dpkg", "-S", name]) for name in (path, os.path.realpath(path), os.path.realpath(path)[len("/usr"):])]
        owner = next((done.stdout.split(":")[0] for done in owners if done.returncode == 0), None)
        check(owner and owner in depends, f"{library} is of {owner}, and Depends is {depends!r}")
    check(needed, "the program needs no library: this is the static one")
    libraries = {os.path.basename(path) for path in glob.glob(os.path.join(folder, "libfsdp-dev/usr/lib/**/*.a"), recursive=True)}
    check("libfsdp_formats.a" in libraries and (not options.torch or "libfsdp.a" in libraries), libraries)
    if options.torch:
        check("LibTorch 2." in field(found["libfsdp-dev"], "Description"), field(found["libfsdp-dev"], "Description"))
    if not shutil.which("lintian"):
        print("lintian: not here")
        return
    done = run(["lintian", "--fail-on", "error,warning", "--allow-root", *found.values()], env={**os.environ, "TMPDIR": folder})
    check(done.returncode == 0, f"lintian: {done.stdout}")
    print("lintian: no error and no warning")


def install(options, folder):
    found = debs(options)
    root = Root(folder)
    for shared in filter(None, (options.golden, options.torch and os.path.dirname(options.torch))):
        root.share(os.path.realpath(shared))
    for name in found.values():
        shutil.copy(name, os.path.join(root.path, "tmp"))
    names = [f"/tmp/{os.path.basename(name)}" for name in found.values()]
    before = root.added()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
    # dpkg itself refuses where a dependency is not installed.
    root.inside(["dpkg", "-i", *names], env=environment)
    check(root.inside(["dpkg-query", "-W", "-f=${Status} ${Version}\n", "fsdp-ckpt"], env=environment) == f"install ok installed {options.version}\n", "status")
    check(root.inside(["sh", "-c", "command -v fsdp-ckpt"], env=environment) == "/usr/bin/fsdp-ckpt\n", "fsdp-ckpt is another one")
    root.inside(["fsdp-ckpt", "--version"], said=f"fsdp-ckpt {options.version}\n", env=environment)
    step = os.path.join(os.path.realpath(options.golden), FOLDER)
    root.inside(["fsdp-ckpt", "verify", step], said="sound, 150 items", env=environment)
    root.inside(["fsdp-ckpt", "consolidate", step, "/tmp/full.pt"], said="80 tensors", env=environment)
    root.inside(["fsdp-ckpt", "verify", "/tmp/full.pt"], said="sound", env=environment)
    for page in ("man/man1/fsdp-ckpt.1.gz", "bash-completion/completions/fsdp-ckpt", "zsh/site-functions/_fsdp-ckpt", "fish/vendor_completions.d/fsdp-ckpt.fish"):
        check(os.path.exists(os.path.join(root.path, "usr/share", page)), page)
    wanted(["dpkg", "--root=" + root.path, "--verify", "fsdp-ckpt", "libfsdp-dev"])

    consumer = f"cmake -S /tmp/$0 -B /tmp/$0/build -G Ninja -DCMAKE_CXX_COMPILER={options.compiler} \"$@\" && cmake --build /tmp/$0/build"
    shutil.copytree(os.path.join(options.install, "consumer"), os.path.join(root.path, "tmp/consumer"))
    # Nothing names /usr: find_package looks there.
    root.inside(["sh", "-c", consumer, "consumer"], env=environment)
    said = root.inside(["/tmp/consumer/build/consumer", step], env=environment).splitlines()
    check(len(said) == 80 and all(len(line.split(" ")) == 3 for line in said), said[:3])
    if options.torch:
        torch = os.path.realpath(options.torch)
        # One of another version is refused, before anything is compiled.
        other = os.path.join(root.path, "tmp/other")
        os.makedirs(other)
        wanted(["cp", "-rs", torch + "/include", torch + "/lib", other])
        for header in glob.glob(other + "/include/torch/**/version.h", recursive=True):
            text = open(header, encoding="utf-8").read()
            os.remove(header)
            with open(header, "w", encoding="utf-8") as file:
                file.write(text.replace("#define TORCH_VERSION_MINOR ", "#define TORCH_VERSION_MINOR 9"))
        guides_project(os.path.join(root.path, "tmp/train"))
        said = root.inside(["sh", "-c", consumer, "train", "-DFSDP_TORCH=/tmp/other"], status=1, env=environment)
        check("was built with LibTorch" in said, said[-2000:])
        root.inside(["sh", "-c", consumer, "train", f"-DFSDP_TORCH={torch}"], env=environment)
        said = root.inside([*ONE_RANK, "sh", "-c", "cd /tmp && train/build/train"], env=environment)
        check(said.count("loss") == 3 and "\nstep 100  loss 0.0" in said, said)

    root.inside(["dpkg", "-r", "libfsdp-dev", "fsdp-ckpt"], env=environment)
    root.inside(["dpkg", "-P", "libfsdp-dev", "fsdp-ckpt"], env=environment)
    kept = {path for path in root.added() - before if not path.startswith(("/var/lib/dpkg/", "/var/log/", "/var/cache/"))}
    # A file that is gone again leaves a mark of its own (a character device) where the machine had one.
    kept = {path for path in kept if os.path.lexists(root.path + path) and not (os.path.lexists(path) and same(root.path + path, path))}
    check(not kept, f"left after removal: {sorted(kept)[:20]}")
    check(not [name for name in os.listdir(os.path.join(root.path, "var/lib/dpkg/info")) if "fsdp" in name], "dpkg still knows it")
    print("installed, used, removed" + ("" if options.torch else "; no LibTorch here: libfsdp was not linked"))


def same(a, b):
    with open(a, "rb") as first, open(b, "rb") as second:
        return first.read() == second.read()


install.mounts = True

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = {case.__name__: case for case in (make, again, fields, install)}
    parser.add_argument("case", choices=cases)
    for option in ("out", "build", "version", "golden", "install", "compiler", "torch", "cpack"):
        parser.add_argument("--" + option)
    arguments = parser.parse_args()
    sys.exit(main(cases[arguments.case], arguments))
