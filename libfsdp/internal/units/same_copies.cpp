// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/same_copies.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include <ATen/ATen.h>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/text.h"
#include "libfsdp/agree.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/units/gather_rows.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {
namespace {

std::string line_of(const Parameter& parameter) {
  const at::Tensor bytes =
      parameter.shard.detach().reshape({-1}).contiguous().view(at::kByte).cpu();
  const auto* const first = static_cast<const std::byte*>(bytes.const_data_ptr());
  const std::uint32_t crc =
      formats::crc32(0, std::span(first, static_cast<std::size_t>(bytes.numel())));
  return formats::cat("parameter '", parameter.name(), "': CRC-32 ", crc);
}

// Returns the parameters that must be the same on all ranks along this dimension of the root.
std::vector<const Parameter*> alike_along(const std::vector<const Unit*>& units,
                                          const std::string& name) {
  std::vector<const Parameter*> result;
  for (const Unit* unit : units) {
    for (const auto& parameter : unit->parameters) {
      const DeviceMesh over = cut_over(*parameter);
      bool cut = false;
      for (std::size_t dim = 0; dim < over.ndim(); ++dim) cut = cut || over.name(dim) == name;
      if (!cut) result.push_back(parameter.get());
    }
  }
  return result;
}

}  // namespace

void require_same_copies(const std::vector<std::unique_ptr<Unit>>& units) {
  const OwnWork own;
  std::vector<std::vector<const Unit*>> by_mesh;
  for (const auto& unit : units) {
    const auto& mesh = unit->sharding->device_mesh;
    if (!mesh) continue;
    const auto known = std::find_if(by_mesh.begin(), by_mesh.end(), [&](const auto& others) {
      return others.front()->sharding->device_mesh->is_part_of_same(*mesh);
    });
    (known == by_mesh.end() ? by_mesh.emplace_back() : *known).push_back(unit.get());
  }
  for (const auto& of_mesh : by_mesh) {
    const DeviceMesh root = of_mesh.front()->sharding->device_mesh->root();
    for (std::size_t dim = 0; dim < root.ndim(); ++dim) {
      if (root.size(dim) == 1) continue;
      std::vector<std::string> lines;
      for (const Parameter* parameter : alike_along(of_mesh, root.name(dim)))
        lines.push_back(line_of(*parameter));
      if (lines.empty()) continue;
      require_same(root.group(dim),
                   "values that must be equal on ranks along '" + root.name(dim) +
                       "' when the first forward begins (seed ranks alike before the module is "
                       "built, or load the same values)",
                   lines);
    }
  }
}

}  // namespace fsdp::internal
