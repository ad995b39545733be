# SPDX-License-Identifier: Apache-2.0
# Sourced by tests/run.sh, tests/bench/run.sh and samples/quickstart.sh: installs what is missing on Debian 12 or
# Ubuntu 24.04 and later, once.
#
#   step TITLE COMMAND...   runs COMMAND, prints each minute that it still runs, then how long it took; reports a failure
#                           and ends the script
#   begin COMMAND...        runs COMMAND beside the script, one at a time
#   await TITLE             waits for it as a step, shows what it printed, and ends the script if it failed
#   need_packages GROUP...  installs the missing Debian packages of the groups below
#   need_python             sets PYTHON to one with the packages of requirements.txt
#   need_trainers           sets TRAINERS_PYTHON to one with those of requirements-trainers.txt and requirements-trainers-alone.txt too; beside
#                           it are the folders torchtitan-0.2, nemo-automodel and megatron-core-0.16 to -0.18 with those of
#                           requirements-torchtitan-0.2.txt, requirements-automodel.txt and requirements-megatron-older.txt
#   need_producers          sets PRODUCERS_PYTHON to one with those of requirements-producers.txt too
#   need_models             sets MODELS_PYTHON to one with those of requirements-models.txt beside the trainers'
#   need_quantizers         sets QUANTIZERS_PYTHON to one with those of requirements-quantizers.txt beside the trainers'
#   need_bridge             sets BRIDGE_PYTHON to one with those of requirements-bridge.txt beside the trainers'
#   need_remote             sets REMOTE_PYTHON to one with those of requirements-remote.txt too
#   need_packaging          sets PACKAGING_PYTHON to one with those of requirements-packaging.txt, and STATIC_SOURCES to the sources of a static build
#   need_docs               sets DOCS_PYTHON to one with those of requirements-docs.txt
#   need_module             sets MODULE_PYTHON to one with those of requirements-module.txt too
#   need_release            sets RELEASE_PYTHON to one with those of requirements-release.txt
#   need_torches            sets TORCHES to a folder with PyTorch for each Python that pyenv has, or to nothing without pyenv
#   need_old_userland       sets OLD_USERLAND to a root file system of Debian 11, or to nothing where none can be made
#   need_fuzz_compiler      sets FUZZ_CXX to a clang++ that builds the fuzz targets
#   configure PRESET...     cmake --preset, unharmed by an earlier configure that failed
#   FSDP_CACHE              where downloads live, outside the tree; a second clone finds them there
#   JOBS                    how many commands to run at a time

PROVISION_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export LC_ALL=C.UTF-8 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo} PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
export CCACHE_DEPEND=1   # no preprocessing of its own, which takes a tenth of a build that nothing is known of
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
JOBS=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)   # nproc prints OMP_NUM_THREADS if that is set

if [ -z "${FSDP_CACHE:-}" ]; then
  if [ -n "${XDG_CACHE_HOME:-}" ]; then
    FSDP_CACHE=$XDG_CACHE_HOME/fsdp
  elif [ -d "${HOME:-}" ] && mkdir -p "$HOME/.cache/fsdp" 2>/dev/null; then
    FSDP_CACHE=$HOME/.cache/fsdp
  else
    FSDP_CACHE=/var/tmp/fsdp-$(id -u)   # no home to keep a cache in
  fi
fi
mkdir -p "$FSDP_CACHE" || exit 2
export FSDP_CACHE

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 2; }

# One line a minute until the script ends or kills it.  `read` waits without a process that would outlive both.
tick() {
  local minutes=0
  while read -rt 60 <> <(:) || kill -0 "$$" 2>/dev/null; do
    minutes=$((minutes + 1))
    say "   $minutes min: $1 ..."
  done
}

step() {
  local title=$1 begin=$EPOCHREALTIME status=0 ms ticker
  shift
  say "== $title"
  tick "$title" &
  ticker=$!
  "$@" || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  ms=$(((${EPOCHREALTIME/[.,]/} - ${begin/[.,]/}) / 1000))
  say "   $(printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100))): $title$([ $status = 0 ] || printf ' FAILED')"
  [ $status = 0 ] || exit $status
}

begin() {
  BEGUN_LOG=$(mktemp)
  "$@" >"$BEGUN_LOG" 2>&1 &
  BEGUN=$!
  trap 'kill "$BEGUN" 2>/dev/null || true; rm -f "$BEGUN_LOG"' EXIT
}
ended() {
  local status=0
  wait "$BEGUN" || status=$?
  cat "$BEGUN_LOG" >&2
  rm -f "$BEGUN_LOG"
  trap - EXIT
  return $status
}
await() { step "$1" ended; }

# Names with | are alternatives: the first that is installed or available is used.
packages_of() {
  case $1 in
    tool) echo g++ cmake ninja-build pkg-config zlib1g-dev libisal-dev libzstd-dev nettle-dev libhdf5-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev ;;
    python) echo python3 python3-venv ;;
    mpi) echo openmpi-bin libopenmpi-dev mpich libmpich-dev ;;
    torch) echo libgloo-dev ;;   # the wheel has every other header that libfsdp needs
    test) echo libgtest-dev libgmock-dev 'libcurl4-openssl-dev|libcurl4-gnutls-dev' libexpat1 python3 python3-dev python3-venv git ccache strace iproute2 zsh fish man-db ;;
    rare) echo xfsprogs gcovr 'chromium|chromium-browser' ;;
    package) echo nasm libssl-dev libc-ares-dev libexpat1-dev python3-venv qemu-user-static debootstrap debian-archive-keyring dpkg-dev lintian ;;   # the static program, and where it is tried
    format) echo clang-format-14 ;;
    tidy) echo clang-16 clang-tidy-16 ;;
    fuzz) clang_packages "$(clang_version)" ;;
    *) die "no package group '$1'" ;;
  esac
}

# Clang 16 is the first that compiles this tree with Debian 12's libstdc++.  A distribution's plain `clang` may be older, so versions are
# requested by number.
CLANG_VERSIONS='16 18 19 17 20 21'
# The compiler, its sanitizers' runtime, and the symbolizer for their reports: one version of all three.
clang_packages() { echo "clang-$1 libclang-rt-$1-dev llvm-$1"; }

# The first version of which everything is installed, else the first of which everything is available.
clang_version() {
  local version have
  for have in installed offered; do
    for version in $CLANG_VERSIONS; do
      all "$have" $(clang_packages "$version") && { echo "$version"; return; }
    done
  done
  echo "${CLANG_VERSIONS%% *}"
}

# Sets FUZZ_CXX: the compiler of the fuzz targets.  Needs need_packages fuzz, or a clang that exists without apt-get.
need_fuzz_compiler() {
  local version
  for version in $(clang_version) $CLANG_VERSIONS; do
    FUZZ_CXX=$(command -v "clang++-$version") && return
  done
  version=$(clang++ -dumpversion 2>/dev/null) || die "no clang++ for the fuzz targets; install clang-16 or later"
  [ "${version%%.*}" -ge 16 ] || die "clang++ $version is too old for the fuzz targets; install clang-16 or later"
  FUZZ_CXX=$(command -v clang++)
}

# Configures a preset into build/<preset> or the folder after -B.  Output of a configure that failed is not reused.
configure() {
  local preset=$1 folder=build/$1 fresh=()
  shift
  [ "${1:-}" != -B ] || folder=$2
  [ -f "$folder/build.ninja" ] || fresh=(--fresh)
  cmake --preset "$preset" ${fresh[@]+"${fresh[@]}"} "$@"
}

all() {
  local test=$1 name
  shift
  for name in "$@"; do "$test" "$name" || return; done
}
# Asked for one by one, they would take half a minute.
read_packages() {
  INSTALLED=" $(dpkg-query -W -f='${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p' | tr '\n' ' ') "
  OFFERED=" $(apt-cache pkgnames 2>/dev/null | tr '\n' ' ') "
}
installed() { [ -n "${INSTALLED:-}" ] || read_packages; [[ $INSTALLED == *" $1 "* ]]; }
offered() { [ -n "${OFFERED:-}" ] || read_packages; [[ $OFFERED == *" $1 "* ]]; }

# Prints the choice among `a|b|c`, prefixed with + if it must still be installed.
choose() {
  local names name
  IFS='|' read -ra names <<<"$1"
  for name in "${names[@]}"; do installed "$name" && { echo "$name"; return; }; done
  for name in "${names[@]}"; do offered "$name" && { echo "+$name"; return; }; done
  echo "+${names[0]}"
}

missing_of() {
  local group name
  for group in "$@"; do
    for name in $(packages_of "$group"); do
      name=$(choose "$name")
      case $name in +*) echo "${name#+}" ;; esac
    done
  done | sort -u
}

need_packages() {
  local missing sudo='' log
  if ! command -v apt-get >/dev/null; then
    say "no apt-get here: taking it that these are installed: $(for g in "$@"; do packages_of "$g"; done | tr '\n' ' ')"
    return
  fi
  read_packages
  [ -n "$(missing_of "$@")" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing, and installing them needs root or sudo: $(missing_of "$@" | tr '\n' ' ')"
    sudo=sudo
  fi
  log=$(mktemp)
  step "package lists" quietly "$log" $sudo apt-get -o DPkg::Lock::Timeout=300 update -q
  read_packages
  missing=$(missing_of "$@")   # again: the lists now say which alternative exists
  step "packages: $(echo $missing)" quietly "$log" $sudo env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends $missing
  read_packages
  rm -f "$log"
}

# Runs a command with its output in a file, shown only when the command fails.
quietly() {
  local log=$1 status=0
  shift
  "$@" >"$log" 2>&1 || { status=$?; tail -n 40 "$log" >&2; }
  return $status
}

# A pyenv or conda may precede Debian's python3 and lack a version or venv: Debian's is tried first.
find_python3() {
  local candidate
  for candidate in ${FSDP_PYTHON:-} /usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

is_ready() { [ -e "$1/.ready" ] && "$1/bin/python" -c '' 2>/dev/null; }

# made_once DIR WHAT COMMAND...: has the command make the environment DIR, unless it is there.
made_once() {
  local dir=$1 what=$2
  shift 2
  is_ready "$dir" && return
  (
    flock 9   # two clones at once: one installs, the other waits
    is_ready "$dir" || step "$what in $dir" "$@"
  ) 9>"$dir.lock" || exit
}

# venv_beside BASE DIR: a new environment that sees the packages of the Python BASE.
venv_beside() {
  local base=$1 dir=$2 site
  rm -rf "$dir" && "$base" -m venv "$dir" || return
  site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return
  # Those that it sees itself, too: a .pth is read in the environment's own folder alone.
  "$base" -c 'import sys; print(*[path for path in sys.path if path.endswith("site-packages")], sep="\n")' >"$site/pytorch.pth"
}

# All of torch's own dependencies are installed: the wheel's libtorch_cuda needs nearly every CUDA library just to be loaded, so leaving out
# the rest would save little and could go wrong.  About 4.6 GB.
make_venv() {
  local base=$1 dir=$2 log=$dir.log
  rm -rf "$dir" && "$base" -m venv "$dir" || return
  # No pip cache: the environment itself is the cache.
  quietly "$log" "$dir/bin/python" -m pip install -q --no-cache-dir --no-compile --retries 5 --timeout 60 \
    -r "$PROVISION_DIR/requirements.txt" || return
  PYTHONDONTWRITEBYTECODE= "$dir/bin/python" - <<'CHECK' || return
import tempfile
import numpy, safetensors.torch, zstandard
import torch, torch.distributed as dist
import torch.distributed.checkpoint, torch.distributed.fsdp, torch.distributed.tensor
with tempfile.TemporaryDirectory() as tmp:
    dist.init_process_group("gloo", init_method=f"file://{tmp}/store", rank=0, world_size=1)
    t = torch.ones(1)
    dist.all_reduce(t)
    dist.destroy_process_group()
assert t.item() == 1
CHECK
  rm -f "$log"
  touch "$dir/.ready"
}

need_python() {
  local base key dir
  base=$(find_python3) || die "no python3 between 3.10 and 3.13 with venv; install python3-venv"
  key=$({ grep -v '^ *#' "$PROVISION_DIR/requirements.txt"; "$base" -V; echo "$base"; } | sha256sum | cut -c1-12)
  dir=$FSDP_CACHE/python-$key
  made_once "$dir" "PyTorch environment" make_venv "$base" "$dir"
  PYTHON=$dir/bin/python
}

# A separate environment that sees the packages of PYTHON's: about 300 MB and two minutes.
make_trainers_venv() {
  local base=$1 dir=$2 log=$2.log pin version
  local install=("$dir/bin/python" -m pip install -q --no-cache-dir --no-compile --retries 5 --timeout 60)
  venv_beside "$base" "$dir" || return
  # DeepSpeed has only a source package, and its build needs the installed torch; without compiled operators it is plain Python.
  quietly "$log" "${install[@]}" setuptools==80.9.0 wheel==0.45.1 || return
  DS_BUILD_OPS=0 quietly "$log" "${install[@]}" --no-build-isolation -r "$PROVISION_DIR/requirements-trainers.txt" || return
  # Newer versions ask for Python 3.12, and run with 3.11, too.
  install+=(--no-deps --ignore-requires-python)
  quietly "$log" "${install[@]}" -r "$PROVISION_DIR/requirements-trainers-alone.txt" || return
  quietly "$log" "${install[@]}" --target "$dir/torchtitan-0.2" -r "$PROVISION_DIR/requirements-torchtitan-0.2.txt" || return
  quietly "$log" "${install[@]}" --target "$dir/nemo-automodel" -r "$PROVISION_DIR/requirements-automodel.txt" || return
  for pin in $(grep -v '^ *#' "$PROVISION_DIR/requirements-megatron-older.txt"); do
    version=${pin#*==}
    quietly "$log" "${install[@]}" --target "$dir/megatron-core-${version%.*}" "$pin" || return
  done
  PYTHONDONTWRITEBYTECODE= quietly "$log" "$dir/bin/python" -c \
    'import accelerate, h5py, lightning, peft, torch, transformers; import deepspeed.utils.zero_to_fp32, megatron.core' || return
  rm -f "$log"
  touch "$dir/.ready"
}

# Needs need_python.
need_trainers() {
  local key dir
  key=$({ grep -hv '^ *#' "$PROVISION_DIR"/requirements{,-trainers,-trainers-alone,-torchtitan-0.2,-automodel,-megatron-older}.txt; echo "$PYTHON"; } | sha256sum | cut -c1-12)
  dir=$FSDP_CACHE/trainers-$key
  made_once "$dir" "trainers' environment" make_trainers_venv "$PYTHON" "$dir"
  TRAINERS_PYTHON=$dir/bin/python
}

# make_bare_venv BASE DIR NAME CODE: an environment that sees the packages of the Python BASE, with those of requirements-NAME.txt, in which CODE runs.
make_bare_venv() {
  local base=$1 dir=$2 name=$3 code=$4 log=$2.log
  venv_beside "$base" "$dir" || return
  # Without dependencies: PyTorch is the one that is there.  LeRobot asks for Python 3.12; its modules for the state of training run with 3.11, too.
  quietly "$log" "$dir/bin/python" -m pip install -q --no-cache-dir --no-compile --no-deps --ignore-requires-python --retries 5 --timeout 60 \
    -r "$PROVISION_DIR/requirements-$name.txt" || return
  PYTHONDONTWRITEBYTECODE= quietly "$log" "$dir/bin/python" -c "$code" || return
  rm -f "$log"
  touch "$dir/.ready"
}

# bare_python NAME CODE [BASE]: sets BARE_PYTHON to the Python of such an environment.  Needs need_python.
bare_python() {
  local name=$1 base=${3:-$PYTHON} key dir
  key=$({ grep -hv '^ *#' "$PROVISION_DIR"/requirements{,-"$name"}.txt; echo "$base"; } | sha256sum | cut -c1-12)
  dir=$FSDP_CACHE/$name-$key
  made_once "$dir" "$name environment" make_bare_venv "$base" "$dir" "$name" "$2"
  BARE_PYTHON=$dir/bin/python
}

# About 100 MB and 15 s.
need_producers() {
  bare_python producers 'import torchao, torchmetrics, torchvision'
  PRODUCERS_PYTHON=$BARE_PYTHON
}

# About 350 MB and 20 s.  Needs need_trainers.
need_models() {
  bare_python models 'import PIL, scipy, timm, torchaudio, torchvision, transformers' "$TRAINERS_PYTHON"
  MODELS_PYTHON=$BARE_PYTHON
}

# A separate environment that sees the packages of TRAINERS_PYTHON's: about 600 MB and two minutes.
make_quantizers_venv() {
  local base=$1 dir=$2 log=$2.log
  local install=("$dir/bin/python" -m pip install -q --no-cache-dir --no-compile --retries 5 --timeout 60)
  venv_beside "$base" "$dir" || return
  # GPTQModel and AutoAWQ have only source packages; without CUDA they are plain Python.
  quietly "$log" "${install[@]}" setuptools==84.2.1 wheel==0.45.1 || return
  # Without dependencies: PyTorch and transformers are those that are there.
  BUILD_CUDA_EXT=0 quietly "$log" "${install[@]}" --no-deps --no-build-isolation -r "$PROVISION_DIR/requirements-quantizers.txt" || return
  PYTHONDONTWRITEBYTECODE= quietly "$log" "$dir/bin/python" -c \
    'import bitsandbytes, compressed_tensors, llmcompressor, modelopt.torch.export, torchao; import awq.modules.linear.gemm, gptqmodel.nn_modules.qlinear.torch' || return
  rm -f "$log"
  touch "$dir/.ready"
}

# Sets BESIDE_PYTHON to that of make_NAME_venv, with the packages of requirements-NAME.txt.
beside_trainers() {
  local name=$1 title=$2 key dir
  key=$({ grep -hv '^ *#' "$PROVISION_DIR/requirements-$name.txt"; echo "$TRAINERS_PYTHON"; } | sha256sum | cut -c1-12)
  dir=$FSDP_CACHE/$name-$key
  made_once "$dir" "$title" "make_${name}_venv" "$TRAINERS_PYTHON" "$dir"
  BESIDE_PYTHON=$dir/bin/python
}

# Needs need_trainers.
need_quantizers() {
  beside_trainers quantizers "quantizers' environment"
  QUANTIZERS_PYTHON=$BESIDE_PYTHON
}

# About 20 MB and 10 s.
make_bridge_venv() {
  local base=$1 dir=$2 log=$2.log
  venv_beside "$base" "$dir" || return
  # It asks for Python 3.12; its conversions run with 3.11, too.
  quietly "$log" "$dir/bin/python" -m pip install -q --no-cache-dir --no-compile --no-deps --ignore-requires-python --retries 5 --timeout 60 \
    -r "$PROVISION_DIR/requirements-bridge.txt" || return
  PYTHONDONTWRITEBYTECODE= quietly "$log" "$dir/bin/python" -c 'from importlib import metadata; metadata.version("megatron-bridge")' || return
  rm -f "$log"
  touch "$dir/.ready"
}

# Needs need_trainers.
need_bridge() {
  beside_trainers bridge "Megatron-Bridge's environment"
  BRIDGE_PYTHON=$BESIDE_PYTHON
}

# About 300 MB and 30 s.
need_remote() {
  bare_python remote 'import boto3, flask, moto.server, s3fs, s3torchconnector.dcp'
  REMOTE_PYTHON=$BARE_PYTHON
}

# About 150 MB and 20 s.
need_module() {
  bare_python module 'import matplotlib, ml_dtypes, nanobind, pandas'
  MODULE_PYTHON=$BARE_PYTHON
}

make_small_venv() {
  local dir=$1 name=$2
  rm -rf "$dir" && "$(find_python3)" -m venv "$dir" || return
  quietly "$dir.log" "$dir/bin/python" -m pip install -q --no-cache-dir --retries 5 --timeout 60 \
    -r "$PROVISION_DIR/requirements-$name.txt" || return
  rm -f "$dir.log"
  touch "$dir/.ready"
}

# small_python NAME: sets SMALL_PYTHON to one with the packages of requirements-NAME.txt, without PyTorch.
small_python() {
  local name=$1 key dir
  key=$({ grep -v '^ *#' "$PROVISION_DIR/requirements-$name.txt"; find_python3; } | sha256sum | cut -c1-12)
  dir=$FSDP_CACHE/$name-$key
  made_once "$dir" "$name environment" make_small_venv "$dir" "$name"
  SMALL_PYTHON=$dir/bin/python
}

# What checks the documents' links.  About 50 MB and 10 s.
need_docs() {
  small_python docs
  DOCS_PYTHON=$SMALL_PYTHON
}

# What checks a release.
need_release() {
  small_python release
  RELEASE_PYTHON=$SMALL_PYTHON
}

# What builds the wheel.
need_packaging() {
  local root=$PROVISION_DIR/../..
  small_python packaging
  PACKAGING_PYTHON=$SMALL_PYTHON
  STATIC_SOURCES=$FSDP_CACHE/static-$(sha256sum <"$root/tools/packaging/static_sources.sh" | cut -c1-12)
  [ -e "$STATIC_SOURCES/curl/VERSION" ] || (
    flock 9
    PYTHON=$PACKAGING_PYTHON step "sources of isa-l and libcurl in $STATIC_SOURCES" "$root/tools/packaging/static_sources.sh" "$STATIC_SOURCES"
  ) 9>"$STATIC_SOURCES.lock" || exit
}

# make_torches DIR: DIR/3.9 is whole; what does not depend on the Python is in DIR/shared, the rest of each newer one in DIR/3.X.
make_torches() {
  local dir=$1 python version first=shared install
  rm -rf "$dir" && mkdir -p "$dir" || return
  for python in $(printf '%s\n' "$PYENV_ROOT"/versions/3.*/bin/python | sort -Vr); do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || return
    [ "${version#3.}" -ge 9 ] || continue
    [ ! -e "$dir/$version" ] || continue   # an older one of the same version
    install=("$python" -m pip install -q --no-compile --retries 5 --timeout 60 --cache-dir "$dir/cache" -r "$PROVISION_DIR/requirements-torches.txt")
    if [ "$version" = 3.9 ]; then
      quietly "$dir.log" "${install[@]}" --target "$dir/3.9" || return
      continue
    fi
    [ -z "$first" ] || quietly "$dir.log" "${install[@]}" --target "$dir/$first" || return
    first=
    quietly "$dir.log" "${install[@]}" --no-deps --target "$dir/$version" || return
  done
  rm -rf "$dir.log" "$dir/cache" "$dir/shared/torch" "$dir/shared/numpy"
  touch "$dir/.ready"
}

# About 15 GB and 3 minutes.
need_torches() {
  TORCHES=
  [ -d "${PYENV_ROOT:-}" ] || return 0
  TORCHES=$FSDP_CACHE/torches-$({ cat "$PROVISION_DIR/requirements-torches.txt"; ls "$PYENV_ROOT/versions"; } | sha256sum | cut -c1-12)
  (
    flock 9
    [ -e "$TORCHES/.ready" ] || step "PyTorch for pyenv's Pythons in $TORCHES" make_torches "$TORCHES"
  ) 9>"$TORCHES.lock" || exit
}

make_old_userland() {
  rm -rf "$1.part"
  quietly "$1.log" debootstrap --variant=minbase --include=python3-venv bullseye "$1.part" || return
  rm -f "$1.log" && mv "$1.part" "$1"
}

# About 260 MB and 40 s.  Not having it is no failure: the test of it is skipped then.
need_old_userland() {
  OLD_USERLAND=$FSDP_CACHE/debian-11
  [ ! -e "$OLD_USERLAND/etc/debian_version" ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null || { [ "$(uname -m)" != x86_64 ] && [ "$(uname -m)" != aarch64 ]; }; then
    OLD_USERLAND=
    return 0
  fi
  (
    flock 9
    [ -e "$OLD_USERLAND/etc/debian_version" ] || step "Debian 11 in $OLD_USERLAND" make_old_userland "$OLD_USERLAND"
  ) 9>"$OLD_USERLAND.lock" || { say "   Debian 11 cannot be had here; its test will be skipped"; OLD_USERLAND=; }
}

# Only if the tools are too old for the presets: plainer than CMake's own message.
need_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
  [ "$(printf '%s\n' 3.25 "${version:-0}" | sort -V | head -n 1)" = 3.25 ] ||
    die "cmake ${version:-(none)} is too old: 3.25 or later is needed (Debian 12, Ubuntu 24.04)"
}
