// SPDX-License-Identifier: Apache-2.0
// XML as object stores write it, read by libexpat (shared_library.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace fsdp::formats {

// What is called as elements begin and end; a function that is not set ignores them.  A path leads
// from the outermost element to this one, without namespace prefixes: "ListBucketResult/Contents".
struct XmlHandler {
  std::function<void(std::string_view path)> begin = {};
  // `text`: the characters between the element's tags, without those of elements in it.
  std::function<void(std::string_view path, const std::string& text)> end = {};
};

// Reads a whole document.  Refuses a document type (and so every entity of its own), elements more
// than 16 deep, names longer than 256 bytes, text of an element beyond 64 KiB.
// Throws: kNetwork naming the symptom, kUnsupported if libexpat cannot be loaded, and what the
// handler throws.
void parse_xml(std::string_view document, const XmlHandler& handler);

}  // namespace fsdp::formats
