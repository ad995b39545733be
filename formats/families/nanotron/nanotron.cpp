// SPDX-License-Identifier: Apache-2.0
#include "formats/families/nanotron/nanotron.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/nanotron/nanotron_names.h"
#include "formats/families/safetensors/file.h"
#include "formats/families/safetensors/tensor_files.h"
#include "formats/families/torch/torch.h"
#include "formats/families/trainers/ranks.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/state/content/combined_checkpoint.h"

namespace fsdp::formats::nanotron {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "model";
constexpr const char* kMetadata = "checkpoint_metadata.json";
constexpr const char* kConfig = "model_config.json";
constexpr std::string_view kData = "data";
// Marks a parameter of Mamba in its file; it is not a part of the model.
constexpr std::string_view kNoDecay = "_no_weight_decay";
constexpr std::size_t kHeadersAtOnce = 16;
constexpr std::uint64_t kMostConfigBytes = 1U << 20U;

// The parameters in model/: a file for each, or one for each rank of tensor or expert parallelism.
class ModelFiles : public safetensors::TensorFiles {
 public:
  explicit ModelFiles(std::shared_ptr<const Folder> folder) : TensorFiles(std::move(folder)) {
    description_ = {escape(folder_->path().native()), "trainer", "nanotron"};
    collect();
    if (files_.empty()) fail(ErrorCode::kNotFound, kModel, "holds no file of a parameter");
    for (const ParameterFile& file : files_) index_.files.push_back({.name = file.path});
    pool_.examine(index_.files);
    read_headers();
    std::map<std::string, std::vector<std::uint32_t>> by_name;
    for (std::uint32_t f = 0; f < files_.size(); ++f) by_name[files_[f].name].push_back(f);
    for (std::uint32_t f = 0; f < files_.size(); ++f) {  // in the order of the folders
      const auto found = by_name.find(files_[f].name);
      if (found == by_name.end()) continue;
      add_parameter(found->first, found->second);
      by_name.erase(found);
    }
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    const Location& location = tensor.chunks.location(chunk);
    const safetensors::Tensor& stored = data_[location.file];
    ChunkData data = tensor_data(location.file, stored.begin, stored.bytes, tensor.dtype);
    data.first = (location.offset - stored.begin) / item_bytes(tensor.dtype);
    data.strides = row_major_strides(stored.shape);
    return data;
  }

  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                    ElementRange part) const override {
    const Location& location = tensor.chunks.location(chunk);
    const BoxView box = tensor.chunks.box(chunk);
    if (row_major_strides(box.size) != row_major_strides(data_[location.file].shape)) return false;
    return expect_elements(location, tensor.dtype, part);
  }

  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& file, const std::string& why) const {
    throw Error(code, cat(description_.path, ": ", escape(file), ": ", why));
  }

  void collect() {
    for (const std::string& path : folder_at(folder_->path() / kModel)->list_files()) {
      const std::size_t slash = path.rfind('/');
      auto file = parameter_file(slash == path.npos ? path : path.substr(slash + 1));
      const std::string whole = cat(kModel, "/", path);
      if (!file) {
        left_out_.push_back(whole);
        continue;
      }
      std::string front = slash == path.npos ? "" : path.substr(0, slash + 1);
      std::ranges::replace(front, '/', '.');
      file->name = front + file->name;
      file->path = whole;
      files_.push_back(std::move(*file));
    }
  }

  void read_headers() {
    data_.resize(files_.size());
    slices_.resize(files_.size());
    std::vector<std::string> versions(files_.size());
    run_each(files_.size(), kHeadersAtOnce, [&](std::size_t f) {
      const auto file = pool_.get(static_cast<std::uint32_t>(f));
      in_context(file->name(), [&] {
        const safetensors::Header header = safetensors::read_header(*file);
        for (const safetensors::Tensor& tensor : header.tensors) {
          if (tensor.name == kData)
            data_[f] = tensor;
          else if (tensor.name != kNoDecay)
            throw Error(ErrorCode::kKey, cat("holds ", quote(tensor.name, 200),
                                             ", expected 'data' alone, as nanotron writes"));
        }
        if (data_[f].name.empty()) throw Error(ErrorCode::kKey, "has no tensor 'data'");
        if (!files_[f].rank) return;
        slices_[f] = shard_slices(header.metadata, data_[f].shape);
        versions[f] = slices_[f].version;
      });
    });
    const auto stated = std::ranges::find_if(versions, [](const auto& v) { return !v.empty(); });
    if (stated != versions.end()) description_.version = *stated;
  }

  void add_parameter(const std::string& name, const std::vector<std::uint32_t>& files) {
    const std::uint32_t first = files.front();
    TensorEntry entry{name, {name}, data_[first].dtype, {}, ChunkList(data_[first].shape.size())};
    if (!files_[first].rank && files.size() == 1) {
      entry.shape = data_[first].shape;
      add_chunk(entry, whole_box(entry.shape), whole_box(entry.shape), first);
    } else {
      entry.shape = slices_[first].shape;
      check_alike(name, files);
      for (const std::uint32_t file : files) {
        for (const auto& [local, global] : slices_[file].pairs)
          add_chunk(entry, local, global, file);
      }
      note_missing(files);
    }
    checked_mul(checked_numel(entry.shape, "number of elements"), item_bytes(entry.dtype),
                "number of bytes");
    index_.add(std::move(entry));
  }

  // Throws unless the files are of ranks of one job, and have parts of one tensor.
  void check_alike(const std::string& name, const std::vector<std::uint32_t>& files) const {
    const ParameterFile& first = files_[files.front()];
    for (const std::uint32_t f : files) {
      const ParameterFile& file = files_[f];
      if (!first.rank || !file.rank || !first.rank->same_job(*file.rank)) {
        fail(ErrorCode::kIndex, file.path,
             cat("holds ", quote(name, 200), ", and so does ", quote(first.path, 200),
                 " for other ranks: the files are of two saves"));
      }
      if (data_[f].dtype != data_[files.front()].dtype) {
        fail(ErrorCode::kDtype, file.path,
             cat("is ", torch_name(data_[f].dtype), ", expected ",
                 torch_name(data_[files.front()].dtype), " as in ", quote(first.path, 200)));
      }
      if (slices_[f].shape != slices_[files.front()].shape) {
        fail(ErrorCode::kShape, file.path,
             cat("is of shape ", shape_text(slices_[f].shape), ", expected ",
                 shape_text(slices_[files.front()].shape), " as in ", quote(first.path, 200)));
      }
    }
  }

  void add_chunk(TensorEntry& entry, const Box& local, const Box& global,
                 std::uint32_t file) const {
    const safetensors::Tensor& stored = data_[file];
    const std::vector<std::int64_t> strides = row_major_strides(stored.shape);
    std::int64_t at = 0;
    for (std::size_t d = 0; d < strides.size(); ++d) at += local.offset[d] * strides[d];
    const std::uint64_t bytes = static_cast<std::uint64_t>(at) * item_bytes(stored.dtype);
    entry.chunks.add(global.offset, global.size,
                     {file, 0, stored.begin + bytes, stored.bytes - bytes});
  }

  void note_missing(const std::vector<std::uint32_t>& files) {
    std::set<std::int64_t> there;
    for (const std::uint32_t f : files) {
      there.insert(files_[f].rank->number());
      index_.files[f].rank = files_[f].rank->number();
    }
    const Ranks& rank = *files_[files.front()].rank;
    description_.ranks = std::max(description_.ranks, rank.count() * rank.stages);
    const SomeNames missing = missing_ranks(there, rank.count());
    if (missing.count() == 0) return;
    findings_.push_back(
        {.code = ErrorCode::kShardMissing,
         .message = cat("is there of ", there.size(), " of ", rank.count(),
                        " ranks; the files of other ranks are missing: ", missing.text()),
         .file = files_[files.front()].path,
         .key = files_[files.front()].name});
  }

  std::vector<ParameterFile> files_;       // as index_.files
  std::vector<safetensors::Tensor> data_;  // of each file
  std::vector<ShardSlices> slices_;        // of each file of a rank
  std::vector<std::string> left_out_;
};

// Adds the only file in a folder as a part, if one rank wrote it all; otherwise names what is left
// out.
void add_states(const Listing& root, const char* name, std::vector<CheckpointPart>& parts,
                std::vector<std::string>& left) {
  if (!root.has(name) || !root.folder->is_folder(name)) return;
  const Listing inside(root.path() / name);
  std::vector<std::string> files;
  for (const std::string& file : inside.names) {
    if (file.ends_with(".pt")) files.push_back(file);
  }
  if (files.size() == 1 && is_of_one_rank(files[0])) {
    parts.push_back({.checkpoint = open_saved_file(inside.path() / files[0]),
                     .name = name,
                     .folder = cat(name, "/")});
    return;
  }
  for (const std::string& file : files) left.push_back(cat(name, "/", file));
}

// Returns a warning if the configuration says that rotary embeddings are interleaved, which names
// and shapes do not tell.
Findings interleaved_finding(const Listing& root) {
  if (!root.has(kConfig)) return {};
  try {
    const Json config = parse_json(read_text(*file_at(root.path() / kConfig), kMostConfigBytes));
    const Json* const set = config.find("rope_interleaved");
    if (set == nullptr || set->as_bool() == nullptr || !*set->as_bool()) return {};
    return {warning(ErrorCode::kUnsupported,
                    "rope_interleaved is true: of the maps to Hugging Face only "
                    "nanotron-interleaved-hf fits",
                    kConfig)};
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return {warning(error.code(), error.what(), kConfig)};
  }
}

}  // namespace

bool is_nanotron_folder(const Listing& folder) {
  if ((!folder.has(kMetadata) && !folder.has(kConfig)) || !folder.has(kModel) ||
      !folder.folder->is_folder(kModel))
    return false;
  return std::ranges::any_of(folder_at(folder.path() / kModel)->list_files(),
                             [](const std::string& path) {
                               return parameter_file(path.substr(path.rfind('/') + 1)).has_value();
                             });
}

std::unique_ptr<StoredCheckpoint> open_nanotron(const fs::path& path) {
  const Listing root(path);
  auto model = std::make_unique<ModelFiles>(root.folder);
  CheckpointDescription description = model->description();
  std::vector<std::string> left = model->left_out();
  std::vector<CheckpointPart> parts;
  parts.push_back({.checkpoint = std::move(model), .name = kModel});
  for (const char* name : {"optimizer", "lr_scheduler"}) add_states(root, name, parts, left);
  for (const std::string& name : root.names) {
    if (name != kModel && name != "optimizer" && name != "lr_scheduler") left.push_back(name);
  }
  Findings findings = left_out_finding(left);
  std::ranges::move(interleaved_finding(root), std::back_inserter(findings));
  return combine_checkpoints(std::move(parts), std::move(description), std::move(findings));
}

}  // namespace fsdp::formats::nanotron
