// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/output.h"

#include <utility>

#include "formats/bytes/files/seal.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {

std::uint64_t OutputPlan::bytes() const {
  std::uint64_t sum = 0;
  for (const PlannedFile& file : files) sum += file.bytes;
  return sum;
}

std::uint64_t OutputPlan::new_bytes() const {
  std::uint64_t sum = 0;
  for (const PlannedFile& file : files) sum += file.linked ? 0 : file.bytes;
  return sum;
}

void Output::plan_seal() {
  std::vector<SealedFile> sealed;
  sealed.reserve(plan_.files.size());
  for (const PlannedFile& file : plan_.files) sealed.push_back({file.name, file.bytes, 0});
  const std::string name =
      plan_.folder ? std::string(kSealName) : sidecar_name(plan_.files.front().name);
  plan_.files.push_back({name, seal_bytes(std::move(sealed))});
}

CopyResult Output::write(const CopyOptions& options) {
  CopyResult total;
  if (plan_.folder) {
    const auto folder = new_folder(destination_, options_);
    write_files(*folder, options, total);
    source_.check_unchanged();
    folder->commit();
  } else {
    const auto output = new_file(destination_, options_);
    output->file().reserve(plan_.files.front().bytes);
    write_file(output->file(), options, total);
    source_.check_unchanged();
    output->commit();
  }
  return total;
}

void Output::count_leaves(const Value& content) {
  for (const Leaf& leaf : leaves_of(content)) {
    if (const auto number = tensor_number(leaf.value)) {
      ++plan_.tensors;
      plan_.tensor_bytes += source_.index().tensors[*number].bytes();
    } else {
      ++plan_.values;
    }
  }
}

}  // namespace fsdp::formats
