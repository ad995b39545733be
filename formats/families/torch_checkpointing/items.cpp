// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/safetensors/file.h"
#include "formats/families/safetensors/tensor_files.h"
#include "formats/families/torch_checkpointing/metadata.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/check.h"

namespace fsdp::formats::torch_checkpointing {
namespace {

// The most keys named in a message.
constexpr std::size_t kMaxKeysNamed = 8;

// Compares the content of a rank's file with the metadata.
class Comparison {
 public:
  explicit Comparison(const Item& item) : item_(item), seen_(item.tensors.size()) {}

  // Returns the layout of a tensor that the rank's file holds; nullptr if the metadata have none.
  // Throws: kDtype.
  const Sharding* layout(std::int64_t rank, const std::string& key, DType dtype) {
    const auto found = item_.by_key.find(key);
    const Sharding* sharding = found == item_.by_key.end()
                                   ? nullptr
                                   : item_.tensors[found->second].shardings->of_rank(rank);
    if (sharding == nullptr) return nullptr;
    if (sharding->dtype != dtype) {
      throw Error(ErrorCode::kDtype, cat("is ", torch_name(dtype), ", in ", kMetadataName, " ",
                                         torch_name(sharding->dtype)));
    }
    seen_[found->second].push_back(rank);
    return sharding;
  }

  void note_unlisted(const std::string& key) { unlisted_.insert(key); }

  // Throws: kShape, kBounds unless the box lies in the tensor that the rank's file holds.
  static void check_local(const Sharding& sharding, const HeldBox& held,
                          const std::vector<std::int64_t>& local) {
    if (local.size() != held.box.size.size()) {
      throw Error(ErrorCode::kRank, cat("has ", local.size(), " dimensions, in ", kMetadataName,
                                        " ", held.box.size.size()));
    }
    if (sharding.mesh != nullptr && local != held.box.size) {
      throw Error(ErrorCode::kShape,
                  cat("has the shape ", shape_text(local), ", by ", kMetadataName,
                      " the rank holds ", shape_text(held.box.size)));
    }
    for (std::size_t d = 0; d < local.size(); ++d) {
      if (held.box.size[d] > local[d] || held.local_offset[d] > local[d] - held.box.size[d]) {
        throw Error(
            ErrorCode::kBounds,
            cat("has the shape ", shape_text(local), ", by ", kMetadataName, " the rank holds ",
                shape_text(held.box.size), " from ", shape_text(held.local_offset), " on"));
      }
    }
  }

  Findings findings(const std::vector<std::int64_t>& ranks) const {
    Findings out;
    for (std::size_t t = 0; t < item_.tensors.size(); ++t) note_missing(t, ranks, out);
    SomeNames unlisted(kMaxKeysNamed);
    for (const std::string& key : unlisted_) unlisted.add(quote(key, 200));
    if (unlisted.count() != 0) {
      out.push_back(warning(
          ErrorCode::kMetaType,
          cat("not in ", kMetadataName,
              ", so the ranks' files decide, and bare tensors count as whole: ", unlisted.text())));
    }
    return out;
  }

 private:
  // The metadata record each uncut tensor for all ranks, although only one stage of a pipeline has
  // it: one rank is enough.
  void note_missing(std::size_t t, const std::vector<std::int64_t>& ranks, Findings& out) const {
    const TensorLayout& tensor = item_.tensors[t];
    std::vector<std::int64_t> seen = seen_[t];
    std::ranges::sort(seen);
    for (const std::int64_t rank : ranks) {
      const Sharding* sharding = tensor.shardings->of_rank(rank);
      if (sharding == nullptr || std::ranges::binary_search(seen, rank)) continue;
      if (sharding->replicated() && !seen.empty()) continue;
      const std::vector<HeldBox> boxes = sharding->boxes_of(rank);
      const auto held = std::ranges::find_if(
          boxes, [](const HeldBox& box) { return volume(box.box.view()) != 0; });
      if (held == boxes.end()) continue;
      // A finding with a key affects only users of the tensor.  A tensor that no file has must
      // affect all.
      const std::string key = cat(item_.name, tensor.key.empty() ? "" : ".", tensor.key);
      out.push_back({.code = ErrorCode::kKey,
                     .message = cat(seen.empty() ? quote(key, 200) + " " : std::string(),
                                    "is not in the file, and ", kMetadataName, " says that rank ",
                                    rank, " holds ", box_text(held->box.view())),
                     .file = item_.file(rank).path,
                     .key = seen.empty() ? std::string() : key});
      if (sharding->replicated()) break;
    }
  }

  const Item& item_;
  std::vector<std::vector<std::int64_t>> seen_;  // ranks, by position in Item::tensors
  std::set<std::string> unlisted_;
};

std::optional<ShardedValue> parts_of(Comparison& comparison, const Item& item, std::int64_t rank,
                                     const Leaf& leaf) {
  std::optional<ShardedValue> own = sharded_value(leaf.value);
  const auto plain = own ? std::nullopt : dense_tensor(leaf.value);
  if (!own && !plain) {
    if (item.find(leaf.key) == nullptr) return std::nullopt;
    const std::string special = special_tensor_text(leaf.value);
    if (special.empty())
      throw Error(ErrorCode::kMetaType,
                  cat("is not a tensor, but ", kMetadataName, " records a tensor"));
    throw Error(ErrorCode::kUnsupported, cat("is ", special, ", whose parts are not joined"));
  }
  const Sharding* sharding = comparison.layout(rank, leaf.key, own ? own->dtype : plain->dtype);
  if (sharding == nullptr) {
    if (own) comparison.note_unlisted(leaf.key);
    return own;
  }
  if (own && own->shape != sharding->shape) {
    throw Error(ErrorCode::kShape, cat("has the shape ", shape_text(own->shape), ", in ",
                                       kMetadataName, " ", shape_text(sharding->shape)));
  }
  ShardedValue out;
  out.dtype = sharding->dtype;
  out.shape = sharding->shape;
  for (HeldBox& held : sharding->boxes_of(rank)) {
    const bool none = volume(held.box.view()) == 0;
    if (own && sharding->mesh != nullptr) {
      const Box* there = own->locals.empty() ? nullptr : &own->locals.front().box;
      if (none != (there == nullptr) || (there != nullptr && (there->offset != held.box.offset ||
                                                              there->size != held.box.size))) {
        throw Error(ErrorCode::kBounds,
                    cat("is ", there == nullptr ? "without elements" : box_text(there->view()),
                        " of the tensor, by ", kMetadataName, " ", box_text(held.box.view())));
      }
    }
    if (none) continue;
    if (own && own->locals.empty()) throw Error(ErrorCode::kBounds, "is without elements");
    TensorValue tensor = own ? own->locals.front().tensor : *plain;
    Comparison::check_local(*sharding, held, tensor.shape);
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      tensor.storage_offset += static_cast<std::uint64_t>(held.local_offset[d] * tensor.strides[d]);
    }
    tensor.shape = held.box.size;
    out.locals.push_back({std::move(held.box), std::move(tensor)});
  }
  return out;
}

// Safetensors files of the ranks, whose tensors are placed by the metadata.
class RankTensors : public safetensors::TensorFiles {
 public:
  RankTensors(std::shared_ptr<const Folder> folder, const Item& item,
              const std::vector<std::int64_t>& ranks, Comparison& comparison)
      : TensorFiles(std::move(folder)) {
    for (const std::int64_t rank : ranks)
      index_.files.push_back({.name = item.file(rank).path, .rank = rank});
    pool_.examine(index_.files);
    description_ = {escape(folder_->path().native()), "safetensors", "rank-local", std::nullopt,
                    static_cast<std::int64_t>(item.needed.size())};
    std::unordered_map<std::string, std::size_t> known;
    for (std::uint32_t f = 0; f < index_.files.size(); ++f) {
      const auto file = pool_.get(f);
      in_context(file->name(), [&] {
        for (const safetensors::Tensor& tensor : safetensors::read_header(*file).tensors)
          add(item, f, tensor, comparison, known);
      });
    }
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    const Held& held = held_.at(tensor.key).at(chunk);
    ChunkData data = tensor_data(held.file, held.offset, held.bytes, tensor.dtype);
    data.first = held.first;
    data.strides = held.strides;
    return data;
  }

 private:
  // The elements of a chunk, in the tensor of a file.
  struct Held {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;  // of the tensor's bytes
    std::uint64_t bytes = 0;   // of the tensor
    std::uint64_t first = 0;   // element
    std::vector<std::int64_t> strides;
  };

  void add(const Item& item, std::uint32_t file, const safetensors::Tensor& tensor,
           Comparison& comparison, std::unordered_map<std::string, std::size_t>& known) try {
    const std::int64_t rank = *index_.files[file].rank;
    const TensorLayout* layout = item.find(tensor.name);
    const Sharding* sharding = comparison.layout(rank, tensor.name, tensor.dtype);
    if (layout == nullptr) {
      comparison.note_unlisted(tensor.name);
    } else if (sharding == nullptr) {
      return;  // this rank holds no part of it
    }
    const auto [at, fresh] = known.try_emplace(tensor.name, index_.tensors.size());
    if (fresh) {
      KeyPath path = {tensor.name};
      if (layout != nullptr) path.assign(layout->path.begin(), layout->path.end());
      TensorEntry entry{tensor.name, std::move(path), tensor.dtype,
                        sharding == nullptr ? tensor.shape : sharding->shape, ChunkList()};
      entry.chunks = ChunkList(entry.shape.size());
      index_.add(std::move(entry));
    } else if (sharding == nullptr) {
      const std::vector<std::int64_t>& lowest = index_.tensors[at->second].shape;
      if (lowest != tensor.shape) {
        throw Error(ErrorCode::kShape, cat("has the shape ", shape_text(tensor.shape),
                                           ", on a lower rank ", shape_text(lowest), ", and ",
                                           kMetadataName, " does not say how it is cut"));
      }
      return;  // a replica
    }
    TensorEntry& entry = index_.tensors[at->second];
    if (sharding == nullptr) {
      place(entry, file, tensor,
            {whole_box(tensor.shape), std::vector<std::int64_t>(tensor.shape.size(), 0)});
      return;
    }
    for (const HeldBox& held : sharding->boxes_of(rank)) {
      if (volume(held.box.view()) == 0) continue;
      Comparison::check_local(*sharding, held, tensor.shape);
      place(entry, file, tensor, held);
    }
  } catch (const Error& error) {
    throw error.in(quote(tensor.name, 200));
  }

  // Replicas hold the same box; the lowest rank's is read.
  void place(TensorEntry& entry, std::uint32_t file, const safetensors::Tensor& tensor,
             const HeldBox& held) {
    std::vector<std::int64_t> place = held.box.offset;
    place.insert(place.end(), held.box.size.begin(), held.box.size.end());
    if (!places_[entry.key].insert(std::move(place)).second) return;
    Held out{file, tensor.begin, tensor.bytes, 0, row_major_strides(tensor.shape)};
    for (std::size_t d = 0; d < out.strides.size(); ++d)
      out.first += static_cast<std::uint64_t>(held.local_offset[d] * out.strides[d]);
    const bool whole = held.box.size == tensor.shape;
    entry.chunks.add(held.box.offset, held.box.size, {file, 0, tensor.begin, tensor.bytes});
    if (whole) out.strides.clear();
    held_[entry.key].push_back(std::move(out));
  }

  std::unordered_map<std::string, std::vector<Held>> held_;  // by key, in the order of the chunks
  std::unordered_map<std::string, std::set<std::vector<std::int64_t>>> places_;  // of the chunks
};

}  // namespace

ItemParts open_item(const std::filesystem::path& folder, const Item& item,
                    const std::vector<std::int64_t>& ranks) {
  const auto kind_of = [&](std::int64_t rank) { return item.file(rank).serialization; };
  const Serialization kind = kind_of(ranks.front());
  if (kind == Serialization::kOther ||
      std::ranges::any_of(ranks, [&](std::int64_t rank) { return kind_of(rank) != kind; })) {
    throw Error(ErrorCode::kUnsupported,
                cat(escape(folder.native()), ": ", quote(item.name, 200),
                    ": its tensors are neither all in torch.save nor all in safetensors files"));
  }
  Comparison comparison(item);
  ItemParts out;
  if (kind == Serialization::kSafetensors) {
    out.checkpoint = std::make_unique<RankTensors>(folder_at(folder), item, ranks, comparison);
  } else {
    RankFiles set{item.name, {}};
    for (const std::int64_t rank : ranks) set.files.emplace_back(rank, item.file(rank).path);
    out.checkpoint = open_rank_files(folder, set, [&](std::int64_t rank, const Leaf& leaf) {
      return parts_of(comparison, item, rank, leaf);
    });
  }
  out.findings = comparison.findings(ranks);
  return out;
}

}  // namespace fsdp::formats::torch_checkpointing
