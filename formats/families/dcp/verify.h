// SPDX-License-Identifier: Apache-2.0
// All checks of a torch.distributed.checkpoint folder.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "formats/bytes/files/file.h"
#include "formats/families/dcp/metadata.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/checkpoint/file_pool.h"
#include "formats/state/checkpoint/spill.h"

namespace fsdp::formats::dcp {

// Returns how a chunk differs from its replicas; empty if it does not.
using ReplicaCheck = std::function<std::string(const TensorEntry& tensor, std::size_t chunk)>;

struct FolderUnderTest {
  const Index& index;
  const Findings& opening;  // findings of reading the metadata
  const Folder& folder;
  FilePool& pool;
  Spill& spill;
  bool rank_local;  // replicated items may lie in several files
  bool narrowed;    // the index lacks items, so bytes without one mean nothing
  const Replicas& replicas;
  ReplicaCheck torn;
};

// Checks coverage and extents from the metadata alone.  Then, unless `fast`, checks every item: its
// archive's structure, each record's CRC, dtype and shape against the metadata, the names in its
// pickle, its replicas.
// Throws: kInterrupted, kIo.
VerifyReport verify_folder(const FolderUnderTest& folder, const VerifyOptions& options);

}  // namespace fsdp::formats::dcp
