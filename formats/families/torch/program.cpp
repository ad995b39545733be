// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/torch/stored_file.h"
#include "formats/families/torch/torch.h"
#include "formats/state/checkpoint/parallel_check.h"

namespace fsdp::formats {
namespace {

// Returns the folder of the first record, with its slash.
std::string folder_of(const ZipReader& zip) {
  if (zip.entries().empty()) return {};
  const std::string& name = zip.entries()[0].name;
  return name.substr(0, name.find('/') + 1);
}

class TorchProgram : public StoredCheckpoint {
 public:
  TorchProgram(std::shared_ptr<const File> file, const ZipReader& zip) : file_(std::move(file)) {
    archive_.entries = zip.entries();
    archive_.without_crcs = zip.without_crcs();
    description_ = {file_->name(), "torch", "program"};
    const std::string name = std::filesystem::path(file_->name()).filename().native();
    index_.files.push_back({.name = name, .bytes = file_->size()});
    findings_.push_back({.code = ErrorCode::kUnsupported,
                         .message = cat("this is ", torch_program(zip, folder_of(zip)),
                                        ", a program rather than a state dict: its content and "
                                        "code were not examined"),
                         .file = name,
                         .severity = Finding::Severity::kUnknown});
  }

  ChunkData chunk(const TensorEntry&, std::size_t) const override { throw_empty(); }
  Value value(const ValueEntry&) const override { throw_empty(); }
  ChunkData storage(const StorageRef&) const override { throw_empty(); }
  void check_unchanged() const override { file_->check_unchanged(); }

  VerifyReport verify(const VerifyOptions& options) const override {
    VerifyReport report;
    report.findings = findings_;
    const auto& entries = archive_.entries;
    if (options.fast || archive_.without_crcs) {
      report.items = entries.size();
      if (!options.fast) report.bytes_unchecked = file_->size();
      return report;
    }
    const std::string& name = index_.files[0].name;
    run_checks(
        entries.size(), options, report,
        [&](std::size_t i, std::span<std::byte> buffer) {
          return check_entry(*file_, entries[i], buffer, name, {});
        },
        [&](std::size_t i, const Error& error) {
          Finding finding = finding_from(error, file_->name());
          finding.file = name;
          finding.bytes = ByteRange{entries[i].data_offset,
                                    entries[i].data_offset + entries[i].compressed_bytes};
          return finding;
        });
    return report;
  }

 private:
  [[noreturn]] void throw_empty() const {
    throw Error(ErrorCode::kUnsupported, file_->name() + ": a program has no tensors and values");
  }

  std::shared_ptr<const File> file_;
  TorchFile archive_;  // only its entries
};

}  // namespace

std::string_view torch_program(const ZipReader& zip, const std::string& prefix) {
  if (zip.find(prefix + "constants.pkl") != nullptr) return "a TorchScript archive";
  if (zip.find(prefix + "archive_format") != nullptr && zip.find(prefix + "data.pkl") == nullptr)
    return "a torch.export archive (.pt2)";
  return {};
}

std::unique_ptr<StoredCheckpoint> open_torch_program(const std::filesystem::path& path) {
  try {
    if (!std::filesystem::is_regular_file(path)) return nullptr;
    auto file = file_at(path);
    if (sniff_torch_stream(*file) != TorchStream::kZip) return nullptr;
    const EndsCache ends(*file, kTorchEndBytes, kTorchEndBytes);
    const ZipReader zip(ends);
    if (torch_program(zip, folder_of(zip)).empty()) return nullptr;
    return std::make_unique<TorchProgram>(std::move(file), zip);
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return nullptr;
  }
}

}  // namespace fsdp::formats
