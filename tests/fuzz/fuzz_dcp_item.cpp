// SPDX-License-Identifier: Apache-2.0
// Any bytes as a data file.  The first byte selects how the item is found and its expected content;
// the rest is the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/local_file.h"
#include "formats/families/dcp/item.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kMaxElements = 1U << 16U;

std::shared_ptr<const File> file_of(std::span<const std::byte> bytes) {
  FileDescriptor fd(::memfd_create("item", MFD_CLOEXEC));
  if (fd.get() < 0 ||
      ::write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    std::abort();
  return std::make_shared<LocalFile>(std::move(fd), "item");
}

// Elements that were found must be readable.
void read_all(const ChunkData& data, std::span<const std::int64_t> shape) {
  const std::uint64_t count = volume({shape, shape});
  if (count == 0 || count > kMaxElements) return;
  std::vector<std::byte> out(count * item_bytes(data.dtype));
  std::vector<std::byte> scratch(4096);
  const std::vector<std::int64_t> begin(shape.size(), 0);
  gather(data, shape, begin, shape, out, row_major_strides(shape), scratch);
  transform_elements(data, out);
}

// Uses the type and shape that the item itself gives, to test more than the error.
void read_as_it_says(const dcp::Item& item, Spill& spill) {
  const auto tensor = item.tensor ? std::nullopt : dense_tensor(item.torch.root);
  if (!item.tensor && !tensor) return;
  const DType dtype = tensor ? tensor->dtype : item.tensor->dtype;
  const std::vector<std::int64_t> shape = tensor ? tensor->shape : item.tensor->shape;
  read_all(dcp::item_tensor(item, "w", dtype, shape, spill), shape);
}

void fuzz(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto choice = std::to_integer<unsigned>(bytes[0]);
  const auto file = file_of(bytes.subspan(1));
  const std::uint64_t offset = (choice & 1U) != 0 && file->size() > 8 ? 8 : 0;
  const Location location{0, 0, offset, file->size() - offset};
  const std::vector<std::string> transforms((choice & 2U) != 0 ? 1 : 0, "stream.zstd/1");
  Spill spill;
  try {
    const dcp::Item item = dcp::open_item(file, location, transforms, "w", 1, spill);
    read_as_it_says(item, spill);
    if (item.stream) {
      std::vector<std::byte> buffer(4096);
      check_entries(*item.stream, item.torch.entries, buffer,
                    [](const ZipEntry&, std::uint32_t) {});
    }
    dcp::item_tensor(item, "w", DType::kFloat32, std::vector<std::int64_t>{2, 3}, spill);
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fsdp::formats::fuzz(std::as_bytes(std::span(data, size)));
  return 0;
}
