// SPDX-License-Identifier: Apache-2.0
#include "tools/base/runs.h"

#include <algorithm>
#include <iterator>
#include <ostream>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/runs/step_names.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Step;

}  // namespace

std::vector<Step> newest_first(std::vector<Step> steps) {
  std::reverse(steps.begin(), steps.end());
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return formats::step_of(a.path).value_or(0) > formats::step_of(b.path).value_or(0);
  });
  return steps;
}

std::vector<Step> listed_steps(const std::string& path, const std::vector<std::string>& more) {
  std::vector<std::string> paths = {path};
  paths.insert(paths.end(), more.begin(), more.end());
  std::vector<Step> listed;
  for (const std::string& one : paths) {
    formats::RunView view;
    if (formats::is_folder(one)) view = formats::look_through(one);
    if (!view.is_step && !view.steps.empty()) {
      std::move(view.steps.begin(), view.steps.end(), std::back_inserter(listed));
    } else if (!more.empty()) {
      listed.push_back({one, {}, {}});
    }
  }
  return listed;
}

std::string lacking(const Step& step, const std::vector<Step>& steps) {
  const auto number = formats::certain_step_of(step.path);
  if (!number) return {};
  const std::string series = formats::series_of(step.path);
  const Step* before = nullptr;
  for (const Step& other : steps) {
    const auto older = formats::certain_step_of(other.path);
    if (older && *older < *number && formats::series_of(other.path) == series &&
        (before == nullptr || *older > *formats::certain_step_of(before->path)))
      before = &other;
  }
  if (before == nullptr) return {};
  std::vector<std::string> lost;
  std::set_difference(before->shape.begin(), before->shape.end(), step.shape.begin(),
                      step.shape.end(), std::back_inserter(lost));
  if (lost.empty()) return {};
  return cat("lacks ", formats::escape(formats::joined(lost, ", ")), ", which ",
             formats::escape(before->path.native()), " has");
}

void note_unread(const std::string& path, const formats::Checkpoint& checkpoint,
                 const CommonOptions& common, const Streams& streams) {
  if (common.quiet || common.json) return;
  constexpr std::size_t kMostNames = 5;
  std::vector<std::string> unread;
  try {
    unread = formats::unread_checkpoints(path, formats::files_below(path, checkpoint));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kLimitEntries) throw;
    streams.err << "fsdp-ckpt: note: " << error.what() << '\n';
  }
  if (unread.empty()) return;
  formats::SomeNames names(kMostNames);
  for (const std::string& name : unread) names.add(formats::escape(name));
  streams.err << "fsdp-ckpt: note: " << formats::escape(path)
              << ": checkpoints inside that were not read: " << names.text() << '\n';
}

}  // namespace fsdp::cli
