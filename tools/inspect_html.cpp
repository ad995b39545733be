// SPDX-License-Identifier: Apache-2.0
#include "tools/inspect_html.h"

#include <algorithm>
#include <array>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/json.h"
#include "formats/base/text.h"
#include "formats/files/atomic_file.h"
#include "tools/value_text.h"

namespace fsdp::cli {
namespace {

using formats::cat;

// A browser takes seconds for so many; a person looks at none of them.
constexpr std::size_t kMaxTensors = 250'000;
// The columns of the map: ranks or files, gathered in groups where there are more.
constexpr std::size_t kMaxColumns = 64;
// Runs of columns in the page, over all tensors; fewer columns make fewer.
constexpr std::size_t kMaxRuns = 1'000'000;
// Boxes are written up to this many chunks.
constexpr std::size_t kMaxChunks = 50'000;
constexpr std::size_t kValueWidth = 200;
constexpr std::size_t kBufferBytes = 1U << 20U;

// Text on its way into the page's file.
class PageWriter {
 public:
  explicit PageWriter(formats::OutputFile& file) : file_(file) { buffer_.reserve(kBufferBytes); }

  void raw(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kBufferBytes) flush();
  }
  void number(std::uint64_t value) { raw(std::to_string(value)); }

  // A JSON string for the inside of a <script>: nothing in it can end the element or begin a
  // comment, and control characters of names are spelled out.
  void text(std::string_view value) {
    json_.clear();
    formats::append_json_string(json_, value);
    std::string out;
    out.reserve(json_.size());
    for (std::size_t i = 0; i < json_.size(); ++i) {
      const char c = json_[i];
      if (c == '<' || c == '>' || c == '&') {
        constexpr std::string_view kDigits = "0123456789abcdef";
        out += "\\u00";
        out += kDigits[static_cast<unsigned char>(c) >> 4U];
        out += kDigits[static_cast<unsigned char>(c) & 15U];
      } else if (json_.compare(i, 2, "\xE2\x80") == 0 && i + 2 < json_.size() &&
                 (json_[i + 2] == '\xA8' || json_[i + 2] == '\xA9')) {
        out += json_[i + 2] == '\xA8' ? "\\u2028" : "\\u2029";
        i += 2;
      } else {
        out += c;
      }
    }
    raw(out);
  }
  // A name from a file.
  void name(std::string_view value) { text(formats::escape(value)); }

  template <typename Range, typename Print>
  void list(const Range& range, const Print& print) {
    raw("[");
    bool first = true;
    for (const auto& item : range) {
      if (!first) raw(",");
      first = false;
      print(item);
    }
    raw("]");
  }
  void numbers(std::span<const std::int64_t> values) {
    list(values, [&](std::int64_t value) { raw(std::to_string(value)); });
  }

  void flush() {
    file_.write_at(at_, std::as_bytes(std::span(buffer_)));
    at_ += buffer_.size();
    buffer_.clear();
  }

 private:
  formats::OutputFile& file_;
  std::string buffer_;
  std::string json_;
  std::uint64_t at_ = 0;
};

std::string html_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// The columns of the map: ranks where every file tells its rank, else files; neighbours in groups.
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

// As many columns as keep the page small.
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

// The members that inspect_page.js reads.
class PageData {
 public:
  PageData(const InspectOptions& options, const formats::Checkpoint& checkpoint, PageWriter& out)
      : options_(options), checkpoint_(checkpoint), index_(checkpoint.index()), out_(out) {}

  void write() {
    const auto& d = checkpoint_.description();
    out_.raw("{\"name\":");
    out_.text(d.path);
    out_.raw(",\"kind\":");
    out_.text(format_name(d));
    out_.raw(",\"version\":");
    if (d.version) {
      out_.name(*d.version);
    } else {
      out_.raw("null");
    }
    out_.raw(cat(",\"ranks\":", d.ranks, ",\"tool\":"));
    out_.text(FSDP_VERSION);
    files();
    tensors();
    values();
    out_.raw(",\n\"findings\":");
    out_.list(checkpoint_.findings(), [&](const formats::Finding& finding) {
      out_.raw("[");
      out_.text(formats::severity_name(finding.severity));
      out_.raw(",");
      out_.text(code_name(finding.code));
      out_.raw(",");
      out_.text(formats::finding_text(finding));
      out_.raw("]");
    });
    out_.raw("}");
  }

 private:
  // files: [name, bytes or null, rank or null]
  void files() {
    out_.raw(",\n\"files\":");
    out_.list(index_.files, [&](const formats::FileEntry& file) {
      out_.raw("[");
      out_.name(file.name);
      out_.raw(cat(",", file.bytes ? std::to_string(*file.bytes) : "null", ",",
                   file.rank ? std::to_string(*file.rank) : "null", "]"));
    });
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
    out_.raw(",\n\"dtypes\":");
    out_.list(dtypes, [&](formats::DType dtype) { out_.text(formats::torch_name(dtype)); });
    out_.raw(cat(",\n\"by_rank\":", columns.by_rank ? "true" : "false",
                 ",\"grouped\":", columns.group, ",\"columns\":"));
    out_.list(columns.names, [&](const std::string& name) { out_.text(name); });
    out_.raw(",\n\"tensors\":");
    std::vector<std::uint64_t> bytes;
    out_.list(index_.tensors, [&](const formats::TensorEntry& tensor) {
      out_.raw("\n[");
      out_.text(shown_key(tensor.key, tensor.path));
      out_.raw(",");
      out_.number(static_cast<std::uint64_t>(std::find(dtypes.begin(), dtypes.end(), tensor.dtype) -
                                             dtypes.begin()));
      out_.raw(",");
      out_.numbers(tensor.shape);
      out_.raw(cat(",", tensor.bytes(), ",", tensor.chunks.size(), ","));
      out_.list(runs_of(tensor, columns, bytes), [&](const Run& run) {
        out_.raw(cat("[", run.first, ",", run.last, ",", run.bytes, "]"));
      });
      out_.raw("]");
    });
    out_.raw(",\n\"chunks\":");
    if (chunk_count > kMaxChunks) {
      out_.raw("null");
      return;
    }
    out_.list(index_.tensors, [&](const formats::TensorEntry& tensor) {
      out_.raw("[");
      for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
        const formats::BoxView box = tensor.chunks.box(c);
        out_.raw(cat(c == 0 ? "[" : ",[", tensor.chunks.location(c).file));
        for (const std::int64_t number : box.offset) out_.raw(cat(",", number));
        for (const std::int64_t number : box.size) out_.raw(cat(",", number));
        out_.raw("]");
      }
      out_.raw("]");
    });
  }

  // values: [key, type, text], where they are read.
  void values() {
    out_.raw(cat(",\n\"values_total\":", index_.values.size(), ",\"values\":["));
    if (reads_values(options_, checkpoint_)) {
      bool first = true;
      for (const formats::ValueEntry& entry : index_.values) {
        const formats::Value value = read_value(checkpoint_, entry);
        out_.raw(first ? "\n[" : ",\n[");
        first = false;
        out_.text(shown_key(entry.key, entry.path));
        out_.raw(",");
        out_.text(type_name(value));
        out_.raw(",");
        out_.text(value_text(value, kValueWidth));
        out_.raw("]");
      }
    }
    out_.raw("]");
  }

  const InspectOptions& options_;
  const formats::Checkpoint& checkpoint_;
  const formats::Index& index_;
  PageWriter& out_;
};

}  // namespace

void write_inspect_page(const InspectOptions& options, const formats::Checkpoint& checkpoint,
                        const std::filesystem::path& destination, bool replace) {
  if (checkpoint.index().tensors.size() > kMaxTensors) {
    throw Error(ErrorCode::kLimitEntries,
                cat(checkpoint.description().path, ": has ",
                    formats::group_digits(checkpoint.index().tensors.size()),
                    " tensors, and a page shows at most ", formats::group_digits(kMaxTensors),
                    "; choose some with --keys"));
  }
  formats::AtomicFile file(destination, {.replace = replace, .make_folders = true});
  PageWriter out(file.file());
  out.raw(kPageBeforeTitle);
  out.raw(html_escape(checkpoint.description().path + " · fsdp-ckpt"));
  out.raw(kPageBeforeData);
  PageData(options, checkpoint, out).write();
  out.raw(kPageEnd);
  out.flush();
  file.commit();
}

}  // namespace fsdp::cli
