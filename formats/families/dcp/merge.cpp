// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>
#include <unordered_map>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/dcp/metadata.h"

namespace fsdp::formats::dcp {

void merge_metadata(Metadata& whole, Metadata part) {
  const auto file_offset = static_cast<std::uint32_t>(whole.index.files.size());
  const auto transform_offset = static_cast<std::uint32_t>(whole.index.transforms.size());
  const auto moved = [&](Location location) {
    location.file += file_offset;
    if (location.transform != 0) location.transform += transform_offset;
    return location;
  };
  whole.index.files.insert(whole.index.files.end(), part.index.files.begin(),
                           part.index.files.end());
  whole.index.transforms.insert(whole.index.transforms.end(), part.index.transforms.begin(),
                                part.index.transforms.end());
  whole.findings.insert(whole.findings.end(), part.findings.begin(), part.findings.end());
  whole.nested = whole.nested && part.nested;
  if (!whole.version) whole.version = part.version;

  const auto is_same_item = [&](const Location& a, const Location& b) {
    return whole.index.files[a.file].name == whole.index.files[b.file].name && a.offset == b.offset;
  };

  std::unordered_map<std::string, std::size_t> tensors;
  for (std::size_t i = 0; i < whole.index.tensors.size(); ++i)
    tensors.emplace(whole.index.tensors[i].key, i);
  std::set<std::string> values;
  for (const ValueEntry& value : whole.index.values) values.insert(value.key);
  const auto check_kind = [](const std::string& key, bool other_kind) {
    if (other_kind)
      throw Error(ErrorCode::kMetaType,
                  quote(key) + ": is a tensor on one rank and a value on another");
  };
  for (const Index::EntryRef& ref : part.index.order) {
    if (!ref.is_tensor) {
      ValueEntry value = part.index.values[ref.position];
      check_kind(value.key, tensors.contains(value.key));
      value.location = moved(value.location);
      if (!values.contains(value.key)) whole.index.add(std::move(value));
      continue;
    }
    TensorEntry& tensor = part.index.tensors[ref.position];
    check_kind(tensor.key, values.contains(tensor.key));
    const auto found = tensors.find(tensor.key);
    TensorEntry fresh = tensor;
    if (found == tensors.end()) fresh.chunks = ChunkList(tensor.shape.size());
    TensorEntry& into = found == tensors.end() ? fresh : whole.index.tensors[found->second];
    if (into.dtype != tensor.dtype) {
      throw Error(ErrorCode::kDtype,
                  cat(quote(tensor.key), ": one rank has ", torch_name(into.dtype), ", another ",
                      torch_name(tensor.dtype)));
    }
    if (into.shape != tensor.shape) {
      throw Error(ErrorCode::kShape,
                  cat(quote(tensor.key), ": one rank has shape ", shape_text(into.shape),
                      ", another ", shape_text(tensor.shape)));
    }
    std::map<std::vector<std::int64_t>, std::size_t> present;
    const auto place = [](BoxView box) {
      std::vector<std::int64_t> numbers(box.offset.begin(), box.offset.end());
      numbers.insert(numbers.end(), box.size.begin(), box.size.end());
      return numbers;
    };
    for (std::size_t c = 0; c < into.chunks.size(); ++c)
      present.emplace(place(into.chunks.box(c)), c);
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      const BoxView box = tensor.chunks.box(c);
      const Location location = moved(tensor.chunks.location(c));
      const auto [known, first] = present.try_emplace(place(box), into.chunks.size());
      if (first) {
        into.chunks.add(box.offset, box.size, location);
      } else if (!is_same_item(into.chunks.location(known->second), location)) {
        whole.replicas[tensor.key].push_back({known->second, location});
      }
    }
    if (found == tensors.end()) whole.index.add(std::move(fresh));
  }
}

}  // namespace fsdp::formats::dcp
