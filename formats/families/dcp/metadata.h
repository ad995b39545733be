// SPDX-License-Identifier: Apache-2.0
// The `.metadata` pickle of a torch.distributed.checkpoint folder, as an index.
// Source: torch/distributed/checkpoint/{metadata,filesystem}.py of PyTorch 1.13 to 2.15;
// docs/formats/dcp.md.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/team.h"
#include "formats/bytes/files/file.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/checkpoint/file_pool.h"
#include "formats/state/checkpoint/spill.h"
#include "formats/state/model/finding.h"
#include "formats/state/model/index.h"

namespace fsdp::formats::dcp {

// The place of a chunk in another rank's file.
struct Replica {
  std::size_t chunk;  // its position in the tensor's chunks
  Location location;
};
// By the tensor's key.
using Replicas = std::map<std::string, std::vector<Replica>>;

struct Metadata {
  Index index;        // files by name, sizes not yet known; chunk and value locations are items
  Findings findings;  // chunks without an item, items without a chunk, chunks of another rank than
                      // their tensor, ...
  std::optional<std::string> version;
  Replicas replicas;   // of ranks that wrote metadata of their own
  bool nested = true;  // planner_data gives the path of each key; else a path is one step, the key
};

// Reads the stream that fills `source`.  `name` is the file's name, for findings.
//
// Refuses names that PyTorch's writers do not produce (kGlobal), except those in `allowed_globals`,
// which make planner_data unusable if they occur in it.  Folds millions of chunks into tables as
// they come: memory is some hundred bytes per chunk.
// Throws: kMetaType, kDtype, kOverflow, kGlobal, kType, kKey, kReduce, kBuild, kLimitDepth; the
// errors of the pickle machine.
Metadata read_metadata(const ByteSource& source, const std::string& name,
                       const std::set<std::string>& allowed_globals = {});

// Joins the metadata that each rank wrote for itself into that of the whole checkpoint.

// Adds the rank-local metadata of one more rank to those read so far.  Chunks of tensors with the
// same name are joined; replicated values are kept once; replicated chunks become replicas of the
// first one.
// Throws: kDtype, kShape, kMetaType if two ranks disagree on a name.
void merge_metadata(Metadata& whole, Metadata part);

// Sends the metadata that one process has read to others, which then need not read and parse the
// file.

// Returns the leader's `metadata` on every member; that of the others is ignored.  The metadata is
// sent in portions: a member needs some ten MiB in addition, unless single names are longer.
// Throws: the errors of Team::exchange.
Metadata share_metadata(Team& team, Metadata metadata);

// All checks of a torch.distributed.checkpoint folder.

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
