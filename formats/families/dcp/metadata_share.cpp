// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
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

// The fields of a record: the leader writes what the others read, by the same calls.
class Record {
 public:
  explicit Record(Packed& out) : out_(&out) {}
  explicit Record(Unpacked& in) : in_(&in) {}

  void field(std::string& text) {
    if (in_ != nullptr) {
      text = in_->text();
    } else {
      out_->text(text);
    }
  }
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void field(T& value) {
    if (in_ != nullptr) {
      value = in_->object<T>();
    } else {
      out_->object(value);
    }
  }
  template <typename T>
  void field(std::optional<T>& value) {
    bool held = value.has_value();
    T inner = value.value_or(T());
    field(held);
    field(inner);
    value = held ? std::optional(std::move(inner)) : std::nullopt;
  }
  template <typename T>
  void field(std::vector<T>& values) {
    std::size_t count = values.size();
    field(count);
    values.resize(count);
    for (T& value : values) field(value);
  }
  void field(PathStep& step) {
    const auto* const own = std::get_if<std::int64_t>(&step);
    bool is_number = own != nullptr;
    std::int64_t number = is_number ? *own : 0;
    std::string text = is_number ? std::string() : std::get<std::string>(step);
    fields(is_number, number, text);
    step = is_number ? PathStep(number) : PathStep(std::move(text));
  }
  template <typename... Fields>
  void fields(Fields&... fields) {
    (field(fields), ...);
  }

 private:
  Packed* out_ = nullptr;
  Unpacked* in_ = nullptr;
};

// Sends records to the other members of a team, or receives them, in portions of whole records.
class Records {
 public:
  explicit Records(Team& team) : team_(team) {}

  // `body` goes through the fields of the next record.
  template <typename Body>
  void next(const Body& body) {
    if (team_.leads()) {
      Packed packed;
      Record record(packed);
      body(record);
      portion_ += packed.take();
      if (portion_.size() >= kPortionBytes) flush();
      return;
    }
    if (rest_.empty()) {
      portion_ = team_.from_leader("metadata");
      rest_ = Unpacked(portion_);
    }
    Record record(rest_);
    body(record);
  }
  bool leads() const { return team_.leads(); }
  // Sends what is left.
  void flush() {
    if (team_.leads() && !portion_.empty())
      team_.from_leader("metadata", std::exchange(portion_, {}));
  }

 private:
  Team& team_;
  std::string portion_;
  Unpacked rest_{std::string_view()};
};

// Shares the chunks of a tensor: `count` of them, of that rank.
void share_chunks(Records& records, ChunkList& chunks, std::size_t count, std::size_t rank) {
  if (!records.leads()) {
    chunks = ChunkList(rank);
    chunks.reserve(count);
  }
  Box box{std::vector<std::int64_t>(rank), std::vector<std::int64_t>(rank)};
  for (std::size_t first = 0; first < count; first += kChunksAtOnce) {
    records.next([&](Record& record) {
      for (std::size_t c = first; c < std::min(count, first + kChunksAtOnce); ++c) {
        Location location;
        if (records.leads()) {
          std::ranges::copy(chunks.box(c).offset, box.offset.begin());
          std::ranges::copy(chunks.box(c).size, box.size.begin());
          location = chunks.location(c);
        }
        for (std::int64_t& number : box.offset) record.field(number);
        for (std::int64_t& number : box.size) record.field(number);
        record.field(location);
        if (!records.leads()) chunks.add(box.offset, box.size, location);
      }
    });
  }
}

}  // namespace

Metadata share_metadata(Team& team, Metadata metadata) {
  if (team.alone()) return metadata;
  const bool leads = team.leads();
  if (!leads) metadata = {};
  Records records(team);
  Index& index = metadata.index;
  std::size_t entries = index.order.size();
  std::size_t replicated = metadata.replicas.size();
  records.next([&](Record& record) {
    std::size_t files = index.files.size();
    std::size_t findings = metadata.findings.size();
    record.fields(metadata.nested, metadata.version, index.transforms, files, findings, entries,
                  replicated);
    index.files.resize(files);
    metadata.findings.resize(findings);
  });
  for (FileEntry& file : index.files)
    records.next([&](Record& record) { record.fields(file.name, file.bytes, file.rank); });
  for (Finding& finding : metadata.findings) {
    records.next([&](Record& record) {
      record.fields(finding.code, finding.message, finding.file, finding.key, finding.bytes,
                    finding.severity, finding.hint.remedy, finding.hint.subject);
    });
  }
  for (std::size_t i = 0; i < entries; ++i) {
    bool is_tensor = leads && index.order[i].is_tensor;
    const std::size_t at = leads ? index.order[i].position : 0;
    TensorEntry new_tensor;
    ValueEntry new_value;
    TensorEntry& tensor = is_tensor ? index.tensors[at] : new_tensor;
    ValueEntry& value = leads && !is_tensor ? index.values[at] : new_value;
    std::size_t count = tensor.chunks.size();
    std::size_t rank = tensor.chunks.rank();
    records.next([&](Record& record) {
      record.field(is_tensor);
      if (is_tensor) {
        record.fields(tensor.key, tensor.path, tensor.dtype, tensor.shape, count, rank);
      } else {
        record.fields(value.key, value.path, value.location);
      }
    });
    if (is_tensor) share_chunks(records, tensor.chunks, count, rank);
    if (leads) continue;
    if (is_tensor) {
      index.add(std::move(new_tensor));
    } else {
      index.add(std::move(new_value));
    }
  }
  auto replicas = metadata.replicas.begin();
  for (std::size_t i = 0; i < replicated; ++i) {
    std::pair<std::string, std::vector<Replica>> of_tensor;
    if (leads) of_tensor = *replicas++;
    records.next([&](Record& record) { record.fields(of_tensor.first, of_tensor.second); });
    if (!leads) metadata.replicas.insert(std::move(of_tensor));
  }
  records.flush();
  return metadata;
}

}  // namespace fsdp::formats::dcp
