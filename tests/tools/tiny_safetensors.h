// SPDX-License-Identifier: Apache-2.0
// A small safetensors file of float32 numbers, for tests of verbs.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace fsdp::cli {

class TinySafetensors {
 public:
  void add(const std::string& name, const std::vector<std::int64_t>& shape,
           const std::vector<float>& numbers) {
    std::string sizes;
    for (const std::int64_t size : shape)
      sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    const std::size_t begin = data_.size();
    data_.resize(begin + 4 * numbers.size());
    std::memcpy(data_.data() + begin, numbers.data(), 4 * numbers.size());
    header_ += (header_.empty() ? "\"" : ",\"") + name + R"(":{"dtype":"F32","shape":[)" + sizes +
               R"(],"data_offsets":[)" + std::to_string(begin) + "," +
               std::to_string(data_.size()) + "]}";
  }
  // All elements are one number.
  void fill(const std::string& name, const std::vector<std::int64_t>& shape, float number) {
    std::size_t numel = 1;
    for (const std::int64_t size : shape) numel *= static_cast<std::size_t>(size);
    add(name, shape, std::vector<float>(numel, number));
  }
  // Its elements go on from those before: 0, 1, 2, ... through the file.
  void count(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::size_t numel = 1;
    for (const std::int64_t size : shape) numel *= static_cast<std::size_t>(size);
    std::vector<float> numbers(numel);
    for (float& number : numbers) number = counted_++;
    add(name, shape, numbers);
  }
  void write(const std::string& path) const {
    std::string header = "{" + header_ + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string file;
    for (std::size_t i = 0; i < 8; ++i)
      file.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xFFU));
    test::write_file(path, file + header + data_);
  }

 private:
  std::string header_;
  std::string data_;
  float counted_ = 0;
};

}  // namespace fsdp::cli
