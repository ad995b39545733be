// SPDX-License-Identifier: Apache-2.0
// Archives as torch.save writes them: sound, or with a record that is missing, inconsistent or of
// another size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/crc32.h"
#include "formats/containers/zip/writer.h"
#include "tests/support/metadata_builder.h"

namespace fsdp::test {

// ('storage', <class>, key, 'cpu', numel) as a persistent id.
inline std::string storage(std::string_view key, std::int64_t numel,
                           std::string_view cls = "FloatStorage") {
  return tuple_of({text("storage"), global("torch", cls), text(key), text("cpu"), integer(numel)}) +
         "Q";
}
// _rebuild_tensor_v2(storage, offset, shape, strides, False, OrderedDict())
inline std::string tensor_call(const std::string& of_storage, std::int64_t offset,
                               const Numbers& shape, const Numbers& strides) {
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              {of_storage, integer(offset), numbers(shape), numbers(strides), "\x89",
               call(global("collections", "OrderedDict"), {})});
}

struct TorchZip {
  std::string root;                                           // opcodes of the object
  std::vector<std::pair<std::string, std::string>> storages;  // records data/<name>
  std::optional<std::string> byteorder = "little";
  std::optional<std::string> version = "3\n";
  bool has_pickle = true;
  bool crcs = true;
  std::vector<std::pair<std::string, std::string>> more_records;
  std::string prefix = "archive";

  std::string bytes() const {
    std::vector<std::pair<std::string, std::string>> records = more_records;
    if (has_pickle) records.insert(records.begin(), {"data.pkl", proto(2, root)});
    if (byteorder) records.emplace_back("byteorder", *byteorder);
    for (const auto& [name, content] : storages) records.emplace_back("data/" + name, content);
    if (version) records.emplace_back("version", *version);
    formats::ZipWriter zip(prefix);
    for (const auto& [name, content] : records) {
      const std::size_t number = zip.add(name, content.size());
      if (crcs) zip.set_crc(number, formats::crc32(0, std::as_bytes(std::span(content))));
    }
    std::string out(zip.archive_bytes(), '\0');
    for (std::size_t i = 0; i < records.size(); ++i) {
      out.replace(zip.payload_offset(i), records[i].second.size(), records[i].second);
    }
    zip.write_structure([&](std::uint64_t offset, std::span<const std::byte> piece) {
      out.replace(offset, piece.size(), reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return out;
  }
};

// Returns a dense float32 tensor of zeros in the form of torch.save(tensor).
inline TorchZip float_tensor(const Numbers& shape) {
  std::int64_t numel = 1;
  Numbers strides(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = numel;
    numel *= shape[d];
  }
  TorchZip zip;
  zip.root = tensor_call(storage("0", numel), 0, shape, strides);
  zip.storages = {{"0", std::string(static_cast<std::size_t>(numel) * 4, '\0')}};
  return zip;
}

}  // namespace fsdp::test
