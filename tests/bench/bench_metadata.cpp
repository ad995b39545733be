// SPDX-License-Identifier: Apache-2.0
// Measures how fast a .metadata becomes an index, without the process around it.
// Run: bench_metadata FILE [ROUNDS]     FILE by make_metadata.py; MB are 10^6 bytes of the file
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/files/file.h"
#include "formats/families/dcp/metadata.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: bench_metadata FILE [ROUNDS]\n";
    return 2;
  }
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  try {
    const auto file = fsdp::formats::file_at(argv[1]);
    std::vector<double> rates;
    for (int i = 0; i < rounds; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const auto metadata = fsdp::formats::dcp::read_metadata(*file, argv[1]);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      std::size_t chunks = 0;
      for (const auto& tensor : metadata.index.tensors) chunks += tensor.chunks.size();
      if (chunks == 0) return 1;  // not the intended input
      rates.push_back(static_cast<double>(file->size()) / 1e6 / taken.count());
    }
    std::sort(rates.begin(), rates.end());
    std::cout << "median " << rates[rates.size() / 2] << " MB/s, " << rates.front() << " to "
              << rates.back() << '\n';
  } catch (const fsdp::Error& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
