// SPDX-License-Identifier: Apache-2.0
#include "formats/container/pickle_trace.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

#include "formats/base/byte_reader.h"
#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/container/pickle_opcodes.h"
#include "formats/container/pickle_reader.h"
#include "formats/container/pickle_text.h"

namespace fsdp::formats {
namespace {

// The longest text that is looked at as a name; the same one may be fetched over and over.
constexpr std::uint64_t kMaxNameBytes = 1024;
// An opcode and the length of a text.
constexpr std::uint64_t kMaxHeadBytes = 9;
// Terms on the stack, in the memo and in tuples, 16 bytes each.
constexpr std::size_t kMaxTerms = 50'000'000;
// Names of one stream; real ones have some dozens.
constexpr std::size_t kMaxNames = 10'000;
constexpr unsigned kMaxProtocol = 5;

using Kind = Term::Kind;

// The memo.  Picklers count their slots up from 0; others lie in a map.
class TermMemo {
 public:
  void put(std::uint64_t slot, Term term) {
    if (slot < dense_.size()) {
      dense_[slot] = term;
      return;
    }
    if (dense_.size() + sparse_.size() > kMaxTerms)
      throw Error(ErrorCode::kLimitNodes, cat("more than ", kMaxTerms, " memo slots"));
    if (slot == dense_.size() && !sparse_.contains(slot)) {
      dense_.push_back(term);
    } else {
      sparse_.insert_or_assign(slot, term);
    }
  }
  const Term* get(std::uint64_t slot) const {
    if (slot < dense_.size()) return &dense_[slot];
    const auto found = sparse_.find(slot);
    return found == sparse_.end() ? nullptr : &found->second;
  }
  // Slots in use: where MEMOIZE puts the next.
  std::uint64_t count() const { return dense_.size() + sparse_.size(); }

 private:
  std::vector<Term> dense_;
  std::unordered_map<std::uint64_t, Term> sparse_;
};

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0U | code >> 6U);
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0U | code >> 12U);
    out += static_cast<char>(0x80U | (code >> 6U & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else {
    out += static_cast<char>(0xF0U | code >> 18U);
    out += static_cast<char>(0x80U | (code >> 12U & 0x3FU));
    out += static_cast<char>(0x80U | (code >> 6U & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  }
}

// `digits` hexadecimal or octal digits at `text`, as many as there are at most.
std::optional<std::uint32_t> escaped_number(std::string_view text, int base, std::size_t least) {
  std::uint32_t code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, base);
  const auto read = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || read < least || code > 0x10FFFF) return std::nullopt;
  return code;
}

// The text of UNICODE: each byte is a character, \uXXXX and \UXXXXXXXX are others.
std::optional<std::string> raw_unicode(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool is_escape =
        line[i] == '\\' && i + 1 < line.size() && (line[i + 1] == 'u' || line[i + 1] == 'U');
    if (!is_escape) {
      append_utf8(out, static_cast<unsigned char>(line[i]));
      continue;
    }
    const std::size_t digits = line[i + 1] == 'u' ? 4 : 8;
    const auto code = escaped_number(line.substr(i + 2, digits), 16, digits);
    if (!code) return std::nullopt;
    append_utf8(out, *code);
    i += 1 + digits;
  }
  return out;
}

// The text of STRING: a quoted literal of Python.
std::optional<std::string> quoted_text(std::string_view line) {
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r' || line.back() == '\t'))
    line.remove_suffix(1);
  if (line.size() < 2 || line.front() != line.back() || (line[0] != '\'' && line[0] != '"'))
    return std::nullopt;
  line = line.substr(1, line.size() - 2);
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out += line[i];
      continue;
    }
    if (++i == line.size()) return std::nullopt;
    constexpr std::string_view kLetters = "abtnvfr";
    if (const auto letter = kLetters.find(line[i]); letter != std::string_view::npos) {
      out += static_cast<char>("\a\b\t\n\v\f\r"[letter]);
    } else if (line[i] == 'x') {
      const auto code = escaped_number(line.substr(i + 1, 2), 16, 2);
      if (!code) return std::nullopt;
      out += static_cast<char>(*code);
      i += 2;
    } else if (line[i] >= '0' && line[i] <= '7') {
      std::size_t digits = 1;
      while (digits < 3 && i + digits < line.size() && line[i + digits] >= '0' &&
             line[i + digits] <= '7') {
        ++digits;
      }
      out += static_cast<char>(*escaped_number(line.substr(i, digits), 8, 1));
      i += digits - 1;
    } else {
      if (line[i] != '\\' && line[i] != '\'' && line[i] != '"') out += '\\';
      out += line[i];
    }
  }
  return out;
}

// A slot as PUT and GET write it: decimal, as Python's int() reads it.
std::optional<std::uint64_t> slot_number(std::string_view line) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
  while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
  if (!line.empty() && line.front() == '+') line.remove_prefix(1);
  std::string digits;
  for (const char c : line) {
    if (c != '_') digits += c;
  }
  std::uint64_t slot = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), slot);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
    return std::nullopt;
  return slot;
}

}  // namespace

// The stack machine of one stream.
class PickleTrace::Run {
 public:
  Run(PickleTrace& trace, std::uint64_t offset)
      : trace_(trace), host_(trace.host_), reader_(trace.source_, offset) {}

  std::uint64_t run() {
    while (step()) {
      if (stack_.size() > kMaxTerms) fail(ErrorCode::kLimitNodes, "too many values");
    }
    return reader_.offset();
  }

 private:
  [[noreturn]] void fail(ErrorCode code, std::string_view symptom) const {
    reader_.fail(code, symptom);
  }

  std::size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }
  void need(std::size_t count) const {
    if (stack_.size() - fence() < count) fail(ErrorCode::kStack, "takes more than there is");
  }
  Term pop() {
    need(1);
    const Term term = stack_.back();
    stack_.pop_back();
    return term;
  }
  void push(Term term) { stack_.push_back(term); }
  void push_data() { stack_.emplace_back(); }
  // What stands above the last mark, which is removed with it.
  std::vector<Term> pop_mark() {
    if (marks_.empty()) fail(ErrorCode::kStack, "there is no MARK on the stack");
    std::vector<Term> terms(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                            stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return terms;
  }
  void report(std::span<const Term> terms) {
    for (const Term& term : terms) trace_.report_value(term);
  }

  // One opcode; false after STOP.
  bool step();
  bool step_python(PythonOp op);

  void skip_argument(PickleArgument argument);
  void text(PickleArgument argument) {
    push({Kind::kText, reader_.opcode_offset()});
    skip_argument(argument);
  }
  void tuple(std::span<const Term> terms, std::size_t removed) {
    const Term made = trace_.tuple(terms);
    stack_.resize(stack_.size() - removed);
    push(made);
  }
  void tuple(std::size_t size) {
    need(size);
    const std::vector<Term> terms(stack_.end() - static_cast<std::ptrdiff_t>(size), stack_.end());
    tuple(terms, size);
  }
  void fill(std::span<const Term> items) {
    report(items);
    need(1);
    const Term target = stack_.back();
    if (target.kind == Kind::kName || target.kind == Kind::kObject) host_.items(target);
  }
  void fill(std::size_t count) {
    need(count + 1);
    const std::vector<Term> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    fill(items);
  }

  void put(std::uint64_t slot) {
    need(1);
    memo_.put(slot, stack_.back());
  }
  void get(std::uint64_t slot) {
    const Term* const term = memo_.get(slot);
    if (term == nullptr) fail(ErrorCode::kMemo, cat("memo slot ", slot, " is not defined"));
    push(*term);
  }
  std::uint64_t decimal_slot() {
    const auto slot = slot_number(reader_.line());
    if (!slot) fail(ErrorCode::kMemo, "its slot is no number");
    return *slot;
  }

  Term two_lines() {
    const std::string module(reader_.line());
    const std::string_view name = reader_.line();
    if (!is_python_utf8(module) || !is_python_utf8(name))
      fail(ErrorCode::kGlobal, "the name is not UTF-8");
    return {Kind::kName, trace_.number_of(module, name)};
  }
  void stack_global() {
    const Term name = pop();
    const Term module = pop();
    const auto module_text = trace_.text(module);
    const auto name_text = trace_.text(name);
    if (module_text && name_text)
      return push({Kind::kName, trace_.number_of(*module_text, *name_text)});
    host_.hidden_name(cat(reader_.where(), " takes a name whose text does not stand there"));
    push_data();
  }
  void extension(std::uint64_t code) {
    host_.hidden_name(cat(reader_.where(), " takes name ", code, " of the extension registry"));
    push_data();
  }
  void call(PickleCall how, Term callable, Term args) {
    push(host_.call(trace_, how, callable, args));
  }
  // OBJ: the class below the arguments.
  void object() {
    const std::vector<Term> terms = pop_mark();
    if (terms.empty()) fail(ErrorCode::kStack, "there is no class above the MARK");
    call(PickleCall::kCalled, terms[0], trace_.tuple(std::span(terms).subspan(1)));
  }
  void build() {
    trace_.report_value(pop());
    need(1);
    const Term target = stack_.back();
    if (target.kind == Kind::kName || target.kind == Kind::kObject) host_.state(target);
  }
  // Legacy torch.save files keep a class as ("module", class, file, source).
  void persistent_id() {
    const Term id = pop();
    trace_.report_value(id);
    const auto items = trace_.items(id);
    const bool is_class = items.size() == 4 && items[1].kind == Kind::kName &&
                          trace_.text(items[0]) == std::optional<std::string>("module");
    push(is_class ? items[1] : Term());
  }

  PickleTrace& trace_;
  PickleTraceHost& host_;
  PickleReader reader_;
  std::vector<Term> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  TermMemo memo_;
};

void PickleTrace::Run::skip_argument(PickleArgument argument) {
  switch (argument) {
    case PickleArgument::kRefused:
      throw Error(ErrorCode::kOpcode, cat(reader_.opcode_hex(), " at byte ",
                                          reader_.opcode_offset(), " is no pickle opcode"));
    case PickleArgument::kNothing:
      return;
    case PickleArgument::kByte1:
      return reader_.skip(1);
    case PickleArgument::kByte2:
      return reader_.skip(2);
    case PickleArgument::kByte4:
      return reader_.skip(4);
    case PickleArgument::kByte8:
      return reader_.skip(8);
    case PickleArgument::kLength1:
      return reader_.skip(reader_.u8());
    case PickleArgument::kLength4:
      return reader_.skip(reader_.u32());
    case PickleArgument::kLength8:
      return reader_.skip(reader_.u64());
    case PickleArgument::kSignedLength4:
      return reader_.skip(reader_.signed_length());
    case PickleArgument::kTwoLines:
      reader_.skip_line();
      [[fallthrough]];
    case PickleArgument::kLine:
      return reader_.skip_line();
  }
}

bool PickleTrace::Run::step() {
  const PickleOp op = reader_.opcode();
  const PickleArgument argument = kPickleOpcodes[static_cast<std::uint8_t>(op)].written;
  switch (op) {
    case PickleOp::kStop:
      trace_.report_value(pop());
      return false;
    case PickleOp::kProto:
      if (const unsigned protocol = reader_.u8(); protocol > kMaxProtocol)
        fail(ErrorCode::kProto, cat("protocol ", protocol, " is beyond ", kMaxProtocol));
      return true;
    case PickleOp::kFrame:
      reader_.skip(8);
      return true;
    case PickleOp::kMark:
      if (marks_.size() > kMaxTerms) fail(ErrorCode::kLimitNodes, "too many marks");
      marks_.push_back(stack_.size());
      return true;
    case PickleOp::kShortBinString:
    case PickleOp::kBinString:
    case PickleOp::kShortBinUnicode:
    case PickleOp::kBinUnicode:
    case PickleOp::kBinUnicode8:
      text(argument);
      return true;
    case PickleOp::kTuple: {
      const std::vector<Term> terms = pop_mark();
      tuple(terms, 0);
      return true;
    }
    case PickleOp::kTuple1:
      tuple(1);
      return true;
    case PickleOp::kTuple2:
      tuple(2);
      return true;
    case PickleOp::kTuple3:
      tuple(3);
      return true;
    case PickleOp::kFrozenSet:
      report(pop_mark());
      push_data();
      return true;
    case PickleOp::kAppend:
      fill(1);
      return true;
    case PickleOp::kSetItem:
      fill(2);
      return true;
    case PickleOp::kAppends:
    case PickleOp::kSetItems:
    case PickleOp::kAddItems:
      fill(pop_mark());
      return true;
    case PickleOp::kBinPut:
      put(reader_.u8());
      return true;
    case PickleOp::kLongBinPut:
      put(reader_.u32());
      return true;
    case PickleOp::kMemoize:
      put(memo_.count());
      return true;
    case PickleOp::kBinGet:
      get(reader_.u8());
      return true;
    case PickleOp::kLongBinGet:
      get(reader_.u32());
      return true;
    case PickleOp::kGlobal:
      push(two_lines());
      return true;
    case PickleOp::kStackGlobal:
      stack_global();
      return true;
    case PickleOp::kReduce:
    case PickleOp::kNewObj: {
      const Term args = pop();
      const Term callable = pop();
      call(op == PickleOp::kReduce ? PickleCall::kCalled : PickleCall::kNew, callable, args);
      return true;
    }
    case PickleOp::kBuild:
      build();
      return true;
    case PickleOp::kBinPersid:
      persistent_id();
      return true;
    default:
      return step_python(static_cast<PythonOp>(op));
  }
}

bool PickleTrace::Run::step_python(PythonOp op) {
  switch (op) {
    case PythonOp::kString:
    case PythonOp::kUnicode:
      text(PickleArgument::kLine);
      return true;
    case PythonOp::kList:
    case PythonOp::kDict:
      report(pop_mark());
      push_data();
      return true;
    case PythonOp::kPop:
      // A mark with nothing above it is what goes.
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return true;
    case PythonOp::kPopMark:
      pop_mark();
      return true;
    case PythonOp::kDup:
      need(1);
      push(stack_.back());
      return true;
    case PythonOp::kPut:
      put(decimal_slot());
      return true;
    case PythonOp::kGet:
      get(decimal_slot());
      return true;
    case PythonOp::kInst: {
      const std::vector<Term> terms = pop_mark();
      const Term callable = two_lines();
      call(PickleCall::kCalled, callable, trace_.tuple(terms));
      return true;
    }
    case PythonOp::kObj:
      object();
      return true;
    case PythonOp::kExt1:
      extension(reader_.u8());
      return true;
    case PythonOp::kExt2:
      extension(reader_.u16());
      return true;
    case PythonOp::kExt4:
      extension(reader_.u32());
      return true;
    case PythonOp::kNewObjEx: {
      trace_.report_value(pop());
      const Term args = pop();
      const Term callable = pop();
      call(PickleCall::kNew, callable, args);
      return true;
    }
    case PythonOp::kReadonlyBuffer:
      need(1);
      return true;
    default:
      // A value without names, with or without an argument.
      skip_argument(kPickleOpcodes[static_cast<std::uint8_t>(op)].written);
      push_data();
      return true;
  }
}

std::uint64_t PickleTrace::run(std::uint64_t offset) {
  tuple_items_.clear();
  tuples_.clear();
  if (offset >= source_.size()) {
    throw Error(ErrorCode::kTruncated,
                cat("no pickle begins at byte ", offset, ": only ", source_.size(), " bytes"));
  }
  return Run(*this, offset).run();
}

std::uint64_t PickleTrace::number_of(std::string_view module, std::string_view name) {
  std::string key;
  key.append(module).append("\n").append(name);
  const auto [at, fresh] = numbers_.try_emplace(std::move(key), names_.size());
  if (fresh) {
    if (names_.size() == kMaxNames)
      throw Error(ErrorCode::kLimitNodes, cat("more than ", kMaxNames, " names"));
    names_.push_back({std::string(module), std::string(name)});
    host_.name(names_.back());
  }
  return at->second;
}

std::optional<std::string> PickleTrace::text(Term term) const {
  if (term.kind != Kind::kText) return std::nullopt;
  // The stream was followed past it, so that all of its bytes are there.
  const auto at_most = [&](std::uint64_t offset, std::uint64_t count) {
    return read_bytes(source_, offset, std::min(count, source_.size() - offset));
  };
  const std::vector<std::byte> head = at_most(term.at, kMaxHeadBytes);
  const MemorySource head_source(head);
  PickleReader reader(head_source, 0);
  const PickleOp op = reader.opcode();
  const auto text = [&](std::uint64_t length) -> std::optional<std::string> {
    if (length > kMaxNameBytes) return std::nullopt;
    return text_of(at_most(term.at + reader.offset(), length));
  };
  switch (op) {
    case PickleOp::kShortBinString:
    case PickleOp::kShortBinUnicode:
      return text(reader.u8());
    case PickleOp::kBinString:
      return text(reader.signed_length());
    case PickleOp::kBinUnicode:
      return text(reader.u32());
    case PickleOp::kBinUnicode8:
      return text(reader.u64());
    default:
      break;
  }
  const std::string line = text_of(at_most(term.at + 1, kMaxNameBytes));
  const std::size_t end = line.find('\n');
  if (end == std::string::npos) return std::nullopt;
  const auto content = std::string_view(line).substr(0, end);
  return static_cast<PythonOp>(op) == PythonOp::kUnicode ? raw_unicode(content)
                                                         : quoted_text(content);
}

std::span<const Term> PickleTrace::items(Term term) const {
  if (term.kind != Kind::kTuple) return {};
  const TupleRange& range = tuples_[term.at];
  return std::span(tuple_items_).subspan(range.begin, range.size);
}

Term PickleTrace::tuple(std::span<const Term> terms) {
  const bool plain = std::all_of(terms.begin(), terms.end(), [](const Term& term) {
    return term.kind == Kind::kData || term.kind == Kind::kObject;
  });
  if (plain) return {};
  if (tuple_items_.size() > kMaxTerms) {
    throw Error(ErrorCode::kLimitNodes, cat("more than ", kMaxTerms, " values in tuples"));
  }
  tuples_.push_back({tuple_items_.size(), terms.size(), false});
  tuple_items_.insert(tuple_items_.end(), terms.begin(), terms.end());
  return {Kind::kTuple, tuples_.size() - 1};
}

void PickleTrace::report_value(Term term) {
  if (term.kind == Kind::kName) return host_.value(term.at);
  if (term.kind != Kind::kTuple) return;
  // Tuples may hold each other in many ways: each is looked into once, without recursion.
  std::vector<std::uint64_t> open = {term.at};
  while (!open.empty()) {
    TupleRange& range = tuples_[open.back()];
    open.pop_back();
    if (std::exchange(range.reported, true)) continue;
    for (const Term& item : std::span(tuple_items_).subspan(range.begin, range.size)) {
      if (item.kind == Kind::kName) host_.value(item.at);
      if (item.kind == Kind::kTuple) open.push_back(item.at);
    }
  }
}

}  // namespace fsdp::formats
