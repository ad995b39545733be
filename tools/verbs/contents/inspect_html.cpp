// SPDX-License-Identifier: Apache-2.0
// `inspect --html`: the content of a checkpoint as one page.
#include <algorithm>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json_writer.h"
#include "formats/bytes/base/text.h"
#include "formats/families/runs/formats.h"
#include "tools/text/value_text.h"
#include "tools/verbs/contents/inspect.h"
#include "tools/verbs/contents/page.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::JsonWriter;

// A browser takes seconds for this many, more than a person looks at.
constexpr std::size_t kMaxTensors = 250'000;
// The most columns of the map: ranks or files; more are grouped.
constexpr std::size_t kMaxColumns = 64;
// The most runs of columns in the page, over all tensors; fewer columns make fewer runs.
constexpr std::size_t kMaxRuns = 1'000'000;
// The boxes of chunks are written up to this many chunks.
constexpr std::size_t kMaxChunks = 50'000;
constexpr std::size_t kPageValueWidth = 200;

// The columns of the map: ranks if every file tells its rank, else files; neighbours are grouped.
struct Columns {
  bool by_rank = false;
  std::size_t group = 1;  // ranks or files in a column
  std::vector<std::string> names;
  std::vector<std::uint32_t> of_file;
};

Columns columns_of(const formats::Index& index, std::size_t most) {
  Columns columns;
  const auto& files = index.files;
  std::vector<std::int64_t> ranks;
  for (const auto& file : files) {
    if (file.rank) ranks.push_back(*file.rank);
  }
  columns.by_rank = !files.empty() && ranks.size() == files.size();
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  const std::size_t count = columns.by_rank ? ranks.size() : files.size();
  columns.group = std::max<std::size_t>(1, (count + most - 1) / most);
  for (std::size_t i = 0; i < count; i += columns.group) {
    const std::size_t last = std::min(count, i + columns.group) - 1;
    const auto name = [&](std::size_t at) {
      return columns.by_rank ? std::to_string(ranks[at]) : formats::escape(files[at].name);
    };
    columns.names.push_back(last == i ? name(i) : name(i) + " – " + name(last));
  }
  for (std::size_t f = 0; f < files.size(); ++f) {
    std::size_t place = f;
    if (columns.by_rank) {
      place = static_cast<std::size_t>(
          std::lower_bound(ranks.begin(), ranks.end(), *files[f].rank) - ranks.begin());
    }
    columns.of_file.push_back(static_cast<std::uint32_t>(place / columns.group));
  }
  return columns;
}

// Neighbouring columns that hold equally many bytes of a tensor.
struct Run {
  std::size_t first;
  std::size_t last;
  std::uint64_t bytes;  // in each of them
};

std::vector<Run> runs_of(const formats::TensorEntry& tensor, const Columns& columns,
                         std::vector<std::uint64_t>& bytes) {
  bytes.assign(columns.names.size(), 0);
  for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
    bytes[columns.of_file[tensor.chunks.location(c).file]] +=
        formats::volume(tensor.chunks.box(c)) * formats::item_bytes(tensor.dtype);
  }
  std::vector<Run> runs;
  for (std::size_t c = 0; c < bytes.size(); ++c) {
    if (bytes[c] == 0) continue;
    if (!runs.empty() && runs.back().last + 1 == c && runs.back().bytes == bytes[c]) {
      runs.back().last = c;
    } else {
      runs.push_back({c, c, bytes[c]});
    }
  }
  return runs;
}

// Returns as many columns as keep the page small.
Columns fitting_columns(const formats::Index& index) {
  std::vector<std::uint64_t> bytes;
  for (std::size_t most = kMaxColumns;; most /= 2) {
    Columns columns = columns_of(index, most);
    if (most == 1) return columns;
    std::size_t runs = 0;
    for (const auto& tensor : index.tensors) runs += runs_of(tensor, columns, bytes).size();
    if (runs <= kMaxRuns) return columns;
  }
}

// Writes the members that inspect_page.js reads.
class PageData {
 public:
  PageData(const InspectOptions& options, const formats::Checkpoint& checkpoint, JsonWriter& json)
      : options_(options), checkpoint_(checkpoint), index_(checkpoint.index()), json_(json) {}

  void write() {
    const auto& d = checkpoint_.description();
    json_.begin_object().member("name", d.path).member("kind", formats::label_of(d));
    json_.member("version", d.version ? Json(formats::escape(*d.version)) : Json());
    json_.member("ranks", d.ranks).member("tool", FSDP_VERSION);
    files();
    tensors();
    values();
    json_.key("findings").begin_array();
    for (const formats::Finding& finding : checkpoint_.findings()) {
      json_.begin_array().text(formats::severity_name(finding.severity));
      json_.text(code_name(finding.code)).text(formats::finding_text(finding)).end_array();
    }
    json_.end_array().end_object();
  }

 private:
  // files: [name, bytes or null, rank or null]
  void files() {
    json_.key("files").begin_array();
    for (const formats::FileEntry& file : index_.files) {
      json_.begin_array().text(formats::escape(file.name));
      json_.value(file.bytes ? Json(*file.bytes) : Json());
      json_.value(file.rank ? Json(*file.rank) : Json()).end_array();
    }
    json_.end_array();
  }

  // dtypes: names; columns: names; tensors: [key, dtype, shape, bytes, chunks, [[first column, last
  // column, bytes in each], ...]]; chunks: of each tensor [[file, offset..., size...], ...], or
  // null.
  void tensors() {
    std::vector<formats::DType> dtypes;
    std::size_t chunk_count = 0;
    for (const auto& tensor : index_.tensors) {
      if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end())
        dtypes.push_back(tensor.dtype);
      chunk_count += tensor.chunks.size();
    }
    const Columns columns = fitting_columns(index_);
    json_.key("dtypes").begin_array();
    for (const formats::DType dtype : dtypes) json_.text(formats::torch_name(dtype));
    json_.end_array().member("by_rank", columns.by_rank).member("grouped", columns.group);
    json_.key("columns").begin_array();
    for (const std::string& name : columns.names) json_.text(name);
    json_.end_array().key("tensors").begin_array();
    for (const formats::TensorEntry& tensor : index_.tensors) add_tensor(tensor, dtypes, columns);
    json_.end_array().key("chunks");
    if (chunk_count > kMaxChunks) {
      json_.value(Json());
      return;
    }
    json_.begin_array();
    for (const formats::TensorEntry& tensor : index_.tensors) add_chunks(tensor);
    json_.end_array();
  }

  void add_tensor(const formats::TensorEntry& tensor, const std::vector<formats::DType>& dtypes,
                  const Columns& columns) {
    const auto dtype = std::find(dtypes.begin(), dtypes.end(), tensor.dtype) - dtypes.begin();
    json_.begin_array().text(shown_key(tensor.key, tensor.path)).number(dtype);
    json_.begin_array();
    for (const std::int64_t size : tensor.shape) json_.number(size);
    json_.end_array().value(tensor.bytes()).value(tensor.chunks.size());
    json_.begin_array();
    for (const Run& run : runs_of(tensor, columns, run_bytes_))
      json_.begin_array().value(run.first).value(run.last).value(run.bytes).end_array();
    json_.end_array().end_array();
  }

  void add_chunks(const formats::TensorEntry& tensor) {
    json_.begin_array();
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      const formats::BoxView box = tensor.chunks.box(c);
      json_.begin_array().number(tensor.chunks.location(c).file);
      for (const std::int64_t number : box.offset) json_.number(number);
      for (const std::int64_t number : box.size) json_.number(number);
      json_.end_array();
    }
    json_.end_array();
  }

  // values: [key, type, text], if they are read.
  void values() {
    json_.member("values_total", index_.values.size()).key("values").begin_array();
    if (reads_values(options_, checkpoint_)) {
      for (const formats::ValueEntry& entry : index_.values) {
        const formats::Value value = read_value(checkpoint_, entry);
        json_.begin_array().text(shown_key(entry.key, entry.path)).text(type_name(value));
        json_.text(value_text(value, kPageValueWidth)).end_array();
      }
    }
    json_.end_array();
  }

  const InspectOptions& options_;
  const formats::Checkpoint& checkpoint_;
  const formats::Index& index_;
  JsonWriter& json_;
  std::vector<std::uint64_t> run_bytes_;  // reused by runs_of
};

}  // namespace

void write_inspect_page(const InspectOptions& options, const formats::Checkpoint& checkpoint) {
  if (checkpoint.index().tensors.size() > kMaxTensors) {
    throw Error(ErrorCode::kLimitEntries,
                cat(checkpoint.description().path, ": has ",
                    formats::group_digits(checkpoint.index().tensors.size()),
                    " tensors, but a page shows at most ", formats::group_digits(kMaxTensors),
                    "; select some with --keys"));
  }
  Page page(options.html, options.force);
  page.write(kInspectPage, checkpoint.description().path,
             [&](JsonWriter& json) { PageData(options, checkpoint, json).write(); });
}

}  // namespace fsdp::cli
