// SPDX-License-Identifier: Apache-2.0
// XML as object stores write it, read by libexpat, which is loaded when it is first needed.
#pragma once

#include <string>
#include <string_view>

#include "formats/bytes/base/interface.h"

namespace fsdp::formats {

// Receives elements as they begin and end.  A path leads from the outermost element to this one,
// without namespace prefixes: "ListBucketResult/Contents/Key".  A handler that overrides nothing
// ignores everything.
class XmlHandler : public Interface {
 public:
  virtual void begin(std::string_view /*path*/) {}
  // `text`: the characters between the element's tags, without those of elements in it.
  virtual void end(std::string_view /*path*/, const std::string& /*text*/) {}
};

// Reads a whole document.  Refuses a document type (and so every entity of its own), elements more
// than 16 deep, names longer than 256 bytes, text of an element beyond 64 KiB.
// Throws: kNetwork naming the symptom, kUnsupported if libexpat cannot be loaded, and what the
// handler throws.
void parse_xml(std::string_view document, XmlHandler& handler);

}  // namespace fsdp::formats
