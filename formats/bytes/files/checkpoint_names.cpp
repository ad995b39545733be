// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/checkpoint_names.h"

#include <algorithm>
#include <array>

namespace fsdp::formats {
namespace {

template <std::size_t N>
bool ends_with_any(std::string_view name, const std::array<std::string_view, N>& endings) {
  return std::ranges::any_of(endings,
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

bool is_checkpoint_name(std::string_view name) {
  constexpr std::array<std::string_view, 6> kSuffixes = {".pt",          ".pth",  ".ckpt",
                                                         ".safetensors", ".hdf5", ".h5"};
  constexpr std::array<std::string_view, 6> kTorchBins = {
      "pytorch_model", "adapter_model", "model", "optimizer", "scheduler", "training_args"};
  const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return ends_with_any(name, kSuffixes) ||
         (name.ends_with(".bin") && std::ranges::any_of(kTorchBins, starts));
}

bool is_companion_name(std::string_view name) {
  constexpr std::array<std::string_view, 5> kEndings = {".pt", ".pth", ".bin", ".pkl", ".json"};
  return ends_with_any(name, kEndings);
}

bool is_description_name(std::string_view name) {
  constexpr std::array<std::string_view, 12> kEndings = {".json", ".jsonl", ".txt",  ".md",
                                                         ".py",   ".model", ".yaml", ".yml",
                                                         ".toml", ".jinja", ".log",  "latest"};
  return ends_with_any(name, kEndings) || name == "training_args.bin";
}

bool is_member_name(std::string_view name) {
  constexpr std::array<std::string_view, 3> kEndings = {".safetensors", ".distcp", ".metadata"};
  return ends_with_any(name, kEndings) || is_companion_name(name);
}

}  // namespace fsdp::formats
