// SPDX-License-Identifier: Apache-2.0
// Prints each tensor of a checkpoint: key, dtype, bytes.
#include <formats/bytes/base/error.h>
#include <formats/front/open.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const auto checkpoint = fsdp::formats::open_checkpoint(argv[1]);
    for (const auto& tensor : checkpoint->index().tensors)
      std::cout << tensor.key << ' ' << fsdp::formats::torch_name(tensor.dtype) << ' '
                << tensor.bytes() << '\n';
    return checkpoint->findings().empty() ? 0 : 1;
  } catch (const fsdp::Error& error) {
    std::cerr << fsdp::code_name(error.code()) << '\n';
    return 2;
  }
}
