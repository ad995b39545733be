// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "formats/families/dcp/metadata.h"

namespace fsdp::formats::dcp {
namespace {

// Records are sent together once they have this many bytes.
constexpr std::size_t kPortionBytes = 4U << 20U;
// Chunks in one record.
constexpr std::size_t kChunksAtOnce = 4096;

// Sends records in portions of whole records.
class Sender {
 public:
  explicit Sender(Team& team) : team_(team) {}
  void add(Packed record) {
    waiting_ += record.take();
    if (waiting_.size() >= kPortionBytes) flush();
  }
  void flush() {
    if (!waiting_.empty()) team_.from_leader("metadata", std::exchange(waiting_, {}));
  }

 private:
  Team& team_;
  std::string waiting_;
};

// Receives the records.
class Receiver {
 public:
  explicit Receiver(Team& team) : team_(team), rest_({}) {}
  // Returns the reader, at the beginning of a record.
  Unpacked& next() {
    if (rest_.empty()) {
      portion_ = team_.from_leader("metadata");
      rest_ = Unpacked(portion_);
    }
    return rest_;
  }

 private:
  Team& team_;
  std::string portion_;
  Unpacked rest_;
};

template <typename T>
void put(Packed& out, const std::optional<T>& value) {
  out.number(value ? 1 : 0).object(value.value_or(T()));
}

template <typename T>
std::optional<T> get(Unpacked& in) {
  const bool held = in.number() != 0;
  const T value = in.object<T>();
  return held ? std::optional(value) : std::nullopt;
}

void put_texts(Packed& out, const std::vector<std::string>& texts) {
  out.number(texts.size());
  for (const std::string& text : texts) out.text(text);
}

std::vector<std::string> get_texts(Unpacked& in) {
  std::vector<std::string> texts;
  for (std::uint64_t left = in.number(); left != 0; --left) texts.emplace_back(in.text());
  return texts;
}

void put_path(Packed& out, const KeyPath& path) {
  out.number(path.size());
  for (const PathStep& step : path) {
    const auto* key = std::get_if<std::string>(&step);
    out.number(key == nullptr ? 0 : 1);
    if (key != nullptr) {
      out.text(*key);
    } else {
      out.object(std::get<std::int64_t>(step));
    }
  }
}

KeyPath get_path(Unpacked& in) {
  KeyPath path;
  for (std::uint64_t left = in.number(); left != 0; --left) {
    if (in.number() != 0) {
      path.emplace_back(std::string(in.text()));
    } else {
      path.emplace_back(in.object<std::int64_t>());
    }
  }
  return path;
}

void put_numbers(Packed& out, std::span<const std::int64_t> numbers) {
  for (const std::int64_t number : numbers) out.object(number);
}

void get_numbers(Unpacked& in, std::vector<std::int64_t>& numbers) {
  for (std::int64_t& number : numbers) number = in.object<std::int64_t>();
}

Packed packed(const FileEntry& file) {
  Packed record;
  record.text(file.name);
  put(record, file.bytes);
  put(record, file.rank);
  return record;
}

FileEntry get_file(Unpacked& in) {
  FileEntry file;
  file.name = in.text();
  file.bytes = get<std::uint64_t>(in);
  file.rank = get<std::int64_t>(in);
  return file;
}

Packed packed(const Finding& finding) {
  Packed record;
  record.object(finding.code).text(finding.message).text(finding.file).text(finding.key);
  put(record, finding.bytes);
  record.object(finding.severity).object(finding.hint.remedy).text(finding.hint.subject);
  return record;
}

Finding get_finding(Unpacked& in) {
  Finding finding;
  finding.code = in.object<ErrorCode>();
  finding.message = in.text();
  finding.file = in.text();
  finding.key = in.text();
  finding.bytes = get<ByteRange>(in);
  finding.severity = in.object<Finding::Severity>();
  finding.hint.remedy = in.object<Remedy>();
  finding.hint.subject = in.text();
  return finding;
}

void send(Sender& sender, const TensorEntry& tensor) {
  Packed head;
  head.number(1).text(tensor.key);
  put_path(head, tensor.path);
  head.object(tensor.dtype).number(tensor.shape.size());
  put_numbers(head, tensor.shape);
  const ChunkList& chunks = tensor.chunks;
  head.number(chunks.rank()).number(chunks.size());
  sender.add(std::move(head));
  for (std::size_t first = 0; first < chunks.size(); first += kChunksAtOnce) {
    Packed some;
    for (std::size_t c = first; c < std::min(chunks.size(), first + kChunksAtOnce); ++c) {
      put_numbers(some, chunks.box(c).offset);
      put_numbers(some, chunks.box(c).size);
      some.object(chunks.location(c));
    }
    sender.add(std::move(some));
  }
}

// Receives the rest of a record that began with 1, and its chunks.
TensorEntry receive_tensor(Receiver& receiver, Unpacked& head) {
  TensorEntry tensor;
  tensor.key = head.text();
  tensor.path = get_path(head);
  tensor.dtype = head.object<DType>();
  tensor.shape.resize(static_cast<std::size_t>(head.number()));
  get_numbers(head, tensor.shape);
  const auto rank = static_cast<std::size_t>(head.number());
  const auto count = static_cast<std::size_t>(head.number());
  tensor.chunks = ChunkList(rank);
  tensor.chunks.reserve(count);
  Box box{std::vector<std::int64_t>(rank), std::vector<std::int64_t>(rank)};
  for (std::size_t first = 0; first < count; first += kChunksAtOnce) {
    Unpacked& some = receiver.next();
    for (std::size_t c = first; c < std::min(count, first + kChunksAtOnce); ++c) {
      get_numbers(some, box.offset);
      get_numbers(some, box.size);
      tensor.chunks.add(box.offset, box.size, some.object<Location>());
    }
  }
  return tensor;
}

void send(Sender& sender, const Metadata& metadata) {
  const Index& index = metadata.index;
  Packed head;
  head.number(metadata.nested ? 1 : 0).number(metadata.version ? 1 : 0);
  head.text(metadata.version.value_or("")).number(index.transforms.size());
  for (const std::vector<std::string>& names : index.transforms) put_texts(head, names);
  head.number(index.files.size()).number(metadata.findings.size()).number(index.order.size());
  head.number(metadata.replicas.size());
  sender.add(std::move(head));
  for (const FileEntry& file : index.files) sender.add(packed(file));
  for (const Finding& finding : metadata.findings) sender.add(packed(finding));
  for (const Index::EntryRef& ref : index.order) {
    if (ref.is_tensor) {
      send(sender, index.tensors[ref.position]);
      continue;
    }
    const ValueEntry& value = index.values[ref.position];
    Packed record;
    record.number(0).text(value.key);
    put_path(record, value.path);
    sender.add(std::move(record.object(value.location)));
  }
  for (const auto& [key, replicas] : metadata.replicas) {
    Packed record;
    record.text(key).number(replicas.size());
    for (const Replica& replica : replicas) record.number(replica.chunk).object(replica.location);
    sender.add(std::move(record));
  }
  sender.flush();
}

Metadata receive(Receiver& receiver) {
  Metadata metadata;
  Index& index = metadata.index;
  Unpacked& head = receiver.next();
  metadata.nested = head.number() != 0;
  const bool has_version = head.number() != 0;
  const std::string version(head.text());
  if (has_version) metadata.version = version;
  index.transforms.resize(static_cast<std::size_t>(head.number()));
  for (std::vector<std::string>& names : index.transforms) names = get_texts(head);
  const std::uint64_t files = head.number();
  const std::uint64_t findings = head.number();
  const std::uint64_t entries = head.number();
  const std::uint64_t replicated = head.number();
  for (std::uint64_t i = 0; i < files; ++i) index.files.push_back(get_file(receiver.next()));
  for (std::uint64_t i = 0; i < findings; ++i)
    metadata.findings.push_back(get_finding(receiver.next()));
  for (std::uint64_t i = 0; i < entries; ++i) {
    Unpacked& record = receiver.next();
    if (record.number() != 0) {
      index.add(receive_tensor(receiver, record));
      continue;
    }
    ValueEntry value;
    value.key = record.text();
    value.path = get_path(record);
    value.location = record.object<Location>();
    index.add(std::move(value));
  }
  for (std::uint64_t i = 0; i < replicated; ++i) {
    Unpacked& record = receiver.next();
    std::vector<Replica>& replicas = metadata.replicas[std::string(record.text())];
    replicas.resize(static_cast<std::size_t>(record.number()));
    for (Replica& replica : replicas) {
      replica.chunk = static_cast<std::size_t>(record.number());
      replica.location = record.object<Location>();
    }
  }
  return metadata;
}

}  // namespace

Metadata share_metadata(Team& team, Metadata metadata) {
  if (team.alone()) return metadata;
  if (!team.leads()) {
    Receiver receiver(team);
    return receive(receiver);
  }
  Sender sender(team);
  send(sender, metadata);
  return metadata;
}

}  // namespace fsdp::formats::dcp
