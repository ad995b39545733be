// SPDX-License-Identifier: Apache-2.0
// Any bytes read as a pickle.  Accepted input is written and read again: the same value, and the
// same bytes when it is written a second time.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/containers/pickle/machine.h"
#include "formats/containers/pickle/writer.h"
#include "tests/support/pickle_values.h"

namespace fsdp::formats {
namespace {

// Values without an opcode in protocol 2 are written as a call, which is nested deeper.
constexpr PickleLimits kLimits;
constexpr PickleLimits kLimitsAgain = {.max_depth = kLimits.max_depth * 4,
                                       .max_nodes = kLimits.max_nodes * 4};

void require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "%.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

// Accepts streams that hold themselves, too.
Value read(std::string_view bytes, const PickleLimits& limits) {
  class Host : public test::FoldingHost {
    bool restart() override { return true; }
  } host;
  return read_pickle(MemorySource(std::as_bytes(std::span(bytes))), host, limits);
}

void fuzz(std::string_view bytes) {
  Value value;
  std::string written;
  try {
    value = read(bytes, kLimits);
    written = write_pickle(value);
  } catch (const Error&) {
    return;
  }
  const Value again = read(written, kLimitsAgain);
  const std::string difference = test::difference(value, again);
  require(difference.empty(), difference);
  require(write_pickle(again) == written, "written differently the second time");
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fsdp::formats::fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
