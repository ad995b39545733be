# SPDX-License-Identifier: Apache-2.0
# Sourced after provision.sh: PyTorch's output for the tests, made once for each generator and PyTorch.

make_corpus() {
  local dir=$1 work
  work=$(mktemp -d "$FSDP_CACHE/corpus.XXXXXX")
  quietly "$work/log" "$PYTHON" "$PROVISION_DIR/../interop/make_checkpoints.py" "$work/corpus" || return
  rm -rf "$dir" && mv "$work/corpus" "$dir" && rm -rf "$work"
}

# Sets CORPUS.
need_corpus() {
  local interop=$PROVISION_DIR/../interop key
  key=$({ cat "$interop"/{make_checkpoints,models,objects}.py "$PROVISION_DIR"/{truth.py,requirements.txt}; echo "$PYTHON"; } | sha256sum | cut -c1-12)
  CORPUS=$FSDP_CACHE/corpus-$key
  [ -d "$CORPUS" ] || step "checkpoints by PyTorch in $CORPUS" make_corpus "$CORPUS"
}

make_frameworks_corpus() {
  local dir=$1 work
  work=$(mktemp -d "$FSDP_CACHE/corpus.XXXXXX")
  quietly "$work/log" "$TRAINERS_PYTHON" "$PROVISION_DIR/../interop/make_frameworks.py" "$work/corpus" || return
  rm -rf "$dir" && mv "$work/corpus" "$dir" && rm -rf "$work"
}

# Sets FRAMEWORKS_CORPUS.  Needs need_trainers.
need_frameworks_corpus() {
  local interop=$PROVISION_DIR/../interop key
  key=$({ cat "$interop"/{make_frameworks,make_checkpoints,models,objects}.py "$PROVISION_DIR"/{truth.py,requirements.txt,requirements-trainers.txt}
          echo "$TRAINERS_PYTHON"; } | sha256sum | cut -c1-12)
  FRAMEWORKS_CORPUS=$FSDP_CACHE/corpus-frameworks-$key
  [ -d "$FRAMEWORKS_CORPUS" ] || step "checkpoints by trainers in $FRAMEWORKS_CORPUS" make_frameworks_corpus "$FRAMEWORKS_CORPUS"
}

make_quantized_corpus() {
  local dir=$1 work
  work=$(mktemp -d "$FSDP_CACHE/corpus.XXXXXX")
  quietly "$work/log" "$QUANTIZERS_PYTHON" "$PROVISION_DIR/../interop/make_quantized.py" "$work/corpus" || return
  rm -rf "$dir" && mv "$work/corpus" "$dir" && rm -rf "$work"
}

# Sets QUANTIZED_CORPUS.  Needs need_quantizers.
need_quantized_corpus() {
  local interop=$PROVISION_DIR/../interop key
  key=$({ cat "$interop"/{make_quantized,quantized_producers,quantized_sources}.py; echo "$QUANTIZERS_PYTHON"; } | sha256sum | cut -c1-12)
  QUANTIZED_CORPUS=$FSDP_CACHE/corpus-quantized-$key
  [ -d "$QUANTIZED_CORPUS" ] || step "quantized folders in $QUANTIZED_CORPUS" make_quantized_corpus "$QUANTIZED_CORPUS"
}

make_parity() {
  local dir=$1 work
  work=$(mktemp -d "$FSDP_CACHE/corpus.XXXXXX")
  quietly "$work/log" "$PYTHON" "$PROVISION_DIR/../parity/reference.py" "$work/corpus" || return
  rm -rf "$dir" && mv "$work/corpus" "$dir" && rm -rf "$work"
}

# Sets PARITY, whether it is there or not.  Another processor, or another level of kernels, is another reference.
name_parity() {
  local key
  key=$({ cat "$PROVISION_DIR"/../parity/{cases,levels,models,own_loops,public_models,reference}.py "$PROVISION_DIR"/{requirements.txt,sample.py}
          echo "${FSDP_TEST_SAMPLE:-} $PYTHON ${ATEN_CPU_CAPABILITY:-} ${ONEDNN_MAX_CPU_ISA:-}"
          grep -m2 -E '^(model name|flags|Features)' /proc/cpuinfo; } | sha256sum | cut -c1-12)
  PARITY=$FSDP_CACHE/parity-$key
}

need_parity() {
  name_parity
  [ -d "$PARITY" ] || step "training by PyTorch in $PARITY" make_parity "$PARITY"
}
