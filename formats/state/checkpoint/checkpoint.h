// SPDX-License-Identifier: Apache-2.0
// A checkpoint opened for reading, whatever its layout: an index, and access to its bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/team.h"
#include "formats/bytes/files/file_crcs.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/model/box.h"
#include "formats/state/model/chunk_data.h"
#include "formats/state/model/finding.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

// The detected format and producer.
struct CheckpointDescription {
  std::string path;
  std::string format;  // "dcp", "torch", "safetensors"
  std::string layout;  // within the format: "generic", "lightning", "legacy", "hf-sharded", ...
  std::optional<std::string> version = {};  // of the format, if the checkpoint states it
  std::int64_t ranks = 1;                   // ranks that wrote it
};

struct VerifyOptions {
  bool fast = false;  // only metadata and sizes
  unsigned threads = 1;
  std::set<std::string> allowed_globals;           // beyond the known ones, "module.name"
  std::function<void(std::uint64_t)> on_progress;  // bytes checked so far; one thread at a time
  std::function<bool()> cancelled;
  FileCrcs* crcs = nullptr;  // receives the checksums of the file parts read; may be null
  // The processes that divide the checks; each gets the whole report.  Never null.
  Team* team = &this_process();
};

struct VerifyReport {
  Findings findings;
  std::uint64_t items = 0;            // chunks, values and archives examined
  std::uint64_t bytes_checked = 0;    // with a checksum that was compared
  std::uint64_t bytes_unchecked = 0;  // without a checksum
};

// What outputs read.  Thread-safe: chunk, expect_chunk, storage.  Values belong to the thread that
// asked for them.
class Checkpoint {
 public:
  Checkpoint() = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  virtual ~Checkpoint() = default;

  const CheckpointDescription& description() const { return description_; }
  const Index& index() const { return index_; }
  // Returns the damage that opening found; reading goes on around it.
  const Findings& findings() const { return findings_; }

  // Narrows the index to the keys for which `keep` returns true.
  void keep(const std::function<bool(const std::string&)>& keep) { keep_entries(index_, keep); }

  // Removes damage that the caller has dealt with: the findings, and chunks without elements whose
  // place `gone` accepts.
  void forget_damage(const std::function<bool(const Location&)>& gone) {
    findings_.clear();
    for (TensorEntry& tensor : index_.tensors) {
      ChunkList kept(tensor.chunks.rank());
      for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
        const BoxView box = tensor.chunks.box(c);
        const Location& place = tensor.chunks.location(c);
        if (volume(box) != 0 || !gone(place)) kept.add(box.offset, box.size, place);
      }
      if (kept.size() != tensor.chunks.size()) tensor.chunks = std::move(kept);
    }
  }

  // Locates the elements of a chunk.  Reads its headers and compares them with the index.
  // Throws: kDtype, kShape, kUnsupported (quantized, sparse), and the errors of the containers,
  // with file and key.
  virtual ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const = 0;
  // Hint: chunk() follows, and then reads of the elements `part` of the chunk, possibly none.  The
  // headers may be fetched from the disk, and headers and elements from a store.  Returns whether
  // more hints are worth giving before something is read.  Errors are left to chunk().
  virtual bool expect_chunk(const TensorEntry& /*tensor*/, std::size_t /*chunk*/,
                            ElementRange /*part*/) const {
    return false;
  }
  // Hint: value() follows; see expect_chunk.
  virtual bool expect_value(const ValueEntry& /*value*/) const { return false; }
  // Reads a value that is not a tensor; storages inside it are references for `storage`.
  // Throws: the errors of the containers, with file and key.
  virtual Value value(const ValueEntry& value) const = 0;
  // Returns the bytes of a storage reference of `value` or `tree`.
  virtual ChunkData storage(const StorageRef& storage) const = 0;
  // Returns the whole object if the checkpoint holds one (torch.save); otherwise nothing, and
  // callers build the object from the paths.
  virtual std::optional<Value> tree() const { return std::nullopt; }
  // Returns a tensor of the index as the object tree of this checkpoint has it (a view, a
  // parameter); nothing if there is no such tree.
  virtual std::optional<Value> tensor_value(std::size_t /*tensor*/) const { return std::nullopt; }
  // Returns the object of a tensor that a library's class holds, which only that library can take
  // apart into elements (`chunk` refuses it), for an output that keeps objects; its storages are
  // references for `storage`.  Returns nothing for all other tensors, and for a tensor that lies in
  // several chunks.
  // Requires: the index was not narrowed.  Throws: the errors of the containers, with file and key.
  virtual std::optional<Value> tensor_object(std::size_t /*tensor*/) const { return std::nullopt; }
  // Throws: kChanged if a file that was read was written to after it was opened.
  virtual void check_unchanged() const = 0;

 protected:
  CheckpointDescription description_;
  Index index_;
  Findings findings_;
};

// A checkpoint as it lies in files.
class StoredCheckpoint : public Checkpoint {
 public:
  // Checks everything: coverage, extents, archives, checksums.  Thread-safe.
  virtual VerifyReport verify(const VerifyOptions& options) const = 0;
};

}  // namespace fsdp::formats
