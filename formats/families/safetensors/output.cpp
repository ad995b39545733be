// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/safetensors/safetensors.h"
#include "formats/state/content/content.h"

namespace fsdp::formats::safetensors {
namespace {

class SafetensorsOutput : public Output {
 public:
  SafetensorsOutput(const Checkpoint& source, const Value& content,
                    const std::filesystem::path& destination, const OutputOptions& options,
                    const WriterOptions& how, bool drop_values)
      : Output(source, destination, options) {
    refuse_values(content, drop_values);
    writer_.emplace(source, content, how);
    plan_.format = "safetensors";
    plan_.tied = writer_->tied();
    count_leaves(content);
    plan_.tensors -= plan_.tied.size();
    plan_.dropped_values = plan_.values;
    plan_.values = 0;
    plan_.tensor_bytes = 0;
    for (const Writer::File& file : writer_->files()) {
      plan_.files.push_back({file.name, file.bytes});
      plan_.tensor_bytes += file.bytes - file.header.size();
    }
    if (writer_->index().empty()) {
      plan_.files[0].name = destination.filename().native();
    } else {
      plan_.files.push_back({kIndexName, writer_->index().size()});
      plan_.folder = true;
    }
  }

 private:
  void refuse_values(const Value& content, bool drop_values) const {
    std::uint64_t tensors = 0;
    std::uint64_t values = 0;
    std::string key;
    for (const Leaf& leaf : leaves_of(content)) {
      if (tensor_number(leaf.value)) {
        ++tensors;
      } else if (values++ == 0) {
        key = leaf.key;
      }
    }
    if (values != 0 && !drop_values) {
      throw Error(
          ErrorCode::kUnsupported,
          cat(source_.description().path, ": ", key.empty() ? "the object" : quote(key, 200),
              values > 1 ? cat(" and ", values - 1, " more") : std::string(),
              values > 1 ? " are not tensors" : " is not a tensor",
              ", and safetensors holds only tensors"),
          {Remedy::kDropValues});
    }
    if (tensors == 0) {
      throw Error(
          ErrorCode::kUnsupported,
          source_.description().path + ": holds no tensor, and safetensors holds only tensors");
    }
  }

  void write_file(OutputFile& file, const CopyOptions& options, CopyResult& total) override {
    writer_->write({&file}, options, total);
  }

  void write_files(AtomicFolder& folder, const CopyOptions& options, CopyResult& total) override {
    writer_->write_files(folder, plan_.files, options, total);
  }

  std::optional<Writer> writer_;
};

}  // namespace

std::unique_ptr<Output> plan_output(const Checkpoint& source, const Value& content,
                                    const std::filesystem::path& destination,
                                    const OutputOptions& options, const WriterOptions& how,
                                    bool drop_values) {
  return std::make_unique<SafetensorsOutput>(source, content, destination, options, how,
                                             drop_values);
}

}  // namespace fsdp::formats::safetensors
