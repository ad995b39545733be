// SPDX-License-Identifier: Apache-2.0
#include "tools/command/verb_record.h"

#include <sstream>

#include "tools/command/common_options.h"

namespace fsdp::cli {
namespace {

class Recorder : public OptionSet {
 public:
  void positional(const std::string& name, std::string& /*value*/, const std::string& help,
                  bool required) override {
    last_ = &positionals.emplace_back();
    last_->names = {name};
    last_->type = name;
    last_->help = help;
    last_->required = required;
  }
  void more(const std::string& name, std::vector<std::string>& /*values*/,
            const std::string& help) override {
    std::string unused;
    positional(name, unused, help, false);
    last_->type = "PATH";
    last_->repeated = true;
  }
  void flag(const std::string& names, bool& /*value*/, const std::string& help) override {
    add(names, {}, help);
  }
  void negative_flag(const std::string& names, bool& /*value*/, const std::string& help) override {
    add(names, {}, help);
  }
  void text(const std::string& names, std::string& /*value*/, const std::string& type,
            const std::string& help) override {
    add(names, type, help);
  }
  void list(const std::string& names, std::vector<std::string>& /*values*/, const std::string& type,
            const std::string& help) override {
    add(names, type, help);
    last_->repeated = true;
  }
  void choice(const std::string& names, std::string& /*value*/,
              const std::vector<std::string>& allowed, const std::string& type,
              const std::string& help) override {
    add(names, type, help);
    last_->choices = allowed;
  }
  void integer(const std::string& names, std::optional<std::int64_t>& /*value*/,
               std::int64_t /*least*/, std::int64_t /*most*/, const std::string& type,
               const std::string& help) override {
    add(names, type, help);
  }
  void number(const std::string& names, std::optional<double>& /*value*/, const std::string& type,
              const std::string& help) override {
    add(names, type, help);
  }
  void size(const std::string& names, std::optional<std::uint64_t>& /*bytes*/,
            const std::string& help) override {
    add(names, "SIZE", help);
  }
  void required() override { last_->required = true; }

  std::vector<OptionRecord> positionals;
  std::vector<OptionRecord> options;

 private:
  void add(const std::string& names, const std::string& type, const std::string& help) {
    last_ = &options.emplace_back();
    std::istringstream words(names);
    for (std::string name; std::getline(words, name, ',');) last_->names.push_back(name);
    last_->type = type;
    last_->help = help;
  }
  OptionRecord* last_ = nullptr;
};

}  // namespace

std::vector<VerbRecord> verb_records() {
  std::vector<VerbRecord> records;
  for (const auto& verb : all_verbs()) {
    TypedCommon typed;
    Recorder recorder;
    verb->declare_first(recorder);
    if (verb->takes_path()) declare_path(recorder, typed);
    verb->declare(recorder);
    records.push_back({verb->name(), verb->alias(), verb->description(), verb->examples(),
                       std::move(recorder.positionals), std::move(recorder.options)});
  }
  return records;
}

std::vector<OptionRecord> tool_records() {
  OptionRecord help;
  help.names = {"-h", "--help"};
  help.help = "Print this help";
  OptionRecord version;
  version.names = {"-v", "--version"};
  version.help = "Print the version";
  return {help, version};
}

std::vector<OptionRecord> common_records() {
  TypedCommon typed;
  Recorder recorder;
  declare_common(recorder, typed);
  recorder.options.insert(recorder.options.begin(), tool_records().front());
  return std::move(recorder.options);
}

}  // namespace fsdp::cli
