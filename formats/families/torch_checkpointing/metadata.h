// SPDX-License-Identifier: Apache-2.0
// `metadata.pkl` of a folder by torch_checkpointing: which rank's file holds which box of each
// tensor.  The file is a pickle of only dicts, lists, tuples, texts and numbers; it is never run.
// Source: distributed_metadata.py, dtensor_metadata.py, default_metadata.py and
// checkpoint_layout.py of torch_checkpointing 0.1.1; docs/formats/torch_checkpointing.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/dtype.h"
#include "formats/containers/pickle/value.h"
#include "formats/families/trainers/sharded_value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/box.h"
#include "formats/state/model/index.h"

namespace fsdp::formats::torch_checkpointing {

inline constexpr const char* kMetadataName = "metadata.pkl";

// A box of the whole tensor, and where it begins in the tensor that the rank's file holds.
struct HeldBox {
  Box box;
  std::vector<std::int64_t> local_offset;
};

// The ranks over which a tensor is laid out, as an array of some dimensions.
struct Mesh {
  std::vector<std::int64_t> shape;
  std::unordered_map<std::int64_t, std::size_t> positions;  // row-major, by rank
};

// Ranks, ascending.
using Ranks = std::vector<std::int64_t>;

// The layout of one tensor on some ranks.
struct Sharding {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;    // of the whole tensor
  std::shared_ptr<const Mesh> mesh;   // of a DTensor; null if `boxes` are listed
  std::vector<Placement> placements;  // one for each dimension of the mesh
  std::vector<HeldBox> boxes;
  std::shared_ptr<const Ranks> ranks;  // the ranks that hold it

  // Returns whether each rank holds the whole tensor.  Tensors that are not DTensors are recorded
  // so for all ranks, even for ranks without the tensor.
  bool replicated() const;
  // Returns the boxes that a rank holds; those of a DTensor may have no elements.
  // Throws: kUnsupported if split factors do not fit the mesh.  Requires: one of `ranks`.
  std::vector<HeldBox> boxes_of(std::int64_t rank) const;
};

// The shardings of one tensor; no rank is in two of them.
struct Shardings {
  std::vector<std::shared_ptr<const Sharding>> groups;           // at least one
  std::vector<std::pair<std::int64_t, std::uint32_t>> group_of;  // by rank, if there are several

  // Returns the sharding that covers a rank; nullptr if there is none.
  const Sharding* of_rank(std::int64_t rank) const;
};

struct TensorLayout {
  std::vector<std::string> path;  // within the item; positions of lists are text, too
  std::string key;                // the same, joined by dots
  std::shared_ptr<const Shardings> shardings;
};

enum class Serialization { kTorch, kSafetensors, kOther };

struct ItemFile {
  std::string path;  // relative to the folder, as recorded; not checked
  Serialization serialization = Serialization::kTorch;
};

// One entry of the saved mapping: a model, an optimizer.
struct Item {
  std::string name;
  std::vector<TensorLayout> tensors;
  std::unordered_map<std::string, std::size_t> by_key;
  std::unordered_map<std::int64_t, ItemFile> layouts;  // by rank, where one is recorded

  // Returns the file of a rank: `<item>_<rank>.pt` without a layout.
  ItemFile file(std::int64_t rank) const;
  // Returns nullptr if there is no tensor of that key.
  const TensorLayout* find(const std::string& key) const;
  // By rank: whether the rank must have written the item, because it holds a part of a tensor, or
  // because no tensor of the item is cut.
  std::vector<bool> needed;
};

struct Metadata {
  std::string version;  // "1.0" or "2.0"
  std::int64_t world_size = 0;
  std::vector<Item> items;
};

// Reads both versions.
// Throws: kGlobal for any name in the pickle, what read_pickle throws; kMetaType (another shape of
// the data), kUnsupported (an unknown version, an unknown kind of sharding or placement), kDtype,
// kShape (a tensor has several), kBounds (a box, mesh or placement lies outside its bounds), kJson,
// kKey (a name twice), kLimitNodes (shared parts unfold into more than real metadata have).
Metadata read_metadata(const ByteSource& source);

// Returns whether the pickle begins or ends like such metadata: damage to one place does not hide
// the format.
bool looks_like_metadata(const ByteSource& source);

// One item of a folder by torch_checkpointing, read from the files of its ranks.

struct ItemParts {
  std::unique_ptr<StoredCheckpoint> checkpoint;
  Findings findings;  // contradictions that leave the rest readable
};

// Reads an item that the metadata describe, from the files of `ranks`; the others leave holes.
// torch.save files: the metadata tell how tensors are cut; the rest comes from the lowest rank.
// Safetensors: only the metadata tell the places of the bare tensors.
// Findings: kKey (a rank's file lacks a tensor), kMetaType (a warning: a tensor outside the
// metadata, cut or in a safetensors file).
// Throws: kUnsupported (another serialization, or several), kDtype, kShape, kBounds (metadata and
// file disagree); what reading the files throws.  Requires: `ranks` is not empty.
ItemParts open_item(const std::filesystem::path& folder, const Item& item,
                    const std::vector<std::int64_t>& ranks);

}  // namespace fsdp::formats::torch_checkpointing
