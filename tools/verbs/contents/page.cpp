// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/page.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "tools/base/placed.h"

namespace fsdp::cli {
namespace {

constexpr std::size_t kPageBufferBytes = 1U << 20U;

// Writes text in blocks, as it grows.
class PageStream {
 public:
  explicit PageStream(formats::OutputFile& file) : file_(file) {
    buffer_.reserve(kPageBufferBytes);
  }

  void add(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kPageBufferBytes) flush();
  }
  void flush() {
    file_.write_at(at_, std::as_bytes(std::span(buffer_)));
    at_ += buffer_.size();
    buffer_.clear();
  }

 private:
  formats::OutputFile& file_;
  std::string buffer_;
  std::uint64_t at_ = 0;
};

std::string html_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '<'   ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '&' ? "&amp;"
           : c == '"' ? "&quot;"
                      : std::string(1, c);
  }
  return out;
}

}  // namespace

Page::Page(std::string path, bool replace)
    : path_(std::move(path)),
      file_(formats::new_file(path_, {.replace = replace, .make_folders = true})) {}

void Page::write(const PageText& text, const std::string& title,
                 const std::function<void(formats::JsonWriter& json)>& data) {
  PageStream out(file_->file());
  out.add(text.before_title);
  out.add(html_escape(title + " · fsdp-ckpt"));
  out.add(text.before_data);
  formats::JsonWriter json([&](std::string_view part) { out.add(part); }, true);
  data(json);
  out.add(text.end);
  out.flush();
  file_->commit();
  note_placed(path_);
}

}  // namespace fsdp::cli
