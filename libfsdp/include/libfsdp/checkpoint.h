// SPDX-License-Identifier: Apache-2.0
// Checkpoints of sharded state: every rank writes and reads its own part.
//
// save() writes a torch.distributed.checkpoint folder (`.metadata`, `__0_0.distcp`, ...) which
// PyTorch loads at any world size. load() reads every format that fsdp-ckpt reads, at any world
// size, and reads only the bytes that this rank needs.
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
// can compute the place of every value in every rank's file.  Rank 0 makes a folder under a
// temporary name; every rank writes, checks and fsyncs its file there; rank 0 writes `.metadata`,
// then the seal, fsyncs, and renames the folder into place.  If any rank dies at any moment, the
// destination is either unchanged or the complete new checkpoint.  A step that fails on one rank
// fails on all (see agree.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libfsdp/process_group.h"
#include "libfsdp/state_dict.h"
#include "libfsdp/state_value.h"

namespace torch::optim {
class Optimizer;
}

namespace fsdp {

class GradScaler;
class ShardedModule;

// Selects whether saved data stays in the page cache for the next load on this machine.
enum class PageCache {
  kAlways,
  kWhileQuick,  // while the kernel has free memory; the rest as kNever
  kNever,       // straight to the disk: evicts nothing else from the cache
};

struct SaveOptions {
  bool overwrite = false;  // true: replaces an existing checkpoint in one step; false: throws
  bool sync = true;        // fsync: a checkpoint reported as saved survives a power cut
  // Applies with `sync`, on file systems known to gain by writing past the page cache (ext4, XFS);
  // elsewhere kAlways is used.
  PageCache page_cache = PageCache::kWhileQuick;
  // Adds a seal to a folder: the sizes and CRC-32s of all files, which `fsdp-ckpt verify` checks.
  // Making it reads no data back.  PyTorch ignores the seal; save_file() writes none.
  bool seal = true;
};

// Collective over `group`, all of whose ranks must hold `state` with the same keys, shapes and
// dtypes.  Makes missing folders above `folder`.  Whole tensors are written once, by the rank with
// the least to write so far.  Plain values are rank 0's.  Each part of a sharded tensor is written
// by one rank.
// Memory: 8 MiB beside the state itself on the CPU; on an accelerator one tensor's part as well.
// Throws: on every rank, c10::Error naming the ranks and each one's message: a URL, no space, a
// folder that not all ranks see, a destination that exists, state that differs between ranks.
void save(const std::filesystem::path& folder, const StateDict& state,
          const std::shared_ptr<ProcessGroup>& group, const SaveOptions& options = {});

// Collective over `group`.  Saves `parts` as save() does, and `meta` beside it as one torch.save
// file, `meta.pt`: the layout of Lightning's folders, where `parts` is {"model": ...,
// "optimizer_0": ..., ...}.
void save_with_meta(const std::filesystem::path& folder, const StateDict& parts,
                    const StateDict& meta, const std::shared_ptr<ProcessGroup>& group,
                    const SaveOptions& options = {});

// Collective over `group`.  Saves `state` as one torch.save file, which
// torch.load(weights_only=True) reads.  Rank 0 writes the file from its own `state`: see
// StateDictType::kFull.
// Throws: as save(); also if rank 0's state holds sharded tensors.
void save_file(const std::filesystem::path& file, const StateDict& state,
               const std::shared_ptr<ProcessGroup>& group, const SaveOptions& options = {});

struct LoadOptions {
  // true: a key that only `state` or only the checkpoint has is an error.  false: such keys are
  // reported and left as they are.
  bool strict = true;
  // true: another floating-point dtype is converted and reported; false: it is an error.
  bool cast = true;
  // Compare the CRC-32 of the data read with that in the checkpoint, for every record that the
  // ranks together read in full.
  bool verify = true;
  // Python globals in pickles, as "module.name", to read as plain data, beside those that the
  // formats know.  None of their code is run.
  std::set<std::string> allowed_globals;
};

// Collective over `group`.  Fills the tensors of `state` in place and replaces its plain values.
// `path` is a folder or file that fsdp-ckpt reads, with keys like those of `state`, or the URL of
// one: s3://, gs://, hf://, https://.  Each rank reads only what it needs, on four threads; from a
// store with up to 48 requests at once.
// Memory: up to 38 MiB a thread; on an accelerator one tensor's part a thread as well; for a URL 64
// MiB more.
// Throws: on every rank, c10::Error.  Missing keys, unexpected keys (with the nearest names) and
// tensors of other shapes are all named at once, before anything is written to.  An error for
// damage names file, key and byte; tensors may then be partly filled.
LoadReport load(const std::filesystem::path& path, StateDict& state,
                const std::shared_ptr<ProcessGroup>& group, const LoadOptions& options = {});

// A model with the optimizers over its parameters.
struct TrainedModel {
  std::string name;  // the prefix of its keys: no dots
  ShardedModule* model = nullptr;
  std::vector<torch::optim::Optimizer*> optimizers;
};

// The state from which a training run continues.
struct TrainingState {
  ShardedModule* model = nullptr;                    // required
  std::vector<torch::optim::Optimizer*> optimizers;  // over the model's parameters
  std::vector<TrainedModel> further;                 // more models: the discriminator of a GAN
  GradScaler* grad_scaler = nullptr;                 // null: none
  StateDict extra;                                   // anything else, the same on every rank
  // The ranks of all copies of the model.  Default: process_group of the model's options.
  std::shared_ptr<ProcessGroup> group;
};

// Collective.  Saves in the layout of Lightning: `model.*`, `optimizer_0.*`, ... in a
// torch.distributed.checkpoint folder, and `extra` beside them in `meta.pt`, with defaults for
// what Lightning requires and `extra` lacks: "epoch", "global_step", "loops", "lr_schedulers",
// ...  The state of the scaler is Lightning's "FSDPPrecision".  Further models are under their
// names: `discriminator.model.*`, `discriminator.optimizer_0.*`, ...
// Throws: c10::Error if a name is empty, has dots, or is taken.
void save(const std::filesystem::path& folder, const TrainingState& state,
          const SaveOptions& options = {});
// Collective.  Saves the same state in one file: "state_dict", "optimizer_states" (by PARAM_ID) and
// `extra`; for each further model, a dict of the first two under its name.
void save_file(const std::filesystem::path& file, const TrainingState& state,
               const SaveOptions& options = {});

struct TrainingLoadOptions : LoadOptions {
  bool optimizers = true;  // false: leave them as they are
  bool extra = true;
};
// Collective.  Loads every format and layout that fsdp-ckpt reads.  The model is the only model in
// the checkpoint, or the one called "model", "state_dict" or "module"; a further model is the only
// one under its name.  Optimizers are matched in order, their states by name, by id or flattened.
// To load a checkpoint with weights only, set `optimizers` to false.  `extra` gets everything else;
// values without a counterpart as a StateValue are reported as unexpected.  A missing meta.pt in a
// folder of save() gives a warning, and is reported.
// Throws: as load(); if a model is missing, or more optimizers are given than saved; if an
// optimizer's state lacks a parameter that this optimizer has; if `strict` and there is no state
// for the scaler.
LoadReport load(const std::filesystem::path& path, TrainingState& state,
                const TrainingLoadOptions& options = {});

// Saves while training goes on: the state is copied to separate memory on the CPU, and a thread
// writes the copy.  One save is in flight at a time.
// Memory: one copy of this rank's state, kept for the next save.
class AsyncSaver {
 public:
  // Collective over `group`: makes a separate group, so that its agreements do not mix with those
  // of training.
  explicit AsyncSaver(const std::shared_ptr<ProcessGroup>& group);
  // Waits for a save in flight; if it fails, prints a warning with the error.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Collective.  Returns once the state is copied: it may change from then on.  Waits for the
  // previous save first.
  // Throws: the error of the previous save.
  void async_save(const std::filesystem::path& folder, const StateDict& state,
                  const SaveOptions& options = {});
  void async_save(const std::filesystem::path& folder, const TrainingState& state,
                  const SaveOptions& options = {});
  // Waits until the checkpoint is in place.  Throws: what save() throws, once.
  void wait();
  // Returns whether no save is in flight.
  bool done() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp
