// SPDX-License-Identifier: Apache-2.0
#include "samples/device_option.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <string_view>

#include <torch/cuda.h>

#include "libfsdp/process_group.h"

namespace {

// Returns the number after "cuda:"; nullopt if the text is not one.
std::optional<int> index_of(std::string_view text) {
  int index = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, index);
  // c10 keeps an index in a byte.
  if (error != std::errc() || stop != end || index < 0 || index > 127) return std::nullopt;
  return index;
}

void check_cuda(const std::string& word) {
  const std::string option = "--device " + word + ": ";
  if (!fsdp::is_backend_available("nccl")) {
    throw std::runtime_error(option +
                             "this program was built without CUDA; configure with "
                             "-DFSDP_CUDA_PROGRAMS=ON, or use --device cpu");
  }
  if (!torch::cuda::is_available()) {
    throw std::runtime_error(option +
                             "this machine shows no CUDA device; check the driver and "
                             "CUDA_VISIBLE_DEVICES, or use --device cpu");
  }
}

}  // namespace

std::string take_device_option(int& argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--device") continue;
    if (i + 1 == argc) throw std::invalid_argument("--device: expected cpu, cuda, cuda:N or auto");
    const std::string word = argv[i + 1];
    std::copy(argv + i + 2, argv + argc, argv + i);
    argc -= 2;
    return word;
  }
  return "cpu";
}

c10::Device device_of_option(const std::string& word) {
  constexpr std::string_view kOneOf = "cuda:";
  if (word == "cpu") return c10::kCPU;
  if (word == "auto") {
    const bool has_cuda = fsdp::is_backend_available("nccl") && torch::cuda::is_available();
    return has_cuda ? c10::kCUDA : c10::kCPU;
  }
  if (word == "cuda") {
    check_cuda(word);
    return c10::kCUDA;
  }
  std::optional<int> index;
  if (word.starts_with(kOneOf)) index = index_of(std::string_view(word).substr(kOneOf.size()));
  if (!index) {
    throw std::invalid_argument("--device: expected cpu, cuda, cuda:N or auto, but got '" + word +
                                "'");
  }
  check_cuda(word);
  const auto count = static_cast<int>(torch::cuda::device_count());
  if (*index >= count) {
    throw std::runtime_error("--device " + word + ": this machine shows " + std::to_string(count) +
                             " CUDA devices, counted from 0");
  }
  if (const auto place = fsdp::rank_environment();
      place && place->local_known && place->local_world_size > 1) {
    throw std::runtime_error("--device " + word + " is one device for the " +
                             std::to_string(place->local_world_size) +
                             " ranks of this node; use --device cuda");
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(*index)};
}
