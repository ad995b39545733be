// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt rekey: optimizer states by parameter name or by id.
#include "formats/state/rewrite/rekey.h"

#include <map>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "tools/base/reading.h"
#include "tools/base/verbs.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/given_names.h"
#include "tools/verbs/writing/name_report.h"
#include "tools/verbs/writing/rewriting.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::OptimizerForm;
using formats::ParameterOrder;
using formats::RekeyedOptimizer;

class RekeyVerb : public Verb {
 public:
  RekeyVerb()
      : Verb("rekey", "Swap an optimizer's ids and names: its state by numbers, or by names",
             {"fsdp-ckpt rekey checkpoint.pt by-name.pt --key-by name",
              "fsdp-ckpt rekey step-400 by-id --key-by id --names parameters.txt"}) {}
  void declare(OptionSet& options) override {
    declare_rewriting(options, rewriting_);
    OptionRecord& form = options.add("--key-by", &to_);
    form.choices = {"name", "id"};
    form.old_names = {"--to"};
    options.add("--flatten", &flatten_);
    options.add("--names", &names_);
    options.add("--names-from", &model_).old_names = {"--model"};
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    check_words();
    check_apart(common.path, rewriting_.writing.destination);
    const auto source = open_source(common.path, common, streams);
    check_rewritable(*source);
    formats::RekeyOptions options;
    options.to = target();
    options.order = given_order(common);
    formats::Rekeyed rekeyed =
        formats::rekey_content(*source, selected_content(*source, common), options);
    ReportExtras extras;
    formats::Json::Array optimizers;
    for (const RekeyedOptimizer& optimizer : rekeyed.optimizers) {
      extras.lines.push_back(line_of(optimizer));
      const auto& keys = optimizer.keys;
      if (rewriting_.writing.dry_run) {
        list_names(
            keys.size(),
            [&](std::size_t i) {
              return formats::escape(keys[i].first) + " -> " + formats::escape(keys[i].second);
            },
            extras.lines);
      }
      formats::Json::Array renames;
      for (const auto& [from, to] : keys)
        renames.push_back(formats::Json::Object{{"from", from}, {"to", to}});
      optimizers.push_back(
          formats::Json::Object{{"key", optimizer.key},
                                {"from", std::string(formats::form_name(optimizer.from))},
                                {"groups", optimizer.groups},
                                {"parameters", optimizer.parameters},
                                {"without_state", optimizer.without_state},
                                {"order", optimizer.order},
                                {"shapes_checked", optimizer.shapes_checked},
                                {"renames", std::move(renames)}});
    }
    extras.members = {{"to", std::string(formats::form_name(options.to))},
                      {"optimizers", std::move(optimizers)}};
    return write_rewritten(name(), *source, std::move(rekeyed.content), rewriting_, common, streams,
                           std::move(extras));
  }

 private:
  OptimizerForm target() const {
    if (to_ == "id") return OptimizerForm::kIds;
    return flatten_ ? OptimizerForm::kFlattened : OptimizerForm::kNames;
  }

  void check_words() const {
    if (to_.empty()) throw Error(ErrorCode::kUsage, "--key-by name or --key-by id is required");
    if (flatten_ && to_ == "id")
      throw Error(ErrorCode::kUsage,
                  "--flatten goes with --key-by name: flattened keys hold names");
  }

  std::optional<ParameterOrder> given_order(const CommonOptions& common) const {
    std::optional<ParameterOrder> of_model;
    if (!model_.empty()) {
      const auto model = formats::open_checkpoint(model_, {common.allowed_globals});
      of_model = formats::model_order(*model, formats::content_of(*model), formats::escape(model_));
      if (!of_model) {
        throw Error(ErrorCode::kKey,
                    formats::escape(model_) + ": holds no model's state dict, or several");
      }
    }
    if (names_.empty()) return of_model;
    ParameterOrder order = read_names(names_);
    if (of_model) in_context(formats::escape(names_), [&] { add_shapes(*of_model, order); });
    return order;
  }

  // With both options, the names give the numbers and the model gives the shapes.
  static void add_shapes(const ParameterOrder& model, ParameterOrder& order) {
    std::map<std::string, const formats::ModelParameter*> known;
    for (const auto* parameters : {&model.parameters, &model.tied}) {
      for (const formats::ModelParameter& one : *parameters) known.emplace(one.name, &one);
    }
    for (formats::ModelParameter& one : order.parameters) {
      const auto found = known.find(one.name);
      if (found == known.end()) {
        throw Error(ErrorCode::kKey,
                    cat(formats::quote(one.name, 200), " is not a parameter of ", model.origin));
      }
      one.shape = found->second->shape;
    }
  }

  std::string line_of(const RekeyedOptimizer& optimizer) const {
    std::string line = optimizer.key.empty() ? "optimizer" : formats::escape(optimizer.key);
    line += cat(": ", counted(optimizer.parameters, "parameter"), " in ",
                counted(optimizer.groups, "group"));
    if (optimizer.without_state != 0)
      line += cat(", ", formats::group_digits(optimizer.without_state), " without state");
    if (optimizer.from == target())
      return line + ": " + std::string(formats::form_name(target())) + " already";
    line += cat(": ", formats::form_name(optimizer.from), " -> ", formats::form_name(target()));
    if (!optimizer.order.empty()) line += ", order of " + optimizer.order;
    return line +
           (optimizer.shapes_checked ? ", shapes checked" : ", shapes not checked: no model");
  }

  RewritingOptions rewriting_;
  std::string to_;
  bool flatten_ = false;
  std::string names_;
  std::string model_;
};

}  // namespace

std::unique_ptr<Verb> make_rekey() {
  return std::make_unique<RekeyVerb>();
}

}  // namespace fsdp::cli
