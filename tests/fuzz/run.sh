#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets (clang, ASan and UBSan), replays each one's corpus, then fuzzes it.
# Run: tests/fuzz/run.sh [--seconds N | --runs N] [target...]     every target for 20 seconds without arguments
#      tests/fuzz/run.sh --build           builds all targets, and runs none; --built runs what was built
# Inputs found go to build/fuzz/work/<target>/, findings to build/fuzz/findings/<target>/.
# A target `zip` is fuzz_zip.cpp; corpus/zip/ and zip.dict are used if they exist.
set -u
cd "$(dirname "$0")/../.." || exit 2
fuzz=tests/fuzz build=build/fuzz
limit=-max_total_time=20

usage() { sed -n '4,7s/^# //p' "$0" >&2; exit 2; }

targets=() do=both
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) limit=-max_total_time=${2:?}; shift ;;
    --runs) limit=-runs=${2:?}; shift ;;
    --build | --built) do=${1#--} ;;
    -*) usage ;;
    *) [ -f "$fuzz/fuzz_$1.cpp" ] || { echo "no target $1: no $fuzz/fuzz_$1.cpp" >&2; exit 2; }
       targets+=("$1") ;;
  esac
  shift
done
if [ ${#targets[@]} -eq 0 ]; then
  for source in "$fuzz"/fuzz_*.cpp; do
    target=${source##*/fuzz_}
    targets+=("${target%.cpp}")
  done
fi

. tests/support/provision.sh
logs=$(mktemp -d) || exit 2
trap 'rm -rf "$logs"' EXIT
if [ $do != built ]; then
  need_packages tool fuzz
  need_fuzz_compiler
  # A compiler change starts from scratch.
  grep -qsx "CMAKE_CXX_COMPILER:[A-Z]*=$FUZZ_CXX" "$build/CMakeCache.txt" || rm -f "$build/build.ninja"
  { [ -f "$build/build.ninja" ] || configure fuzz -DCMAKE_CXX_COMPILER="$FUZZ_CXX"; } > /dev/null || exit 2
  cmake --build "$build" -j "$JOBS" --target "${targets[@]/#/fuzz_}" > "$logs/build" 2>&1 || { cat "$logs/build" >&2; exit 2; }
fi
[ $do != build ] || exit 0

# Twice the largest input of the corpus, at least 4096 bytes.
max_len() {
  local file size most=4096
  for file in "$@"; do
    size=$(($(stat -c %s "$file") * 2))
    if [ "$size" -gt "$most" ]; then most=$size; fi
  done
  echo "$most"
}

# Runs a target with these arguments; leaves its output in the log of the target.
run() {
  local target=$1
  shift
  "$build/tests/fuzz/fuzz_$target" -timeout=5 -rss_limit_mb=512 -print_final_stats=1 \
    -artifact_prefix="$build/findings/$target/" "$@" > "$logs/$target" 2>&1
}
executions() { sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$1"; }

# Replays the corpus of a target, then fuzzes it.
fuzz_target() {
  local target=$1 file corpus=() options folders
  mkdir -p "$build/work/$target" "$build/findings/$target"
  for file in "$fuzz/corpus/$target"/*; do [ -f "$file" ] && corpus+=("$file"); done
  options=(-max_len="$(max_len ${corpus[@]+"${corpus[@]}"})")
  [ -f "$fuzz/$target.dict" ] && options+=(-dict="$fuzz/$target.dict")
  folders=("$build/work/$target")
  [ ${#corpus[@]} -gt 0 ] && folders+=("$fuzz/corpus/$target")
  if { [ ${#corpus[@]} -eq 0 ] || run "$target" "${corpus[@]}"; } &&
    run "$target" "$limit" "${options[@]}" "${folders[@]}"; then
    echo "ok   $target: ${#corpus[@]} inputs replayed, $(executions "$target") executions"
  else
    echo "FAIL $target:"
    grep -E 'ERROR|SUMMARY|runtime error|Test unit written|what\(\)|    #[0-9] ' "$logs/$target" | head -20
    return 1
  fi
}

# As many targets at a time as there are cores; each prints in one piece.
passed=0 failed=0 running=0
settle() {
  if wait -n; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  running=$((running - 1))
}
for target in "${targets[@]}"; do
  [ "$running" -lt "$JOBS" ] || settle
  { text=$(fuzz_target "$target"); status=$?; echo "$text"; exit $status; } &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do settle; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
