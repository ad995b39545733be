// SPDX-License-Identifier: Apache-2.0
// fault_save_program HOW PATH N: saves a state, whose sizes and values N determines, over the
// checkpoint at PATH.  HOW is `folder`, `direct` (the same past the page cache, on file systems
// that support it), `async` (from AsyncSaver's thread), `meta` (with meta.pt) or `file`.  Prints
// nothing and returns 0, or prints the error and returns 2.
//
// It asks for the parent's process id right before it saves, and nowhere else: a caller that makes
// its system calls fail skips LibTorch's start this way (failing_call.cpp, --from).
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include <ATen/ATen.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/process_group.h"

namespace {

fsdp::StateDict state_of(std::int64_t n) {
  fsdp::ShardedTensor rows;
  const at::Tensor whole = (at::arange(1000 * n, at::kFloat) + n).view({n, 1000});
  rows.layout = fsdp::shard_layout(whole.sizes(), 1);
  rows.local = whole;
  return {{"rows", rows},
          {"halves", at::arange(64 * n, at::kBFloat16).view({n, 64})},
          // Its elements are not contiguous: they are copied before they are written.
          {"columns", at::arange(30 * n, at::kDouble).view({n, 30}).t()},
          {"ids", at::arange(n, at::kLong)},
          {"mask", at::arange(n, at::kLong).gt(1)},
          {"step", at::full({}, static_cast<double>(n), at::kFloat)},
          {"optimizer", fsdp::StateDict{{"lr", 0.5 * static_cast<double>(n)}, {"count", n}}},
          {"name", "run " + std::to_string(n)}};
}

// Returns everything except what only a rank's own file may hold.
fsdp::StateDict whole_of(fsdp::StateDict state) {
  state.erase("rows");
  return state;
}

void save(std::string_view how, const std::string& path, std::int64_t n) {
  fsdp::ProcessGroupOptions ranks;
  ranks.rank = 0;
  ranks.world_size = 1;
  const auto group = fsdp::init_process_group(ranks);
  const fsdp::StateDict state = state_of(n);
  const fsdp::StateDict whole = whole_of(state);
  fsdp::AsyncSaver saver(group);
  fsdp::SaveOptions options;
  options.overwrite = true;  // the only changed option: the same save is run again
  if (how == "direct") options.page_cache = fsdp::PageCache::kNever;
  (void)::getppid();
  if (how == "async") {
    saver.async_save(path, state, options);
    saver.wait();
  } else if (how == "meta") {
    fsdp::save_with_meta(path, state, whole, group, options);
  } else if (how == "file") {
    fsdp::save_file(path, whole, group, options);
  } else {
    fsdp::save(path, state, group, options);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 1;
  at::set_num_threads(1);
  try {
    save(argv[1], argv[2], std::stol(argv[3]));
  } catch (const std::exception& error) {
    const std::string text = "save_program: error: " + fsdp::internal::message_of(error) + "\n";
    (void)std::fputs(text.c_str(), stderr);
    return 2;
  }
  return 0;
}
