// SPDX-License-Identifier: Apache-2.0
// save_ranks <folder> <first>: one rank as a separate process, which saves over the existing
// checkpoint: a tensor that begins with <first>, cut over the ranks.
#include <chrono>
#include <cstdlib>
#include <iostream>

#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/process_group.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  at::set_num_threads(1);
  try {
    fsdp::ProcessGroupOptions group_options;
    // Limits how long a rank waits for one that was killed.
    group_options.timeout = std::chrono::seconds(10);
    const auto group = fsdp::init_process_group(group_options);
    const auto whole = (at::arange(600'000, at::kDouble) + std::atof(argv[2])).view({600, 1000});
    fsdp::ShardedTensor rows;
    rows.layout = fsdp::shard_layout(whole.sizes(), group->size());
    rows.part = group->rank();
    rows.local = whole.narrow(0, rows.layout.first_row(rows.part), rows.layout.rows_of(rows.part));
    fsdp::SaveOptions options;
    options.overwrite = true;
    fsdp::save(argv[1], {{"rows", rows}, {"first", std::atof(argv[2])}, {"whole", at::ones({9})}},
               group, options);
  } catch (const std::exception& error) {
    std::cout << "error: " << fsdp::internal::message_of(error) << std::endl;
    return 1;
  }
  std::cout << "done" << std::endl;
  return 0;
}
