// SPDX-License-Identifier: Apache-2.0
// The JSON of `inspect` is written as it goes: a checkpoint of many ranks has millions of chunks.
#include <ostream>
#include <string>
#include <vector>

#include "formats/base/json.h"
#include "tools/inspect.h"
#include "tools/value_text.h"

namespace fsdp::cli {
namespace {

std::string text_of(std::string_view text) {
  std::string out;
  formats::append_json_string(out, text);
  return out;
}

template <typename Range, typename Print>
void list(std::ostream& out, const Range& range, const Print& print) {
  out << '[';
  bool first = true;
  for (const auto& item : range) {
    if (!first) out << ',';
    first = false;
    print(item);
  }
  out << ']';
}

void numbers(std::ostream& out, std::span<const std::int64_t> values) {
  list(out, values, [&](std::int64_t value) { out << value; });
}

void key_and_path(std::ostream& out, const std::string& key, const formats::KeyPath& path) {
  out << "\"key\":" << text_of(key) << ",\"path\":";
  list(out, path, [&](const formats::PathStep& step) {
    if (const auto* name = std::get_if<std::string>(&step)) {
      out << text_of(*name);
    } else {
      out << std::get<std::int64_t>(step);
    }
  });
}

void tensor(std::ostream& out, const formats::Index& index, const formats::TensorEntry& entry) {
  out << '{';
  key_and_path(out, entry.key, entry.path);
  out << ",\"dtype\":" << text_of(formats::torch_name(entry.dtype)) << ",\"shape\":";
  numbers(out, entry.shape);
  out << ",\"bytes\":" << entry.bytes() << ",\"chunks\":[";
  for (std::size_t c = 0; c < entry.chunks.size(); ++c) {
    const formats::BoxView box = entry.chunks.box(c);
    const formats::Location& place = entry.chunks.location(c);
    out << (c == 0 ? "" : ",") << "{\"offset\":";
    numbers(out, box.offset);
    out << ",\"shape\":";
    numbers(out, box.size);
    out << ",\"file\":" << text_of(index.files[place.file].name) << ",\"begin\":" << place.offset
        << ",\"length\":" << place.length << '}';
  }
  out << "]}";
}

std::string value_members(const formats::Value& value) {
  return ",\"type\":" + text_of(type_name(value)) +
         ",\"value\":" + formats::to_text(value_json(value));
}

}  // namespace

void print_inspect_json(const InspectOptions& options, const formats::Checkpoint& checkpoint,
                        std::ostream& out) {
  const formats::Index& index = checkpoint.index();
  const auto& d = checkpoint.description();
  // Read before anything is printed: a value that cannot be read must not leave half an object
  // behind.
  const bool read = reads_values(options, checkpoint);
  std::vector<std::string> values;
  if (read) {
    for (const formats::ValueEntry& entry : index.values)
      values.push_back(value_members(read_value(checkpoint, entry)));
  }
  out << "{\"schema\":\"fsdp-ckpt/inspect/1\",\"path\":" << text_of(options.common.path)
      << ",\"format\":" << text_of(d.format) << ",\"layout\":" << text_of(d.layout)
      << ",\"version\":"
      << (d.version ? text_of(*d.version) : "null")
      // No format records the version of PyTorch that wrote it.
      << ",\"torch_version\":null,\"ranks\":" << d.ranks << ",\"files\":";
  list(out, index.files, [&](const formats::FileEntry& file) {
    out << "{\"name\":" << text_of(file.name) << ",\"bytes\":";
    if (file.bytes) {
      out << *file.bytes;
    } else {
      out << "null";
    }
    out << '}';
  });
  std::uint64_t numel = 0;
  std::uint64_t bytes = 0;
  out << ",\n\"tensors\":";
  list(out, index.tensors, [&](const formats::TensorEntry& entry) {
    out << '\n';
    tensor(out, index, entry);
    numel += entry.numel();
    bytes += entry.bytes();
  });
  out << ",\n\"values_read\":" << (read ? "true" : "false") << ",\n\"values\":";
  list(out, index.values, [&](const formats::ValueEntry& entry) {
    out << "\n{";
    key_and_path(out, entry.key, entry.path);
    if (read) out << values[static_cast<std::size_t>(&entry - index.values.data())];
    out << '}';
  });
  out << ",\n\"totals\":{\"tensors\":" << index.tensors.size() << ",\"parameters\":" << numel
      << ",\"bytes\":" << bytes << ",\"values\":" << index.values.size() << "}}\n";
}

}  // namespace fsdp::cli
