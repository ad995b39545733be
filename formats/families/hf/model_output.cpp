// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/model_output.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "formats/families/hf/completeness.h"
#include "formats/families/safetensors/writer.h"

namespace fsdp::formats::hf {
namespace {

constexpr std::size_t kCopyBytes = 1U << 20U;

class ModelOutput : public Output {
 public:
  ModelOutput(const Checkpoint& source, const Value& content, std::filesystem::path destination,
              OutputOptions options, std::uint64_t max_shard_bytes,
              std::vector<Companion> companions, const std::string& weights)
      : Output(source, std::move(destination), std::move(options)),
        writer_(source, content, {.max_shard_bytes = max_shard_bytes, .apart = kHead}),
        companions_(std::move(companions)) {
    plan_.format = "safetensors";
    plan_.folder = true;
    plan_.tied = writer_.tied();
    count_leaves(content);
    plan_.tensors -= plan_.tied.size();
    plan_.tensor_bytes = 0;
    for (const safetensors::Writer::File& file : writer_.files()) {
      plan_.files.push_back({single() ? weights : file.name, file.bytes});
      plan_.tensor_bytes += file.bytes - file.header.size();
    }
    if (!single()) plan_.files.push_back({safetensors::kIndexName, writer_.index().size()});
    for (const Companion& companion : companions_) {
      plan_.files.push_back(
          {companion.name, companion.text ? companion.text->size() : companion.file->size()});
    }
  }

 private:
  void write_files(AtomicFolder& folder, const CopyOptions& options, CopyResult& total) override {
    writer_.write_files(folder, plan_.files, options, total);
    for (const Companion& companion : companions_) copy_companion(companion, folder);
  }

  // Returns whether one file holds all weights.  It needs no index, and has the name that every
  // version looks for first.
  bool single() const { return writer_.files().size() == 1; }

  static void copy_companion(const Companion& companion, AtomicFolder& output) {
    OutputFile& file = output.add_file(companion.name);
    if (companion.text) {
      file.write_at(0, std::as_bytes(std::span(*companion.text)));
      return;
    }
    std::vector<std::byte> block(std::min<std::uint64_t>(companion.file->size(), kCopyBytes));
    read_parts(*companion.file, 0, companion.file->size(), block,
               [&](std::uint64_t at, std::span<const std::byte> part) { file.write_at(at, part); });
    companion.file->check_unchanged();
  }

  safetensors::Writer writer_;
  std::vector<Companion> companions_;
};

}  // namespace

std::unique_ptr<Output> plan_model_output(const Checkpoint& source, const Value& content,
                                          const std::filesystem::path& destination,
                                          const OutputOptions& options,
                                          std::uint64_t max_shard_bytes,
                                          std::vector<Companion> companions,
                                          const std::string& weights) {
  return std::make_unique<ModelOutput>(source, content, destination, options, max_shard_bytes,
                                       std::move(companions), weights);
}

}  // namespace fsdp::formats::hf
