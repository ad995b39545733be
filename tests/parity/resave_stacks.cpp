// SPDX-License-Identifier: Apache-2.0
// resave_stacks <from> <to> <ranks> <use_orig_params>
//
// Loads a training of the model Stacks, sharded over ranks that are threads, and saves it as a
// folder in which each rank has its own rows.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "tests/parity/stacks.h"
#include "tests/support/spawn_ranks.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  at::set_num_threads(1);
  try {
    fsdp::test::spawn_ranks(std::atoi(argv[3]), [&](const auto& group) {
      fsdp::FsdpOptions options;
      options.process_group = group;
      options.use_orig_params = std::string(argv[4]) == "1";
      options.auto_wrap_policy = fsdp::module_wrap_policy<fsdp::test::ExpertsImpl>();
      fsdp::ShardedModule sharded(std::make_shared<fsdp::test::StacksImpl>(), options);
      torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.5));
      fsdp::TrainingState state;
      state.model = &sharded;
      state.optimizers = {&optimizer};
      const auto report = load(argv[1], state);
      TORCH_CHECK(report.same_keys() && report.cast.empty(), report.missing, report.unexpected,
                  report.cast);
      save(argv[2], state);
    });
  } catch (const std::exception& error) {
    std::cout << "error: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
