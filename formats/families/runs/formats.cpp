// SPDX-License-Identifier: Apache-2.0
#include "formats/families/runs/formats.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/store/place.h"
#include "formats/families/dcp/checkpoint.h"
#include "formats/families/dcp/megatron.h"
#include "formats/families/dcp/names.h"
#include "formats/families/dcp/output.h"
#include "formats/families/fast_llm/fast_llm.h"
#include "formats/families/flat/flat_checkpoint.h"
#include "formats/families/hdf5/data.h"
#include "formats/families/hdf5/hdf5.h"
#include "formats/families/nanotron/nanotron.h"
#include "formats/families/safetensors/safetensors.h"
#include "formats/families/torch/stream.h"
#include "formats/families/torch/torch.h"
#include "formats/families/torch_checkpointing/folder.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Opens a folder of a format that needs no options.
template <std::unique_ptr<StoredCheckpoint> (*open)(const fs::path&)>
std::unique_ptr<StoredCheckpoint> plainly(const fs::path& folder, const OpenOptions& /*options*/) {
  return open(folder);
}

// A NeMo checkpoint holds a folder of Megatron-Core and, beside it, the context of the model.
bool is_nemo_folder(const Listing& folder) {
  return folder.folder->is_folder(std::string(dcp::kNemoContext)) &&
         folder.folder->is_folder(std::string(dcp::kNemoWeights)) &&
         dcp::is_dcp_folder(Listing(folder.path() / dcp::kNemoWeights));
}

std::unique_ptr<Output> plan_sharded(const OutputRequest& asked) {
  DcpOutputOptions how;
  how.world_size = asked.options.world_size;
  how.layout = asked.options.layout.empty()
                   ? dcp::written_layout(asked.word, asked.source.description().layout)
                   : asked.options.layout;
  return plan_dcp_output(asked.source, asked.content, asked.destination, asked.options.output, how);
}

std::unique_ptr<Output> plan_safetensors(const OutputRequest& asked) {
  if (tensor_number(asked.content)) {
    throw Error(ErrorCode::kUnsupported,
                asked.source.description().path +
                    ": is a single tensor without a name, but safetensors names every tensor; "
                    "write a .pt or .h5 file, which keeps it as it is");
  }
  return safetensors::plan_output(asked.source, asked.content, asked.destination,
                                  asked.options.output, {asked.options.max_shard_bytes},
                                  asked.options.drop_values);
}

// Plans the output of a format that needs no further options.
template <std::unique_ptr<Output> (*plan)(const Checkpoint&, const Value&, const fs::path&,
                                          const OutputOptions&)>
std::unique_ptr<Output> plain_output(const OutputRequest& asked) {
  return plan(asked.source, asked.content, asked.destination, asked.options.output);
}

// Plans the output of a trainer's layout.
template <std::unique_ptr<Output> (*plan)(const Checkpoint&, const Value&, const fs::path&,
                                          const FrameworkOptions&)>
std::unique_ptr<Output> trainer_output(const OutputRequest& asked) {
  return plan(asked.source, asked.content, asked.destination,
              {asked.options.output, asked.options.world_size, asked.options.drop_values,
               asked.options.beside});
}

}  // namespace

const std::vector<Format>& format_table() {
  using enum OutputGroup;
  static const std::vector<Format> rows = {
      {.word = "trainer",
       .is_folder = trainer::is_distributed_folder,
       .open_folder =
           [](const fs::path& folder, const OpenOptions& options) {
             return trainer::open_distributed_folder(folder, options.allowed_globals,
                                                     *options.team);
           }},
      {.word = "dcp",
       .labels = {{"generic", "sharded checkpoint (torch.distributed.checkpoint)"},
                  {"", "sharded checkpoint (torch.distributed.checkpoint, {})"}},
       .is_folder = dcp::is_dcp_folder,
       .open_folder =
           [](const fs::path& folder, const OpenOptions& options) {
             return dcp::open_dcp(folder, options.allowed_globals, *options.team);
           },
       .outputs = {{"dcp", kSharded, plan_sharded},
                   {"lightning", kTrainer, trainer_output<plan_lightning_folder>},
                   {"torch_dist", kMegatron, plan_sharded},
                   {"torch_dist-0.16", kMegatron, plan_sharded},
                   {"torch_dist-0.17", kMegatron, plan_sharded},
                   {"torch_dist-0.18", kMegatron, plan_sharded},
                   {"torch_dist-0.19", kMegatron, plan_sharded},
                   {"fsdp_dtensor", kMegatron, plan_sharded}}},
      {.word = "dcp",
       .is_folder = is_nemo_folder,
       .open_folder =
           [](const fs::path& folder, const OpenOptions& options) {
             return dcp::open_dcp(folder / dcp::kNemoWeights, options.allowed_globals,
                                  *options.team);
           }},
      {.word = "torch",
       .labels = {{"legacy", "torch.save file (before PyTorch 1.6)"}, {"", "torch.save file"}},
       .is_file =
           [](const ByteSource& file) { return sniff_torch_stream(file) != TorchStream::kOther; },
       .open_file = open_saved_file,
       .outputs = {{"pt", kFull, plain_output<plan_torch_output>, {".pt", ".pth", ".bin", ".ckpt"}},
                   {"lightning-ckpt", kTrainer, trainer_output<plan_lightning_file>}}},
      {.word = "torch-checkpointing",
       .labels = {{"sharded", "torch_checkpointing folder"},
                  {"", "torch_checkpointing folder without metadata"}},
       .is_folder = torch_checkpointing::is_described_folder,
       .open_folder = plainly<torch_checkpointing::open_folder>},
      {.word = "accelerate",
       .labels = {{"", "Accelerate's FSDP checkpoint ({})"}},
       .is_folder = accelerate::is_accelerate_folder,
       .open_folder =
           [](const fs::path& folder, const OpenOptions& options) {
             return accelerate::open_accelerate(
                 folder, options.allowed_globals, [&](const fs::path& path, const RankFiles& set) {
                   return flat::open_flat_files(path, set, options.parameters.get());
                 });
           },
       .outputs = {{"accelerate", kTrainer, trainer_output<plan_accelerate>, {}, "*"}}},
      {.word = "deepspeed",
       .labels = {{"", "DeepSpeed checkpoint ({})"}},
       .is_folder = deepspeed::is_universal_folder,
       .open_folder = plainly<deepspeed::open_universal>,
       .outputs = {{"deepspeed", kOwn, trainer_output<deepspeed::plan_output>, {}, "*"}}},
      {.word = "deepspeed",
       .is_folder = deepspeed::is_deepspeed_folder,
       .open_folder = plainly<deepspeed::open_deepspeed>},
      {.word = "trainer",
       .is_folder = lerobot::is_lerobot_folder,
       .open_folder = plainly<lerobot::open_lerobot>,
       .outputs = {{"lerobot", kTrainer, trainer_output<lerobot::plan_by_id>},
                   {"lerobot-fsdp", kTrainer, trainer_output<lerobot::plan_by_name>}}},
      {.word = "trainer",
       .is_folder = nanotron::is_nanotron_folder,
       .open_folder = plainly<nanotron::open_nanotron>},
      {.word = "trainer",
       .is_folder = fast_llm::is_fast_llm_folder,
       .open_folder = plainly<fast_llm::open_fast_llm>},
      {.word = "trainer",
       .labels = {{"distributed", "Transformers' distributed checkpoint"},
                  {"fast-llm", "Fast-LLM's checkpoint"},
                  {"lerobot", "LeRobot's checkpoint"},
                  {"nanotron", "nanotron's checkpoint"},
                  {"", "Hugging Face Trainer's checkpoint"}},
       .is_folder = trainer::is_trainer_folder,
       .open_folder = plainly<trainer::open_trainer_folder>},
      {.word = "safetensors",
       .labels = {{"hf", "safetensors folder"},
                  {"hf-sharded", "sharded safetensors folder"},
                  {"", "safetensors file"}},
       .is_folder = safetensors::is_safetensors_folder,
       .open_folder = [](const fs::path& folder,
                         const OpenOptions&) { return safetensors::open_folder(folder); },
       .is_file = safetensors::looks_like_safetensors,
       .open_file = [](const fs::path& path) { return safetensors::open_file(path); },
       .outputs = {{"safetensors", kFull, plan_safetensors, {".safetensors"}}}},
      {.word = "torch-shards",
       .labels = {{"", "torch.save files with an index"}},
       .is_folder = holds_torch_index,
       .open_folder =
           [](const fs::path& folder, const OpenOptions&) {
             return open_torch_index(folder, torch_index_of(Listing(folder)));
           }},
      {.word = "per-rank",
       .labels = {{"fairscale", "FairScale's shards of each rank"},
                  {"fsdp1-local", "FSDP1's LOCAL_STATE_DICT of each rank"},
                  {"one-rank", "torch.save file of one rank"},
                  {"", "torch.save files of each rank"}},
       .is_folder = fairscale::is_fairscale_folder,
       .open_folder = plainly<fairscale::open_fairscale>},
      {.word = "per-rank",
       .is_folder = flat::is_flat_folder,
       .open_folder =
           [](const fs::path& folder, const OpenOptions& options) {
             return flat::open_flat_folder(folder, options.parameters.get());
           }},
      {.word = "per-rank",
       .is_folder = is_rank_folder,
       .open_folder = plainly<open_rank_folder>,
       .outputs = {{"per-rank", kOwn, trainer_output<plan_rank_files>, {}, "sharded-tensors"}}},
      {.word = "torch-checkpointing",
       .is_folder = torch_checkpointing::is_undescribed_folder,
       .open_folder = plainly<torch_checkpointing::open_folder>,
       .outputs = {{"torch-checkpointing", kTrainer,
                    trainer_output<torch_checkpointing::plan_output>}}},
      // The last file: a safetensors header begins the file, and HDF5's signature may lie further
      // inside.
      {.word = "hdf5",
       .labels = {{"", "HDF5 file"}},
       .is_file = hdf5::looks_like_hdf5,
       .open_file = hdf5::open_hdf5,
       .outputs = {{"hdf5", kFull, plain_output<hdf5::plan_hdf5_output>, {".h5", ".hdf5"}}}},
      // Made of checkpoints in a folder that has no format (steps.h).
      {.word = "step", .labels = {{"", "step of several checkpoints"}}},
  };
  return rows;
}

const Format* format_of(const Listing& folder) {
  const auto row = std::ranges::find_if(format_table(), [&](const Format& format) {
    return format.is_folder != nullptr && format.is_folder(folder);
  });
  return row == format_table().end() ? nullptr : &*row;
}

const Format* format_of(const ByteSource& file) {
  const auto row = std::ranges::find_if(format_table(), [&](const Format& format) {
    return format.is_file != nullptr && format.is_file(file);
  });
  return row == format_table().end() ? nullptr : &*row;
}

const OutputFormat* output_format(std::string_view word) {
  for (const Format& format : format_table()) {
    for (const OutputFormat& output : format.outputs) {
      if (output.word == word) return &output;
    }
  }
  return nullptr;
}

std::vector<std::string> output_words(std::initializer_list<OutputGroup> groups) {
  std::vector<std::string> words;
  for (const OutputGroup group : groups) {
    for (const Format& format : format_table()) {
      for (const OutputFormat& output : format.outputs) {
        if (output.group == group) words.emplace_back(output.word);
      }
    }
  }
  return words;
}

std::string own_output_word(const CheckpointDescription& description) {
  for (const Format& format : format_table()) {
    if (format.word != description.format) continue;
    for (const OutputFormat& output : format.outputs) {
      if (output.group == OutputGroup::kFull || output.group == OutputGroup::kSharded)
        return std::string(output.word);
    }
  }
  return {};
}

std::string kept_output_word(const CheckpointDescription& description) {
  for (const Format& format : format_table()) {
    if (format.word != description.format) continue;
    for (const OutputFormat& output : format.outputs) {
      if (output.keeps == "*" || (!output.keeps.empty() && output.keeps == description.layout))
        return std::string(output.word);
    }
  }
  return {};
}

std::string label_of(const CheckpointDescription& description) {
  for (const Format& format : format_table()) {
    if (format.word != description.format) continue;
    for (const auto& [layout, label] : format.labels) {
      if (!layout.empty() && layout != description.layout) continue;
      const std::size_t place = label.find("{}");
      if (place == label.npos) return std::string(label);
      return cat(label.substr(0, place), description.layout, label.substr(place + 2));
    }
  }
  return description.format;
}

bool opens(const fs::path& path) {
  try {
    const PlaceKind kind = kind_of_place(path);
    if (kind == PlaceKind::kFolder) return format_of(Listing(path)) != nullptr;
    return kind == PlaceKind::kFile && format_of(*file_at(path)) != nullptr;
  } catch (const std::exception&) {
    return false;  // a path that cannot be examined is not suggested
  }
}

bool is_interrupted(const Listing& folder) {
  return folder.any([](const std::string& name) {
    return name.ends_with(".distcp") || name == dcp::kMetadataTempName;
  });
}

bool was_checkpoint_file(const fs::path& path) {
  if (is_checkpoint_name(path.filename().native())) return true;
  try {
    const auto file = file_at(path);
    return file->size() != 0 && format_of(*file) != nullptr;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace fsdp::formats
