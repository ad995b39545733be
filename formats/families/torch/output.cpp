// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/torch.h"
#include "formats/families/torch/writer.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

class TorchOutput : public Output {
 public:
  TorchOutput(const Checkpoint& source, const Value& content,
              const std::filesystem::path& destination, const OutputOptions& options)
      : Output(source, destination, options),
        writer_(source, with_own_tensors(source, with_values(source, content))) {
    plan_.format = "pt";
    plan_.files = {{destination.filename().native(), writer_.file_bytes()}};
    count_leaves(content);
  }

 private:
  void write_file(OutputFile& file, const CopyOptions& options, CopyResult& total) override {
    total += writer_.write(file, options);
  }

  TorchSaveWriter writer_;
};

}  // namespace

std::unique_ptr<Output> plan_torch_output(const Checkpoint& source, const Value& content,
                                          const std::filesystem::path& destination,
                                          const OutputOptions& options) {
  return std::make_unique<TorchOutput>(source, content, destination, options);
}

}  // namespace fsdp::formats
