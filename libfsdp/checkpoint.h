// SPDX-License-Identifier: Apache-2.0
// Checkpoints of sharded state: every rank writes and reads its own part.
//
// save() writes a torch.distributed.checkpoint folder (`.metadata`, `__0_0.distcp`, ...) which
// PyTorch loads at any world size; load() reads whatever fsdp-ckpt reads, at any world size, and
// of it only the bytes that this rank needs.
//
//   fsdp::TrainingState state;
//   state.model = &sharded;
//   state.optimizers = {&optimizer};
//   state.extra["step"] = 400;
//   fsdp::save("run/step-400", state);
//   ...
//   fsdp::load("run/step-400", state);        // any number of ranks
//
// Note [a save]: ranks compare what they are about to save (names, shapes, dtypes), so that each
// can count out where everything goes, in every rank's file, without being told.  Rank 0 makes a
// folder under a temporary name; every rank writes, checks and fsyncs its file there; rank 0 writes
// `.metadata` and after it the seal last, fsyncs, and renames the folder into place.  Whatever rank
// dies at whatever moment, the destination is what it was or the new checkpoint, whole.  A step
// that fails on one rank fails on all (see agree.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libfsdp/process_group.h"
#include "libfsdp/state_dict.h"
#include "libfsdp/state_value.h"

namespace torch::optim {
class Optimizer;
}

namespace fsdp {

class ShardedModule;

// Whether what is saved stays in the page cache, for whoever loads it next from this machine.
enum class PageCache {
  kAlways,
  kWhileQuick,  // as long as the kernel has memory for it at hand; the rest as kNever
  kNever,       // straight to the disk: pushes nothing else out
};

struct SaveOptions {
  bool overwrite = false;  // replace a checkpoint that is there, in one step; else an error
  bool sync = true;        // fsync: what was reported as saved survives a power cut
  // With `sync`, on file systems that are known to gain by writing past the page cache (ext4, XFS);
  // elsewhere kAlways.
  PageCache page_cache = PageCache::kWhileQuick;
  // Folders: leave a seal, sizes and CRC-32s of all files, which `fsdp-ckpt verify` holds them
  // against; PyTorch does not look at it.  No byte is read for it.  save_file() leaves none.
  bool seal = true;
};

// Collective over `group`, all of whose ranks hold `state`: the same keys, shapes and dtypes on
// all. Whole tensors are written once, by the rank with the least to write so far, taking turns;
// plain values are rank 0's.  Sharded tensors are written by one rank a part.
// Memory: 8 MiB beside the state itself on the CPU; on an accelerator one tensor's part as well.
// Throws: on every rank, c10::Error naming the ranks and what each said: no space, a folder that
// not all ranks see, a destination that is there, state that differs between ranks.
void save(const std::filesystem::path& folder, const StateDict& state,
          const std::shared_ptr<ProcessGroup>& group, const SaveOptions& options = {});

// Collective over `group`.  The same, with `meta` as one torch.save file `meta.pt` beside it: the
// layout of Lightning's folders, where `parts` is {"model": ..., "optimizer_0": ..., ...}.
void save_with_meta(const std::filesystem::path& folder, const StateDict& parts,
                    const StateDict& meta, const std::shared_ptr<ProcessGroup>& group,
                    const SaveOptions& options = {});

// Collective over `group`.  The same as one file of torch.save, which torch.load(weights_only=True)
// reads; written by rank 0, from `state` as it is there: see StateDictType::kFull.
// Throws: as save(); where rank 0's state holds sharded tensors.
void save_file(const std::filesystem::path& file, const StateDict& state,
               const std::shared_ptr<ProcessGroup>& group, const SaveOptions& options = {});

struct LoadOptions {
  // Keys of `state` that the checkpoint lacks, and keys of the checkpoint that `state` lacks, are
  // errors; else they are reported and left as they are.
  bool strict = true;
  // Elements of another floating-point dtype are converted and reported; else they are errors.
  bool cast = true;
  // Compare the CRC-32 of what is read with what the checkpoint says: of every record that the
  // ranks together read whole.
  bool verify = true;
};

// Collective over `group`.  Fills the tensors of `state` in place and replaces its plain values;
// `path` is a folder or file that fsdp-ckpt reads, with keys like those of `state`.  Each rank
// reads what it needs, on four threads.
// Memory: up to 38 MiB a thread; on an accelerator one tensor's part a thread as well.
// Throws: on every rank, c10::Error: for keys that are missing or in excess,
// all of them with the nearest names, and tensors of other shapes, all of them, before anything is
// written to; for damage, naming file, key and byte: tensors may then be partly filled.
LoadReport load(const std::filesystem::path& path, StateDict& state,
                const std::shared_ptr<ProcessGroup>& group, const LoadOptions& options = {});

// What a training run goes on from.
struct TrainingState {
  ShardedModule* model = nullptr;                    // required
  std::vector<torch::optim::Optimizer*> optimizers;  // over the model's parameters
  StateDict extra;                                   // anything else, the same on every rank
  // Ranks of all copies of the model; where not given, the process_group of the model's options.
  std::shared_ptr<ProcessGroup> group;
};

// Collective.  Saves in the layout of Lightning: `model.*`, `optimizer_0.*`, ... in a
// torch.distributed.checkpoint folder, and `extra` beside them in `meta.pt`, with
// what Lightning asks for where it has it not: "epoch", "global_step", "loops", "lr_schedulers",
// ...
void save(const std::filesystem::path& folder, const TrainingState& state,
          const SaveOptions& options = {});
// Collective.  The same as one file: "state_dict", "optimizer_states" (by PARAM_ID), and `extra`.
void save_file(const std::filesystem::path& file, const TrainingState& state,
               const SaveOptions& options = {});

struct TrainingLoadOptions : LoadOptions {
  bool optimizers = true;  // false: leave them as they are
  bool extra = true;
};
// Collective.  Loads whatever fsdp-ckpt reads, of whatever layout: the model is the one model in
// it, or the one called "model", "state_dict" or "module"; optimizers are matched in order; states
// by name, by id or flattened.  A checkpoint of weights
// alone needs `optimizers` false.  `extra` gets everything else; what has no counterpart as a
// StateValue is reported as unexpected.
// Throws: as load(); where there is no model or not as many optimizers; where an optimizer's state
// lacks a parameter that this optimizer has.
LoadReport load(const std::filesystem::path& path, TrainingState& state,
                const TrainingLoadOptions& options = {});

// Saves while training goes on: the state is copied to memory of its own on the CPU, and a thread
// writes the copy.  One save is in flight at a time.
// Memory: one copy of this rank's state, kept for the next save.
class AsyncSaver {
 public:
  // Collective over `group`: makes a group of its own, so that its agreements are not mixed with
  // those of training.
  explicit AsyncSaver(const std::shared_ptr<ProcessGroup>& group);
  // Waits for what is in flight; where that fails, its error is this process's last words.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Collective.  Returns when the state was copied: it may change from then on.  Waits for the save
  // before.
  // Throws: what that one threw.
  void async_save(const std::filesystem::path& folder, const StateDict& state,
                  const SaveOptions& options = {});
  void async_save(const std::filesystem::path& folder, const TrainingState& state,
                  const SaveOptions& options = {});
  // Waits until the checkpoint is in place.  Throws: what save() throws, once.
  void wait();
  // Whether nothing is in flight.
  bool done() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp
