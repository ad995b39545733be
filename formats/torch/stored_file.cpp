// SPDX-License-Identifier: Apache-2.0
#include "formats/torch/stored_file.h"

#include "formats/base/error.h"
#include "formats/zip/directory.h"

namespace fsdp::formats {

TorchFile read_torch_save(const File& file, std::uint64_t archive) {
  if (!file.stored() || sniff_torch_stream(file) != TorchStream::kZip)
    return read_torch_file(file, archive);
  return read_torch_file(file, archive, {.later = true});
}

void check_headers(const TorchFile& torch, const File& file) {
  if (!torch.unread) return;
  const std::lock_guard lock(torch.unread->mutex);
  if (torch.unread->checked) return;
  try {
    const EndsCache ends(file, kTorchEndBytes, kTorchEndBytes);
    const ZipReader zip(ends, {}, {.ahead = [&](std::uint64_t offset, std::uint64_t bytes) {
                          return file.read_ahead(offset, bytes);
                        }});
    for (std::size_t i = 0; i < torch.entries.size(); ++i) {
      const ZipEntry& found = zip.entries().at(i);
      const ZipEntry& foretold = torch.entries[i];
      if (found.data_offset == foretold.data_offset) continue;
      throw zip_error(ErrorCode::kZipPadding, "entry ", quote(found.name),
                      " has its payload at byte ", found.data_offset, ", expected byte ",
                      foretold.data_offset, " by the directory");
    }
  } catch (const Error& error) {
    throw error.in(file.name());
  }
  torch.unread->checked = true;
}

}  // namespace fsdp::formats
