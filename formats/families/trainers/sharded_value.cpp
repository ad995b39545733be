// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/sharded_value.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/trainers/ranks.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/torch_globals.h"

namespace fsdp::formats {
namespace {

// The arguments of _rebuild_from_type_v2(_rebuild_wrapper_subclass, type, (class, dtype, size,
// ...), state).
struct Wrapped {
  std::string_view type;
  std::span<const Value> args;
  Value state;
};

std::optional<Wrapped> wrapped_of(const Value& value) {
  const ObjectData* object = value.as_object();
  if (object == nullptr || object->callable.as_global() == nullptr ||
      static_cast<TorchGlobal>(object->callable.global_tag()) != TorchGlobal::kRebuildFromTypeV2) {
    return std::nullopt;
  }
  const auto args = object->args.items();
  if (args.size() != 4 || args[0].as_global() == nullptr || args[1].as_global() == nullptr ||
      static_cast<TorchGlobal>(args[0].global_tag()) != TorchGlobal::kRebuildWrapperSubclass) {
    return std::nullopt;
  }
  return Wrapped{args[1].as_global()->name, args[2].items(), args[3]};
}

Error bad(std::string_view type, std::string_view why) {
  return {ErrorCode::kMetaType, cat(type, ": ", why)};
}

const Value* slot(const Value& state, std::string_view name) {
  if (state.kind() != ValueKind::kTuple) return state.find(name);
  for (const Value& part : state.items()) {
    if (const Value* found = part.find(name)) return found;
  }
  return nullptr;
}

std::int64_t mesh_dimension(const Value& value) {
  if (const auto one = value.as_int()) return *one;
  std::int64_t product = 1;  // of a flattened dimension
  for (const std::int64_t size : integers(value).value_or(std::vector<std::int64_t>{0})) {
    if (size < 1 || size > kMaxRanks || product > kMaxRanks / size) return 0;
    product *= size;
  }
  return product;
}

std::vector<std::int64_t> mesh_sizes(const Value& mesh) {
  std::vector<std::int64_t> sizes;
  if (const Value* layout = attribute(mesh, "_layout")) {
    const Value* shape = attribute(*layout, "shape");
    if (shape == nullptr) throw bad("DeviceMesh", "its layout has no shape");
    if (shape->kind() != ValueKind::kTuple) return {mesh_dimension(*shape)};
    for (const Value& size : shape->items()) sizes.push_back(mesh_dimension(size));
    return sizes;
  }
  const Value* ranks = attribute(mesh, "mesh");
  const auto tensor = ranks == nullptr ? std::nullopt : dense_tensor(*ranks);
  if (!tensor) throw bad("DeviceMesh", "has neither a layout nor a tensor of ranks");
  return tensor->shape;
}

Placement placement_of(const Value& value) {
  const std::string_view kind = class_name(value);
  if (kind == "Replicate") return {};
  const Value* dim = attribute(value, "dim");
  if ((kind != "Shard" && kind != "_StridedShard") || dim == nullptr || !dim->as_int()) {
    throw Error(ErrorCode::kUnsupported,
                cat("DTensor: placement ", quote(kind), " cannot be put together from parts"));
  }
  Placement placement{true, *dim->as_int(), 1};
  const Value* factor = attribute(value, "split_factor");
  if (factor != nullptr) placement.split_factor = factor->as_int().value_or(0);
  return placement;
}

// Adds a part, unless it has no elements.
void add_local(ShardedValue& out, std::string_view type, Box box, const Value& local) {
  if (volume(box.view()) == 0) return;
  const auto tensor = dense_tensor(local);
  if (!tensor && special_tensor(local) == "subclass") {
    throw Error(ErrorCode::kUnsupported,
                cat(type, ": the rank's part is ", special_tensor_text(local),
                    ", which can be joined only from folders of torch.distributed.checkpoint"));
  }
  if (!tensor) throw bad(type, "the rank's part is not a dense tensor");
  if (tensor->shape != box.size) {
    throw Error(ErrorCode::kShape, cat(type, ": the rank holds shape ", shape_text(tensor->shape),
                                       ", expected ", shape_text(box.size)));
  }
  if (tensor->dtype != out.dtype) {
    throw Error(ErrorCode::kDtype, cat(type, ": the rank holds ", torch_name(tensor->dtype),
                                       ", expected ", torch_name(out.dtype)));
  }
  out.locals.push_back({std::move(box), *tensor});
}

void read_dtensor(const Wrapped& wrapped, ShardedValue& out) {
  const Value* local = slot(wrapped.state, "_local_tensor");
  const Value* spec = slot(wrapped.state, "_spec");
  const Value* mesh = spec == nullptr ? nullptr : attribute(*spec, "mesh");
  const Value* placed = spec == nullptr ? nullptr : attribute(*spec, "placements");
  if (local == nullptr || mesh == nullptr || placed == nullptr)
    throw bad("DTensor", "has no local tensor, mesh and placements");
  out.mesh = mesh_sizes(*mesh);
  for (const Value& value : placed->items()) out.placements.push_back(placement_of(value));
  const auto& sizes = out.mesh;
  const auto& placements = out.placements;
  const Value* said = attribute(*mesh, "_coordinate_on_dim");
  if (said != nullptr && said->is_none()) return;  // a rank outside the mesh
  const auto coordinate = said == nullptr ? std::nullopt : integers(*said);
  if (!coordinate || coordinate->size() != sizes.size() || placements.size() != sizes.size())
    throw bad("DTensor", "its mesh does not say where the rank stands");
  for (std::size_t m = 0; m < sizes.size(); ++m) {
    const Placement& p = placements[m];
    if (sizes[m] < 1 || sizes[m] > kMaxRanks || (*coordinate)[m] < 0 ||
        (*coordinate)[m] >= sizes[m] || out.ranks > kMaxRanks / sizes[m] ||
        (p.shards && (p.dim < 0 || static_cast<std::size_t>(p.dim) >= out.shape.size()))) {
      throw Error(ErrorCode::kBounds, "DTensor: mesh or placement lies outside its bounds");
    }
    out.ranks *= sizes[m];
  }
  add_local(out, "DTensor", placed_box(out.shape, sizes, *coordinate, placements), *local);
}

void read_sharded_tensor(const Wrapped& wrapped, ShardedValue& out) {
  const auto state = wrapped.state.items();
  if (state.size() < 2 || state[0].kind() != ValueKind::kList)
    throw bad("ShardedTensor", "has no list of shards and no metadata");
  const Value* all = attribute(state[1], "shards_metadata");
  if (all != nullptr) {
    out.ranks =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(all->items().size()), 1, kMaxRanks);
  }
  for (const Value& shard : state[0].items()) {
    const Value* tensor = attribute(shard, "tensor");
    const Value* metadata = attribute(shard, "metadata");
    const Value* offsets = metadata == nullptr ? nullptr : attribute(*metadata, "shard_offsets");
    const Value* sizes = metadata == nullptr ? nullptr : attribute(*metadata, "shard_sizes");
    if (tensor == nullptr || offsets == nullptr || sizes == nullptr)
      throw bad("ShardedTensor", "a shard does not say where it lies");
    const auto offset = shape_of(*offsets);
    const auto size = shape_of(*sizes);
    if (!offset || !size || offset->size() != out.shape.size() ||
        size->size() != out.shape.size()) {
      throw bad("ShardedTensor", "a shard's place is not a box of the tensor");
    }
    add_local(out, "ShardedTensor", {*offset, *size}, *tensor);
  }
}

}  // namespace

Box placed_box(std::span<const std::int64_t> shape, std::span<const std::int64_t> mesh,
               std::span<const std::int64_t> coordinate, std::span<const Placement> placements) {
  Box box = whole_box(shape);
  std::vector<std::int64_t> parts(shape.size(), 1);  // parts of each dimension so far
  const auto cut = [&](std::size_t m) {
    const auto d = static_cast<std::size_t>(placements[m].dim);
    const std::int64_t size = box.size[d];
    const std::int64_t chunk = size / mesh[m] + (size % mesh[m] == 0 ? 0 : 1);
    const std::int64_t begin =
        chunk == 0 || coordinate[m] > size / chunk ? size : chunk * coordinate[m];
    box.offset[d] += begin;
    box.size[d] = std::min(chunk, size - begin);
    parts[d] *= mesh[m];
  };
  for (std::size_t m = 0; m < mesh.size(); ++m) {
    if (placements[m].shards && placements[m].split_factor == 1) cut(m);
  }
  for (std::size_t m = mesh.size(); m-- > 0;) {
    if (!placements[m].shards || placements[m].split_factor == 1) continue;
    const auto d = static_cast<std::size_t>(placements[m].dim);
    if (placements[m].split_factor != parts[d]) {
      throw Error(ErrorCode::kUnsupported,
                  cat("DTensor: strided placement with split factor ", placements[m].split_factor,
                      ", expected ", parts[d]));
    }
    cut(m);
  }
  return box;
}

std::optional<ShardedValue> sharded_value(const Value& value) {
  const auto wrapped = wrapped_of(value);
  if (!wrapped || (wrapped->type != "DTensor" && wrapped->type != "ShardedTensor"))
    return std::nullopt;
  ShardedValue out;
  const GlobalName* dtype = wrapped->args.size() < 3 ? nullptr : wrapped->args[1].as_global();
  const auto known = dtype == nullptr ? std::nullopt : dtype_from_torch_name(dtype->name);
  const auto shape = wrapped->args.size() < 3 ? std::nullopt : shape_of(wrapped->args[2]);
  if (!known || !shape) throw bad(wrapped->type, "has no type and shape");
  out.dtype = *known;
  out.shape = *shape;
  if (wrapped->type == "DTensor") {
    read_dtensor(*wrapped, out);
  } else {
    read_sharded_tensor(*wrapped, out);
  }
  return out;
}

}  // namespace fsdp::formats
