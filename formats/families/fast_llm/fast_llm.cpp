// SPDX-License-Identifier: Apache-2.0
#include "formats/families/fast_llm/fast_llm.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/fast_llm/metadata.h"
#include "formats/families/safetensors/file.h"
#include "formats/families/safetensors/index.h"
#include "formats/families/safetensors/tensor_files.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats::fast_llm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetadata = "metadata.yaml";
constexpr const char* kDone = "ok";  // an empty file, written last
constexpr const char* kWeights = "weights";
// Hundreds of thousands of tensors; a large model has thousands.
constexpr std::uint64_t kMostMetadataBytes = 64U << 20U;
constexpr std::size_t kHeadersAtOnce = 16;

// The name that PyTorch's AdamW has for a state.
std::string state_name(const std::string& shard) {
  if (shard == "exp_avgs") return "exp_avg";
  if (shard == "exp_avgs_sq") return "exp_avg_sq";
  return shard;
}

class FastLlmCheckpoint : public safetensors::TensorFiles {
 public:
  FastLlmCheckpoint(const Listing& root, Metadata metadata)
      : TensorFiles(root.folder), metadata_(std::move(metadata)) {
    description_ = {escape(folder_->path().native()), "trainer", "fast-llm", metadata_.version};
    for (const std::string& name : safetensors::files_of(metadata_.index))
      index_.files.push_back({.name = name});
    pool_.examine(index_.files);
    read_headers();
    collect();
    add_model();
    add_optimizer();
    std::vector<std::string> left;
    for (const std::string& name : root.names) {
      if (name != kMetadata && name != kDone &&
          std::ranges::find(index_.files, name, &FileEntry::name) == index_.files.end())
        left.push_back(name);
    }
    for (Finding& finding : left_out_finding(left)) findings_.push_back(std::move(finding));
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    const Location& location = tensor.chunks.location(chunk);
    return tensor_data(location.file, location.offset, location.length, tensor.dtype);
  }
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                    ElementRange part) const override {
    return expect_elements(tensor.chunks.location(chunk), tensor.dtype, part);
  }
  Value value(const ValueEntry& value) const override { return values_.at(value.location.offset); }

 private:
  struct Stored {
    std::uint32_t file;
    const safetensors::Tensor* tensor;
  };

  [[noreturn]] void fail(ErrorCode code, const std::string& file, const std::string& why) const {
    throw Error(code, cat(description_.path, ": ", escape(file), ": ", why));
  }

  void read_headers() {
    headers_.resize(index_.files.size());
    run_each(headers_.size(), kHeadersAtOnce, [&](std::size_t f) {
      if (!index_.files[f].bytes) {
        fail(ErrorCode::kShardMissing, index_.files[f].name,
             cat("is missing, and ", kMetadata, " names it for ",
                 std::ranges::count(metadata_.index.weight_map, index_.files[f].name,
                                    &safetensors::IndexEntry::file),
                 " tensors"));
      }
      const auto file = pool_.get(static_cast<std::uint32_t>(f));
      in_context(file->name(), [&] { headers_[f] = safetensors::read_header(*file); });
    });
    std::vector<safetensors::FileHeader> views;
    for (std::size_t f = 0; f < headers_.size(); ++f)
      views.push_back({index_.files[f].name, &headers_[f]});
    in_context(cat(description_.path, ": ", kMetadata),
               [&] { safetensors::check_index(metadata_.index, views); });
  }

  void collect() {
    for (std::uint32_t f = 0; f < headers_.size(); ++f) {
      for (const safetensors::Tensor& tensor : headers_[f].tensors) {
        const std::size_t slash = tensor.name.find('/');
        const std::string shard = slash == tensor.name.npos ? "" : tensor.name.substr(slash + 1);
        const auto known = std::ranges::find(metadata_.shards, shard);
        if (slash == 0 || known == metadata_.shards.end()) {
          fail(ErrorCode::kKey, index_.files[f].name,
               cat("holds ", quote(tensor.name, 200), ", expected <name>/<shard> with one of ",
                   joined(metadata_.shards, ", ")));
        }
        const std::string name = tensor.name.substr(0, slash);
        if (shard == kWeights) {
          names_.push_back(name);
          weights_[name] = {f, &tensor};
        } else {
          states_[name][static_cast<std::size_t>(known - metadata_.shards.begin())] = {f, &tensor};
        }
      }
    }
    for (const auto& [name, states] : states_) {
      const auto weights = weights_.find(name);
      for (const auto& [shard, state] : states) {
        if (weights == weights_.end() && !weights_.empty()) {
          fail(ErrorCode::kKey, index_.files[state.file].name,
               cat("holds ", quote(state.tensor->name, 200), ", but no file has the weights"));
        }
        if (weights != weights_.end() && state.tensor->shape != weights->second.tensor->shape) {
          fail(ErrorCode::kShape, index_.files[state.file].name,
               cat(quote(state.tensor->name, 200), " is of shape ", shape_text(state.tensor->shape),
                   ", expected ", shape_text(weights->second.tensor->shape), " as its weights"));
        }
      }
    }
  }

  void add_model() {
    for (const std::string& name : names_) add_tensor({"model", name}, weights_.at(name));
  }

  // Adds the states below the names that PyTorch has for them, and one group of all parameters:
  // options of groups are in the configuration of the run, which the folder has not.
  void add_optimizer() {
    std::vector<std::string> names;
    for (const std::string& name : names_) {
      if (states_.contains(name)) names.push_back(name);
    }
    if (names_.empty()) {
      for (const auto& [name, states] : states_) names.push_back(name);
    }
    if (names.empty()) return;
    for (const std::string& name : names) {
      if (metadata_.step)
        add_value({"optimizer", "state", name, "step"}, Value::integer(*metadata_.step));
      for (const auto& [shard, state] : states_.at(name))
        add_tensor({"optimizer", "state", name, state_name(metadata_.shards[shard])}, state);
    }
    std::vector<Value> params;
    for (const std::string& name : names) params.push_back(Value::string(name));
    const Value groups =
        Value::list({Value::dict({{Value::string("params"), Value::list(std::move(params))}})});
    for (Leaf& leaf : leaves_of(groups)) {
      KeyPath path = {"optimizer", "param_groups"};
      path.insert(path.end(), leaf.path.begin(), leaf.path.end());
      add_value(path, std::move(leaf.value));
    }
  }

  void add_tensor(const KeyPath& path, const Stored& stored) {
    const safetensors::Tensor& tensor = *stored.tensor;
    checked_mul(checked_numel(tensor.shape, "number of elements"), item_bytes(tensor.dtype),
                "number of bytes");
    TensorEntry entry{formats::joined(path), path, tensor.dtype, tensor.shape,
                      ChunkList(tensor.shape.size())};
    const Box box = whole_box(tensor.shape);
    entry.chunks.add(box.offset, box.size, {stored.file, 0, tensor.begin, tensor.bytes});
    index_.add(std::move(entry));
  }

  void add_value(const KeyPath& path, Value value) {
    index_.add(ValueEntry{formats::joined(path), path, {0, 0, values_.size(), 0}});
    values_.push_back(std::move(value));
  }

  Metadata metadata_;
  std::vector<safetensors::Header> headers_;  // as index_.files
  std::vector<std::string> names_;            // of parameters, in the order of the files
  std::map<std::string, Stored> weights_;
  std::map<std::string, std::map<std::size_t, Stored>> states_;  // by name, by position in shards
  std::vector<Value> values_;
};

}  // namespace

bool is_fast_llm_folder(const Listing& folder) {
  return folder.has(kMetadata) && folder.any([](const std::string& name) {
    return is_model_file(name) || is_rank_file(name);
  });
}

std::unique_ptr<StoredCheckpoint> open_fast_llm(const fs::path& path) {
  const Listing root(path);
  const auto file = file_at(path / kMetadata);
  Metadata metadata = in_context(
      file->name(), [&] { return parse_metadata(read_text(*file, kMostMetadataBytes)); });
  const std::string shown = escape(path.native());
  if (metadata.format == "distributed") {
    throw Error(ErrorCode::kUnsupported,
                cat(shown,
                    ": is in Fast-LLM's format 'distributed', flat shards whose parameters "
                    "only its own code can find; make weights that can be read with: "
                    "fast-llm convert ",
                    escape(metadata.model), " input.format=distributed input.path=", shown,
                    " output.format=fast_llm output.path=OUT use_cpu=True"));
  }
  if (metadata.format != "fast_llm") {
    throw Error(ErrorCode::kUnsupported, cat(file->name(), ": format is ", quote(metadata.format),
                                             ", expected fast_llm or distributed"));
  }
  if (metadata.index.weight_map.empty())
    throw Error(ErrorCode::kIndex, cat(file->name(), ": has no 'state_index' with tensors"));
  return std::make_unique<FastLlmCheckpoint>(root, std::move(metadata));
}

}  // namespace fsdp::formats::fast_llm
