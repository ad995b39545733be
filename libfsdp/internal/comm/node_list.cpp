// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/node_list.h"

#include <charconv>
#include <cstddef>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

// A list with more names is treated as a mistake.
constexpr std::size_t kMostNodes = 1'000'000;

class ListParser {
 public:
  ListParser(std::string_view text, std::string_view variable) : text_(text), variable_(variable) {}

  std::vector<std::string> nodes() {
    std::vector<std::string> result;
    do {
      for (auto& name : names()) add(result, std::move(name));
    } while (take(','));
    require(at_ == text_.size());
    return result;
  }

  std::vector<int> counts() {
    std::vector<int> result;
    do {
      const int count = number(digits());
      int times = 1;
      if (take('(')) {
        require(take('x'));
        times = number(digits());
        require(take(')'));
      }
      require(static_cast<std::size_t>(times) <= kMostNodes);
      result.insert(result.end(), static_cast<std::size_t>(times), count);
    } while (take(','));
    require(at_ == text_.size());
    return result;
  }

 private:
  void require(bool ok) const {
    FSDP_CHECK(ok, variable_, ": cannot read '", text_, "' at character ", at_ + 1);
  }

  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  template <typename Stop>
  std::string_view until(const Stop& stop) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && !stop(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  std::string_view digits() {
    const auto result = until([](char c) { return c < '0' || c > '9'; });
    require(!result.empty());
    return result;
  }

  int number(std::string_view digits) const {
    int result = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result);
    require(error == std::errc() && end == digits.data() + digits.size());
    return result;
  }

  // Parses one name with any number of brackets: "rack[1-2]node[01-16]".
  std::vector<std::string> names() {
    std::vector<std::string> result{""};
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != ',') {
      const auto plain = until([](char c) { return c == '[' || c == ',' || c == ']'; });
      std::vector<std::string> parts{std::string(plain)};
      if (plain.empty()) {
        require(take('['));
        parts = bracket();
      }
      std::vector<std::string> longer;
      for (const auto& head : result) {
        for (const auto& part : parts) add(longer, head + part);
      }
      result = std::move(longer);
    }
    require(at_ > begin);
    return result;
  }

  std::vector<std::string> bracket() {
    std::vector<std::string> result;
    do {
      const auto first = digits();
      const int begin = number(first);
      const int end = take('-') ? number(digits()) : begin;
      require(begin <= end);
      for (int i = begin; i <= end; ++i) {
        const std::string plain = std::to_string(i);
        // Uses as many digits as the first number has: node10 follows node09.
        const std::size_t zeros = first.size() > plain.size() ? first.size() - plain.size() : 0;
        add(result, std::string(zeros, '0') + plain);
      }
    } while (take(','));
    require(take(']'));
    return result;
  }

  void add(std::vector<std::string>& list, std::string name) const {
    require(list.size() < kMostNodes);
    list.push_back(std::move(name));
  }

  const std::string_view text_;
  const std::string_view variable_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::string> parse_node_list(std::string_view text, std::string_view variable) {
  return ListParser(text, variable).nodes();
}

std::vector<int> parse_task_counts(std::string_view text, std::string_view variable) {
  return ListParser(text, variable).counts();
}

}  // namespace fsdp::internal
