// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/state/load_problems.h"

#include <c10/util/ArrayRef.h>

#include "formats/bytes/base/text.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/units/gather_rows.h"

namespace fsdp::internal {
namespace {

using formats::cat;
using formats::quote;
using formats::shape_text;

// Longer than any realistic key.
constexpr std::size_t kKeyLength = 200;
// Finding the nearest name takes time in the number of keys, and readers see only the first ones.
constexpr std::size_t kHints = 50;

std::string hint(const std::string& key, const std::vector<std::string>& others,
                 std::size_t position) {
  const std::string near = position < kHints ? formats::nearest(key, others) : std::string();
  return near.empty() ? "" : cat(" (nearest: ", quote(near, kKeyLength), ")");
}

bool has_memory(const at::Tensor& tensor, const std::string& key, LoadProblems& problems) {
  const bool usable = tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta();
  if (!usable)
    problems.add(cat(quote(key, kKeyLength), ": the tensor is not dense, or has no memory"));
  return usable;
}

bool has_shape(at::IntArrayRef found, at::IntArrayRef expected, const std::string& key,
               LoadProblems& problems) {
  if (found == expected) return true;
  problems.add(cat(quote(key, kKeyLength), ": expected the shape ", shape_text(expected),
                   ", found ", shape_text(found)));
  return false;
}

at::Tensor no_tensor(const StateValue& value, const std::string& key, LoadProblems& problems) {
  problems.add(cat(quote(key, kKeyLength), ": expected a tensor, found ", value.kind_name()));
  return {};
}

}  // namespace

void LoadProblems::add_keys(const LoadReport& keys, std::string_view into) {
  for (std::size_t i = 0; i < keys.missing.size(); ++i)
    add(cat("missing ", quote(keys.missing[i], kKeyLength),
            hint(keys.missing[i], keys.unexpected, i)));
  for (std::size_t i = 0; i < keys.unexpected.size(); ++i)
    add(cat("unexpected ", quote(keys.unexpected[i], kKeyLength), ", which ", into,
            " does not have", hint(keys.unexpected[i], keys.missing, i)));
}

void LoadProblems::check(const std::string& what) const {
  if (problems_.empty()) return;
  std::string text = what + ":";
  for (const std::string& problem : problems_)
    text += (problems_.size() == 1 ? " " : "\n  ") + problem;
  FSDP_CHECK(false, text);
}

const StateList& list_at(const StateDict& dict, const char* key, const std::string& of) {
  const StateList* const list = dict.at(key).as_list();
  FSDP_CHECK(list != nullptr, "'", key, "'", of, " is ", dict.at(key).kind_name(),
             ", expected a list");
  return *list;
}

std::string name_of(c10::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

at::Tensor rows_in(const StateValue& value, const std::string& key, const ShardLayout& layout,
                   int part, LoadProblems& problems) {
  if (const at::Tensor* whole = value.as_tensor()) {
    if (!has_shape(whole->sizes(), layout.whole_shape(), key, problems) ||
        !has_memory(*whole, key, problems))
      return {};
    return rows_of(block_of(whole->detach(), layout), layout, part);
  }
  const ShardedTensor* sharded = value.as_sharded();
  if (sharded == nullptr) return no_tensor(value, key, problems);
  if (!has_shape(sharded->layout.whole_shape(), layout.whole_shape(), key, problems) ||
      !has_memory(sharded->local, key, problems) ||
      !has_shape(sharded->local.sizes(), sharded->layout.shape_of(sharded->part), key, problems))
    return {};
  if (sharded->layout.cuts != layout.cuts) {
    if (sharded->layout.world_size == 1 && sharded->layout.cuts.empty())
      return rows_of(block_of(sharded->local.detach(), layout), layout, part);
    problems.add(cat(quote(key, kKeyLength), ": expected block ", layout.block(), " of ",
                     layout.block_count(), ", found block ", sharded->layout.block(), " of ",
                     sharded->layout.block_count(),
                     ", or blocks along another dimension: the whole tensor is needed"));
    return {};
  }
  if (sharded->layout.world_size == 1) return rows_of(sharded->local.detach(), layout, part);
  if (sharded->layout.world_size != layout.world_size || sharded->part != part) {
    problems.add(cat(quote(key, kKeyLength), ": expected part ", part, " of ", layout.world_size,
                     ", found part ", sharded->part, " of ", sharded->layout.world_size,
                     ": the whole tensor is needed at another number of ranks"));
    return {};
  }
  return sharded->local.detach();
}

at::Tensor whole_in(const StateValue& value, const std::string& key, at::IntArrayRef shape,
                    LoadProblems& problems) {
  return rows_in(value, key, shard_layout(shape, 1), 0, problems);
}

}  // namespace fsdp::internal
