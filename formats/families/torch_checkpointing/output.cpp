// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/writer.h"
#include "formats/families/dcp/sharding.h"
#include "formats/families/torch_checkpointing/folder.h"
#include "formats/families/torch_checkpointing/metadata.h"
#include "formats/families/trainers/rank_archive.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/shard_spec.h"

namespace fsdp::formats::torch_checkpointing {
namespace {

// The most bytes of an item's name: the file's name has at most 255, with the rank and a suffix.
constexpr std::size_t kMaxNameBytes = 200;
// A name that no dimension of a live mesh has.  The package reads tensors of a live mesh without a
// resharder, and then expects DTensors in the file.
constexpr const char* kMeshDimension = "fsdp_ckpt";

Value text(std::string value) {
  return Value::string(std::move(value));
}

Value numbers(const std::vector<std::int64_t>& values) {
  std::vector<Value> items;
  for (const std::int64_t value : values) items.push_back(Value::integer(value));
  return Value::list(std::move(items));
}

// A tensor of an item, and how it is written.
struct Written {
  bool cut = false;     // along dimension 0
  std::string path;     // as in the metadata
  TensorRef reference;  // in the source
};

struct OutputItem {
  std::string name;
  Value value;
  std::vector<std::optional<Written>> leaves;  // in the order of leaves_of; nothing for values
  bool has_tensors = false;
};

class FolderOutput : public Output {
 public:
  FolderOutput(const Checkpoint& source, const Value& content, std::filesystem::path destination,
               OutputOptions options, std::int64_t world_size)
      : Output(source, std::move(destination), std::move(options)), world_size_(world_size) {
    check_world_size(world_size);
    plan_.format = "torch-checkpointing";
    plan_.folder = true;
    add_items(content);
    metadata_ = metadata();
    for (std::int64_t rank = 0; rank < world_size_; ++rank) {
      for (const OutputItem& item : items_) {
        RankArchive archive(source_);
        plan_.files.push_back(
            {file_name(item, rank), RankArchive::file_bytes(object_of(item, rank, archive))});
      }
    }
    plan_.files.push_back({kMetadataName, metadata_.size()});
    count_leaves(content);
  }

 private:
  void write_files(AtomicFolder& folder, const CopyOptions& options, CopyResult& total) override {
    for (std::int64_t rank = 0; rank < world_size_; ++rank) {
      for (const OutputItem& item : items_) write_item(folder, item, rank, options, total);
    }
    folder.add_file(kMetadataName).write_at(0, std::as_bytes(std::span(metadata_)));
  }

  Error unsupported(const std::string& why) const {
    return {ErrorCode::kUnsupported, cat(source_.description().path, ": ", why)};
  }

  static std::string file_name(const OutputItem& item, std::int64_t rank) {
    return cat(item.name, "_", rank, ".pt");
  }

  void add_items(const Value& content) {
    const auto entries = mapping_entries(content);
    if (!entries) throw unsupported("is not a mapping, so there are no keys to name files");
    const std::vector<Leaf> leaves = dcp::entries_of(content);
    const dcp::ShardingRule rule(source_, content, leaves, {});
    const bool state_dict =
        !entries->empty() && std::all_of(entries->begin(), entries->end(), [](const auto& entry) {
          return tensor_number(entry.second).has_value();
        });
    if (state_dict) {
      add_item("model", content, {}, rule);
      return;
    }
    for (const auto& [key, value] : *entries) {
      const std::string* name = key.as_string();
      if (name == nullptr || name->empty() || name->size() > kMaxNameBytes ||
          name->front() == '.' || name->find('/') != std::string::npos ||
          name->find('\0') != std::string::npos) {
        throw unsupported(cat(name == nullptr ? "a key that is not a text" : quote(*name),
                              " cannot name a file"));
      }
      add_item(*name, value, {*name}, rule);
    }
  }

  void add_item(const std::string& name, const Value& value, const KeyPath& above,
                const dcp::ShardingRule& rule) {
    OutputItem item{name, value, {}, false};
    for (const PlacedLeaf& leaf : placed_leaves(value)) {
      item.leaves.emplace_back();
      if (!tensor_number(leaf.value)) continue;
      item.has_tensors = true;
      Leaf in_whole{{}, above, leaf.value};
      const KeyPath below = key_path(leaf);
      in_whole.path.insert(in_whole.path.end(), below.begin(), below.end());
      in_whole.key = joined(in_whole.path);
      item.leaves.back() =
          Written{rule.cuts(in_whole), path_text(leaf), *dense_tensor(leaf.value)->storage->tensor};
    }
    items_.push_back(std::move(item));
  }

  // `["state",0,"exp_avg"]`.
  std::string path_text(const PlacedLeaf& leaf) const {
    std::string out = "[";
    for (const PlacedStep& step : leaf.path) {
      if (out.size() > 1) out += ',';
      if (const auto* position = std::get_if<std::int64_t>(&step.step)) {
        out += std::to_string(*position);
      } else if (const auto number = step.key.as_int()) {
        out += std::to_string(*number);
      } else if (step.key.as_string() != nullptr) {
        append_json_string(out, *step.key.as_string());
      } else {
        throw unsupported(cat(quote(leaf.was, 200),
                              ": metadata.pkl has no place for a key that is "
                              "neither a text nor an integer"));
      }
    }
    return out + "]";
  }

  Box box_of(const Written& tensor, std::int64_t rank) const {
    Box box = whole_box(source_.index().tensors[tensor.reference.number].shape);
    if (!tensor.cut) return box;
    const RowCut cut = cut_rows(box.size[0], world_size_);
    box.offset[0] = cut.begin(rank);
    box.size[0] = cut.count(rank);
    return box;
  }

  // Returns the content of a rank's file for an item.
  Value object_of(const OutputItem& item, std::int64_t rank, RankArchive& archive) const {
    std::size_t next = 0;
    return with_leaves(item.value, [&](const Leaf& leaf) -> std::optional<Value> {
      const std::optional<Written>& tensor = item.leaves.at(next++);
      if (!tensor) return leaf.value;
      return archive.part(tensor->reference, box_of(*tensor, rank));
    });
  }

  void write_item(AtomicFolder& folder, const OutputItem& item, std::int64_t rank,
                  const CopyOptions& options, CopyResult& total) const {
    RankArchive archive(source_);
    const Value object = object_of(item, rank, archive);
    OutputFile& file = folder.add_file(file_name(item, rank));
    total += archive.write(object, file, options.after(total), chunks_);
    file.finish(options_.sync);
  }

  // Returns the metadata.  Items without tensors are left out, as the package does.
  std::string metadata() const {
    std::vector<Value> mesh;
    std::vector<Value::Entry> layouts;
    for (std::int64_t rank = 0; rank < world_size_; ++rank) {
      mesh.push_back(Value::integer(rank));
      layouts.emplace_back(Value::integer(rank), Value());
    }
    const Value ranks = Value::tuple(std::move(mesh));
    const Value spec =
        Value::dict({{text("device_type"), text("cpu")},
                     {text("mesh_shape"), Value::tuple({Value::integer(world_size_)})},
                     {text("mesh_data"), ranks},
                     {text("mesh_dim_names"), Value::tuple({text(kMeshDimension)})}});
    const Value cut = Value::list(
        {Value::dict({{text("type"), text("Shard")}, {text("dim"), Value::integer(0)}})});
    const Value whole = Value::list({Value::dict({{text("type"), text("Replicate")}})});
    std::vector<Value::Entry> described;
    for (const OutputItem& item : items_) {
      if (!item.has_tensors) continue;
      std::vector<Value::Entry> paths;
      for (const std::optional<Written>& tensor : item.leaves) {
        if (!tensor) continue;
        const TensorEntry& entry = source_.index().tensors[tensor->reference.number];
        const DType dtype = tensor->reference.cast.value_or(entry.dtype);
        const Value data = Value::dict({{text("global_shape"), numbers(entry.shape)},
                                        {text("dtype"), text(cat("torch.", torch_name(dtype)))},
                                        {text("stride"), numbers(row_major_strides(entry.shape))},
                                        {text("mesh_spec"), spec},
                                        {text("placements"), tensor->cut ? cut : whole}});
        const Value packed =
            Value::dict({{text("type"), text("DTensorShardingMetadata")}, {text("data"), data}});
        paths.emplace_back(text(tensor->path),
                           Value::list({Value::dict(
                               {{text("sharding_metadata"), packed}, {text("ranks"), ranks}})}));
      }
      described.emplace_back(
          text(item.name),
          Value::dict({{text("nested_path_to_metadata"), Value::dict(std::move(paths))},
                       {text("rank_to_layout_info"), Value::dict(layouts)}}));
    }
    return write_pickle(Value::dict({{text("metadata"), Value::dict(std::move(described))},
                                     {text("world_size"), Value::integer(world_size_)},
                                     {text("version"), text("2.0")}}));
  }

  std::int64_t world_size_;
  std::vector<OutputItem> items_;
  std::string metadata_;
  std::shared_ptr<ChunkCache> chunks_ = std::make_shared<ChunkCache>();
};

}  // namespace

std::unique_ptr<Output> plan_output(const Checkpoint& source, const Value& content,
                                    const std::filesystem::path& destination,
                                    const FrameworkOptions& options) {
  return std::make_unique<FolderOutput>(source, with_values(source, content), destination,
                                        options.output, options.world_size);
}

}  // namespace fsdp::formats::torch_checkpointing
