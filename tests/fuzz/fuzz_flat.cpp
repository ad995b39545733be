// SPDX-License-Identifier: Apache-2.0
// Any list of parameters, and the divisions of a flat parameter of any size into them.
// Input: eight bytes for the size, the rank's part and the padding; then the list.
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/families/flat/division.h"
#include "formats/families/flat/parameter_list.h"

namespace fsdp::formats::flat {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Checks that parameters and padding are all of the flat parameter, each element once.
void check(const Division& division, const std::vector<std::int64_t>& numels,
           const FlatSize& flat) {
  require(division.begins.size() == numels.size());
  std::int64_t at = 0;
  std::size_t next = 0;
  // A parameter without elements may lie between two paddings.
  const auto pass_padding = [&](std::int64_t end) {
    for (; at < end && next < division.padding.size() && division.padding[next].begin == at;
         ++next) {
      require(division.padding[next].end > at);
      at = division.padding[next].end;
    }
  };
  for (std::size_t p = 0; p < numels.size(); ++p) {
    pass_padding(division.begins[p]);
    require(division.begins[p] == at);
    require(division.alignment == 0 || at % division.alignment == 0);
    at += numels[p];
  }
  pass_padding(flat.numel);
  require(at == flat.numel && next == division.padding.size());
}

void fuzz(const unsigned char* data, std::size_t size) {
  std::uint64_t head = 0;
  if (size < sizeof head) return;
  std::memcpy(&head, data, sizeof head);
  FlatSize flat;
  flat.numel = static_cast<std::int64_t>(head & 0xFFFFFFU);
  flat.shard = static_cast<std::int64_t>(head >> 24U & 0xFFFFFFU);
  flat.padded = (head >> 63U) != 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + sizeof head,
                              size - sizeof head);
  try {
    const ParameterList list = parse_parameter_list(text, "list.json");
    std::vector<std::int64_t> numels;
    for (const ListedParameter& parameter : list.parameters) {
      std::int64_t numel = 1;
      for (const std::int64_t dim : parameter.shape) {
        require(dim >= 0);
        if (__builtin_mul_overflow(numel, dim, &numel)) return;
      }
      if (parameter.tied.empty()) numels.push_back(numel);
    }
    for (const Division& division : divisions(numels, flat)) check(division, numels, flat);
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats::flat

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fsdp::formats::flat::fuzz(data, size);
  return 0;
}
