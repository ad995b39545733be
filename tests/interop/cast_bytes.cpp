// SPDX-License-Identifier: Apache-2.0
// Reads elements from standard input and writes them cast to another dtype to standard output, for
// check_casts.py: cast_bytes FROM TO, PyTorch's names.
#include <iostream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/dtype.h"

int main(int argc, char** argv) {
  namespace formats = fsdp::formats;
  const auto from = argc == 3 ? formats::dtype_from_torch_name(argv[1]) : std::nullopt;
  const auto to = argc == 3 ? formats::dtype_from_torch_name(argv[2]) : std::nullopt;
  if (!from || !to || !formats::can_cast(*from, *to)) {
    std::cerr << "usage: cast_bytes FROM TO < IN > OUT\n";
    return 2;
  }
  const std::string in{std::istreambuf_iterator<char>(std::cin), {}};
  std::vector<char> out(in.size() / formats::item_bytes(*from) * formats::item_bytes(*to));
  formats::cast(*from, std::as_bytes(std::span(in)), *to, std::as_writable_bytes(std::span(out)));
  std::cout.write(out.data(), static_cast<std::streamsize>(out.size()));
  return std::cout.good() ? 0 : 2;
}
