// SPDX-License-Identifier: Apache-2.0
#include "tools/command/cli.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <iostream>
#include <new>
#include <utility>

#include <CLI/CLI.hpp>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/read_ahead.h"
#include "formats/bytes/store/snapshot.h"
#include "formats/bytes/upload/unfinished.h"
#include "tools/base/agreement.h"
#include "tools/base/build_info.h"
#include "tools/base/memory_budget.h"
#include "tools/base/placed.h"
#include "tools/base/remedy.h"
#include "tools/base/verbs.h"
#include "tools/command/common_options.h"
#include "tools/command/completed_keys.h"
#include "tools/command/launcher.h"
#include "tools/command/process.h"
#include "tools/command/typed_words.h"
#include "tools/command/verb_record.h"
#include "tools/command/word_order.h"
#include "tools/text/colour.h"

namespace fsdp::cli {
namespace {

constexpr int kFailed = 2;

// Parses a whole decimal number.  Throws an Error that names the option and the range.
std::int64_t integer_of(const std::string& name, const std::string& word, std::int64_t least,
                        std::int64_t most) {
  std::int64_t value = 0;
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc() || at != end || value < least || value > most) {
    throw CLI::ValidationError(name, formats::cat("needs a whole number from ", least, " to ", most,
                                                  ", not ", formats::quote(word)));
  }
  return value;
}

double number_of(const std::string& name, const std::string& word) {
  double value = 0;
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc() || at != end || !(value >= 0)) {
    throw CLI::ValidationError(name,
                               "needs a number that is not negative, not " + formats::quote(word));
  }
  return value;
}

// Declares an option, or a word without a dash, to CLI11.
class CliOption {
 public:
  CliOption(CLI::App& app, const OptionRecord& record)
      : app_(app), record_(record), name_(record.names.back()) {
    CLI::Option* option = std::visit([&](auto target) { return added(target); }, record.value);
    option->required(record.required);
    if (!record.type.empty() && name_.starts_with('-')) option->type_name(record.type);
    if (!record.choices.empty()) option->check(CLI::IsMember(record.choices));
  }

 private:
  std::string names() const {
    std::vector<std::string> all = record_.names;
    all.insert(all.end(), record_.old_names.begin(), record_.old_names.end());
    return formats::joined(all, ",");
  }
  CLI::Option* added(std::monostate /*none*/) const { return app_.add_flag(names()); }
  CLI::Option* added(bool* value) const {
    return app_.add_flag((record_.clears ? "!" : "") + names(), *value);
  }
  CLI::Option* added(std::string* value) const { return app_.add_option(names(), *value); }
  CLI::Option* added(std::vector<std::string>* values) const {
    CLI::Option* option = app_.add_option(names(), *values);
    return name_.starts_with('-') ? option->allow_extra_args(false) : option;
  }
  CLI::Option* added(std::optional<std::int64_t>* value) const {
    return parsed([=, name = name_, least = record_.least, most = record_.most](
                      const std::string& word) { *value = integer_of(name, word, least, most); });
  }
  CLI::Option* added(std::optional<double>* value) const {
    return parsed([=, name = name_](const std::string& word) { *value = number_of(name, word); });
  }
  CLI::Option* added(std::optional<std::uint64_t>* bytes) const {
    return parsed([=, name = name_](const std::string& word) {
      *bytes = formats::parse_size(word);
      if (**bytes == 0) throw Error(ErrorCode::kUsage, name + " is 0");
    });
  }
  CLI::Option* parsed(const std::function<void(const std::string&)>& parse) const {
    return app_.add_option_function<std::string>(names(), parse);
  }

  CLI::App& app_;
  const OptionRecord& record_;
  std::string name_;
};

CLI::App* add_verb(CLI::App& app, Verb& verb, TypedCommon& typed) {
  CLI::App* sub = app.add_subcommand(verb.name(), verb.description());
  if (!verb.alias().empty()) sub->alias(verb.alias());
  OptionSet words = words_of(verb, typed);
  declare_common(words, typed);
  for (const auto* records : {&words.positionals, &words.options}) {
    for (const OptionRecord& record : *records) CliOption(*sub, record);
  }
  return sub;
}

// Returns the message about an option that lacks its value; empty if the error is another one.
std::string missing_value(const CLI::ParseError& error, const VerbRecord& verb) {
  const std::string_view what = error.what();
  if (!what.ends_with(" missing")) return {};
  const std::string name(what.substr(0, what.find(':')));
  std::vector<OptionRecord> records = common_records();
  records.insert(records.end(), verb.options.begin(), verb.options.end());
  for (const OptionRecord& record : records) {
    if (record.names.back() != name) continue;
    const std::string command = command_of(verb);
    return formats::cat(name, ": ", record.type, " is missing: ", command,
                        record.required ? "" : formats::cat(" ", name, " ", record.type));
  }
  return {};
}

// Returns CLI11's message about words that it rejected, with what to type instead.
std::string parse_message(const CLI::ParseError& error, const CLI::App& app,
                          const std::vector<std::string>& args) {
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) return "no verb was given; fsdp-ckpt --help lists them";
  const VerbRecord verb = verb_record(chosen.front()->get_name());
  const auto unknown = [&](const std::string& option) {
    return formats::cat("unknown option ", formats::quote(option), option_remedy(verb, option));
  };
  // CLI11 may complain about what is missing before it does about what is too much.
  const std::vector<std::string> extras = app.remaining(true);
  for (const std::string& extra : extras) {
    if (extra.size() > 1 && extra.starts_with('-')) return unknown(extra);
  }
  for (const std::string& arg : args) {
    const std::string name = arg.substr(0, arg.find('='));
    if (is_foreign_option(name) && chosen.front()->get_option_no_throw(name) == nullptr)
      return unknown(arg);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (std::string value = missing_value(error, verb); !value.empty()) return value;
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    return formats::cat(formats::escape(error.what()), ": ", command_of(verb));
  // `--to hf` asks for the work of a verb.
  if (const CLI::Option* to = chosen.front()->get_option_no_throw("--to");
      dynamic_cast<const CLI::ValidationError*>(&error) != nullptr && to != nullptr) {
    for (const std::string& word : to->results()) {
      if (is_foreign_verb(word))
        return formats::cat(formats::escape(error.what()), verb_remedy({word}));
    }
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr)
    return formats::cat(formats::escape(error.what()), "; see fsdp-ckpt ", verb.name, " --help");
  const std::string extra = extras.empty() ? args.back() : extras.front();
  std::string command = command_of(verb);
  if (verb.positionals.empty()) {
    for (const OptionRecord& option : verb.options)
      command += formats::cat(" [", option.names.back(), " ", option.type, "]");
  }
  return formats::cat("unexpected argument ", formats::quote(extra), ": ", command);
}

// Refuses a first word that is not a verb.
void check_verb(const std::vector<std::string>& args,
                const std::vector<std::unique_ptr<Verb>>& verbs) {
  const std::string& word = args.front();
  const bool known = word == "help" || std::any_of(verbs.begin(), verbs.end(), [&](const auto& v) {
                       return v->name() == word || v->alias() == word;
                     });
  if (known) return;
  throw Error(ErrorCode::kUsage,
              formats::cat("unknown verb ", formats::quote(word), verb_remedy(args)));
}

bool wants_json(const std::vector<std::string>& args) {
  return std::find(args.begin(), args.end(), "--json") != args.end();
}

void print_error(ErrorCode code, const std::string& message, bool json, std::ostream& out,
                 std::ostream& err, bool color) {
  const std::string word = formats::cat("error[", code_name(code), "]");
  // One write, so that the lines of other processes do not interrupt it.
  err << formats::cat("fsdp-ckpt: ", coloured(word, Colour::kRed, color), ": ", message, "\n");
  if (!json) return;
  formats::Json::Object object;
  object.emplace_back("schema", "fsdp-ckpt/error/1");
  object.emplace_back("code", code_name(code));
  object.emplace_back("message", message);
  out << formats::to_text(formats::Json(std::move(object)), 1) << '\n';
}

// Only the process's own streams can be terminals, not those of a test.
bool is_terminal(const std::ostream& stream) {
  if (&stream == &std::cout) return ::isatty(STDOUT_FILENO) == 1;
  return &stream == &std::cerr && ::isatty(STDERR_FILENO) == 1;
}

// Returns whether errors are red.  Must be decided before the words are parsed, because parsing may
// fail.
bool colors_errors(const std::vector<std::string>& args, const std::ostream& err) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    const bool apart = args[i] == "--color" && i + 1 < args.size();
    const std::string word = apart ? args[i + 1] : args[i];
    if (word == (apart ? "always" : "--color=always")) return true;
    if (word == (apart ? "never" : "--color=never")) return false;
  }
  return shows_colours(When::kAuto, is_terminal(err));
}

// The width of help that is not shown on a terminal.
constexpr std::size_t kHelpColumns = 80;

// Returns the width of the terminal; 0 if `out` is not one.
std::size_t columns_of(const std::ostream& out) {
  winsize size{};
  return is_terminal(out) && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

Streams streams_for(const CommonOptions& common, std::ostream& out, std::ostream& err) {
  Streams streams{out, err};
  streams.color = shows_colours(common.color, is_terminal(out));
  streams.show_progress = !common.quiet && (common.progress == When::kAlways ||
                                            (common.progress == When::kAuto && is_terminal(err)));
  streams.columns = columns_of(out);
  return streams;
}

// Enters the typed words that can change the bytes of an output into `identity`.
void identify_words(formats::PlanIdentity& identity, const CLI::App& verb) {
  constexpr std::string_view kNot[] = {"OUT",     "--force",   "--resume",  "--json",
                                       "--quiet", "--color",   "--threads", "--max-memory",
                                       "--help",  "--dry-run", "--progress"};
  identity.add("version", version_text());
  identity.add("verb", verb.get_name());
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || std::find(std::begin(kNot), std::end(kNot), name) != std::end(kNot))
      continue;
    for (const std::string& word : option->results()) {
      identity.add_later(
          [name, word](formats::PlanIdentity& to) { identify_word(to, name, word); });
    }
  }
}

// Returns the option of that name; nullptr if the verb has none.  CLI11's own search ends the
// process where memory lacks.
const CLI::Option* option_named(const CLI::App& words, std::string_view name) {
  for (const CLI::Option* option : words.get_options()) {
    if (option->get_name() == name) return option;
  }
  return nullptr;
}

// Returns the words that may name inputs: all but the output, which in a store would cost requests,
// and a hub's folder of which no file is read.
std::vector<std::string> words_of_inputs(std::vector<std::string> args, const Verb& verb,
                                         const CLI::App& words) {
  for (const char* const name : {"OUT", "--against"}) {
    const CLI::Option* const unread = option_named(words, name);
    if (unread == nullptr) continue;
    for (const std::string& word : unread->results()) std::erase(args, word);
  }
  if (verb.more_ends_in_output()) {
    const auto more = option_named(words, "MORE")->results();
    if (!more.empty()) std::erase(args, more.back());
  }
  return args;
}

// Returns a sentence about a PATH that does not exist where a word behind it does.
std::string order_remedy(const Verb& verb, const CLI::App& words) {
  std::vector<std::string> behind;
  for (const char* name : {"OUT", "KEY", "MORE"}) {
    const CLI::Option* const option = option_named(words, name);
    if (option == nullptr || option->count() == 0) continue;
    if (std::string_view(name) != "MORE" || verb.more_ends_in_output())
      behind.push_back(option->results().back());
  }
  std::error_code unknown;
  const bool any = std::any_of(behind.begin(), behind.end(), [&](const std::string& word) {
    return std::filesystem::exists(word, unknown);
  });
  if (!any) return {};
  return "; what is read comes first: " + command_of(verb_record(verb.name()));
}

// Runs a verb with at most --max-memory, or the memory that the named files justify.
int run_within_budget(Verb& verb, const CLI::App& words, const TypedCommon& typed,
                      const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
                      formats::Team& team, unsigned threads) {
  CommonOptions common = interpret(typed);
  identify_words(*common.identity, words);
  if (threads != 0 && !typed.threads) common.threads = threads;
  if (verb.divides()) {
    common.team = &team;
  } else if (!team.leads()) {
    return 0;
  }
  const formats::StoreSession session;
  const InputSize input = size_of(words_of_inputs(args, verb, words));
  const formats::Budget budget = budget_for(input, typed.max_memory);
  common.max_memory_bytes = budget.memory_bytes;
  // The data read ahead of a store, and running requests, get a part of the memory.
  formats::ReadAhead& ahead = formats::ReadAhead::shared();
  ahead.set_budget(std::min(formats::ReadAhead::kDefaultBudget, budget.memory_bytes / 4));
  try {
    const formats::BudgetScope scope(budget);
    return verb.run(common, streams_for(common, out, err));
  } catch (const Error& error) {
    std::error_code unknown;
    if (std::filesystem::exists(common.path, unknown)) throw;
    const std::string order = order_remedy(verb, words);
    const std::string missing = formats::escape(common.path) + ": no such file or folder";
    if (error.code() == ErrorCode::kUsage && !order.empty())
      throw Error(ErrorCode::kNotFound, missing + order);
    if (error.code() != ErrorCode::kNotFound ||
        !std::string_view(error.what()).starts_with(missing))
      throw;
    const bool has_remedy = std::string_view(error.what()).size() > missing.size();
    const std::string meant = has_remedy ? "" : !order.empty() ? order : meant_path(common.path);
    if (meant.empty()) throw;
    throw Error(error.code(), error.what() + meant);
  } catch (const formats::OverWork& error) {
    throw Error(ErrorCode::kLimitRatio, formats::escape(common.path) + ": " + error.what());
  } catch (const formats::OverBudget&) {
    throw Error(ErrorCode::kOutOfMemory, formats::escape(common.path) +
                                             ": takes more memory than " +
                                             budget_words(input, budget, typed.max_memory));
  }
}

// Refuses to run as one of several processes that would all do the same.
void refuse_others() {
  const auto launch = launched_with_others();
  if (!launch) return;
  throw Error(ErrorCode::kUsage,
              formats::cat(launch->launcher, " started ", launch->tasks,
                           " tasks, each of which would do all the work; start one task, or the "
                           "fsdp-ckpt-mpi of the same MPI, which divides the work"));
}

int parse_and_run(const std::vector<std::string>& typed_args, std::ostream& out, std::ostream& err,
                  formats::Team& team, unsigned threads) {
  // For the build, which installs the scripts and the page.
  if (typed_args.size() == 2 && typed_args[0] == "--print-completion") {
    out << completion_script(typed_args[1]);
    return 0;
  }
  if (typed_args.size() == 1 && typed_args[0] == "--print-man") {
    out << man_page();
    return 0;
  }
  if (!typed_args.empty() && typed_args.size() <= 3 && typed_args[0] == "--print-keys") {
    print_keys(std::vector<std::string>(typed_args.begin() + 1, typed_args.end()), out);
    return 0;
  }
  const std::size_t columns = columns_of(out) == 0 ? kHelpColumns : columns_of(out);
  if (typed_args.empty()) {
    out << tool_help(columns);
    throw Error(ErrorCode::kUsage, "no verb was given; fsdp-ckpt --help lists them");
  }
  const std::vector<std::string> args = verb_first(typed_args);
  TypedCommon typed;
  CLI::App app("", "fsdp-ckpt");
  app.set_version_flag("-v,-V,--version", version_text());
  app.require_subcommand(1);
  const auto verbs = all_verbs();
  if (!args.empty() && !args[0].starts_with('-')) check_verb(args, verbs);
  // Declares the options of the named verb alone: those of all would be a third of the start.
  const auto named = std::find_if(verbs.begin(), verbs.end(), [&](const auto& verb) {
    return !args.empty() && (args[0] == verb->name() || args[0] == verb->alias());
  });
  const CLI::App* const words = named == verbs.end() ? nullptr : add_verb(app, **named, typed);
  try {
    // CLI11 expects the words in reverse order.
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    out << (chosen.empty() ? tool_help(columns) : verb_help(chosen.front()->get_name(), columns));
    return 0;
  } catch (const CLI::Success& request) {  // --version
    out << request.what() << '\n';
    return 0;
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kUsage, parse_message(error, app, args));
  }
  if (words == nullptr || !words->parsed())
    throw Error(ErrorCode::kUsage, "no verb was given; fsdp-ckpt --help lists them");
  if (team.alone()) refuse_others();
  return run_within_budget(**named, *words, typed, args, out, err, team, threads);
}

// `committed`: the number of outputs that this process had committed when the run began.
std::string no_memory_words(std::uint64_t committed) {
  const std::string placed = placed_text();
  if (!placed.empty()) return "out of memory" + placed;
  return formats::outputs_committed() == committed ? "out of memory; nothing was written"
                                                   : "out of memory; the new output is in place";
}

// Runs as a member of a team.  The run begins with a comparison of the members' tasks and ends with
// the leader's status.
int run_together(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
                 formats::Team& team, unsigned threads) {
  agree_on_start(team, args);
  const int status = parse_and_run(args, out, err, team, threads);
  const std::string mine = formats::Packed().number(static_cast<std::uint64_t>(status)).take();
  return static_cast<int>(formats::Unpacked(team.exchange("end", mine).front()).number());
}

}  // namespace

int run(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
        formats::Team& team, unsigned threads) {
  const bool json = wants_json(args);
  const bool color = colors_errors(args, err);
  const std::uint64_t committed = formats::outputs_committed();
  std::ostream nowhere(nullptr);
  std::ostream& own_out = team.leads() ? out : nowhere;
  std::ostream& own_err = team.leads() ? err : nowhere;
  // Reports an error of the team, which may be another member's.
  const auto report = [&](const Error& found) {
    const Error error = team.fail(found);
    std::ostream& to = team.reports() ? err : nowhere;
    print_error(error.code(), message_of(error) + placed_text(), json, own_out, to, color);
    return error.code() == ErrorCode::kInterrupted ? interrupted_status() : kFailed;
  };
  forget_placed();
  try {
    return run_together(args, own_out, own_err, team, threads);
  } catch (const Error& error) {
    return report(error);
  } catch (const std::bad_alloc&) {
    if (!team.alone()) return report(Error(ErrorCode::kOutOfMemory, "out of memory"));
    print_error(ErrorCode::kOutOfMemory, no_memory_words(committed), json, out, err, color);
  } catch (const std::filesystem::filesystem_error& error) {
    const bool memory = error.code() == std::errc::not_enough_memory;
    return report(
        Error(memory ? ErrorCode::kOutOfMemory : ErrorCode::kIo, formats::escape(error.what())));
  } catch (const std::exception& error) {
    return report(Error(ErrorCode::kIo, formats::escape(error.what())));
  }
  return kFailed;
}

}  // namespace fsdp::cli
