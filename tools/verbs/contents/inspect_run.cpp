// SPDX-License-Identifier: Apache-2.0
// `inspect` for several checkpoints, or for a run's folder.
#include <optional>
#include <ostream>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/families/runs/step_names.h"
#include "formats/front/open.h"
#include "tools/base/reading.h"
#include "tools/base/remedy.h"
#include "tools/text/table.h"
#include "tools/verbs/contents/inspect.h"
#include "tools/verbs/contents/run_page.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;

struct Listed {
  std::string path;
  std::optional<formats::CheckpointDescription> description;  // nothing: could not be opened
  std::uint64_t bytes = 0;                                    // of the checkpoint's files
  std::uint64_t tensors = 0;
  std::string code;     // of the error
  std::string message;  // of the error
};

Listed look_at(const std::string& path, const CommonOptions& common) {
  Listed listed;
  listed.path = path;
  try {
    const auto checkpoint = formats::open_checkpoint(path, {common.allowed_globals});
    listed.description = checkpoint->description();
    listed.tensors = checkpoint->index().tensors.size();
    for (const auto& file : checkpoint->index().files) listed.bytes += file.bytes.value_or(0);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    listed.code = code_name(error.code());
    listed.message = message_of(error);
  }
  return listed;
}

Json listed_json(const Listed& listed) {
  const auto step = formats::step_of(listed.path);
  const auto& d = listed.description;
  Json::Object error{{"code", listed.code}, {"message", listed.message}};
  return Json::Object{{"path", listed.path},
                      {"step", step ? Json(*step) : Json()},
                      {"format", d ? Json(d->format) : Json()},
                      {"layout", d ? Json(d->layout) : Json()},
                      {"bytes", listed.bytes},
                      {"tensors", listed.tensors},
                      {"error", d ? Json() : Json(std::move(error))}};
}

void print_json(const std::string& path, const std::vector<Listed>& all, std::ostream& out) {
  Json::Array checkpoints;
  for (const Listed& listed : all) checkpoints.push_back(listed_json(listed));
  const Json::Object object{{"schema", "fsdp-ckpt/inspect-run/1"},
                            {"path", path},
                            {"checkpoints", std::move(checkpoints)}};
  out << formats::to_text(object, 1) << '\n';
}

void print_error(std::string_view code, const std::string& message, const Streams& streams) {
  streams.err << "fsdp-ckpt: error[" << code << "]: " << message << '\n';
}

void print_text(const std::vector<Listed>& all, const Streams& streams) {
  Table table({Column::kName, Column::kNumber, Column::kNumber, Column::kNumber, Column::kText});
  for (const Listed& listed : all) {
    const auto step = formats::step_of(listed.path);
    const std::string name = formats::escape(listed.path);
    const std::string number = step ? cat("step ", *step) : "";
    if (!listed.description) {
      table.add({name, number, "", "", cat("error[", listed.code, "]")});
      continue;
    }
    table.add({name, number, formats::human_bytes(listed.bytes), counted(listed.tensors, "tensor"),
               formats::label_of(*listed.description)});
  }
  table.print(streams.out, streams.columns);
  for (const Listed& listed : all) {
    if (!listed.description) print_error(listed.code, listed.message, streams);
  }
}

}  // namespace

int inspect_run(const InspectOptions& options, const std::vector<std::string>& paths,
                const std::vector<formats::Step>& steps, const Streams& streams) {
  int status = 0;
  if (!options.html.empty()) {
    const std::vector<Error> errors = RunPage(options, paths, steps).write({});
    if (!errors.empty()) status = 2;
    if (!options.common.json) {
      for (const Error& error : errors)
        print_error(code_name(error.code()), message_of(error), streams);
      if (!options.common.quiet) {
        streams.out << formats::escape(options.html) << ": a page of "
                    << counted(steps.size(), "checkpoint") << '\n';
      }
      return status;
    }
  }
  std::vector<Listed> all;
  for (const formats::Step& step : steps) {
    all.push_back(look_at(step.path, options.common));
    if (!all.back().description) status = 2;
  }
  if (options.common.json) {
    print_json(options.common.path, all, streams.out);
  } else {
    if (!options.common.quiet) streams.out << counted(all.size(), "checkpoint") << "\n\n";
    print_text(all, streams);
  }
  return status;
}

}  // namespace fsdp::cli
