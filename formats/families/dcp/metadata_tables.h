// SPDX-License-Identifier: Apache-2.0
// The records of a `.metadata` pickle, folded into tables while the stream is read: millions of
// chunks then take some hundred bytes each, and no tree of values is ever built.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/dtype.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/model/index.h"

namespace fsdp::formats::dcp {

// Longest key of a state dict.
inline constexpr std::size_t kMaxKeyBytes = 64U << 10U;

// The classes of the pickle.  Those from kFirstRecord on are folded into tables while the stream is
// read.
enum class MetadataClass : std::int32_t {
  kIgnored,  // allowed by the caller; carries no meaning
  kSize,
  kDType,
  kGetLayout,
  kMemoryFormat,
  kPath,
  kGetattr,
  kOrderedDict,
  kWriteItemType,
  kFirstRecord,
  kMetadata = kFirstRecord,
  kTensorStorage,
  kTensorProperties,
  kChunk,
  kBytes,
  kMetadataIndex,
  kStorageInfo,
  kStorageMeta,
  kPlan,  // the plan of a save, which Megatron-Core keeps for its next one: useless to a reader
};

// Numbers of shapes and offsets, packed one after another.
struct MetadataDims {
  std::uint64_t at = 0;
  std::uint32_t rank = 0;
};

// The tables that the records of the stream are folded into.  A record's opaque value holds its
// position in the table of its class.
struct MetadataTables {
  struct Chunk {
    MetadataDims offset;
    MetadataDims size;
  };
  struct Properties {
    DType dtype = DType::kFloat32;
    std::string layout = "torch.strided";
  };
  struct Tensor {
    std::uint64_t properties = 0;
    MetadataDims size;
    std::vector<std::uint32_t> chunks;
  };
  struct ItemKey {
    std::uint32_t key = 0;  // position in `keys`
    bool has_offset = false;
    MetadataDims offset;
  };
  struct Root {
    Value state_dict_metadata;
    Value planner_data;
    bool has_planner_data = false;
    Value storage_data;
    Value version;
    bool seen = false;
  };

  std::vector<std::int64_t> numbers;
  std::vector<Chunk> chunks;
  std::vector<Properties> properties;
  std::vector<Tensor> tensors;
  std::vector<ItemKey> item_keys;
  std::vector<Location> items;
  Root root;
  std::vector<std::string> keys;
  std::unordered_map<std::string, std::uint32_t> key_numbers;
  std::vector<std::string> files;
  std::unordered_map<std::string, std::uint32_t> file_numbers;
  std::vector<std::vector<std::string>> transforms = {{}};

  std::span<const std::int64_t> dims(const MetadataDims& d) const {
    return std::span(numbers).subspan(d.at, d.rank);
  }
  bool same(const MetadataDims& a, const MetadataDims& b) const {
    const auto x = dims(a);
    const auto y = dims(b);
    return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin());
  }
};

// Returns whether a value stands for a record of that class; its payload is then the position in
// the class's table.
bool is_record(const Value& value, MetadataClass cls);

// Reads the stream that fills `source` into tables.  `root` keeps the three dicts, with records as
// opaque values.  Throws: the errors of read_metadata (dcp/metadata.h).
MetadataTables read_metadata_tables(const ByteSource& source,
                                    const std::set<std::string>& allowed_globals);

}  // namespace fsdp::formats::dcp
