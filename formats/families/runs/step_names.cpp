// SPDX-License-Identifier: Apache-2.0
#include "formats/families/runs/step_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <vector>

namespace fsdp::formats {
namespace {

// Words before the number of a step, the preferred one first.
constexpr std::array<std::string_view, 7> kCounters = {"step", "iter",  "iteration", "batch",
                                                       "ba",   "epoch", "ep"};
// Words before the number of a step, if the name has none of kCounters.
constexpr std::array<std::string_view, 2> kSaves = {"checkpoint", "ckpt"};

// Words before the number of a process.
constexpr std::array<std::string_view, 6> kProcesses = {"rank",    "shard", "worker",
                                                        "process", "node",  "gpu"};

// Words that names of parts consist of: models, optimizers, and everything else that is saved.
constexpr std::array<std::string_view, 20> kModelWords = {
    "model",   "models",    "weight",  "weights", "params", "module",    "policy",
    "actor",   "critic",    "value",   "reward",  "ref",    "reference", "teacher",
    "student", "generator", "adapter", "lora",    "net",    "ema"};
constexpr std::array<std::string_view, 5> kOptimizerWords = {"optimizer", "optimizers", "optim",
                                                             "optims", "opt"};
constexpr std::array<std::string_view, 21> kOtherWords = {
    "scheduler", "schedulers", "lr",    "scaler", "sampler", "data",     "dataloader",
    "loader",    "dataset",    "rng",   "random", "train",   "training", "trainer",
    "state",     "states",     "extra", "dist",   "and",     "pytorch",  "dict"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::string_view last_name(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const std::size_t slash = path.rfind('/');
  return slash == path.npos || path.size() == 1 ? path : path.substr(slash + 1);
}

std::string_view stem_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  const std::size_t begin = name.rfind('/') + 1;  // of the last name
  return dot == name.npos || dot <= begin ? name : name.substr(0, dot);
}

struct Number {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string_view word;  // letters before the number and at most one separator; may be empty
  bool assigned = false;  // follows "=", or is the fraction of a number that does
};

std::vector<Number> numbers_of(std::string_view name) {
  std::vector<Number> numbers;
  for (std::size_t i = 0; i < name.size();) {
    if (!is_digit(name[i])) {
      ++i;
      continue;
    }
    Number number{.begin = i, .end = i, .word = {}};
    while (number.end < name.size() && is_digit(name[number.end])) ++number.end;
    std::size_t letters = i;
    if (letters > 0 && std::string_view("-_=.").find(name[letters - 1]) != std::string_view::npos)
      --letters;
    std::size_t first = letters;
    while (first > 0 && is_letter(name[first - 1])) --first;
    number.word = name.substr(first, letters - first);
    const bool fraction = i > 0 && name[i - 1] == '.' && !numbers.empty() &&
                          numbers.back().end == i - 1 && numbers.back().assigned;
    const std::string_view before = name.substr(0, i);
    number.assigned = fraction || before.ends_with('=') || before.ends_with("=-");
    i = number.end;
    numbers.push_back(number);
  }
  return numbers;
}

// Returns the index in `words` of the first one that the text equals or, for words of more than two
// letters, ends with ("globalstep"); their count if there is none.
template <std::size_t count>
std::size_t rank_among(const std::array<std::string_view, count>& words, std::string_view text) {
  const std::string word = lower(text);
  const auto found = std::ranges::find_if(words, [&](std::string_view one) {
    return one.size() > 2 ? word.ends_with(one) : word == one;
  });
  return static_cast<std::size_t>(found - words.begin());
}

bool counts(const Number& number) {
  return rank_among(kCounters, number.word) != kCounters.size();
}

// Returns the number whose word comes first in kCounters; null if no number has such a word.
const Number* counted(const std::vector<Number>& numbers) {
  const auto best =
      std::min_element(numbers.begin(), numbers.end(), [](const Number& a, const Number& b) {
        return rank_among(kCounters, a.word) < rank_among(kCounters, b.word);
      });
  return best == numbers.end() || !counts(*best) ? nullptr : &*best;
}

std::optional<std::uint64_t> value_of(std::string_view name, const Number& number) {
  std::uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(name.data() + number.begin, name.data() + number.end, value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

template <typename Chosen>
std::string with_marks(std::string_view name, const std::vector<Number>& numbers,
                       const Chosen& chosen) {
  std::string text;
  std::size_t from = 0;
  for (const Number& number : numbers) {
    if (!chosen(number)) continue;
    text.append(name.substr(from, number.begin - from)).push_back('#');
    from = number.end;
  }
  return text.append(name.substr(from));
}

template <std::size_t count>
bool is_among(const std::array<std::string_view, count>& words, std::string_view word) {
  return std::ranges::find(words, lower(word)) != words.end();
}

bool is_part_word(std::string_view word) {
  return is_among(kModelWords, word) || is_among(kOptimizerWords, word) ||
         is_among(kOtherWords, word);
}

// Calls `word(begin, end)` for each run of letters.
template <typename Word>
void for_each_word(std::string_view text, const Word& word) {
  for (std::size_t i = 0; i < text.size();) {
    if (!is_letter(text[i])) {
      ++i;
      continue;
    }
    const std::size_t begin = i;
    while (i < text.size() && is_letter(text[i])) ++i;
    word(begin, i);
  }
}

}  // namespace

std::optional<std::uint64_t> step_of(const std::string& path) {
  const std::string_view name = stem_of(last_name(path));
  const std::vector<Number> numbers = numbers_of(name);
  if (numbers.empty()) return std::nullopt;
  const Number* const number = counted(numbers);
  return value_of(name, number == nullptr ? numbers.back() : *number);
}

std::optional<std::uint64_t> certain_step_of(const std::string& path) {
  const std::string_view name = stem_of(last_name(path));
  const std::vector<Number> numbers = numbers_of(name);
  if (const Number* const number = counted(numbers)) return value_of(name, *number);
  // Of several numbers, any may be the step.
  return numbers.size() == 1 ? value_of(name, numbers.front()) : std::nullopt;
}

bool tells_step(std::string_view name) {
  const std::string_view stem = stem_of(name);
  const std::vector<Number> numbers = numbers_of(stem);
  return std::ranges::any_of(numbers, [&](const Number& number) {
    return counts(number) || rank_among(kSaves, number.word) != kSaves.size() ||
           (number.begin == 0 && number.end == stem.size());
  });
}

bool tells_rank(std::string_view path) {
  const std::vector<Number> numbers = numbers_of(stem_of(last_name(path)));
  return !numbers.empty() && rank_among(kProcesses, numbers.back().word) != kProcesses.size();
}

std::string series_of(const std::string& path) {
  std::string_view whole = path;
  while (whole.size() > 1 && whole.back() == '/') whole.remove_suffix(1);
  const std::string_view name = last_name(whole);
  const std::string_view stem = stem_of(name);
  const std::vector<Number> numbers = numbers_of(stem);
  const bool counted_one = counted(numbers) != nullptr;
  std::string series(whole.substr(0, whole.size() - name.size()));
  series += with_marks(stem, numbers, [&](const Number& number) {
    return counted_one ? counts(number) || number.assigned : numbers.size() == 1;
  });
  return series.append(name.substr(stem.size()));
}

bool is_part_name(std::string_view name) {
  const std::string_view stem = stem_of(name);
  bool any = false;
  bool all = true;
  for_each_word(stem, [&](std::size_t begin, std::size_t end) {
    any = true;
    all = all && is_part_word(stem.substr(begin, end - begin));
  });
  return any && all;
}

bool has_role(std::string_view path, PartRole role) {
  const std::string_view name = last_name(path);
  bool has = false;
  for_each_word(name, [&](std::size_t begin, std::size_t end) {
    const std::string_view word = name.substr(begin, end - begin);
    has = has || (role == PartRole::kModel ? is_among(kModelWords, word)
                                           : is_among(kOptimizerWords, word));
  });
  return has;
}

std::string without_part_names(std::string_view path) {
  std::string text;
  std::size_t from = 0;
  for_each_word(path, [&](std::size_t begin, std::size_t end) {
    if (!is_part_word(path.substr(begin, end - begin))) return;
    text.append(path.substr(from, begin - from));
    from = end;
  });
  text.append(path.substr(from));
  // Separators that stood around the words do not matter.
  std::erase_if(text, [](char c) { return c == '_' || c == '-' || c == '.'; });
  return text;
}

std::string without_numbers(std::string_view name) {
  return with_marks(name, numbers_of(name), [](const Number&) { return true; });
}

}  // namespace fsdp::formats
