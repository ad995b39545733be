// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch_checkpointing/metadata.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/machine.h"
#include "formats/families/trainers/ranks.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats::torch_checkpointing {
namespace {

// The most dimensions of a PyTorch tensor.
constexpr std::size_t kMaxDimensions = 64;
// Bytes of a text that count as one part: equal texts may be shared, but most data are not.
constexpr std::size_t kTextPart = 16;
// Bytes at either end of the pickle that contain the names of its members.
constexpr std::uint64_t kEndBytes = 64;

using Numbers = std::vector<std::int64_t>;

// Refuses all names: the package stores its objects as plain dicts.
class NoNames : public PickleHost {
 public:
  std::int32_t global(std::string_view module, std::string_view name) override {
    throw Error(ErrorCode::kGlobal, cat("global ", quote(cat(module, ".", name)),
                                        " is not allowed: this metadata has no names"));
  }
};

Error bad(const std::string& why) {
  return {ErrorCode::kMetaType, why};
}

const Value& need(const Value& mapping, std::string_view name) {
  const Value* found = mapping.find(name);
  if (found == nullptr) throw bad(cat("has no ", quote(name)));
  return *found;
}

std::span<const Value::Entry> need_dict(const Value& mapping, std::string_view name) {
  const Value& found = need(mapping, name);
  if (found.kind() != ValueKind::kDict)
    throw bad(cat(quote(name), " is a ", kind_name(found.kind()), ", expected a dict"));
  return found.entries();
}

const std::string& need_text(const Value& mapping, std::string_view name) {
  const Value& found = need(mapping, name);
  if (found.as_string() == nullptr)
    throw bad(cat(quote(name), " is a ", kind_name(found.kind()), ", expected a text"));
  return *found.as_string();
}

std::int64_t need_int(const Value& mapping, std::string_view name) {
  const auto found = need(mapping, name).as_int();
  if (!found) throw bad(cat(quote(name), " is not an integer"));
  return *found;
}

std::span<const Value> need_items(const Value& mapping, std::string_view name) {
  const Value& found = need(mapping, name);
  if (!is_sequence(found)) throw bad(cat(quote(name), " is not a list"));
  return found.items();
}

Numbers numbers_of(const Value& value, std::string_view name) {
  const auto found = is_sequence(value) ? integers(value) : std::nullopt;
  if (!found) throw bad(cat(quote(name), " is not a list of integers"));
  return *found;
}

Numbers need_numbers(const Value& mapping, std::string_view name) {
  return numbers_of(need(mapping, name), name);
}

void check_dimensions(std::size_t count) {
  if (count > kMaxDimensions) {
    throw Error(ErrorCode::kRank,
                cat("a shape has ", count, " dimensions, at most ", kMaxDimensions));
  }
}

void check_rank(std::int64_t rank, std::int64_t world_size) {
  if (rank < 0 || rank >= world_size)
    throw Error(ErrorCode::kBounds, cat("names rank ", rank, " of ", world_size, " ranks"));
}

// Ranks are numbers, or text in metadata that went through JSON.
std::int64_t rank_of(const Value& key, std::int64_t world_size) {
  std::optional<std::int64_t> rank = key.as_int();
  if (const std::string* text = key.as_string()) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error == std::errc() && end == text->data() + text->size()) rank = number;
  }
  if (!rank) throw bad("the key of a rank is not a number");
  check_rank(*rank, world_size);
  return *rank;
}

// Returns a step of a path as Python's str() writes it, like the keys of files.
std::string step_text(const Json& step) {
  if (step.as_string() != nullptr) return *step.as_string();
  if (step.as_int() != nullptr) return std::to_string(*step.as_int());
  if (step.as_bool() != nullptr) return *step.as_bool() ? "True" : "False";
  if (step.is_null()) return "None";
  throw bad(cat("a path has the step ", to_text(step), ", expected a text or a number"));
}

// Returns the steps of `["state",0,"exp_avg"]`.
std::vector<std::string> path_of(const Value& key) {
  if (key.as_string() == nullptr) throw bad("a path is not a text");
  const Json parsed = parse_json(*key.as_string());
  if (parsed.as_array() == nullptr)
    throw bad(cat("the path ", quote(*key.as_string()), " is not a list"));
  std::vector<std::string> steps;
  for (const Json& step : *parsed.as_array()) steps.push_back(step_text(step));
  return steps;
}

std::string dotted(std::span<const std::string> steps) {
  std::string key;
  for (std::size_t i = 0; i < steps.size(); ++i) key += (i == 0 ? "" : ".") + steps[i];
  return key;
}

// The parts of a pickle may be shared: each distinct part is read once, and the size of the
// unfolded result is limited.
class Reader {
 public:
  explicit Reader(std::uint64_t bytes) : bytes_(bytes) {}

  Metadata run(const Value& root) {
    if (root.kind() != ValueKind::kDict)
      throw bad(cat("is a ", kind_name(root.kind()), ", expected a dict"));
    Metadata out;
    out.version = root.find("version") == nullptr ? "1.0" : need_text(root, "version");
    world_size_ = out.world_size = need_int(root, "world_size");
    if (world_size_ < 1 || world_size_ > kMaxRanks)
      throw Error(ErrorCode::kBounds, cat("world_size is ", world_size_, ", at most ", kMaxRanks));
    if (out.version == "2.0") {
      read_items(root, out);
    } else if (out.version == "1.0") {
      read_flat(root, out);
    } else {
      throw Error(ErrorCode::kUnsupported,
                  cat("has the version ", quote(out.version), "; known are '1.0' and '2.0'"));
    }
    check_files(out);
    for (Item& item : out.items) note_needed(item);
    return out;
  }

 private:
  // Version 2.0: {item: {nested_path_to_metadata: {path: groups}, rank_to_layout_info: {rank:
  // layout}}}.
  void read_items(const Value& root, Metadata& out) {
    for (const Value::Entry& entry : need_dict(root, "metadata")) {
      Item& item = new_item(out, entry.first);
      const Value& value = entry.second;
      in_context([&] { return quote(item.name, 200); },
                 [&] {
                   for (const auto& [path, groups] : need_dict(value, "nested_path_to_metadata"))
                     add_tensor(item, path_of(path), groups);
                   std::vector<bool> named(static_cast<std::size_t>(world_size_));
                   for (const auto& [key, layout] : need_dict(value, "rank_to_layout_info")) {
                     const auto rank = static_cast<std::size_t>(rank_of(key, world_size_));
                     named[rank] = true;
                     if (!layout.is_none())
                       item.layouts[static_cast<std::int64_t>(rank)] = file_of(layout);
                   }
                   check_named(named);
                 });
    }
  }

  // Version 1.0: {path that begins with the item: groups}, and {rank: {item: layout}} beside it.
  void read_flat(const Value& root, Metadata& out) {
    std::map<std::string, std::size_t> known;
    for (const auto& [key, groups] : need_dict(root, "metadata")) {
      const std::vector<std::string> steps = path_of(key);
      if (steps.empty()) throw bad("a path is empty");
      const auto [at, fresh] = known.try_emplace(steps[0], out.items.size());
      if (fresh) new_item(out, Value::string(steps[0]));
      add_tensor(out.items[at->second], {steps.begin() + 1, steps.end()}, groups);
    }
    std::vector<bool> named(static_cast<std::size_t>(world_size_));
    for (const auto& [key, layouts] : need_dict(root, "rank_to_layout_info_mappings")) {
      const auto rank = static_cast<std::size_t>(rank_of(key, world_size_));
      named[rank] = true;
      for (const auto& [name, layout] : layouts.entries()) {
        unfold(1);
        const auto at = name.as_string() == nullptr ? known.end() : known.find(*name.as_string());
        if (at != known.end() && !layout.is_none())
          out.items[at->second].layouts[static_cast<std::int64_t>(rank)] = file_of(layout);
      }
    }
    check_named(named);
  }

  static void check_named(const std::vector<bool>& named) {
    const auto unnamed = std::ranges::find(named, false);
    if (unnamed != named.end()) throw bad(cat("has no layout for rank ", unnamed - named.begin()));
  }

  // Each rank has an entry for each item.
  Item& new_item(Metadata& out, const Value& name) {
    if (name.as_string() == nullptr) throw bad("the key of an item is not a text");
    unfold(static_cast<std::uint64_t>(world_size_));
    out.items.emplace_back();
    out.items.back().name = *name.as_string();
    return out.items.back();
  }

  ItemFile file_of(const Value& layout) {
    ItemFile file{need_text(layout, "file_path"), Serialization::kOther};
    const std::string& type = need_text(need(layout, "serialization_format"), "type");
    if (type == "TorchSerialization") file.serialization = Serialization::kTorch;
    if (type == "SafetensorsSerialization") file.serialization = Serialization::kSafetensors;
    unfold(file.path.size() / kTextPart + 1);
    return file;
  }

  // Without sharing, as in the package's own pickles, each part takes at least one byte.
  void unfold(std::uint64_t parts) {
    unfolded_ = checked_add(unfolded_, parts, "parts of the metadata");
    if (unfolded_ > bytes_) {
      throw Error(ErrorCode::kLimitNodes,
                  cat("unfolds into more than ", bytes_, " parts, which is its size in bytes"));
    }
  }

  void add_tensor(Item& item, std::vector<std::string> path, const Value& groups) {
    TensorLayout tensor;
    tensor.key = dotted(path);
    tensor.path = std::move(path);
    const std::string shown = tensor.key.empty() ? item.name : tensor.key;
    in_context([&] { return quote(shown, 200); },
               [&] {
                 unfold(tensor.key.size() / kTextPart + 1);
                 tensor.shardings = shardings_of(groups);
                 for (const auto& group : tensor.shardings->groups) unfold(group->boxes.size());
                 if (!item.by_key.emplace(tensor.key, item.tensors.size()).second)
                   throw Error(ErrorCode::kKey, "two entries have this name");
                 item.tensors.push_back(std::move(tensor));
               });
  }

  std::shared_ptr<const Shardings> shardings_of(const Value& groups) {
    if (!is_sequence(groups) || groups.items().empty()) throw bad("has no list of shardings");
    std::shared_ptr<const Shardings>& known = lists_[groups.identity()];
    if (known) return known;
    auto out = std::make_shared<Shardings>();
    for (const Value& group : groups.items()) {
      out->groups.push_back(sharding_of(group));
      const Sharding& added = *out->groups.back();
      const Sharding& first = *out->groups.front();
      if (added.shape != first.shape) {
        throw Error(ErrorCode::kShape,
                    cat("has the shape ", shape_text(added.shape), " and the shape ",
                        shape_text(first.shape), " on other ranks"));
      }
      if (added.dtype != first.dtype) {
        throw Error(ErrorCode::kDtype, cat("is ", torch_name(added.dtype), " and ",
                                           torch_name(first.dtype), " on other ranks"));
      }
      if (groups.items().size() == 1) break;
      const auto number = static_cast<std::uint32_t>(out->groups.size() - 1);
      unfold(added.ranks->size() + 1);
      for (const std::int64_t rank : *added.ranks) out->group_of.emplace_back(rank, number);
    }
    std::ranges::sort(out->group_of);
    const auto twice = std::ranges::adjacent_find(
        out->group_of, [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice != out->group_of.end()) throw bad(cat("describes rank ", twice->first, " twice"));
    return known = std::move(out);
  }

  std::shared_ptr<const Sharding> sharding_of(const Value& group) {
    std::shared_ptr<const Sharding>& known = groups_[group.identity()];
    if (known) return known;
    const Value& packed = need(group, "sharding_metadata");
    const std::string& type = need_text(packed, "type");
    const Value& data = need(packed, "data");
    auto out = std::make_shared<Sharding>();
    const std::string& dtype = need_text(data, "dtype");
    constexpr std::string_view kPrefix = "torch.";
    const auto found = dtype.starts_with(kPrefix)
                           ? dtype_from_torch_name(dtype.substr(kPrefix.size()))
                           : std::nullopt;
    if (!found) throw Error(ErrorCode::kDtype, cat("has the type ", quote(dtype)));
    out->dtype = *found;
    check_dimensions(need_items(data, "global_shape").size());
    const auto shape = shape_of(need(data, "global_shape"));
    if (!shape) throw bad("'global_shape' is not a shape");
    out->shape = *shape;
    checked_mul(checked_numel(out->shape, "number of elements"), item_bytes(out->dtype),
                "number of bytes");
    out->ranks = ranks_of(need(group, "ranks"));
    if (type == "DTensorShardingMetadata") {
      read_placements(data, *out);
    } else if (type == "default_tensor_v1") {
      read_boxes(data, *out);
    } else {
      throw Error(ErrorCode::kUnsupported, cat("has the sharding ", quote(type)));
    }
    return known = std::move(out);
  }

  std::shared_ptr<const Ranks> ranks_of(const Value& value) {
    if (!is_sequence(value)) throw bad("'ranks' is not a list of integers");
    std::shared_ptr<const Ranks>& known = ranks_[value.identity()];
    if (known) return known;
    Ranks ranks = numbers_of(value, "ranks");
    for (const std::int64_t rank : ranks) check_rank(rank, world_size_);
    std::ranges::sort(ranks);
    const auto twice = std::ranges::adjacent_find(ranks);
    if (twice != ranks.end()) throw bad(cat("describes rank ", *twice, " twice"));
    return known = std::make_shared<const Ranks>(std::move(ranks));
  }

  void read_placements(const Value& data, Sharding& out) {
    out.mesh = mesh_of(need(data, "mesh_spec"));
    const auto placements = need_items(data, "placements");
    if (placements.size() != out.mesh->shape.size()) {
      throw bad(cat("has ", placements.size(), " placements for a mesh of ", out.mesh->shape.size(),
                    " dimensions"));
    }
    for (const Value& placement : placements)
      out.placements.push_back(placement_of(placement, out.shape.size()));
    if (!checked_.emplace(out.mesh.get(), out.ranks.get()).second) return;
    for (const std::int64_t rank : *out.ranks) {
      if (!out.mesh->positions.contains(rank))
        throw Error(ErrorCode::kBounds, cat("rank ", rank, " is not in its mesh"));
    }
  }

  static Placement placement_of(const Value& value, std::size_t dimensions) {
    const std::string& type = need_text(value, "type");
    if (type == "Replicate") return {};
    if (type != "Shard" && type != "StridedShard")
      throw Error(ErrorCode::kUnsupported, cat("has the placement ", quote(type)));
    Placement placement{true, need_int(value, "dim"), 1};
    if (type == "StridedShard") placement.split_factor = need_int(value, "split_factor");
    if (placement.dim < 0 || static_cast<std::size_t>(placement.dim) >= dimensions) {
      throw Error(ErrorCode::kBounds,
                  cat("is cut along dimension ", placement.dim, " of ", dimensions));
    }
    return placement;
  }

  // Tensors share a mesh, which the pickle then holds once.
  std::shared_ptr<const Mesh> mesh_of(const Value& spec) {
    const auto known = meshes_.find(spec.identity());
    if (known != meshes_.end()) return known->second;
    auto mesh = std::make_shared<Mesh>();
    check_dimensions(need_items(spec, "mesh_shape").size());
    mesh->shape = need_numbers(spec, "mesh_shape");
    std::uint64_t size = 1;
    for (const std::int64_t count : mesh->shape) {
      if (count < 1 || count > kMaxRanks)
        throw Error(ErrorCode::kBounds, cat("a mesh has ", count, " ranks along a dimension"));
      size = checked_mul(size, static_cast<std::uint64_t>(count), "ranks of a mesh");
    }
    const Numbers ranks = need_numbers(spec, "mesh_data");
    unfold(ranks.size());
    if (ranks.size() != size) throw bad(cat("a mesh of ", size, " ranks names ", ranks.size()));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (!mesh->positions.emplace(ranks[i], i).second)
        throw bad(cat("a mesh names rank ", ranks[i], " twice"));
    }
    meshes_.emplace(spec.identity(), mesh);
    return mesh;
  }

  static void read_boxes(const Value& data, Sharding& out) {
    const auto offsets = need_items(data, "global_offsets");
    const auto local_offsets = need_items(data, "local_offsets");
    const auto sizes = need_items(data, "local_sizes");
    if (offsets.size() != sizes.size() || local_offsets.size() != sizes.size())
      throw bad("its lists of offsets and sizes are not of one length");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::size_t rank = out.shape.size();
      for (const Value& numbers : {offsets[i], sizes[i], local_offsets[i]}) {
        if (is_sequence(numbers) && numbers.items().size() != rank)
          throw Error(ErrorCode::kRank,
                      cat("a shard has another number of dimensions than ", rank));
      }
      HeldBox held{{numbers_of(offsets[i], "global_offsets"), numbers_of(sizes[i], "local_sizes")},
                   numbers_of(local_offsets[i], "local_offsets")};
      for (std::size_t d = 0; d < rank; ++d) {
        const std::int64_t offset = held.box.offset[d];
        const std::int64_t size = held.box.size[d];
        if (offset < 0 || size < 0 || held.local_offset[d] < 0 || size > out.shape[d] ||
            offset > out.shape[d] - size) {
          throw Error(ErrorCode::kBounds, cat("a shard lies outside ", shape_text(out.shape),
                                              " in dimension ", d, ": offset ", offset, ", size ",
                                              size, ", local offset ", held.local_offset[d]));
        }
      }
      out.boxes.push_back(std::move(held));
    }
  }

  void note_needed(Item& item) const {
    std::set<const Shardings*> distinct;
    for (const TensorLayout& tensor : item.tensors) distinct.insert(tensor.shardings.get());
    std::set<const Ranks*> noted;
    item.needed.assign(static_cast<std::size_t>(world_size_), false);
    for (const Shardings* shardings : distinct) {
      for (const auto& group : shardings->groups) {
        if (group->replicated() || !noted.insert(group->ranks.get()).second) continue;
        for (const std::int64_t rank : *group->ranks)
          item.needed[static_cast<std::size_t>(rank)] = true;
      }
    }
    if (noted.empty()) item.needed.flip();
  }

  static void check_files(const Metadata& metadata) {
    std::set<std::string_view> paths;
    for (const Item& item : metadata.items) {
      for (const auto& [rank, file] : item.layouts) {
        if (!paths.insert(file.path).second)
          throw bad(cat("two ranks or items have the file ", quote(file.path, 200)));
      }
    }
  }

  // By the identity of the value from which they were read.
  template <typename Part>
  using Known = std::unordered_map<const void*, std::shared_ptr<const Part>>;

  std::uint64_t bytes_;  // of the pickle
  std::int64_t world_size_ = 0;
  std::uint64_t unfolded_ = 0;
  Known<Shardings> lists_;
  Known<Sharding> groups_;
  Known<Ranks> ranks_;
  Known<Mesh> meshes_;
  std::set<std::pair<const Mesh*, const Ranks*>> checked_;
};

}  // namespace

bool Sharding::replicated() const {
  return mesh != nullptr &&
         std::ranges::none_of(placements, [](const Placement& p) { return p.shards; });
}

std::vector<HeldBox> Sharding::boxes_of(std::int64_t rank) const {
  if (mesh == nullptr) return boxes;
  std::size_t position = mesh->positions.at(rank);
  Numbers coordinate(mesh->shape.size());
  for (std::size_t m = coordinate.size(); m-- > 0;) {
    const auto count = static_cast<std::size_t>(mesh->shape[m]);
    coordinate[m] = static_cast<std::int64_t>(position % count);
    position /= count;
  }
  return {{placed_box(shape, mesh->shape, coordinate, placements), Numbers(shape.size(), 0)}};
}

const Sharding* Shardings::of_rank(std::int64_t rank) const {
  if (groups.size() == 1) {
    const Ranks& only = *groups.front()->ranks;
    return std::ranges::binary_search(only, rank) ? groups.front().get() : nullptr;
  }
  const auto found = std::ranges::lower_bound(group_of, std::pair(rank, 0U));
  return found == group_of.end() || found->first != rank ? nullptr : groups[found->second].get();
}

ItemFile Item::file(std::int64_t rank) const {
  const auto recorded = layouts.find(rank);
  if (recorded != layouts.end()) return recorded->second;
  return {cat(name, "_", rank, ".pt"), Serialization::kTorch};
}

const TensorLayout* Item::find(const std::string& key) const {
  const auto found = by_key.find(key);
  return found == by_key.end() ? nullptr : &tensors[found->second];
}

Metadata read_metadata(const ByteSource& source) {
  NoNames host;
  return Reader(source.size()).run(read_pickle(source, host));
}

bool looks_like_metadata(const ByteSource& source) {
  const auto holds = [&](std::uint64_t begin, std::uint64_t end, std::string_view name) {
    std::string text(static_cast<std::size_t>(end - begin), '\0');
    source.read_at(begin, std::as_writable_bytes(std::span(text)));
    return text.find(name) != std::string::npos;
  };
  const std::uint64_t size = source.size();
  const std::uint64_t part = std::min(size, kEndBytes);
  return holds(0, part, "metadata") || holds(size - part, size, "world_size");
}

}  // namespace fsdp::formats::torch_checkpointing
