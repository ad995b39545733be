// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/expression.h"

#include <charconv>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::map {
namespace {

constexpr std::size_t kMaxExpressionBytes = 256;
constexpr int kMaxNesting = 16;

bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

class Expression::Parser {
 public:
  Parser(const std::string& text, Expression& out) : text_(text), out_(out) {}

  void run() {
    if (text_.size() > kMaxExpressionBytes)
      throw wrong(cat("has ", text_.size(), " bytes, at most ", kMaxExpressionBytes));
    sum(0);
    if (at_ != text_.size()) throw wrong(cat("has an unexpected ", quote(text_.substr(at_))));
  }

 private:
  Error wrong(const std::string& why) const {
    return Error(ErrorCode::kUsage, cat("expression ", quote(text_), " ", why));
  }

  void skip_blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    skip_blanks();
    return true;
  }

  void sum(int depth) {
    product(depth);
    for (;;) {
      const bool add = take('+');
      if (!add && !take('-')) return;
      product(depth);
      out_.code_.push_back({add ? Step::kAdd : Step::kSubtract, 0, {}});
    }
  }

  void product(int depth) {
    factor(depth);
    for (;;) {
      const bool multiply = take('*');
      if (!multiply && !take('/')) return;
      factor(depth);
      out_.code_.push_back({multiply ? Step::kMultiply : Step::kDivide, 0, {}});
    }
  }

  void factor(int depth) {
    if (depth == kMaxNesting) throw wrong("is nested too deeply");
    if (take('(')) {
      sum(depth + 1);
      if (!take(')')) throw wrong("lacks a ')'");
      return;
    }
    skip_blanks();
    const std::size_t begin = at_;
    if (at_ < text_.size() && starts_name(text_[at_])) {
      while (at_ < text_.size() && (starts_name(text_[at_]) || is_digit(text_[at_]))) ++at_;
      const std::string name = text_.substr(begin, at_ - begin);
      out_.names_.insert(name);
      out_.code_.push_back({Step::kName, 0, name});
    } else {
      if (at_ < text_.size() && text_[at_] == '-') ++at_;
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(text_.data() + begin, text_.data() + at_, number);
      if (error != std::errc() || end != text_.data() + at_)
        throw wrong("lacks a number or a name");
      out_.code_.push_back({Step::kNumber, number, {}});
    }
    skip_blanks();
  }

  const std::string& text_;
  Expression& out_;
  std::size_t at_ = 0;
};

Expression::Expression(std::int64_t number) : text_(std::to_string(number)) {
  code_.push_back({Step::kNumber, number, {}});
}

Expression::Expression(const std::string& text) : text_(text) {
  Parser(text, *this).run();
}

std::int64_t Expression::value(const ParameterValue& parameter) const {
  std::vector<std::int64_t> stack;
  for (const Code& code : code_) {
    if (code.step == Step::kNumber || code.step == Step::kName) {
      stack.push_back(code.step == Step::kNumber ? code.number : parameter(code.name));
      continue;
    }
    const std::int64_t right = stack.back();
    stack.pop_back();
    const std::int64_t left = stack.back();
    std::int64_t result = 0;
    bool over = false;
    switch (code.step) {
      case Step::kAdd:
        over = __builtin_add_overflow(left, right, &result);
        break;
      case Step::kSubtract:
        over = __builtin_sub_overflow(left, right, &result);
        break;
      case Step::kMultiply:
        over = __builtin_mul_overflow(left, right, &result);
        break;
      default:
        if (right <= 0 || left % right != 0) {
          throw Error(ErrorCode::kShape,
                      cat(quote(text_), ": ", left, " is not divisible by ", right));
        }
        result = left / right;
    }
    if (over) throw Error(ErrorCode::kOverflow, cat(quote(text_), ": exceeds 64 bits"));
    stack.back() = result;
  }
  return stack.back();
}

}  // namespace fsdp::formats::map
