// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/run_page.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file_times.h"
#include "formats/bytes/store/place.h"
#include "formats/families/runs/formats.h"
#include "formats/families/runs/step_names.h"
#include "formats/front/open.h"
#include "tools/base/remedy.h"
#include "tools/base/runs.h"
#include "tools/text/terminal_text.h"
#include "tools/text/value_text.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::JsonWriter;

// The most keys, and findings, that one list of the page names; all are counted.
constexpr std::size_t kMostNamed = 30;
// Longer texts of values are not compared.
constexpr std::size_t kMostCompared = 100'000;
constexpr std::size_t kShownOfValue = 60;

using Texts = std::map<std::string, std::string>;  // by key

// What of a checkpoint is compared with the next one of its series.
struct Snapshot {
  std::string path;
  std::uint64_t step = 0;
  Texts tensors;       // "float32 [40, 30]"
  Texts values;        // as Python's repr; only those that were read
  std::string unread;  // why values were not read; empty if they were
};

Snapshot snapshot_of(const InspectOptions& options, const formats::Checkpoint& checkpoint) {
  Snapshot snapshot;
  for (const formats::TensorEntry& tensor : checkpoint.index().tensors) {
    snapshot.tensors[shown_key(tensor.key, tensor.path)] =
        cat(formats::torch_name(tensor.dtype), " ", formats::shape_text(tensor.shape));
  }
  if (!reads_values(options, checkpoint)) {
    snapshot.unread = "values were not read";
    return snapshot;
  }
  try {
    for (const formats::ValueEntry& entry : checkpoint.index().values) {
      std::string text = value_text(checkpoint.value(entry), kMostCompared);
      snapshot.values[shown_key(entry.key, entry.path)] = std::move(text);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    snapshot.unread = message_of(error);
  }
  return snapshot;
}

// Keys of one kind of change: [count, [[key, before, after], ...]], of which some are named.
class ChangeList {
 public:
  void add(const std::string& key, const std::string& before, const std::string& after) {
    ++count_;
    if (named_.size() == kMostNamed) return;
    named_.push_back(Json::Array{Json(key), Json(cut_end(before, kShownOfValue)),
                                 Json(cut_end(after, kShownOfValue))});
  }
  Json json() && { return Json::Array{Json(count_), Json(std::move(named_))}; }

 private:
  std::uint64_t count_ = 0;
  Json::Array named_;
};

// Compares what two steps hold under each key.
// Returns {"added", "removed", "changed"}; `incomparable` counts texts that are too long.
Json::Object changes_between(const Texts& before, const Texts& after, std::uint64_t& incomparable) {
  ChangeList added;
  ChangeList removed;
  ChangeList changed;
  auto old = before.begin();
  auto now = after.begin();
  while (old != before.end() || now != after.end()) {
    if (now == after.end() || (old != before.end() && old->first < now->first)) {
      removed.add(old->first, old->second, "");
      ++old;
    } else if (old == before.end() || now->first < old->first) {
      added.add(now->first, "", now->second);
      ++now;
    } else {
      if (old->second != now->second) {
        changed.add(now->first, old->second, now->second);
      } else if (now->second.size() >= kMostCompared) {
        ++incomparable;
      }
      ++old;
      ++now;
    }
  }
  return {{"added", std::move(added).json()},
          {"removed", std::move(removed).json()},
          {"changed", std::move(changed).json()}};
}

Json findings_of(const formats::Findings& findings) {
  Json::Array named;
  for (const formats::Finding& finding : findings) {
    if (named.size() == kMostNamed) break;
    named.push_back(Json::Array{Json(std::string(formats::severity_name(finding.severity))),
                                Json(std::string(code_name(finding.code))),
                                Json(formats::place_text(finding) + message_of(finding))});
  }
  return Json::Array{Json(findings.size()), Json(std::move(named))};
}

// Returns when the last file of a checkpoint was written, in milliseconds since the epoch; nothing
// in a store, where each file would cost a request.
std::optional<std::int64_t> written_at(const std::string& path,
                                       const formats::Checkpoint& checkpoint) {
  if (formats::is_url(path)) return std::nullopt;
  constexpr std::int64_t kNanosecondsInMillisecond = 1'000'000;
  const bool folder = formats::is_folder(path);
  std::optional<std::int64_t> last;
  for (const std::string& name : formats::files_below(path, checkpoint)) {
    const auto place = folder ? std::filesystem::path(path) / name : std::filesystem::path(path);
    const auto times = formats::times_at(place);
    if (times) last = std::max(last.value_or(INT64_MIN), times->modified_ns);
    if (!folder) break;
  }
  if (last) *last /= kNanosecondsInMillisecond;
  return last;
}

// Writes the members that run_page.js reads.
class RunData {
 public:
  RunData(const InspectOptions& options, const std::vector<formats::Step>& steps,
          const std::map<std::string, Soundness>& soundness, JsonWriter& json)
      : options_(options), steps_(steps), soundness_(soundness), json_(json) {}

  // Returns the errors of checkpoints that could not be opened.
  std::vector<Error> write(const std::string& name) {
    for (const formats::Step& step : steps_) ++left_[formats::series_of(step.path)];
    json_.begin_object().member("name", name).member("kind", "Checkpoints");
    json_.member("tool", FSDP_VERSION).member("verified", !soundness_.empty());
    json_.key("series").begin_array();
    for (const auto& [series, count] : left_) json_.text(formats::escape(series));
    json_.end_array().key("checkpoints").begin_array();
    for (const formats::Step& step : steps_) add(step);
    json_.end_array().end_object();
    return std::move(errors_);
  }

 private:
  void add(const formats::Step& step) {
    const std::string path = step.path;
    const std::string series = formats::series_of(path);
    const auto number = formats::step_of(path);
    json_.begin_object().member("path", formats::escape(path));
    json_.member("step", number ? Json(*number) : Json());
    json_.member("series", std::distance(left_.begin(), left_.find(series)));
    try {
      const auto checkpoint = formats::open_checkpoint(path, {options_.common.allowed_globals});
      Snapshot snapshot = snapshot_of(options_, *checkpoint);
      describe(path, *checkpoint);
      compare(series, std::move(snapshot), path);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      json_.key("error").begin_array().text(code_name(error.code()));
      json_.text(message_of(error)).end_array();
      errors_.push_back(error);
    }
    if (--left_.at(series) == 0) last_.erase(series);
    const auto found = soundness_.find(path);
    if (found != soundness_.end()) {
      json_.key("soundness").begin_array().text(found->second.verdict).text(found->second.extent);
      json_.value(findings_of(found->second.findings)).value(found->second.partial).end_array();
    }
    json_.end_object();
  }

  void describe(const std::string& path, const formats::Checkpoint& checkpoint) {
    const auto& d = checkpoint.description();
    std::uint64_t bytes = 0;
    std::uint64_t missing = 0;
    for (const formats::FileEntry& file : checkpoint.index().files) {
      bytes += file.bytes.value_or(0);
      missing += file.bytes ? 0 : 1;
    }
    std::uint64_t elements = 0;
    std::map<std::string, std::uint64_t> dtypes;
    for (const formats::TensorEntry& tensor : checkpoint.index().tensors) {
      elements += tensor.numel();
      dtypes[std::string(formats::torch_name(tensor.dtype))] += tensor.bytes();
    }
    const auto written = written_at(path, checkpoint);
    json_.member("format", formats::label_of(d)).member("ranks", d.ranks);
    json_.member("version", d.version ? Json(formats::escape(*d.version)) : Json());
    json_.member("written", written ? Json(*written) : Json()).member("bytes", bytes);
    json_.member("files", checkpoint.index().files.size()).member("missing", missing);
    json_.member("tensors", checkpoint.index().tensors.size()).member("elements", elements);
    json_.member("values", checkpoint.index().values.size()).key("dtypes").begin_array();
    for (const auto& [dtype, sum] : dtypes) json_.value(Json::Array{Json(dtype), Json(sum)});
    json_.end_array().member("findings", findings_of(checkpoint.findings()));
  }

  // Compares with the last step before it in its series that could be opened.
  void compare(const std::string& series, Snapshot snapshot, const std::string& path) {
    const auto step = formats::certain_step_of(path);
    if (!step) return;
    snapshot.path = path;
    snapshot.step = *step;
    const auto before = last_.find(series);
    if (before != last_.end() && before->second.step < *step) {
      const Snapshot& old = before->second;
      std::uint64_t incomparable = 0;
      const std::string& unread = old.unread.empty() ? snapshot.unread : old.unread;
      json_.member("before", formats::escape(old.path));
      json_.member("tensor_changes", changes_between(old.tensors, snapshot.tensors, incomparable));
      if (unread.empty())
        json_.member("value_changes", changes_between(old.values, snapshot.values, incomparable));
      json_.member("unread", text_or_null(unread)).member("incomparable", incomparable);
    }
    last_[series] = std::move(snapshot);
  }

  const InspectOptions& options_;
  const std::vector<formats::Step>& steps_;
  const std::map<std::string, Soundness>& soundness_;
  JsonWriter& json_;
  std::map<std::string, std::uint64_t> left_;  // by series: steps that are not yet written
  std::map<std::string, Snapshot> last_;       // by series
  std::vector<Error> errors_;
};

std::string name_of(const std::vector<std::string>& paths) {
  const std::string name = formats::escape(paths.front());
  return paths.size() == 1 ? name : cat(name, " and ", paths.size() - 1, " more");
}

std::string apart_from(const std::vector<std::string>& paths, const std::string& page) {
  for (const std::string& path : paths) check_apart(path, page);
  return page;
}

}  // namespace

RunPage::RunPage(InspectOptions options, const std::vector<std::string>& paths,
                 std::vector<formats::Step> steps)
    : options_(std::move(options)),
      name_(name_of(paths)),
      steps_(newest_first(std::move(steps))),
      page_(apart_from(paths, options_.html), options_.force) {
  std::reverse(steps_.begin(), steps_.end());
}

std::vector<Error> RunPage::write(const std::map<std::string, Soundness>& soundness) {
  std::vector<Error> errors;
  page_.write(kRunPage, name_, [&](JsonWriter& json) {
    errors = RunData(options_, steps_, soundness, json).write(name_);
  });
  return errors;
}

}  // namespace fsdp::cli
