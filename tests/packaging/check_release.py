#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a release is made of.

  check_release.py source --out OUT --version V --cmake CMAKE     the archive of the sources: complete, twice the same, can be configured
  check_release.py make --out OUT --version V --wheels FOLDER --debs FOLDER      release.sh with wheels and packages that are there already
  check_release.py release --out OUT --version V --python PYTHON  what it made: checksums, one version everywhere, the bill of materials
  check_release.py containers --out OUT --golden GOLDEN           the recipes for images, carried out in root folders, and used
  check_release.py published --out OUT --version V --golden GOLDEN --python PYTHON     what .github/workflows/release.yml does with it, with
                                  stand-ins for gh and docker; then pip installs from a local index, the action downloads from a local server

PYTHON has the packages of tests/support/requirements-release.txt.  Exit: 0 passed, 1 failed, 77 skipped, with the reason.
"""
import argparse
import glob
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile

from check_action import Runner, Server, serve, yaml_of
from machine import Root, Skipped, check, main, run, wanted

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(ROOT, "tools/packaging")
FOLDER = "2.15.0/fsdp2/ckpt"


def need_clone():
    if run(["git", "-C", ROOT, "rev-parse", "--verify", "-q", "HEAD"]).returncode != 0:
        raise Skipped("this is not a clone")


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


def source(options, folder):
    need_clone()
    if run(["git", "-C", ROOT, "cat-file", "-e", "HEAD:tools/packaging/source.sh"]).returncode != 0:
        raise Skipped("source.sh is not committed")
    name = f"fsdp-{options.version}.tar.gz"
    first, second = os.path.join(folder, "a"), os.path.join(folder, "b")
    wanted([os.path.join(PACKAGING, "source.sh"), first], said=f"{first}/{name}\n")
    wanted(["sh", "-c", 'umask 077; exec "$@"', "sh", os.path.join(PACKAGING, "source.sh"), second], env={**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C", "HOME": folder})
    check(bytes_of(os.path.join(first, name)) == bytes_of(os.path.join(second, name)), "two archives of one commit differ")
    wanted(["sha256sum", "-c", name + ".sha256"], cwd=first)
    with tarfile.open(os.path.join(first, name)) as archive:
        members = archive.getmembers()
        check({member.name.split("/")[0] for member in members} == {f"fsdp-{options.version}"}, "another folder")
        check({(member.uid, member.gid) for member in members} == {(0, 0)} and len({member.mtime for member in members}) == 1, "owners, times")
        check({member.mode for member in members} <= {0o644, 0o755, 0o775, 0o664, 0o777}, {oct(member.mode) for member in members})
        names = {member.name.split("/", 1)[1] for member in members if not member.isdir()}
        archive.extractall(folder)
    tracked = set(wanted(["git", "-C", ROOT, "ls-tree", "-r", "-z", "--name-only", "HEAD"]).rstrip("\0").split("\0"))
    check(names == tracked, sorted(names ^ tracked)[:20])
    # CMake looks for every source that it names.
    unpacked = os.path.join(folder, f"fsdp-{options.version}")
    wanted([options.cmake, "--preset", "tools", "-S", unpacked], cwd=unpacked)
    check(wanted([os.path.join(unpacked, "tools/packaging/version.sh")]) == options.version + "\n", "version")
    # Outside of a clone there is no commit to make an archive of.
    done = run([os.path.join(unpacked, "tools/packaging/source.sh"), first], env={**os.environ, "GIT_CEILING_DIRECTORIES": folder})
    check(done.returncode == 2 and "a clone is needed" in done.stdout, done.stdout)
    print(f"{len(names)} files")


def need_release(options):
    if not os.path.exists(os.path.join(options.out, "SHA256SUMS")):
        raise Skipped("no release was made: this is not a clone")


def make(options, folder):
    shutil.rmtree(options.out, ignore_errors=True)   # what follows does not take an old one for a new one
    need_clone()
    if run(["git", "-C", ROOT, "cat-file", "-e", "HEAD:tools/packaging/source.sh"]).returncode != 0:
        raise Skipped("the scripts are not committed")
    os.makedirs(options.out)
    # An earlier release is replaced; a file that is not of one stays, and a line cannot name a file elsewhere.
    outside = os.path.join(folder, "outside")
    for path in (os.path.join(options.out, "earlier.whl"), os.path.join(options.out, "notes.txt"), outside):
        with open(path, "w", encoding="utf-8") as file:
            file.write("x")
    with open(os.path.join(options.out, "SHA256SUMS"), "w", encoding="utf-8") as file:
        file.write(f"00  earlier.whl\n00  {outside}\n00  ../{os.path.basename(options.out)}/notes.txt\n")
    script = os.path.join(PACKAGING, "release.sh")
    environment = {**os.environ, "OUT": options.out, "WHEELS": options.wheels, "DEBS": options.debs}
    done = run([script, "--allow-changes"], env={**environment, "DEBS": folder})
    check(done.returncode == 1 and "one fsdp-ckpt of version" in done.stdout and os.path.exists(os.path.join(options.out, "earlier.whl")), done.stdout)
    # The wheel for any Python is not enough.
    one = os.path.join(folder, "one")
    os.mkdir(one)
    plain, = glob.glob(os.path.join(options.wheels, f"fsdp_ckpt-{options.version}-py3-none-*.whl"))
    shutil.copy(plain, one)
    done = run([script, "--allow-changes"], env={**environment, "WHEELS": one})
    check(done.returncode == 1 and f"a wheel of version {options.version} is missing" in done.stdout and "cp312-abi3" in done.stdout, done.stdout)
    # A tag has to be that of the version, and of a version that is called released.
    clone = os.path.join(folder, "clone")
    wanted(["git", "clone", "-q", "--shared", ROOT, clone])
    for tag, text, said in (("v9.9.9", f"## {options.version}\n", "the tag is v9.9.9"), (f"v{options.version}", "## 9.9.9\n", "has no section"),
                            (options.version, f"## {options.version}\n", "the tag is"), (f"v{options.version}", f"## {options.version}\n\nIt is not released yet.\n", "is not released"),
                            (f"v{options.version}", f"## {options.version}\n\n## 0\n\nIt is not released yet.\n", "a wheel of version")):
        with open(os.path.join(clone, "docs/CHANGELOG.md"), "w", encoding="utf-8") as file:
            file.write("# Changes\n\n" + text)
        done = run([os.path.join(clone, "tools/packaging/release.sh"), "--allow-changes", "--tag", tag], env={**environment, "WHEELS": folder})
        check(done.returncode == 1 and said in done.stdout, (said, done.stdout))
    wanted([script, "--allow-changes"], env=environment)
    left = sorted(os.listdir(options.out))
    check("notes.txt" in left and "earlier.whl" not in left and os.path.exists(outside) and not [name for name in left if name.startswith(".")], left)
    os.remove(os.path.join(options.out, "notes.txt"))


def release(options, folder):
    need_release(options)
    version, machine = options.version, platform.machine()
    architecture = wanted(["dpkg", "--print-architecture"]).strip()
    program = os.path.join(options.out, f"fsdp-ckpt-{version}-linux-{machine}")
    names = sorted(os.listdir(options.out))
    wheels = [name for name in names if name.endswith(".whl")]
    check(names == sorted([*wheels, os.path.basename(program), f"fsdp-{version}-linux-{machine}.spdx.json", f"fsdp-ckpt_{version}_{architecture}.deb",
                           f"libfsdp-dev_{version}_{architecture}.deb", f"fsdp-{version}.tar.gz", "LICENSE", "THIRD_PARTY", "SHA256SUMS"]), names)
    for name in names:
        path = os.path.join(options.out, name)
        check(stat.S_IMODE(os.stat(path).st_mode) == (0o755 if path == program else 0o644), f"{name} has mode {os.stat(path).st_mode:o}")
    wanted(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=options.out)
    with open(os.path.join(options.out, "SHA256SUMS"), encoding="utf-8") as file:
        sums = dict(reversed(line.split()) for line in file)
    check(sorted(sums) == [name for name in names if name != "SHA256SUMS"], "SHA256SUMS lists other files")
    # One version, from one place.
    check(wanted([os.path.join(PACKAGING, "version.sh")]) == version + "\n", "version.sh")
    check(wanted([program, "--version"]).splitlines()[0] == f"fsdp-ckpt {version}", "the program")
    for wheel in wheels:
        with zipfile.ZipFile(os.path.join(options.out, wheel)) as archive:
            text, = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            check(f"\nVersion: {version}\n" in text, text[:200])
            check([archive.read(name) for name in archive.namelist() if name.endswith("/scripts/fsdp-ckpt")] == [bytes_of(program)], f"{wheel} has another program")
            linked, = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/licenses/THIRD_PARTY")]
            native = [name for name in archive.namelist() if name.startswith("fsdp_ckpt/_native")]
            check(len(native) == ("-py3-none-" not in wheel), native)
            for name, words in (("nanobind", "Wenzel Jakob"), ("robin-map", "Thibaut Goetghebuer-Planchon")):
                check((f"\n  {name}: " in linked) == (words in linked) == bool(native), f"{wheel}: THIRD_PARTY and {name}")
    # The bill of materials.
    script, third_party = os.path.join(PACKAGING, "sbom.py"), os.path.join(options.out, "THIRD_PARTY")
    bill = os.path.join(options.out, f"fsdp-{version}-linux-{machine}.spdx.json")
    with open(bill, encoding="utf-8") as file:
        document = json.load(file)
    check(document["spdxVersion"] == "SPDX-2.3", document["spdxVersion"])
    packages = {package["name"]: package for package in document["packages"]}
    said = wanted([program, "--version"]).splitlines()[2]
    names = {"nlohmann_json": "JSON for Modern C++"}
    for library in said.split(", "):
        name, number = library.split(" ")
        package = packages[names.get(name, name)]
        check(package["versionInfo"] == number, (library, package))
    check({"fsdp", "GNU C Library", "libstdc++ and libgcc"} <= set(packages), packages)
    check(packages["fsdp"]["versionInfo"] == version and all(package["licenseDeclared"] != "NOASSERTION" for package in packages.values()), packages)
    linked = {relation["relatedSpdxElement"] for relation in document["relationships"] if relation["relationshipType"] == "STATIC_LINK"}
    check(linked == {package["SPDXID"] for name, package in packages.items() if name != "fsdp"}, linked)
    digest = hashlib.sha256(bytes_of(program)).hexdigest()
    check({"algorithm": "SHA256", "checksumValue": digest} in document["files"][0]["checksums"], document["files"])
    words = [script, program, third_party, os.path.basename(program)]
    epoch = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    check(wanted(words, env=epoch) == wanted(words, env=epoch), "two bills of one program differ")
    # A list that lacks a library, has another version of it, or a licence that nobody knows, is no bill.
    text = bytes_of(third_party).decode("utf-8")
    for change, complaint in ((lambda t: re.sub(r"^  zlib:.*\n", "", t, flags=re.M), "lacks zlib"), (lambda t: t.replace("  zlib: Zlib;", "  zlib: Zlob;"), "is not a licence"),
                              (lambda t: re.sub(r"(?m)^(  zstd: .* )\S+$", r"\g<1>9.9-1", t), "has zstd 9.9"), (lambda t: t.replace("contains:", "holds:"), "lists no library"),
                              (lambda t: re.sub(r"(?m)^  zlib:.*", "  zlib, of some version", t), "is not understood")):
        changed = os.path.join(folder, "THIRD_PARTY")
        with open(changed, "w", encoding="utf-8") as file:
            file.write(change(text))
        done = run([script, program, changed, "x"])
        check(done.returncode == 1 and complaint in done.stdout, (complaint, done.stdout))
    if not options.python:
        print("no Python with spdx-tools: the bill was not validated by it")
        return
    validate = [options.python, "-c", "import sys; from spdx_tools.spdx.parser.parse_anything import parse_file; "
                "from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document as check; "
                "found = check(parse_file(sys.argv[1])); print(*found, sep='\\n'); sys.exit(bool(found))"]
    wanted([*validate, bill])
    # The validator does say no.
    document["relationships"].append({"spdxElementId": "SPDXRef-program", "relationshipType": "STATIC_LINK", "relatedSpdxElement": "SPDXRef-nothing"})
    wrong = os.path.join(folder, "wrong.spdx.json")
    with open(wrong, "w", encoding="utf-8") as file:
        json.dump(document, file)
    check(run([*validate, wrong]).returncode == 1, "the validator finds nothing wrong with anything")
    print(f"{len(packages)} packages")


class Image:
    """Carries out a recipe in a root folder: the instructions that the recipes here use, and no others."""

    def __init__(self, recipe, context, folder):
        self.context, self.variables, self.environment, self.user, self.workdir, self.entrypoint, self.command, self.root = context, {}, {}, None, "/", [], [], None
        self.labels = {}
        with open(recipe, encoding="utf-8") as file:
            text = re.sub(r"\\\n", " ", "".join(line for line in file if not line.startswith("#")))
        for line in filter(None, (line.strip() for line in text.splitlines())):
            word, rest = line.split(None, 1)
            getattr(self, "do_" + word.lower())(rest, folder)

    def expanded(self, text):
        return re.sub(r"\$\{?(\w+)\}?", lambda match: {**self.variables, **self.environment}[match[1]], text)

    def do_arg(self, rest, _):
        name, value = rest.split("=", 1)
        self.variables[name] = value

    def do_from(self, rest, folder):
        base = self.expanded(rest)
        check(base == "scratch" or base.startswith("python:"), f"FROM {base}: this test knows no such base")
        # In the place of a base with Python: this machine.
        self.root = Root(folder, empty=base == "scratch")
        if base != "scratch":
            self.environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    def do_label(self, rest, _):
        self.labels.update(pair.split("=", 1) for pair in shlex.split(rest))

    def do_copy(self, rest, _):
        words = rest.split()
        mode = None
        while words[0].startswith("--"):
            option = words.pop(0)
            check(option.startswith("--chmod="), option)
            mode = int(option[len("--chmod="):], 8)
        *patterns, target = words
        names = []
        for pattern in patterns:
            found = sorted(glob.glob(os.path.join(self.context, pattern)))
            check(found, f"COPY {pattern}: nothing is called so")
            names += found
        check(target.endswith("/") or len(names) == 1, f"COPY {rest}: several files to one name: {names}")
        for name in names:
            path = self.root.path + target + (os.path.basename(name) if target.endswith("/") else "")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            shutil.copy(name, path)
            os.chmod(path, mode or 0o644)

    def do_run(self, rest, _):
        self.root.inside(["/bin/sh", "-c", rest], env={**self.environment, "HOME": "/root"})

    def do_env(self, rest, _):
        name, value = rest.split("=", 1)
        self.environment[name] = self.expanded(value)

    def do_workdir(self, rest, _):
        self.workdir = rest
        os.makedirs(self.root.path + rest, exist_ok=True)

    def do_user(self, rest, _):
        self.user = rest

    def do_entrypoint(self, rest, _):
        self.entrypoint = json.loads(rest)

    def do_cmd(self, rest, _):
        self.command = json.loads(rest)

    def start(self, *words, status=0, said="", user=None):
        """As `docker run`: the entry point in the working folder, as the user."""
        uid, gid = (int(number) for number in (user or self.user).split(":"))

        def enter():
            os.chroot(self.root.path)
            os.chdir(self.workdir)
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)

        done = subprocess.run([*self.entrypoint, *(words or self.command)], preexec_fn=enter, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        check(done.returncode == status and said in done.stdout, f"{words}: status {done.returncode}, not {status}; wanted {said!r}\n{done.stdout[-2000:]}")
        return done.stdout


def with_data(image, golden):
    data = image.root.path + image.workdir
    shutil.copytree(os.path.join(golden, FOLDER), os.path.join(data, "step"))
    wanted(["chmod", "-R", "a+rX", data])
    os.mkdir(os.path.join(data, "out"))
    os.chmod(os.path.join(data, "out"), 0o777)


def containers(options, folder):
    need_release(options)
    image = Image(os.path.join(PACKAGING, "scratch.containerfile"), options.out, folder)
    check(sorted(os.listdir(image.root.path)) == ["data", "fsdp-ckpt", "licenses"], os.listdir(image.root.path))
    check(sorted(os.listdir(image.root.path + "/licenses")) == ["LICENSE", "THIRD_PARTY"], "licences")
    check(image.labels["org.opencontainers.image.licenses"] == "Apache-2.0" and image.user != "0:0", image.labels)
    with_data(image, options.golden)
    image.start(said="Usage: fsdp-ckpt VERB")
    image.start("verify", "step", said="sound, 150 items")
    image.start("consolidate", "step", "out/full.pt", said="80 tensors")
    image.start("convert", "step", "out/full.h5", said="80 tensors")
    image.start("diff", "out/full.h5", "out/full.pt", said="are the same")
    image.start("verify", "nothing", status=2, said="NOT_FOUND")
    # The image's own user cannot write into somebody else's folder, and says so.
    image.start("consolidate", "step", "full.pt", status=2, said="error[")
    image.start("consolidate", "step", "full.pt", said="80 tensors", user="0:0")

    image = Image(os.path.join(PACKAGING, "python.containerfile"), options.out, folder)
    check(not os.path.exists(image.root.path + "/tmp/wheel"), "the wheel is left behind")
    with_data(image, options.golden)
    image.start("-c", "import fsdp_ckpt; print(fsdp_ckpt.verify('step').verdict)", said="sound\n")
    image.start("-m", "fsdp_ckpt", "verify", "step", said="sound, 150 items")
    check(os.path.exists(image.root.path + "/opt/fsdp-ckpt/bin/fsdp-ckpt"), "the command is not beside Python")
    # A recipe that copies what a release does not have is noticed.
    broken = os.path.join(folder, "broken")
    with open(broken, "w", encoding="utf-8") as file:
        file.write("FROM scratch\nCOPY nothing-* /x\n")
    try:
        Image(broken, options.out, folder)
    except Exception as error:
        check("nothing is called so" in str(error), error)
    else:
        check(False, "COPY of nothing passed")
    print("both recipes")


containers.mounts = True

# Programs of GitHub's runner that reach the network: each writes down how it was called.
STAND_INS = {
    "gh": """[ "$GH_TOKEN" = the-token ] && [ "$GH_REPO" = Group/fsdp ]
for word; do [ ! -f "$word" ] || cp "$word" "$ASSETS"; done
""",
    "docker": """case $1 in
  login) [ "$(cat)" = the-token ] ;;
  build) [ -f "$3" ] && [ -f "$6/SHA256SUMS" ] ;;
  push) ;;
  inspect) echo "ghcr.io/group/fsdp-ckpt@sha256:$(printf %064d 7)" ;;
  *) exit 1 ;;
esac
""",
}


class Job:
    """Runs the commands of a job of release.yml in a workspace; what its actions would bring lies there."""

    def __init__(self, options, folder, job, **matrix):
        self.workspace, self.assets, programs = (os.path.join(folder, name) for name in ("workspace", "assets", "bin"))
        for path in (folder, self.workspace, self.assets, programs):
            os.mkdir(path)
        for name, text in STAND_INS.items():
            with open(os.path.join(programs, name), "w", encoding="utf-8") as file:
                file.write('#!/usr/bin/env bash\nset -e\nprintf "%s\\n" "$(basename "$0") $*" >>"$CALLS"\n' + text)
            os.chmod(file.name, 0o755)
        calls, outputs = os.path.join(folder, "calls"), os.path.join(folder, "outputs")
        known = {"github.token": "the-token", "github.repository": "Group/fsdp", **{"matrix." + name: value for name, value in matrix.items()}}
        environment = {"PATH": programs + ":" + os.environ["PATH"], "HOME": folder, "CALLS": calls, "ASSETS": self.assets, "GITHUB_OUTPUT": outputs,
                       "GITHUB_REF_NAME": "v" + options.version, "GITHUB_REPOSITORY": "Group/fsdp", "GITHUB_REPOSITORY_OWNER": "Group", "GITHUB_ACTOR": "somebody",
                       "GITHUB_SERVER_URL": "https://github.example.org", "GITHUB_WORKSPACE": self.workspace}
        for step in job["steps"]:
            action = step.get("uses", "").split("@")[0]
            if action == "actions/download-artifact":
                shutil.copytree(options.out, os.path.join(self.workspace, step["with"]["path"]), copy_function=shutil.copyfile)   # modes are lost
            elif action == "actions/checkout":
                os.symlink(os.path.join(ROOT, "tools"), os.path.join(self.workspace, "tools"))
            elif "run" in step:
                given = {name: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda match: known[match[1]], value) for name, value in step.get("env", {}).items()}
                wanted(["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]], cwd=self.workspace, env={**environment, **given})
        self.calls, self.outputs = ([] if not os.path.exists(path) else bytes_of(path).decode().splitlines() for path in (calls, outputs))


def published(options, folder):
    need_release(options)
    version, machine = options.version, platform.machine()
    jobs = yaml_of(options, ".github/workflows/release.yml")[0]["jobs"]
    names = sorted(os.listdir(options.out))
    # The release on GitHub has every file.
    job = Job(options, os.path.join(folder, "github"), jobs["github"])
    check(len(job.calls) == 1 and job.calls[0].startswith(f"gh release create v{version} dist/LICENSE ") and "--verify-tag" in job.calls[0], job.calls)
    check(f"https://github.example.org/Group/fsdp/blob/v{version}/docs/CHANGELOG.md" in job.calls[0], job.calls)
    check(sorted(os.listdir(job.assets)) == names, (os.listdir(job.assets), names))
    attested, = (step["with"] for step in jobs["github"]["steps"] if "attest" in step.get("uses", ""))
    check(os.path.exists(os.path.join(job.workspace, attested["subject-checksums"])), attested)
    assets = job.assets
    # Both images.
    for row in jobs["images"]["strategy"]["matrix"]["include"]:
        job = Job(options, os.path.join(folder, row["recipe"]), jobs["images"], **row)
        image = f"ghcr.io/group/fsdp-ckpt:{version}{row['suffix']}"
        check(job.calls[1:3] == [f"docker build -f tools/packaging/{row['recipe']}.containerfile -t {image} dist", f"docker push {image}"], job.calls)
        check(job.outputs == ["name=ghcr.io/group/fsdp-ckpt", f"digest=sha256:{7:064d}"], job.outputs)
    # The package index gets the wheels and nothing else, and pip installs one of them from it.
    job = Job(options, os.path.join(folder, "pypi"), jobs["pypi"])
    upload, = (step["with"]["packages-dir"] for step in jobs["pypi"]["steps"] if step.get("uses", "").startswith("pypa/"))
    wheels = {name: bytes_of(os.path.join(job.workspace, upload, name)) for name in os.listdir(os.path.join(job.workspace, upload))}
    check(all(name.startswith(f"fsdp_ckpt-{version}-") and name.endswith(".whl") for name in wheels), wheels.keys())
    server = serve()
    place = f"http://127.0.0.1:{server.server_port}"
    page = "".join(f'<a href="/{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>' for name, data in wheels.items())
    Server.files = {"/simple/fsdp-ckpt/": page.encode(), **{"/" + name: data for name, data in wheels.items()},
                    **{f"/Group/fsdp/releases/download/v{version}/{name}": bytes_of(os.path.join(assets, name)) for name in os.listdir(assets)}}
    clean = {"PATH": os.environ["PATH"], "HOME": folder, "no_proxy": "127.0.0.1", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    programs = os.path.join(folder, "clean/bin")
    wanted([sys.executable, "-m", "venv", os.path.dirname(programs)])
    wanted([os.path.join(programs, "pip"), "install", "-q", "--index-url", place + "/simple/", "fsdp-ckpt"], env=clean)
    wanted([os.path.join(programs, "fsdp-ckpt"), "--version"], env=clean, said=f"fsdp-ckpt {version}\n")
    wanted([os.path.join(programs, "python"), "-c", "import sys, fsdp_ckpt; print(fsdp_ckpt.verify(sys.argv[1]).verdict)", os.path.join(options.golden, FOLDER)],
           env=clean, said="sound\n")
    # The action downloads what the release has.
    options.tool = os.path.join(assets, f"fsdp-ckpt-{version}-linux-{machine}")
    os.chmod(options.tool, 0o755)
    os.mkdir(os.path.join(folder, "action"))
    runner = Runner(options, os.path.join(folder, "action"))
    left = runner.step("program", FSDP_VERSION="v" + version, FSDP_REPOSITORY="Group/fsdp", GITHUB_SERVER_URL=place, no_proxy="127.0.0.1")
    check(left.status == 0 and bytes_of(left.outputs["program"]) == bytes_of(options.tool), left)
    runner.step(FSDP_PROGRAM=left.outputs["program"], FSDP_PATHS="step-1\ndamaged").expect(1, "damaged", ["error"], findings=1)
    server.shutdown()
    print(f"{len(names)} files, 2 images, {len(wheels)} wheels")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = {case.__name__: case for case in (source, make, release, containers, published)}
    parser.add_argument("case", choices=cases)
    for option in ("out", "version", "cmake", "wheels", "debs", "python", "golden"):
        parser.add_argument("--" + option)
    arguments = parser.parse_args()
    sys.exit(main(cases[arguments.case], arguments))
