// SPDX-License-Identifier: Apache-2.0
// What trainers leave: finds, opens and writes their layouts.  docs/formats/ has a page for each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/bytes/files/listing.h"
#include "formats/families/trainers/carried_files.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/state/content/output.h"

namespace fsdp::formats {

struct FrameworkOptions {
  OutputOptions output;
  std::int64_t world_size = 1;  // ranks of the folders
  bool drop_values = false;     // accelerate: leave out values without a place there
  // accelerate, per-rank: the folder of the source, whose other files go along; none: they stay
  std::optional<Beside> beside = {};
};

// Plan outputs whose optimizer states have the form that the trainer loads.
// Lifetime: the source outlives the output.
// Throws: kUnsupported naming a value without a place; what rekey_content, trainer_state,
// plan_dcp_output and plan_torch_output throw.

// Lightning's folder: DCP beside meta.pt.
std::unique_ptr<Output> plan_lightning_folder(const Checkpoint& source, const Value& content,
                                              const std::filesystem::path& destination,
                                              const FrameworkOptions& options);
// Lightning's file, with optimizer states by id.
std::unique_ptr<Output> plan_lightning_file(const Checkpoint& source, const Value& content,
                                            const std::filesystem::path& destination,
                                            const FrameworkOptions& options);
// Accelerate's folders pytorch_model_fsdp_0/ and optimizer_0/, further models and optimizers under
// their numbers, and scheduler.bin.
std::unique_ptr<Output> plan_accelerate(const Checkpoint& source, const Value& content,
                                        const std::filesystem::path& destination,
                                        const FrameworkOptions& options);

// The files of each rank again (per_rank.h), for other ranks: every DTensor cut as before, and what
// is the same on all ranks in each file.
// Requires: options.beside, and content of that folder, not cast.
// Throws: kUnsupported naming a tensor that is not a DTensor on a mesh of one dimension, or a value
// that is not the same on all ranks; kUsage (world_size); what carried_files and open_rank_files
// throw.
std::unique_ptr<Output> plan_rank_files(const Checkpoint& source, const Value& content,
                                        const std::filesystem::path& destination,
                                        const FrameworkOptions& options);

// A folder that Accelerate's save_state or the HF Trainer wrote for an FSDP model: model and
// optimizer separately, in one of three layouts.
// Source: accelerate/utils/fsdp_utils.py of Accelerate 1.15.
namespace accelerate {

// Returns whether the folder holds a model: pytorch_model_fsdp_0/, pytorch_model_fsdp.bin or
// pytorch_model_fsdp*_rank0.bin, or the same with other numbers.
bool is_accelerate_folder(const Listing& folder);
// Returns the names in the folder that are neither a model nor an optimizer, of no layout.
std::vector<std::string> names_beside(const Listing& folder);
// Opens the parts as `model` and `optimizer` (`model_1`, `optimizer_1`, ... for further ones), and
// schedulers, scalers and samplers under their names.  Findings name the other files.
// Throws: what the readers of the parts throw.
// `open_ranks` opens a set of the files of ranks.
std::unique_ptr<StoredCheckpoint> open_accelerate(
    const std::filesystem::path& folder, const std::set<std::string>& allowed_globals,
    const std::function<std::unique_ptr<StoredCheckpoint>(const std::filesystem::path& folder,
                                                          const RankFiles& set)>& open_ranks);

}  // namespace accelerate

// Source: deepspeed/utils/zero_to_fp32.py, runtime/zero, checkpoint/ds_to_universal.py and
// checkpoint/universal_checkpoint.py of DeepSpeed 0.19.
namespace deepspeed {

// A checkpoint of ZeRO stages 1 to 3: flat partitions of fp32 weights and optimizer state, one file
// per rank, seen as the tensors of the model.
// Returns whether the folder is a tag folder, or holds `latest` and the tag folder that it names.
bool is_deepspeed_folder(const Listing& folder);
// Opens the checkpoint.  The index has `model.<name>` (fp32 weights; frozen weights and buffers as
// saved), `optimizer.state.<name>.<what>`, `optimizer.param_groups`, and the other values that the
// trainer saved.  A rank without a file leaves holes.  A checkpoint without ZeRO opens as its
// single file. Throws: kMetaType, kUnsupported (tensor parallel, pipelines, experts),
// kShardMissing, kShape, kDtype; what read_torch_file throws.
std::unique_ptr<StoredCheckpoint> open_deepspeed(const std::filesystem::path& folder);

// A checkpoint that ds_to_universal.py made from ZeRO partitions: a folder for each parameter, with
// whole tensors in it.
// Returns whether the folder holds `zero/<parameter>/fp32.pt`, or `latest_universal` (and no
// `latest`) with the name of such a folder.
bool is_universal_folder(const Listing& folder);
// Opens the checkpoint.  The index is that of the original ZeRO checkpoint.  A missing state file
// leaves a hole; findings name missing files, and files that are not read.
// Throws: kMetaType, kDtype; what read_torch_file throws.
std::unique_ptr<StoredCheckpoint> open_universal(const std::filesystem::path& folder);

// The same folder for other ranks: ZeRO's partitions as DeepSpeed loads them there, a universal
// checkpoint as it is.  The files beside it go along.
// Requires: options.beside, and the whole content.
// Throws: kUsage (world_size); kUnsupported naming a file if the lengths in it are not those that
// DeepSpeed's rules give, or if ranks differ in what another number of ranks cannot be given;
// kShardMissing; what open_torch_save and carried_files throw.
std::unique_ptr<Output> plan_output(const Checkpoint& source, const Value& content,
                                    const std::filesystem::path& destination,
                                    const FrameworkOptions& options);

}  // namespace deepspeed

// Shards that each rank of FairScale's FSDP saved with torch.save, beside their metadata: joined
// like in its consolidate_shard_weights.
// Source: fairscale/nn/data_parallel/fully_sharded_data_parallel.py of FairScale 0.4.13.
namespace fairscale {

// Returns whether a set of rank files (per_rank.h) in the folder holds FairScale's shard metadata.
bool is_fairscale_folder(const Listing& folder);
// Opens the shards.  The index has the parameters by name with their whole shapes, tied ones under
// every name, the lowest rank's buffers, and the other content of that rank's file.  A rank without
// a file leaves holes; findings name parts that are not read: other ranks' experts, parts of
// optimizers.
// Throws: kMetaType, kShape, kDtype, kKey; what read_torch_file throws.
std::unique_ptr<StoredCheckpoint> open_fairscale(const std::filesystem::path& folder);

}  // namespace fairscale

// A checkpoint folder of the Hugging Face Trainer for an unsharded model: model, optimizer,
// scheduler and random states, each in a file of its own.
// Source: transformers/trainer.py of Transformers 4.57.
namespace trainer {

// Returns whether model weights (*.safetensors, pytorch_model.bin, adapter_model.bin) lie beside an
// optimizer.pt or another file of the trainer's (trainer_files.h).
bool is_trainer_folder(const Listing& folder);
// Opens the parts as `model`, `optimizer`, `scheduler`, ...  A finding names the other files.
// Throws: what the readers of the parts throw.
std::unique_ptr<StoredCheckpoint> open_trainer_folder(const std::filesystem::path& folder);

// What save_pretrained(distributed_checkpoint=True) and save_optimizer_distributed of Transformers
// 5.24 write: weights as safetensors of each rank (transformers/distributed/checkpoint.py), and a
// folder of torch.distributed.checkpoint with the optimizer alone, in the same folder or one
// inside. Returns whether the folder holds such weights, and a folder of
// torch.distributed.checkpoint.
bool is_distributed_folder(const Listing& folder);
// Opens the weights as `model`, and the optimizer.  If no folder, or several, hold an optimizer
// alone, each is a checkpoint of its own: opens what lies in `folder` itself.
// Throws: what the readers of the parts throw.
std::unique_ptr<StoredCheckpoint> open_distributed_folder(
    const std::filesystem::path& folder, const std::set<std::string>& allowed_globals, Team& team);

}  // namespace trainer

// A checkpoint of LeRobot: pretrained_model/ with the policy, training_state/ with everything else.
// Source: lerobot/optim/optimizers.py and common/train_utils.py of LeRobot 0.6.1.
namespace lerobot {

// Returns whether the folder is a training_state/ of LeRobot, or holds one.
bool is_lerobot_folder(const Listing& folder);
// Opens either folder: `model`, `optimizer` (`optimizer_NAME` for several), `scheduler`,
// `training_step` and `rng_state`.  Findings name files that cannot be read, or are missing or left
// out.  Throws: kIo, kOutOfMemory, kInterrupted.
std::unique_ptr<StoredCheckpoint> open_lerobot(const std::filesystem::path& folder);

// Plan such a folder: the optimizer by id, as load_optimizer_state takes it, or by name, as FSDP's
// load_fsdp_optimizer_state does.
// Throws: kUnsupported naming a value that the files have no place for; what trainer_state_of and
// safetensors::Writer throw.
std::unique_ptr<Output> plan_by_id(const Checkpoint& source, const Value& content,
                                   const std::filesystem::path& destination,
                                   const FrameworkOptions& options);
std::unique_ptr<Output> plan_by_name(const Checkpoint& source, const Value& content,
                                     const std::filesystem::path& destination,
                                     const FrameworkOptions& options);

}  // namespace lerobot

}  // namespace fsdp::formats
