// SPDX-License-Identifier: Apache-2.0
// Any bytes as a torch.save file; bytes that begin like a pickle are put into a sound archive
// first.  Accepted input is taken apart, every tensor is read, and the object is written and read
// again.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/containers/pickle/writer.h"
#include "formats/families/torch/stream.h"
#include "formats/state/content/state_tree.h"
#include "tests/support/torch_zip_builder.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kMaxElements = 1U << 16U;
// The names and sizes of the storages in an archive made around a pickle.
constexpr std::size_t kStorageBytes = 40;

std::vector<std::byte> to_bytes(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void read_all(const TorchFile& file, const TensorValue& tensor,
              const std::shared_ptr<const ByteSource>& source) {
  Spill spill;
  const ChunkData data = tensor_data(file, tensor, {source, "file", 0, 0}, spill);
  const std::uint64_t count = volume({tensor.shape, tensor.shape});
  if (count == 0 || count > kMaxElements) return;
  std::vector<std::byte> out(count * item_bytes(data.dtype));
  std::vector<std::byte> scratch(4096);
  const std::vector<std::int64_t> begin(tensor.shape.size(), 0);
  gather(data, tensor.shape, begin, tensor.shape, out, row_major_strides(tensor.shape), scratch);
  transform_elements(data, out);
}

void take_apart(const TorchFile& file, const std::shared_ptr<const ByteSource>& source) {
  for (const Leaf& leaf : leaves_of(file.root)) {
    special_tensor(leaf.value);
    if (const auto tensor = dense_tensor(leaf.value)) read_all(file, *tensor, source);
  }
  bool keep = false;
  pruned(file.root, [&](const std::string&) { return keep = !keep; });
  unknown_globals_in(file.root);
}

void fuzz(std::span<const std::byte> bytes) {
  std::vector<std::byte> archive(bytes.begin(), bytes.end());
  if (!bytes.empty() && bytes[0] == std::byte{0x80} &&
      sniff_torch_stream(MemorySource(bytes)) == TorchStream::kOther) {
    test::TorchZip zip;
    zip.has_pickle = false;
    zip.more_records = {
        {"data.pkl", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())}};
    zip.storages = {{"0", std::string(kStorageBytes, 'a')}, {"1", std::string(kStorageBytes, 'b')}};
    archive = to_bytes(zip.bytes());
  }
  const auto source = std::make_shared<MemorySource>(archive);
  try {
    const TorchFile file = read_torch_file(*source);
    take_apart(file, source);
    const auto rewritten = [](const std::string& stream) {
      TorchPickleHost host;
      PickleLimits limits;
      limits.max_depth *= 4;  // values without an opcode in protocol 2 are written as a call
      return write_pickle(read_pickle(MemorySource(to_bytes(stream)), host, limits));
    };
    // The first time, a dotted name becomes getattr calls; these share a memo slot only from the
    // second time on.
    const std::string written = rewritten(write_pickle(file.root));
    if (rewritten(written) != written) std::abort();
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fsdp::formats::fuzz(std::as_bytes(std::span(data, size)));
  return 0;
}
