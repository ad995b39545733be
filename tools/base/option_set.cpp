// SPDX-License-Identifier: Apache-2.0
#include "tools/base/option_set.h"

#include <stdexcept>

#include "tools/base/option_table.h"

namespace fsdp::cli {

void OptionSet::positional(const std::string& name, std::string& value, const std::string& help,
                           bool required) {
  positionals.push_back(
      {.names = {name}, .type = name, .help = help, .required = required, .value = &value});
}

OptionRecord& OptionSet::more(const std::string& name, std::vector<std::string>& values,
                              const std::string& help) {
  return positionals.emplace_back(OptionRecord{
      .names = {name}, .type = "PATH", .help = help, .repeated = true, .value = &values});
}

OptionRecord& OptionSet::add(std::string_view name, OptionValue value, std::string_view detail) {
  for (const OptionMeaning& meaning : option_table()) {
    const std::size_t comma = meaning.names.find(',');
    const std::string_view long_name =
        comma == std::string_view::npos ? meaning.names : meaning.names.substr(comma + 1);
    if (long_name != name) continue;
    OptionRecord& record = options.emplace_back();
    if (comma != std::string_view::npos) record.names.emplace_back(meaning.names.substr(0, comma));
    record.names.emplace_back(name);
    record.type = meaning.type;
    record.help = std::string(meaning.help) + std::string(detail);
    record.repeated = std::holds_alternative<std::vector<std::string>*>(value);
    record.least = meaning.least;
    record.most = meaning.most;
    record.value = value;
    return record;
  }
  throw std::logic_error(std::string(name) + " is not in the table of options");
}

}  // namespace fsdp::cli
