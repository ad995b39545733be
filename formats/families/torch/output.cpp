// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/output.h"

#include "formats/bytes/outputs/atomic_file.h"
#include "formats/families/torch/writer.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

class TorchOutput : public Output {
 public:
  TorchOutput(const Checkpoint& source, const Value& content,
              const std::filesystem::path& destination, const OutputOptions& options)
      : source_(source),
        destination_(destination),
        options_(options),
        writer_(source, with_own_tensors(source, with_values(source, content))) {
    plan_.format = "pt";
    plan_.files = {{destination.filename().native(), writer_.file_bytes()}};
    count_leaves(source, content);
  }

  CopyResult write(const CopyOptions& options) override {
    const auto output = new_file(destination_, options_);
    output->file().reserve(writer_.file_bytes());
    auto result = writer_.write(output->file(), options);
    source_.check_unchanged();
    output->commit();
    return result;
  }

 private:
  const Checkpoint& source_;
  std::filesystem::path destination_;
  OutputOptions options_;
  TorchSaveWriter writer_;
};

}  // namespace

std::unique_ptr<Output> plan_torch_output(const Checkpoint& source, const Value& content,
                                          const std::filesystem::path& destination,
                                          const OutputOptions& options) {
  return std::make_unique<TorchOutput>(source, content, destination, options);
}

}  // namespace fsdp::formats
