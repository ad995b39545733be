// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include "libfsdp/agree.h"
#include "libfsdp/checkpoint.h"
#include "libfsdp/internal/checkpoint/checkpoint_reader.h"
#include "libfsdp/internal/checkpoint/load_plan.h"
#include "libfsdp/internal/construction/left_out_option.h"

namespace fsdp {
using namespace internal;

LoadReport load(const std::filesystem::path& path, StateDict& state,
                const std::shared_ptr<ProcessGroup>& group, const LoadOptions& given) {
  const LoadOptions options = with_option_left_out(given);
  const std::string what = "load " + path.native();
  std::optional<CheckpointReader> reader;
  std::optional<LoadPlan> plan;
  agree(group, what, [&] {
    reader.emplace(path, options.allowed_globals);
    plan.emplace(*reader, options);
    plan->match(state, reader->content());
    plan->check();
  });
  reader->read(group, what, options.verify);
  return plan->finish();
}

}  // namespace fsdp
