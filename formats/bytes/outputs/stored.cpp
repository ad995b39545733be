// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/stored.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/outputs/local_output.h"
#include "formats/bytes/store/store.h"
#include "formats/bytes/upload/part_upload.h"
#include "formats/bytes/upload/stored_output.h"

namespace fsdp::formats {
namespace {

std::unique_ptr<StoredOutput> output_at(const std::filesystem::path& destination,
                                        const OutputOptions& options, OutputKind kind) {
  const std::string& url = destination.native();
  Store* const store = store_of(url);
  const auto refuse = [&](std::string_view why) {
    return Error(ErrorCode::kUnsupported, escape(url), ": ", why);
  };
  if (store == nullptr) throw refuse("URLs of this kind cannot be written");
  if (!options.team->alone()) throw refuse("several ranks can write together only to a local path");
  if (options.journal->records()) throw refuse("an output in a store cannot be resumed");
  return std::make_unique<StoredOutput>(
      *store, url,
      StoredOutputOptions{kind == OutputKind::kFolder, options.replace, options.replaced,
                          &is_seal_name});
}

std::unique_ptr<OutputFile> add_to(StoredOutput& output, const std::string& name, bool summed) {
  const StoredOutput::Added added = output.add(name);
  std::string shown = cat(added.shown, ": by way of ", escape(added.spool.native()));
  FileDescriptor fd = open_for_output(AT_FDCWD, added.spool.native(), O_RDWR, 0);
  if (fd.get() < 0) throw_errno(shown);
  return std::make_unique<StoredOutputFile>(std::move(fd), std::move(shown), added.upload, summed);
}

class StoredAtomicFile : public AtomicFile {
 public:
  StoredAtomicFile(const std::filesystem::path& destination, const OutputOptions& options)
      : options_(options),
        name_(destination.filename()),
        output_(output_at(destination, options, OutputKind::kFile)),
        file_(add_to(*output_, "", options.seal)) {}
  OutputFile& file() override { return *file_; }
  void commit() override {
    file_->finish(false);
    output_->await_sent();
    look_before_commit(output_->spooled(), output_->shown(), options_);
    output_->remove_beside(sidecar_name(""));
    output_->commit();
    if (!options_.seal) return;
    try {
      output_->put_beside(sidecar_name(""), seal_text({{name_, file_->bytes(), file_->crc()}}));
    } catch (const Error& error) {
      throw without_seal(error.code(), error.what(), output_->shown());
    }
  }

 private:
  const OutputOptions options_;
  const std::string name_;
  std::unique_ptr<StoredOutput> output_;
  std::unique_ptr<OutputFile> file_;
};

class StoredAtomicFolder : public AtomicFolder {
 public:
  StoredAtomicFolder(const std::filesystem::path& destination, const OutputOptions& options)
      : options_(options), output_(output_at(destination, options, OutputKind::kFolder)) {}
  OutputFile& add_file(const std::string& name) override {
    files_.push_back(add_to(*output_, name, options_.seal));
    files_.back()->set_member(name);
    return *files_.back();
  }
  // A store shares nothing: the bytes are sent.
  Sharing link_file(const std::string& name, const File& source, SharingOptions sharing,
                    std::optional<std::uint32_t>) override {
    OutputFile& file = add_file(name);
    copy_bytes(source, file, sharing);
    file.finish(false);
    return Sharing::kCopy;
  }
  void commit() override {
    for (const auto& file : files_) file->finish(false);
    output_->await_sent();
    look_before_commit(output_->spooled(), output_->shown(), options_);
    if (options_.seal) write_seal();
    output_->commit();
  }

 private:
  void write_seal() {
    std::vector<SealedFile> sealed;
    for (const auto& file : files_) sealed.push_back({file->member(), file->bytes(), file->crc()});
    const std::string text = seal_text(std::move(sealed));
    OutputFile& seal = add_file(std::string(kSealName));
    seal.write_at(0, std::as_bytes(std::span(text)));
    seal.finish(false);
  }

  const OutputOptions options_;
  std::unique_ptr<StoredOutput> output_;
  std::vector<std::unique_ptr<OutputFile>> files_;
};

}  // namespace

void StoredOutputFile::reserve(std::uint64_t bytes) {
  OutputFile::reserve(bytes);
  upload_->begin(bytes);
}

int StoredOutputFile::take_space(off_t bytes) {
  return ::ftruncate(fd_.get(), bytes);
}

void StoredOutputFile::wrote(std::uint64_t offset, std::uint64_t bytes, bool kept) {
  upload_->wrote(offset, bytes, kept);
}

void StoredOutputFile::close(FileDescriptor fd, bool) {
  fd.reset();
  upload_->finish(bytes());
}

std::unique_ptr<AtomicFile> new_stored_file(const std::filesystem::path& destination,
                                            const OutputOptions& options) {
  return std::make_unique<StoredAtomicFile>(destination, options);
}

std::unique_ptr<AtomicFolder> new_stored_folder(const std::filesystem::path& destination,
                                                const OutputOptions& options) {
  return std::make_unique<StoredAtomicFolder>(destination, options);
}

}  // namespace fsdp::formats
