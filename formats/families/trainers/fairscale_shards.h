// SPDX-License-Identifier: Apache-2.0
// The open shards that the ranks of FairScale's FSDP saved, and the parts of parameters in them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/families/torch/file_set.h"
#include "formats/families/trainers/fairscale_metadata.h"
#include "formats/families/trainers/per_rank.h"

namespace fsdp::formats::fairscale {

// The files of one model: with metadata beside the weights, or in files of their own.
struct ShardSet {
  RankFiles weights;
  std::optional<RankFiles> metadata;
};

// Returns the sets of the folder; `others`, if given, receives the first file of each set of ranks
// that holds no shard.
std::vector<ShardSet> shard_sets(const Listing& folder, std::vector<std::string>* others);

// The base class of the reader of such checkpoints.
class Shards : public TorchFileSet {
 protected:
  struct Rank {
    std::uint32_t file = 0;
    Value metadata_object;  // object of the file with the metadata; `shard` points into it
    Value weights_object;
    Shard shard;
    Metadata metadata;
    Weights weights;
  };

  // A rank's part of a backing parameter, or of a state that is cut like one.
  struct Held {
    std::uint32_t file;
    TensorValue tensor;
    std::int64_t begin;  // of the backing parameter
    std::int64_t count;  // without padding
  };

  // Throws: kShardMissing, kMetaType; what reading a file throws.
  Shards(std::shared_ptr<const Folder> opened, const ShardSet& set);

  const std::map<std::int64_t, Rank>& ranks() const { return ranks_; }
  const Rank& first() const { return ranks_.begin()->second; }
  [[noreturn]] void fail(std::uint32_t file, ErrorCode code, const std::string& why) const;
  // Returns the text of a key beside the weights.  Throws: kMetaType if it is not text.
  std::string joined_key(const Value& key, std::uint32_t file) const;

  // Returns the parts of backing parameter `number`.  `value_of` returns a rank's parameter, or its
  // state of the same shape; nullptr if there is none.  `what` is for messages.
  // Throws: kType, kDtype, kShape.
  using ValueOf = std::function<const Value*(const Rank&, const Backing&)>;
  std::vector<Held> held_of(std::size_t number, const std::string& what,
                            const ValueOf& value_of) const;

  // Adds the parameter that begins at element `begin` of the backing one.
  void add_original(const KeyPath& path, const std::string& name, const Original& original,
                    std::int64_t begin, const std::vector<Held>& held);
  void add(KeyPath path, const std::string& name, DType dtype, std::vector<std::int64_t> shape,
           std::vector<Part> parts);

 private:
  void read(std::int64_t rank, const std::string& name, const ShardSet& set);

  std::map<std::int64_t, Rank> ranks_;
};

}  // namespace fsdp::formats::fairscale
