// SPDX-License-Identifier: Apache-2.0
// A unit: parameters that are gathered, resharded and reduced together.
//
// Note [layout of a unit]: for each parameter a rank holds the rows that shard_layout gives it, one
// after another in one byte buffer, grouped by dtype (a FlatGroup each), each padded to the share
// of a full rank and to 64 bytes, with a Trailer at the end:
//
//   local   [ group float32: w | b | ... ][ group float64: ... ][ trailer ]
//
// All ranks' buffers have one size, so an all-gather of bytes moves a unit of any dtypes.  A
// gathered unit is laid out parameter by parameter: the ranks' shares of one parameter follow each
// other, and because all but the last are full, the parameter is contiguous with its padding at the
// end.  The padding that aligns the next parameter, and the trailers, are laid out in the same way.
//
//   full    [ w of rank 0, 1, ... | b of rank 0, 1, ... | ... | trailers of rank 0, 1, ... ]
//
// If the unit computes in another dtype, offsets in elements stay the same.  Gradients have a
// layout of their own, of the parameters that train now.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>

#include "libfsdp/internal/units/sharding.h"
#include "libfsdp/placement.h"
#include "libfsdp/shard_layout.h"

namespace fsdp::internal {

// LibTorch's owning pointer to a node of its graph: std::shared_ptr, since 2.15 c10::intrusive_ptr.
using NodePtr = decltype(torch::autograd::Edge::function);

class Engine;
class Gather;
struct Unit;

struct Parameter {
  std::vector<std::string> names;  // in the module; more than one if it is tied
  Unit* unit = nullptr;
  PlacedParameter placed;  // without placements: it is whole in the module
  ShardLayout layout;
  bool trainable = true;         // see Note [freezing] in freezing.h
  std::size_t group = 0;         // in unit->groups
  std::int64_t offset = 0;       // in elements, in the group
  std::int64_t reserved = 0;     // elements from there to the next one's offset
  std::int64_t grad_offset = 0;  // of a trainable one, in elements, in the group's gradients

  // The module's tensor, permanently; between uses its storage has no memory.
  at::Tensor full;
  // The form of `full` outside summon_full_params; shares its storage.
  at::Tensor home;
  // This rank's rows: a view of the unit's local buffer, in the dtype the module was built with.
  at::Tensor shard;
  NodePtr accumulator;  // of full's gradient; null for one that was never trainable
  bool staged = false;  // its gradient lies in the group's staging buffer

  // See gradients.h.
  at::Tensor kept;         // the whole gradient of backwards without synchronization
  bool kept_sent = false;  // `kept` is being reduced
  at::Tensor aside;        // the reduced gradient, while a stand-in holds its place
  at::Tensor spare;        // a stand-in for `full` that is not in use
  // The shard's version when the last forward began: tells which parameter was changed since.
  std::uint32_t version = 0;
  // The version of `full` when the library last let go: between steps nobody else changes it.
  std::uint32_t full_version = 0;
  // The shard's version when this forward put another tensor in the place of `full`, see
  // written_parameters.h: operators on that tensor are not observed.
  std::optional<std::uint32_t> replaced_at;

  const std::string& name() const noexcept { return names.front(); }
};

// Returns the bytes of an element.
inline std::int64_t item_bytes(c10::ScalarType dtype) noexcept {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// The parameters of one dtype in a unit.
struct FlatGroup {
  const Sharding* sharding = nullptr;  // of its unit
  c10::ScalarType dtype{};             // of the shards
  c10::ScalarType compute_dtype{};     // of the module's tensors
  c10::ScalarType reduce_dtype{};      // of gradients while they are reduced
  std::vector<Parameter*> parameters;
  std::vector<Parameter*> trained;  // the trainable ones
  std::string trained_text;         // says which ones train, if some do not; ranks compare it
  std::int64_t numel = 0;           // of a rank's share with padding
  std::int64_t grad_numel = 0;      // of a rank's share of the gradients, with padding
  std::int64_t local_offset = 0;    // in bytes, in Unit::local
  std::int64_t gather_offset = 0;   // in bytes, in a rank's block of a gather

  at::Tensor local;  // [numel], dtype; a view of Unit::local
  // The tensor that the optimizer gets if use_orig_params is false: [numel].  Then all parameters
  // are trainable, or none.
  at::Tensor flat;
  // [grad_numel]: the reduced gradients, in the same memory in every step; see published.h.
  at::Tensor grad;
  std::vector<at::Tensor> grad_rows;  // of each trained parameter: views of it
  bool receives_in_grad = false;      // a reduction in flight writes `grad`
  at::Tensor aside;  // the reduced gradient of `flat`, while a stand-in holds its place
  // [W, block_numel], reduce_dtype, rank-major: the full gradients of this backward.
  at::Tensor staging;
  at::Tensor zeros;  // what staging on an accelerator puts between gradients
  // [grad_numel], reduce_dtype: gradients that are reduced inside a replica, not over replicas.
  at::Tensor partial;

  // Returns the dtype of reduced gradients.
  c10::ScalarType grad_dtype() const noexcept {
    return sharding->keeps_low_precision_grads ? reduce_dtype : dtype;
  }
};

enum class UnitState {
  kSharded,    // no memory beyond the shards
  kGathering,  // a collective is in flight
  kUnsharded,  // the module's tensors are full
};

// The end of a rank's block in a gather.
struct Trailer {
  std::int64_t unit_id = 0;
  std::uint64_t written = 0;  // see Note [writes in forward] in written_parameters.h
};

// The size of a trailer in bytes, with padding that keeps the data after it aligned.
inline constexpr std::int64_t kTrailerBytes = 64;
static_assert(sizeof(Trailer) <= kTrailerBytes);

struct Unit {
  std::string name;  // of its module; "" for the root
  std::int64_t id = 0;
  const torch::nn::Module* module = nullptr;
  Unit* parent = nullptr;
  Engine* engine = nullptr;
  std::shared_ptr<const Sharding> sharding;
  bool mixed_precision = true;  // false: computes in the dtypes of its shards
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<FlatGroup> groups;
  std::int64_t gather_bytes = 0;  // a rank's block, with the trailer
  // The block's parts that stay contiguous when it is copied out: shares of parameters, what aligns
  // them, the trailer.  In bytes; they add up to gather_bytes.
  std::vector<std::int64_t> gather_parts;
  c10::Device compute_device = c10::kCPU;  // of its gathers
  at::Tensor local;                        // bytes
  // True if the shards are whole and in the dtype of compute: then the unsharded tensors lie in
  // `local`.
  bool resident = false;
  bool reshards_after_forward = true;
  bool reshards_after_backward = true;
  bool syncs_gradients = true;  // backward reduces them
  bool all_reduces = true;      // and takes the mean over the replicas
  bool is_called = false;       // by call(), which casts what goes in and comes out
  // Stays unsharded until the next forward.
  bool outlives_backward = false;
  bool always_unsharded = false;       // resident and not sharded: operators are not observed
  int pins = 0;                        // Gathered scopes that keep it unsharded
  std::uint32_t gathered_version = 0;  // value of version() when it was last unsharded

  UnitState state = UnitState::kSharded;
  // While sharded between forward and backward, if some ranks keep it together: this rank's part of
  // `full`, in bytes.
  at::Tensor piece;
  std::shared_ptr<Gather> gather;    // while gathering
  std::int64_t gather_position = 0;  // of its block in the gather's blocks, in bytes
  at::Tensor full;                   // bytes, while unsharded
  // Streams of the caller that may use `full`: ordered after its gather, and `full` outlives their
  // use.
  std::vector<c10::StreamId> used_in;
  bool prefetched = false;  // gathered ahead of its first use

  const Parameter* last_written = nullptr;  // by a forward of this rank

  int expected = 0;                 // gradients that this backward will make
  int ready = 0;                    // gradients that it has made
  Unit* next_in_forward = nullptr;  // the unit that was used after it the last time
  Unit* next_in_backward = nullptr;
  // Units to gather when it is used, instead of the next one.
  std::vector<Unit*> prefetched_in_forward;
  std::vector<Unit*> prefetched_in_backward;

  std::optional<double> divide_factor;  // of gradients; none: the number of ranks
  CommHook comm_hook;                   // instead of the library's reduction
  ReducedHook reduced_hook;             // sees reduced gradients before the shards have them

  // Returns "blocks.0", or "the root unit".
  std::string title() const { return name.empty() ? "the root unit" : name; }
  // Returns "unit 'blocks.0'", or "the root unit", for errors.
  std::string quoted() const { return name.empty() ? title() : "unit '" + name + "'"; }
  // Returns its first parameter's name, in quotes, for errors.
  std::string first_name() const;
  // Returns a number that changes with every write to a shard that LibTorch knows of.
  std::uint32_t version() const noexcept;
  // Returns whether all its gradients of this backward are made.
  bool done() const noexcept { return expected > 0 && ready >= expected; }
};

// Returns the name of the optimizer's flat tensor of a group: "<unit>._flat_param", followed by the
// dtype if the unit has several.
// `unit_name`: the unit's in the module that is asked for it.
std::string flat_name(const std::string& unit_name, const Unit& unit, const FlatGroup& group);

// Returns `name` relative to the module at `path`; nothing if it is not inside that module.
std::optional<std::string> name_in(const std::string& path, const std::string& name);

// Returns whether they are the same unit, or one is inside the other.
bool related(const Unit& a, const Unit& b) noexcept;

// Returns a tensor with the shape and device of `like`, whose storage has `pointer` and no memory.
// `observer`: the dispatch key that sees operators on it.
at::Tensor tensor_without_memory(at::DataPtr pointer, const at::Tensor& like, c10::ScalarType dtype,
                                 std::optional<c10::DispatchKey> observer);

// Returns the parameter whose storage `tensor` shares, as itself or as a view; null for any other
// tensor.  Thread-safe.
Parameter* parameter_of(const at::Tensor& tensor) noexcept;

std::uint32_t shard_version(const Parameter& parameter) noexcept;
// Returns the error of a backward that needs the unit's earlier values: names its first parameter,
// or the first whose shard changed since the last forward began.
std::string changed_since_forward(const Unit& unit);
// Requires: the unit's local buffer, on the CPU.
Trailer& trailer_of(Unit& unit) noexcept;

// Sets the unit's number among the units of an engine, also in the trailer, which ranks compare.
void set_id(Unit& unit, std::int64_t id);

// Returns whether the unit computes in another dtype than that of its shards.
bool casts(const Unit& unit) noexcept;
// Returns how a parameter is cut over so many ranks.
ShardLayout layout_over(const Parameter& parameter, int world_size);
// Sets each group's offsets and the unit's sizes.
// Requires: the parameters' layouts.  Returns the bytes of the unit's buffer.
std::int64_t set_offsets(Unit& unit);
// Lays out the gradients of the parameters that are trainable now.  Requires: set_offsets().
void set_grad_offsets(FlatGroup& group);
// Sets layouts and offsets, and makes the unit's buffer, with shards whose values are zeros.
// Requires: the mesh of its sharding.  `compute_device`: of the unit's gathers.
void lay_out(Unit& unit, c10::Device compute_device);
// Writes this rank's rows of the module's tensor to the shard, and frees the tensor's memory.
// Requires: lay_out(); the tensor is on the device of the unit's gathers.
void cut(Parameter& parameter);

// Replaces the storages of the module's tensors by the unit's own, without memory.  `observer`: the
// dispatch key that sees operators on them from now on.
void take_over(Unit& unit, std::optional<c10::DispatchKey> observer);
// Leaves tensors without memory, whose error says that the sharded module is gone.
void let_go(Unit& unit) noexcept;

// Points the module's tensors into `full` (see Note [layout of a unit]), or into the local buffer
// if the unit is resident.
void make_unsharded(Unit& unit);
void make_sharded(Unit& unit);
// Returns whether the tensor belonged to a unit that let it go.
bool was_let_go(const at::Tensor& tensor) noexcept;
// Returns whether the module's tensor is still the one taken over.
bool still_taken(const Parameter& parameter) noexcept;
// Call after a write to the shard that autograd does not know about.
void shard_was_written(Parameter& parameter) noexcept;

}  // namespace fsdp::internal
