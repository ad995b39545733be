// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/checkpoint/broadcast_value.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "formats/base/byte_source.h"
#include "formats/base/crc32.h"
#include "formats/torch/stream.h"
#include "formats/torch/writer.h"
#include "libfsdp/agree.h"
#include "libfsdp/internal/checkpoint/tensor_bridge.h"
#include "libfsdp/internal/comm/collectives.h"

namespace fsdp {
namespace {

constexpr const char* kKey = "value";

at::Tensor bytes_tensor(std::int64_t count) {
  return at::empty({count}, at::kByte);
}

at::Tensor encoded(const StateValue& value) {
  const StateDict state{{kKey, value}};
  const StateContent content = state_content(state);
  formats::TorchSaveLayout layout(content.root);
  at::Tensor result = bytes_tensor(static_cast<std::int64_t>(layout.bytes()));
  const auto out = host_memory(result);
  const auto put = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<std::ptrdiff_t>(offset));
  };
  HostBytes host;
  std::vector<std::uint32_t> crcs;
  for (std::size_t s = 0; s < layout.storages().size(); ++s) {
    const StateTensor& tensor = content.tensors.at(layout.storages()[s].tensor.value().number);
    TORCH_CHECK(tensor.sharded == nullptr, "'", tensor.key, "' is sharded: no rank has all of it");
    const auto bytes = host.of(tensor.local);
    put(layout.storage_offset(s), bytes);
    crcs.push_back(formats::crc32(0, bytes));
  }
  layout.write_rest(crcs, put);
  return result;
}

StateValue decoded(const at::Tensor& bytes) {
  const auto memory = host_memory(bytes);
  const formats::MemorySource source(memory);
  const formats::TorchFile file = formats::read_torch_file(source);
  // Every tensor was written as a dense one.
  const auto tensor_of = [&](const formats::TensorValue& tensor) {
    at::Tensor result = at::empty(tensor.shape, scalar_type_of(tensor.dtype));
    const auto out = host_memory(result);
    const auto& record = file.records.at(tensor.storage->key);
    source.read_at(record.offset + tensor.storage_offset * formats::item_bytes(tensor.dtype), out);
    return result;
  };
  std::vector<std::string> left_out;
  StateValue state = state_value(file.root, "", tensor_of, left_out);
  TORCH_CHECK(left_out.empty(), left_out.front());
  return std::move(state.dict().at(kKey));
}

}  // namespace

StateValue broadcast_value(const std::shared_ptr<ProcessGroup>& group, const StateValue& value,
                           int src, const std::string& what) {
  TORCH_CHECK(src >= 0 && src < group->size(), what, ": there is no rank ", src, " among ",
              group->size());
  const bool own = group->rank() == src;
  at::Tensor bytes;
  agree(group, what, [&] {
    if (own) bytes = encoded(value);
  });
  const auto sizes = all_gather_text(group, own ? std::to_string(bytes.numel()) : "", what);
  if (!own) bytes = bytes_tensor(std::stoll(sizes[static_cast<std::size_t>(src)]));
  // NCCL moves only memory of its devices.
  const c10::Device device = group->backend_name() == "nccl" ? at::kCUDA : at::kCPU;
  at::Tensor moved = bytes.to(device);
  fsdp::broadcast(group, moved, src, what).wait();
  return decoded(moved.cpu());
}

}  // namespace fsdp
