// SPDX-License-Identifier: Apache-2.0
// copy_checkpoint <from> <to> <ranks> <copies>
//
// Loads a checkpoint into a state cut over ranks, and saves it: as a folder, or, if the name ends
// in .pt, as a file of the joined parts.  Ranks are threads.  Prints "left out: <value>" for each
// value that has no counterpart in C++.
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/internal/checkpoint/checkpoint_reader.h"
#include "tests/support/spawn_ranks.h"

namespace fsdp {
using namespace internal;
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct Cut {
  int part = 0;
  int parts = 1;
  int replica = 0;
  int replicas = 1;
};

// Every third tensor stays whole.  Values that are not loaded would be noticed.
StateValue emptied(const StateValue& value, const Cut& cut, int& count) {
  if (const auto* tensor = value.as_tensor()) {
    const auto poison = [&](at::IntArrayRef shape) {
      auto result = at::empty(shape, tensor->options());
      std::memset(result.data_ptr(), 0x55, result.nbytes());
      return result;
    };
    if (++count % 3 == 0) return poison(tensor->sizes());
    const ShardLayout layout = shard_layout(tensor->sizes(), cut.parts);
    return ShardedTensor{layout, cut.part, cut.replica, cut.replicas,
                         poison(layout.shape_of(cut.part))};
  }
  if (const auto* dict = value.as_dict()) {
    StateDict result;
    for (const auto& [key, inner] : dict->entries()) result.set(key, emptied(inner, cut, count));
    return result;
  }
  const auto* list = value.as_list();
  if (list == nullptr) return {};
  StateList result;
  for (const auto& inner : *list) result.push_back(emptied(inner, cut, count));
  return result;
}

// Joins the ranks' parts of one value.
StateValue joined(const std::vector<const StateValue*>& parts) {
  const StateValue& first = *parts.front();
  const auto inner = [&](const auto& pick) {
    std::vector<const StateValue*> result;
    for (const StateValue* part : parts) result.push_back(pick(*part));
    return joined(result);
  };
  if (const auto* sharded = first.as_sharded()) {
    std::vector<at::Tensor> rows;
    for (const StateValue* part : parts) {
      if (part->as_sharded()->local.numel() != 0) rows.push_back(part->as_sharded()->local);
    }
    const auto& shape = sharded->layout.shape;
    if (rows.empty()) return at::empty(shape, sharded->local.options());
    if (rows.front().dim() == 0) return rows.front();
    const auto type = rows.front().scalar_type();
    // Some narrow types cannot be joined directly.
    if (rows.front().itemsize() == 1) {
      for (at::Tensor& part : rows) part = part.view(at::kByte);
    }
    return at::cat(rows).view(type).view(shape);
  }
  if (const auto* dict = first.as_dict()) {
    StateDict result;
    for (std::size_t i = 0; i < dict->size(); ++i) {
      result.set(dict->entries()[i].first, inner([i](const StateValue& value) {
                   return &value.as_dict()->entries()[i].second;
                 }));
    }
    return result;
  }
  const auto* list = first.as_list();
  if (list == nullptr) return first;
  StateList result;
  for (std::size_t i = 0; i < list->size(); ++i)
    result.push_back(inner([i](const StateValue& value) { return &(*value.as_list())[i]; }));
  return result;
}

void copy(const std::string& from, const std::string& to, int ranks, int replicas) {
  CheckpointReader reader(from, {});
  std::vector<std::string> left_out;
  const StateValue whole = reader.value(reader.content(), "", left_out);
  for (const std::string& line : left_out) std::cout << "left out: " << line << '\n';
  const int parts = ranks / replicas;
  std::vector<StateValue> held(static_cast<std::size_t>(ranks));
  test::spawn_ranks(ranks, [&](const Group& group) {
    const Cut cut{group->rank() % parts, parts, group->rank() / parts, replicas};
    int count = 0;
    StateValue& state = held[static_cast<std::size_t>(group->rank())];
    state = emptied(whole, cut, count);
    LoadOptions options;
    options.strict = left_out.empty();
    const LoadReport report = load(from, state.dict(), group, options);
    TORCH_CHECK(report.missing.empty() && report.cast.empty(), "missing: ", report.missing,
                ", cast: ", report.cast);
    if (!to.ends_with(".pt")) save(to, state.dict(), group);
  });
  if (!to.ends_with(".pt")) return;
  for (int replica = 0; replica < replicas; ++replica) {
    std::vector<const StateValue*> values;
    for (int part = 0; part < parts; ++part)
      values.push_back(&held[static_cast<std::size_t>(replica * parts + part)]);
    const StateValue result = joined(values);
    SaveOptions options;
    options.overwrite = true;
    test::spawn_ranks(1, [&](const Group& group) {
      save_file(replica == 0 ? to : to + "." + std::to_string(replica), result.dict(), group,
                options);
    });
  }
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  at::set_num_threads(1);
  try {
    fsdp::copy(argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  } catch (const std::exception& error) {
    std::cout << "error: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
