// SPDX-License-Identifier: Apache-2.0
// The files under tests/data, and bytes for tests.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::test {

// A file or folder under tests/data: data_path("golden/2.11.0/zip_pt/full.pt").
inline std::filesystem::path data_path(std::string_view relative) {
  return std::filesystem::path(FSDP_TEST_DATA) / relative;
}

inline std::vector<std::byte> to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::vector<std::byte> read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  return to_bytes(std::string(std::istreambuf_iterator<char>(in), {}));
}

inline std::vector<std::byte> read_data(std::string_view relative) {
  return read_file(data_path(relative));
}

}  // namespace fsdp::test
