// SPDX-License-Identifier: Apache-2.0
// A unit: parameters that are gathered, freed and reduced together.
//
// Note [layout of a unit]: a rank holds of each parameter the rows shard_layout gives it, one after
// another in one byte buffer, grouped by dtype (a FlatGroup each), trainable parameters first, each
// padded to the share of a full rank and to 64 bytes, and a Trailer at the end:
//
//   local   [ group float32: w | b | ... | frozen ... ][ group float64: ... ][ trailer ]
//
// All ranks' buffers have one size, so that an all-gather of bytes moves a unit whatever its dtypes
// are.  A gathered unit is laid out parameter by parameter: the ranks' shares of one follow each
// other, and because all but the last are full, the parameter is contiguous with its padding at the
// end.
//
//   full    [ w of rank 0, 1, ... | b of rank 0, 1, ... | ... ]
//
// Where the unit computes in another dtype, offsets in elements stay the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "libfsdp/internal/engine/shard_layout.h"

namespace torch::autograd {
struct Node;
}

namespace fsdp {

class Engine;
class Gather;
struct Unit;

struct Parameter {
  std::vector<std::string> names;  // in the module; more than one where it is tied
  Unit* unit = nullptr;
  ShardLayout layout;
  bool trainable = true;
  std::size_t group = 0;      // in unit->groups
  std::int64_t offset = 0;    // in elements, in the group
  std::int64_t reserved = 0;  // elements from there to the next one's offset

  // The module's tensor, for life; between uses it has a storage without memory.
  at::Tensor full;
  // What `full` looks like outside summon_full_params; shares its storage.
  at::Tensor home;
  // This rank's rows: a view of the unit's local buffer, in the dtype the module was built with.
  at::Tensor shard;
  std::shared_ptr<torch::autograd::Node> accumulator;  // of full's gradient; null for a frozen one
  bool staged = false;  // its gradient lies in the group's staging buffer

  // See gradients.h.
  at::Tensor kept;         // the whole gradient of backwards without synchronization
  bool kept_sent = false;  // and it is being reduced
  at::Tensor aside;        // the reduced gradient, while a stand-in holds its place
  at::Tensor spare;        // a stand-in for `full` that is not in use
  // Of the shard, when the last forward began: to name a parameter that was changed since.
  std::uint32_t version = 0;
  // The shard's version when this forward put another tensor in `full`'s place, see
  // written_parameters.h: operators on that one are not seen.
  std::optional<std::uint32_t> replaced_at;

  const std::string& name() const noexcept { return names.front(); }
};

// The parameters of one dtype in a unit.
struct FlatGroup {
  c10::ScalarType dtype{};             // of the shards
  c10::ScalarType compute_dtype{};     // of the module's tensors
  c10::ScalarType reduce_dtype{};      // of gradients while they are reduced
  std::vector<Parameter*> parameters;  // trainable first
  std::int64_t numel = 0;              // of a rank's share with padding
  std::int64_t trainable_numel = 0;    // its first part
  std::int64_t local_offset = 0;       // in bytes, in Unit::local
  std::int64_t gather_offset = 0;      // in bytes, in a rank's block of a gather

  at::Tensor local;  // [numel], dtype; a view of Unit::local
  // What the optimizer gets where use_orig_params is false: [trainable_numel], or [numel] where
  // every parameter is frozen.
  at::Tensor flat;
  at::Tensor grad;   // [trainable_numel]: the memory gradients of shards are views of
  at::Tensor aside;  // the reduced gradient of `flat`, while a stand-in holds its place
  // [W, trainable_numel], reduce_dtype, rank-major: the full gradients of this backward.
  at::Tensor staging;
};

enum class UnitState {
  kFreed,      // no memory beyond the shards
  kGathering,  // a collective is in flight
  kLive,       // the module's tensors are full
};

// What a rank's block in a gather ends with.
struct Trailer {
  std::int64_t unit_id = 0;
  std::uint64_t written = 0;  // see Note [writes in forward] in written_parameters.h
};

// Bytes of it, with padding to keep what follows aligned.
inline constexpr std::int64_t kTrailerBytes = 64;
static_assert(sizeof(Trailer) <= kTrailerBytes);

struct Unit {
  std::string name;  // of its module; "" for the root
  std::int64_t id = 0;
  Unit* parent = nullptr;
  Engine* engine = nullptr;
  bool mixed_precision = true;  // false: computes in the dtypes of its shards
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<FlatGroup> groups;
  std::int64_t gather_bytes = 0;  // a rank's block, with the trailer
  at::Tensor local;               // bytes
  bool flat = false;              // the optimizer gets FlatGroup::flat
  // The shards are whole and in the dtype of compute: live, the module's tensors lie in `local`.
  bool resident = false;
  bool always_live = false;            // resident, and nothing is sharded: operators are not seen
  int pins = 0;                        // Gathered scopes that keep it live
  std::uint32_t gathered_version = 0;  // what version() was when it was last made live

  UnitState state = UnitState::kFreed;
  std::shared_ptr<Gather> gather;    // while gathering
  std::int64_t gather_position = 0;  // of its block in the gather's blocks, in bytes
  at::Tensor full;                   // bytes, while live
  bool prefetched = false;           // gathered ahead of its first use

  const Parameter* last_written = nullptr;  // by a forward of this rank

  int expected = 0;                 // gradients this backward will make
  int ready = 0;                    // and has made
  Unit* next_in_forward = nullptr;  // the unit that was used after it the last time
  Unit* next_in_backward = nullptr;

  bool has_trainable() const noexcept;
  // Its first parameter's, in quotes, for errors.
  std::string first_name() const;
  // Changes with every write to a shard that LibTorch knows of.
  std::uint32_t version() const noexcept;
  // Whether its gradients of this backward are all made.
  bool done() const noexcept { return expected > 0 && ready >= expected; }
};

// What the optimizer's flat tensor of a group is called: "<unit>._flat_param", with the dtype
// behind it where the unit has several.
std::string flat_name(const Unit& unit, const FlatGroup& group);

// Same unit, or one inside the other.
bool related(const Unit& a, const Unit& b) noexcept;

// The parameter whose storage `tensor` has, as itself or as a view; null for any other tensor.
// Thread-safe.
Parameter* parameter_of(const at::Tensor& tensor) noexcept;

std::uint32_t shard_version(const Parameter& parameter) noexcept;
// Why a backward that needs what the unit held before is an error: names its first parameter, or
// the first whose shard changed since the last forward began.
std::string changed_since_forward(const Unit& unit);
// Requires: the unit's local buffer, on the CPU.
Trailer& trailer_of(Unit& unit) noexcept;

// Gives each group's offsets and the unit's sizes.  Requires: the parameters' layouts.
// Returns the bytes of the unit's buffer.
std::int64_t set_offsets(Unit& unit);
// Sets offsets, and gives the unit's buffer with the shards of the module's values as they
// are.  `device`: of the shards.  The module's tensors are not changed.
void lay_out(Unit& unit, int rank, c10::Device device);

// Replaces what the module's tensors hold by storages of the unit's own, without memory; operators
// on them are seen from now on where `observed`.
void take_over(Unit& unit, bool observed);
// Back to tensors that say that the wrapper is gone when they are read.
void let_go(Unit& unit) noexcept;

// Points the module's tensors into `full` (see Note [layout of a unit]); into the local buffer
// where the unit is resident.
void make_live(Unit& unit);
void make_freed(Unit& unit);
// Whether the module's tensor is still the one taken over.
bool still_taken(const Parameter& parameter) noexcept;
// Somebody wrote the shard without autograd's knowledge.
void shard_was_written(Parameter& parameter) noexcept;

}  // namespace fsdp
