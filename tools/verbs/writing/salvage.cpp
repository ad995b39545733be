// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt salvage: writes what of a damaged checkpoint is whole, and the rest of another one.
#include "formats/front/salvage.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/store/place.h"
#include "formats/changes/edit/splice.h"
#include "formats/families/checks/content_check.h"
#include "formats/families/runs/formats.h"
#include "formats/front/create.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/rewrite/optimizer_ids.h"
#include "tools/base/reading.h"
#include "tools/base/verbs.h"
#include "tools/text/value_text.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/name_report.h"
#include "tools/verbs/writing/producer_note.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;
using formats::EntryState;
using formats::Json;
using formats::Salvaged;
using formats::Value;
using formats::Wholeness;

constexpr std::size_t kBoxesShown = 4;
constexpr std::array<const char*, 4> kStateWords = {"whole", "unchecked", "partly", "lost"};

const char* word_of(Wholeness state) {
  return kStateWords.at(static_cast<std::size_t>(state));
}

// Returns the parts of a tensor that are lost: rows, where they are whole rows.
std::string lost_text(const formats::TensorEntry& tensor, const std::vector<formats::Box>& lost) {
  const bool rows =
      !tensor.shape.empty() && std::ranges::all_of(lost, [&](const formats::Box& box) {
        return std::equal(box.size.begin() + 1, box.size.end(), tensor.shape.begin() + 1);
      });
  std::string text;
  for (std::size_t i = 0; i < lost.size() && i < kBoxesShown; ++i) {
    text += text.empty() ? "" : ", ";
    text += rows ? cat(lost[i].offset[0], ":", lost[i].offset[0] + lost[i].size[0])
                 : formats::box_text(lost[i].view());
  }
  if (lost.size() > kBoxesShown) text += cat(" and ", lost.size() - kBoxesShown, " more");
  return cat(rows ? "rows " : "", text, " of ", formats::shape_text(tensor.shape));
}

// One key of the report.
struct Entry {
  const EntryState* state = nullptr;
  const formats::TensorEntry* tensor = nullptr;  // null for a value, and for a key that is gone
  std::string kind;                              // "tensor", "value"; of a gone key "unknown"
  std::string origin;                            // the checkpoint it was taken from; empty: none
  std::string refused;                           // why OTHER's is not taken
};

class SalvageVerb : public Verb {
 public:
  SalvageVerb()
      : Verb("salvage", "Save what damage left whole: tensors, values; the rest from another",
             {"fsdp-ckpt salvage step-400 rescued --dry-run",
              "fsdp-ckpt salvage step-400 rescued --from step-380"}) {}

  void declare(OptionSet& options) override {
    declare_writing(options, writing_, "File or folder to write, in the format of PATH");
    options.add("--from", &other_);
    options.add("--step", &step_);
    options.add("--to", &format_, joined(output_formats()) + "; by the suffix of OUT, else as PATH")
        .choices = output_formats();
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    common_path_ = common.path;
    check_apart(common.path, writing_.destination);
    if (!other_.empty()) check_apart(other_, writing_.destination);
    formats::SalvageOptions options{.verify = verify_options(common)};
    if (!other_.empty()) options.siblings.emplace_back(other_);
    options.step = step_;
    Salvaged found = formats::salvage(common.path, options);
    const formats::Checkpoint& source = *found.checkpoint;
    refuse_mixture(found);
    Value content = selected_content(source, common);
    list_entries(found, common);
    std::shared_ptr<const formats::Checkpoint> whole = std::move(found.checkpoint);
    take_replicas(found, whole, content, common);
    if (!other_.empty()) take_rest(found, whole, content, common);
    content = whole_content(found, content);
    if (std::ranges::none_of(entries_, [](const Entry& entry) { return !entry.origin.empty(); })) {
      const std::string why = entries_.empty() ? "" : ", " + entries_.front().state->why;
      throw Error(ErrorCode::kNotFound, cat(formats::escape(common.path), ": nothing is whole", why,
                                            "; --from OTHER takes it from another checkpoint"));
    }
    const int status = answer(found);
    write(found, *whole, std::move(content), common, streams);
    return status;
  }

 private:
  static std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
  }

  static formats::VerifyOptions verify_options(const CommonOptions& common) {
    formats::VerifyOptions options;
    options.threads = common.threads;
    options.allowed_globals = common.allowed_globals;
    options.cancelled = [] { return formats::interrupted(); };
    return options;
  }

  // Throws kMismatch if files count different steps, and none of the steps was chosen.
  void refuse_mixture(const Salvaged& found) const {
    if (!found.mixed || step_) return;
    std::map<std::int64_t, std::vector<std::string>> files;
    for (const formats::FileState& file : found.files) {
      for (const std::int64_t step : file.steps) files[step].push_back(formats::escape(file.name));
    }
    std::string text;
    for (const auto& [step, names] : files) {
      text += cat(text.empty() ? "" : "; ", names.front(),
                  names.size() == 1 ? std::string() : cat(" and ", names.size() - 1, " more"),
                  " count step ", step);
    }
    throw Error(ErrorCode::kMismatch,
                cat(found.checkpoint->description().path, ": the files are from several saves: ",
                    text, "; --step N takes those that count step N as the whole ones"));
  }

  // Returns the content without what is not whole and was not taken from OTHER.  In a list, None
  // stands for it: later positions would get other names.
  Value whole_content(const Salvaged& found, const Value& content) const {
    std::unordered_map<std::string_view, const EntryState*> states;
    for (const EntryState& state : found.values) states.emplace(state.key, &state);
    std::vector<formats::PlacedLeaf> kept;
    bool all = true;
    for (formats::PlacedLeaf& leaf : formats::placed_leaves(content)) {
      const EntryState* state = nullptr;
      if (const auto tensor = formats::tensor_number(leaf.value)) {
        // Tensors of OTHER follow those of the source.
        if (*tensor < found.tensors.size()) state = &found.tensors[*tensor];
      } else if (const auto value = formats::deferred_number(leaf.value)) {
        state = &found.values[*value];
      } else if (const auto at = states.find(leaf.was); at != states.end()) {
        if (!taken_.contains(leaf.was)) state = at->second;
      }
      if (state != nullptr && !state->usable()) {
        all = false;
        const bool listed = std::ranges::any_of(leaf.path, [](const formats::PlacedStep& step) {
          return std::holds_alternative<std::int64_t>(step.step) && step.key.is_none();
        });
        if (!listed) continue;
        leaf.value = Value();
      }
      kept.push_back(std::move(leaf));
    }
    return all ? content : formats::rebuilt(kept);
  }

  void list_entries(const Salvaged& found, const CommonOptions& common) {
    const formats::Index& index = found.checkpoint->index();
    const auto add = [&](const EntryState& state, const formats::TensorEntry* tensor,
                         const char* kind) {
      if (!common.keys.selects(state.key)) return;
      entries_.push_back({&state, tensor, kind, state.usable() ? common.path : std::string(), {}});
    };
    for (std::size_t t = 0; t < found.tensors.size(); ++t)
      add(found.tensors[t], &index.tensors[t], "tensor");
    for (const EntryState& state : found.values) add(state, nullptr, "value");
    for (const EntryState& state : found.gone) add(state, nullptr, "unknown");
  }

  // Takes the tensors of which another rank's copy is whole.
  static void take_replicas(Salvaged& found, std::shared_ptr<const formats::Checkpoint>& whole,
                            Value& content, const CommonOptions& common) {
    formats::Splice splice;
    splice.replace = true;
    for (const std::string& key : found.replicated) {
      if (common.keys.selects(key)) splice.take_exactly.insert(key);
    }
    if (splice.take_exactly.empty()) return;
    splice.other = std::move(found.replicas);
    formats::Spliced spliced = formats::spliced(whole, content, splice);
    whole = std::move(spliced.checkpoint);
    content = std::move(spliced.content);
  }

  // Takes from OTHER what is not whole here and is whole there, of the same dtype and shape.
  void take_rest(const Salvaged& found, std::shared_ptr<const formats::Checkpoint>& whole,
                 Value& content, const CommonOptions& common) {
    other_found_ = formats::salvage(other_, {.verify = verify_options(common)});
    const formats::Index& theirs = other_found_.checkpoint->index();
    struct Theirs {
      const EntryState* state;
      const formats::TensorEntry* tensor;
    };
    std::unordered_map<std::string_view, Theirs> there;
    for (std::size_t t = 0; t < theirs.tensors.size(); ++t)
      there.emplace(theirs.tensors[t].key, Theirs{&other_found_.tensors[t], &theirs.tensors[t]});
    for (const EntryState& state : other_found_.values)
      there.emplace(state.key, Theirs{&state, nullptr});
    formats::Splice splice;
    splice.replace = true;
    std::set<std::string_view> own;
    for (Entry& entry : entries_) {
      own.insert(entry.state->key);
      if (!entry.origin.empty()) continue;
      const auto at = there.find(entry.state->key);
      entry.refused =
          at == there.end() ? "is not there" : refusal(entry, *at->second.state, at->second.tensor);
      if (!entry.refused.empty()) continue;
      entry.origin = other_;
      splice.take_exactly.insert(entry.state->key);
    }
    if (!found.names_known) {
      for (const auto& [key, one] : there) {
        if (own.contains(key) || !one.state->usable() || !common.keys.selects(key)) continue;
        entries_.push_back(
            {one.state, one.tensor, one.tensor != nullptr ? "tensor" : "value", other_, {}});
        splice.take_exactly.emplace(key);
      }
    }
    if (splice.take_exactly.empty()) return;
    taken_ = splice.take_exactly;
    splice.other = std::move(other_found_.checkpoint);
    formats::Spliced spliced = formats::spliced(whole, content, splice);
    whole = std::move(spliced.checkpoint);
    content = std::move(spliced.content);
    others_ = std::move(splice.other);
  }

  // Returns why an entry of OTHER cannot stand for this one; empty if it can.
  static std::string refusal(const Entry& own, const EntryState& state,
                             const formats::TensorEntry* theirs) {
    if (!state.usable()) return cat("is ", word_of(state.state), " there");
    if (own.kind == "unknown") return {};
    if ((own.tensor == nullptr) != (theirs == nullptr))
      return theirs == nullptr ? "is a value there" : "is a tensor there";
    if (theirs == nullptr) return {};
    if (theirs->dtype != own.tensor->dtype || theirs->shape != own.tensor->shape) {
      return cat("is ", formats::torch_name(theirs->dtype), " ", formats::shape_text(theirs->shape),
                 " there, expected ", formats::torch_name(own.tensor->dtype), " ",
                 formats::shape_text(own.tensor->shape));
    }
    return {};
  }

  int answer(const Salvaged& found) const {
    const bool all =
        std::ranges::all_of(entries_, [](const Entry& entry) { return !entry.origin.empty(); });
    return all && (found.names_known || !other_.empty()) ? 0 : 1;
  }

  std::string written_format(const formats::CheckpointDescription& description) const {
    if (!format_.empty()) return format_;
    try {
      return formats::format_from_suffix(writing_.destination);
    } catch (const Error&) {
      std::string own = formats::own_output_word(description);
      if (own.empty()) throw;
      return own;
    }
  }

  void write(const Salvaged& found, const formats::Checkpoint& source, Value content,
             const CommonOptions& common, const Streams& streams) {
    ConversionOptions conversion;
    conversion.writing = writing_;
    const std::string format = written_format(source.description());
    if (format == "dcp") conversion.world_size = source.description().ranks;
    const formats::CopyCheck check = formats::check_before_copy(
        source, content, [] { return formats::interrupted(); },
        format == "pt" ? formats::LibraryTensors::kKept : formats::LibraryTensors::kRefused);
    content = formats::with_objects(content, check);
    content = formats::with_values(source, content);
    content = formats::with_integer_ids(source, content);
    ReportExtras extras = report_of(found);
    note_computed(check, extras);
    if (writing_.dry_run) {
      write_converted(name(), source, content, format, conversion, common, streams,
                      std::move(extras));
      return;
    }
    std::string beside = writing_.destination;
    while (beside.size() > 1 && beside.back() == '/') beside.pop_back();
    beside += ".salvage.json";
    formats::OutputOptions options;
    options.replace = writing_.force;
    options.sync = writing_.sync;
    options.make_folders = true;
    // One that is there tells of another output.
    std::error_code failed;
    if (writing_.force && !formats::in_store(beside)) std::filesystem::remove(beside, failed);
    if (failed)
      throw Error(ErrorCode::kIo,
                  cat(formats::escape(beside), ": removing the old report: ", failed.message()));
    const auto file = formats::new_file(beside, options);
    Json::Object object{
        {"schema", "fsdp-ckpt/salvage/1"}, {"path", common.path}, {"output", writing_.destination}};
    object.insert(object.end(), extras.members.begin(), extras.members.end());
    const std::string text = formats::to_text(Json(std::move(object)), 1) + "\n";
    file->file().write_at(0, std::as_bytes(std::span(text)));
    extras.last = [beside] { return formats::escape(beside) + ": where each key came from"; };
    write_converted(name(), source, content, format, conversion, common, streams,
                    std::move(extras));
    file->commit();
  }

  // Lists the keys for which `of` returns true, under a title with their number.
  template <typename Of>
  void list(const char* title, const Of& of, ReportExtras& extras) const {
    std::vector<const Entry*> listed;
    for (const Entry& entry : entries_) {
      if (of(entry)) listed.push_back(&entry);
    }
    if (listed.empty()) return;
    extras.lines.push_back(cat(title, ": ", counted(listed.size(), "key")));
    list_names(
        listed.size(),
        [&](std::size_t i) {
          const Entry& entry = *listed[i];
          std::string text = cat(formats::escape(entry.state->key), ": ");
          if (entry.state->state == Wholeness::kPartly && entry.tensor != nullptr &&
              !entry.state->lost.empty())
            text += cat(lost_text(*entry.tensor, entry.state->lost), " lost: ");
          text += entry.state->why;
          if (!entry.refused.empty())
            text += cat("; ", formats::escape(other_), ": ", entry.refused);
          return text;
        },
        extras.lines);
  }

  ReportExtras report_of(const Salvaged& found) const {
    ReportExtras extras;
    std::map<std::string, std::int64_t> counts;
    Json::Array keys;
    for (const Entry& entry : entries_) {
      ++counts[word_of(entry.state->state)];
      Json::Array lost;
      for (const formats::Box& box : entry.state->lost) {
        lost.emplace_back(
            Json::Object{{"offset", Json::Array(box.offset.begin(), box.offset.end())},
                         {"shape", Json::Array(box.size.begin(), box.size.end())}});
      }
      keys.emplace_back(Json::Object{{"key", entry.state->key},
                                     {"kind", entry.kind},
                                     {"state", word_of(entry.state->state)},
                                     {"origin", text_or_null(entry.origin)},
                                     {"lost", std::move(lost)},
                                     {"why", text_or_null(entry.state->why)}});
    }
    if (!found.metadata.empty()) {
      extras.lines.push_back(cat("metadata: those of ", found.metadata,
                                 " fit every item; that no two tensors of one "
                                 "dtype and shape have changed places since is not known"));
    }
    const auto taken = [&](const Entry& entry) {
      return !other_.empty() && entry.origin == other_;
    };
    list(
        "lost",
        [](const Entry& entry) {
          return entry.origin.empty() && entry.state->state == Wholeness::kLost;
        },
        extras);
    list(
        "partly lost, and left out",
        [](const Entry& entry) {
          return entry.origin.empty() && entry.state->state == Wholeness::kPartly;
        },
        extras);
    list(
        "taken from the files of other ranks",
        [&](const Entry& entry) { return found.replicated.contains(entry.state->key); }, extras);
    list(cat("taken from ", formats::escape(other_)).c_str(), taken, extras);
    Json::Array unread;
    for (const auto& [name, why] : found.unread) {
      unread.emplace_back(Json::Object{{"name", name}, {"why", why}});
      extras.lines.push_back(
          cat("not read: ", formats::escape(name), ": ", why, "; fsdp-ckpt salvage ",
              formats::escape((std::filesystem::path(common_path_) / name).native()),
              " OUT takes what is whole of it"));
    }
    if (!found.names_known)
      extras.lines.emplace_back("files are lost, and nothing tells which keys they held");
    const std::int64_t unchecked = counts["unchecked"];
    if (unchecked != 0) {
      extras.lines.push_back(
          cat("not checked: ", counted(static_cast<std::uint64_t>(unchecked), "key"),
              unchecked == 1 ? " carries" : " carry", " no checksum"));
    }
    Json::Array files;
    std::vector<std::string> loose;
    for (const formats::FileState& file : found.files) {
      files.emplace_back(Json::Object{
          {"name", file.name},
          {"bytes", file.bytes ? Json(*file.bytes) : Json()},
          {"modified",
           file.modified_ns == 0 ? Json() : Json(static_cast<double>(file.modified_ns) / 1e9)},
          {"steps", Json::Array(file.steps.begin(), file.steps.end())},
          {"tied", file.tied}});
      if (file.bytes && !file.tied) loose.push_back(formats::escape(file.name));
    }
    if (!loose.empty()) {
      extras.lines.push_back(cat(
          "not known: whether ", loose.front(),
          loose.size() == 1 ? std::string() : cat(" and ", counted(loose.size() - 1, "other file")),
          loose.size() == 1 ? " is" : " are",
          " of the same save as the rest: no seal and no step count tells"));
    }
    Json::Object& members = extras.members;
    members.emplace_back("metadata", text_or_null(found.metadata));
    members.emplace_back("from", text_or_null(other_));
    members.emplace_back("names_known", found.names_known);
    members.emplace_back("unread", std::move(unread));
    for (const char* word : kStateWords) members.emplace_back(word, counts[word]);
    members.emplace_back(
        "taken", static_cast<std::int64_t>(std::count_if(entries_.begin(), entries_.end(), taken)));
    members.emplace_back("keys", std::move(keys));
    members.emplace_back("sources", std::move(files));
    return extras;
  }

  WritingOptions writing_;
  std::string common_path_;
  std::string other_;
  std::optional<std::int64_t> step_;
  std::string format_;
  Salvaged other_found_;
  std::shared_ptr<const formats::Checkpoint> others_;  // keeps what entries of OTHER refer to
  std::set<std::string> taken_;                        // keys that come from OTHER
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<Verb> make_salvage() {
  return std::make_unique<SalvageVerb>();
}

}  // namespace fsdp::cli
