// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/curl_handles.h"

#include <algorithm>
#include <string_view>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {

FieldList::FieldList(const curl::Library& library, const HttpRequest& request) : curl_(library) {
  for (const auto& [name, value] : request.fields) {
    // Text after a line end would become another field.
    if (value.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
      throw TransferError(cat("the value of the field ", name, " has a line end"), 1);
    }
  }
  for (const auto& [name, value] : request.fields) add(cat(name, ": ", value));
  // Removes two fields that libcurl adds: the Content-Type of a form, and Expect, which costs a
  // round trip before a long body, or a second if the server does not answer.
  if (!request.body.empty() || request.method == "PUT" || request.method == "POST") {
    add("Expect:");
    if (std::none_of(request.fields.begin(), request.fields.end(),
                     [](const auto& field) { return field.first == "content-type"; })) {
      add("Content-Type:");
    }
  }
}

void FieldList::add(const std::string& line) {
  curl::List* longer = curl_.slist_append(list_, line.c_str());
  if (longer == nullptr) throw std::bad_alloc();
  list_ = longer;
}

}  // namespace fsdp::formats
