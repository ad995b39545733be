// SPDX-License-Identifier: Apache-2.0
// A checkpoint opened for reading, whatever its layout: an index, and ways to the bytes behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/files/file_crcs.h"
#include "formats/model/chunk_data.h"
#include "formats/model/finding.h"
#include "formats/model/index.h"
#include "formats/pickle/value.h"

namespace fsdp::formats {

// What was detected.
struct CheckpointDescription {
  std::string path;
  std::string format;  // "dcp", "torch", "safetensors"
  std::string layout;  // within the format: "generic", "lightning", "legacy", "hf-sharded", ...
  std::optional<std::string> version;  // of the format, where the checkpoint says it
  std::int64_t ranks = 1;              // that wrote it
};

struct VerifyOptions {
  bool fast = false;  // metadata and sizes alone
  unsigned threads = 1;
  std::set<std::string> allowed_globals;           // beyond the known ones, "module.name"
  std::function<void(std::uint64_t)> on_progress;  // bytes checked so far; one thread at a time
  std::function<bool()> cancelled;
  FileCrcs* crcs = nullptr;  // is told the checksums of what is read of files; null: nobody is
};

struct VerifyReport {
  Findings findings;
  std::uint64_t items = 0;            // chunks, values and archives looked into
  std::uint64_t bytes_checked = 0;    // whose checksum was compared
  std::uint64_t bytes_unchecked = 0;  // that carry no checksum
};

// Thread-safe: chunk, expect_chunk, storage, verify.  Values belong to the thread that asked for
// them.
class Checkpoint {
 public:
  Checkpoint() = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  virtual ~Checkpoint() = default;

  const CheckpointDescription& description() const { return description_; }
  const Index& index() const { return index_; }
  // What opening already showed to be wrong; reading goes on around it.
  const Findings& findings() const { return findings_; }

  // Narrows the index to the keys for which `keep` says true.
  void keep(const std::function<bool(const std::string&)>& keep) { keep_entries(index_, keep); }

  // Where the elements of a chunk lie.  Its headers are read and held against the index.
  // Throws: kDtype, kShape, kUnsupported (quantized, sparse), and what the containers throw, with
  // file and key.
  virtual ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const = 0;
  // chunk() is going to be called for it: its headers may be fetched from the disk meanwhile.  What
  // is wrong, chunk() says.
  virtual void expect_chunk(const TensorEntry& /*tensor*/, std::size_t /*chunk*/) const {}
  // A value that is no tensor; storages inside it are references for `storage`.
  // Throws: what the containers throw, with file and key.
  virtual Value value(const ValueEntry& value) const = 0;
  // The bytes behind a storage reference of `value` or `tree`.
  virtual ChunkData storage(const StorageRef& storage) const = 0;
  // The whole object where the checkpoint holds one (torch.save); else nothing: it is built from
  // the paths.
  virtual std::optional<Value> tree() const { return std::nullopt; }
  // A tensor of the index as the object tree of this checkpoint has it (a view, a parameter);
  // nothing where there is no such tree.
  virtual std::optional<Value> tensor_value(std::size_t /*tensor*/) const { return std::nullopt; }
  // Checks everything there is to check: coverage, extents, archives, checksums.
  virtual VerifyReport verify(const VerifyOptions& options) const = 0;
  // Throws: kChanged where a file read from was written to since it was opened.
  virtual void check_unchanged() const = 0;

 protected:
  CheckpointDescription description_;
  Index index_;
  Findings findings_;
};

}  // namespace fsdp::formats
