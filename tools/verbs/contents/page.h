// SPDX-License-Identifier: Apache-2.0
// Pages of `--html`: one file each, with its data, style and script; it loads nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "formats/bytes/base/json_writer.h"
#include "formats/bytes/outputs/atomic_file.h"

namespace fsdp::cli {

// The parts of a page around its title and its data (embed_page.cmake makes them of page.* and the
// page's own files).
struct PageText {
  const char* before_title;
  const char* before_data;
  const char* end;
};
extern const PageText kInspectPage;
extern const PageText kRunPage;
extern const PageText kFiguresPage;

// A page about to be written; it appears as a whole or not at all.
class Page {
 public:
  // Begins the file, so that a long piece of work is not in vain.  Throws: kExists without
  // `replace`, and the rest of new_file.
  Page(std::string path, bool replace);

  // Writes the page and gives it its name.  `title` is escaped for HTML here; `data` writes one
  // JSON value, with nothing in it that could end the element that holds it.  Call it once. Throws:
  // kIo, kNoSpace, what `data` throws.
  void write(const PageText& text, const std::string& title,
             const std::function<void(formats::JsonWriter& json)>& data);

 private:
  std::string path_;
  std::unique_ptr<formats::AtomicFile> file_;
};

}  // namespace fsdp::cli
