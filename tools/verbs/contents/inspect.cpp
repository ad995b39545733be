// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/inspect.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <utility>

#include "formats/bytes/base/text.h"
#include "formats/front/open.h"
#include "tools/base/reading.h"
#include "tools/base/remedy.h"
#include "tools/base/runs.h"
#include "tools/base/selection.h"
#include "tools/base/verbs.h"
#include "tools/text/table.h"
#include "tools/text/terminal_text.h"
#include "tools/text/value_text.h"
#include "tools/verbs/contents/key_tree.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {
namespace {

using formats::cat;

// Each value costs a small read; more than these are read only on request.
constexpr std::size_t kManyValues = 2000;
constexpr std::size_t kValueWidth = 60;

// Returns the bytes of the files, and the number of those that are missing.
std::pair<std::uint64_t, std::size_t> sizes_of(const std::vector<formats::FileEntry>& files) {
  std::pair<std::uint64_t, std::size_t> sizes;
  for (const formats::FileEntry& file : files) {
    sizes.first += file.bytes.value_or(0);
    if (!file.bytes) ++sizes.second;
  }
  return sizes;
}

void print_heading(const formats::Checkpoint& checkpoint, const KeyNode& tree,
                   const Streams& streams) {
  const auto& d = checkpoint.description();
  const auto& files = checkpoint.index().files;
  const auto [file_bytes, missing] = sizes_of(files);
  std::string what = cat(d.path, ": ", formats::label_of(d));
  if (d.format == "dcp" || d.ranks > 1)
    what += ", " + counted(static_cast<std::uint64_t>(d.ranks), "rank");
  if (d.format == "dcp" || files.size() > 1) what += ", " + counted(files.size(), "file");
  if (missing != 0) what += cat(" (", missing, " missing)");
  std::string totals = cat(counted(tree.tensors, "tensor"), ", ", counted(tree.numel, "element"),
                           ", ", formats::human_bytes(tree.bytes));
  if (tree.values != 0) totals += "; " + counted(tree.values, "value");
  streams.out << wrapped(what + ", " + formats::human_bytes(file_bytes), streams.columns) << '\n'
              << wrapped(totals, streams.columns) << '\n';
  std::map<formats::DType, std::uint64_t> by_dtype;
  for (const auto& tensor : checkpoint.index().tensors) by_dtype[tensor.dtype] += tensor.bytes();
  if (by_dtype.size() > 1) {
    formats::SomeNames parts;
    for (const auto& [dtype, bytes] : by_dtype)
      parts.add(cat(formats::torch_name(dtype), " ", formats::human_bytes(bytes)));
    streams.out << wrapped(parts.text(), streams.columns) << '\n';
  }
}

class TreePrinter {
 public:
  TreePrinter(const InspectOptions& options, const formats::Checkpoint& checkpoint,
              bool read_values)
      : options_(options),
        checkpoint_(checkpoint),
        read_values_(read_values),
        table_({Column::kName, Column::kWhole, Column::kWhole, Column::kNumber, Column::kText}) {}

  // Reads the values that will be shown.
  void read(const KeyNode& tree) { children(tree, "", 1); }
  void print(std::ostream& out, std::size_t columns) const { table_.print(out, columns); }

 private:
  void children(const KeyNode& node, const std::string& indent, std::size_t depth) {
    if (depth > options_.depth) return;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const bool last = i + 1 == node.children.size();
      const bool top = depth == 1;
      line(*node.children[i], top ? "" : indent + (last ? "└─ " : "├─ "));
      const std::string below = top ? "" : indent + (last ? "   " : "│  ");
      if (options_.chunks && node.children[i]->tensor != nullptr)
        chunk_lines(*node.children[i]->tensor, below);
      children(*node.children[i], below, depth + 1);
    }
  }

  void line(const KeyNode& node, const std::string& lead) {
    std::string name = lead + (node.name.empty() ? "''" : formats::escape(node.name));
    if (node.copies > 1) name += cat(" ×", node.copies);
    const formats::TensorEntry* tensor = node.tensor;
    if (tensor != nullptr && node.children.empty()) {
      const std::size_t chunks = tensor->chunks.size();
      table_.add({name, std::string(formats::torch_name(tensor->dtype)),
                  formats::shape_text(tensor->shape), formats::human_bytes(node.bytes),
                  chunks > 1 ? cat(chunks, " chunks") : ""});
      return;
    }
    if (node.value != nullptr && node.children.empty()) {
      if (!read_values_) {
        table_.add({name, "value"});
        return;
      }
      const formats::Value value = read_value(checkpoint_, *node.value);
      table_.add({name, type_name(value), value_text(value, kValueWidth)});
      return;
    }
    if (node.tensors == 0) {
      table_.add({name, "", counted(node.values, "value"), "", ""});
    } else {
      table_.add({name, "", counted(node.numel, "element"), formats::human_bytes(node.bytes), ""});
    }
  }

  void chunk_lines(const formats::TensorEntry& tensor, const std::string& indent) {
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      const formats::Location& place = tensor.chunks.location(c);
      table_.add_line(cat(indent, "   ", formats::box_text(tensor.chunks.box(c)), "  ",
                          formats::escape(checkpoint_.index().files[place.file].name), " at byte ",
                          place.offset, ", ", place.length, " bytes"));
    }
  }

  const InspectOptions& options_;
  const formats::Checkpoint& checkpoint_;
  bool read_values_;
  Table table_;
};

void print_files(const formats::Checkpoint& checkpoint, const Streams& streams) {
  Table table({Column::kName, Column::kNumber, Column::kWhole});
  for (const auto& file : checkpoint.index().files) {
    table.add({formats::escape(file.name),
               file.bytes ? formats::human_bytes(*file.bytes) : "missing",
               file.rank ? cat("rank ", *file.rank) : ""});
  }
  table.print(streams.out, streams.columns);
}

// Returns whether the files are within the requested size; reports it if they are not.
bool within_budget(const InspectOptions& options, const formats::Checkpoint& checkpoint,
                   std::ostream& err) {
  if (!options.max_bytes) return true;
  const auto [bytes, missing] = sizes_of(checkpoint.index().files);
  if (missing != 0) {
    err << "fsdp-ckpt: " << checkpoint.description().path << ": " << counted(missing, "file")
        << " missing, so the size is unknown\n";
    return false;
  }
  if (bytes <= *options.max_bytes) return true;
  err << "fsdp-ckpt: " << checkpoint.description().path << ": has " << formats::group_digits(bytes)
      << " bytes of files, more than the " << formats::group_digits(*options.max_bytes)
      << " of --max-bytes\n";
  return false;
}

// Reads only metadata, and values on request.  Returns the exit status.
int inspect(const InspectOptions& options, const Streams& streams) {
  if (!options.html.empty()) check_apart(options.common.path, options.html);
  const auto checkpoint =
      formats::open_checkpoint(options.common.path, {options.common.allowed_globals});
  if (!options.common.keys.everything()) {
    check_selection(options.common.keys, checkpoint->index(), checkpoint->description().path);
    checkpoint->keep([&](const std::string& key) { return options.common.keys.selects(key); });
  }
  if (!options.html.empty()) write_inspect_page(options, *checkpoint);
  if (options.common.json) {
    print_inspect_json(options, *checkpoint, streams.out);
  } else if (!options.html.empty()) {
    if (!options.common.quiet) {
      streams.out << formats::escape(options.html) << ": a page of "
                  << counted(checkpoint->index().tensors.size(), "tensor") << '\n';
    }
  } else {
    // On a terminal, equal layers are folded by default: thousands of equal lines do not help.
    const bool alone = streams.columns != 0 && !options.no_fold && !options.chunks;
    const auto tree = key_tree(checkpoint->index(), options.fold || alone);
    const bool values = reads_values(options, *checkpoint);
    TreePrinter printer(options, *checkpoint, values);
    printer.read(*tree);
    print_heading(*checkpoint, *tree, streams);
    if (options.files) {
      streams.out << '\n';
      print_files(*checkpoint, streams);
    }
    if (!tree->children.empty() && options.depth > 0) {
      streams.out << '\n';
      printer.print(streams.out, streams.columns);
      if (!values && tree->values != 0 && options.values == When::kAuto && !options.common.quiet) {
        streams.err << "fsdp-ckpt: note: " << counted(tree->values, "value")
                    << (tree->values > kManyValues ? " not read; --values always reads them\n"
                                                   : " not read: no data file is there\n");
      }
    }
  }
  note_unread(options.common.path, *checkpoint, options.common, streams);
  for (const formats::Finding& finding : checkpoint->findings()) {
    if (options.common.quiet) break;
    streams.err << "fsdp-ckpt: warning[" << code_name(finding.code)
                << "]: " << formats::place_text(finding) << message_of(finding) << '\n';
  }
  return within_budget(options, *checkpoint, streams.err) ? 0 : 1;
}

class InspectVerb : public Verb {
 public:
  InspectVerb()
      : Verb("inspect", "Show what is inside; reads only metadata",
             {"fsdp-ckpt inspect step-400 --fold",
              "fsdp-ckpt inspect step-400 --json -k 'model.**' | jq '.tensors[].key'"},
             "ls") {}
  void declare(OptionSet& options) override {
    options.more("MORE", more_,
                 "More checkpoints; each is a line, as those in the folder of a run");
    options.add("--fold", &options_.fold);
    options.add("--no-fold", &options_.no_fold);
    options.add("--depth", &depth_);
    options.add("--chunks", &options_.chunks);
    options.add("--files", &options_.files);
    options.add("--globals", &globals_);
    options.add("--max-bytes", &options_.max_bytes);
    options.add("--html", &options_.html, ": treemap, ranks or files, search; of a run, its steps");
    options.add("--force", &options_.force);
    options.add("--values", &values_).choices = {"auto", "always", "never"};
  }
  int run(const CommonOptions& common, const Streams& streams) override {
    if (!more_.empty() && globals_) throw Error(ErrorCode::kUsage, "--globals takes one PATH");
    if (globals_) return inspect_globals(common, streams);
    options_.common = common;
    if (depth_) options_.depth = static_cast<std::size_t>(*depth_);
    if (values_ != "auto") options_.values = values_ == "always" ? When::kAlways : When::kNever;
    const auto listed = listed_steps(common.path, more_);
    if (listed.empty()) return inspect(options_, streams);
    if (options_.max_bytes)
      throw Error(ErrorCode::kUsage, "--max-bytes takes one PATH, of one checkpoint");
    std::vector<std::string> paths = {common.path};
    paths.insert(paths.end(), more_.begin(), more_.end());
    return inspect_run(options_, paths, listed, streams);
  }

 private:
  InspectOptions options_;
  std::vector<std::string> more_;
  bool globals_ = false;
  std::optional<std::int64_t> depth_;
  std::string values_ = "auto";
};

}  // namespace

std::string shown_key(const std::string& key, const formats::KeyPath& path) {
  return path.empty() ? std::string(kRootName) : formats::escape(key);
}

formats::Value read_value(const formats::Checkpoint& checkpoint, const formats::ValueEntry& entry) {
  try {
    return checkpoint.value(entry);
  } catch (const Error& error) {
    throw Error(error.code(),
                cat(message_of(error), "; --values never shows the rest without values"));
  }
}

bool reads_values(const InspectOptions& options, const formats::Checkpoint& checkpoint) {
  const formats::Index& index = checkpoint.index();
  // Without data files, such as for a .metadata sent alone, no value can be read.
  const bool any_file =
      index.files.empty() || std::any_of(index.files.begin(), index.files.end(),
                                         [](const auto& file) { return file.bytes.has_value(); });
  if (options.values == When::kAuto) return any_file && index.values.size() <= kManyValues;
  return options.values == When::kAlways;
}

std::unique_ptr<Verb> make_inspect() {
  return std::make_unique<InspectVerb>();
}

}  // namespace fsdp::cli
