// SPDX-License-Identifier: Apache-2.0
// For static programs, into which libcurl and libexpat are linked: the functions of both by name.
#include <curl/curl.h>
#include <expat.h>

#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/http/shared_library.h"

namespace fsdp::formats {
namespace {

struct LinkedFunction {
  std::string_view name;
  void* address;
};

#define FSDP_LINKED(name)                   \
  LinkedFunction {                          \
#name, reinterpret_cast < void*>(&name) \
  }

const LinkedFunction kLinked[] = {FSDP_LINKED(curl_version_info),
                                  FSDP_LINKED(curl_global_init),
                                  FSDP_LINKED(curl_easy_strerror),
                                  FSDP_LINKED(curl_easy_init),
                                  FSDP_LINKED(curl_easy_reset),
                                  FSDP_LINKED(curl_easy_cleanup),
                                  FSDP_LINKED(curl_easy_setopt),
                                  FSDP_LINKED(curl_slist_append),
                                  FSDP_LINKED(curl_slist_free_all),
                                  FSDP_LINKED(curl_multi_init),
                                  FSDP_LINKED(curl_multi_add_handle),
                                  FSDP_LINKED(curl_multi_remove_handle),
                                  FSDP_LINKED(curl_multi_perform),
                                  FSDP_LINKED(curl_multi_poll),
                                  FSDP_LINKED(curl_multi_info_read),
                                  FSDP_LINKED(curl_multi_cleanup),
                                  FSDP_LINKED(curl_share_init),
                                  FSDP_LINKED(curl_share_setopt),
                                  FSDP_LINKED(curl_share_cleanup),
                                  FSDP_LINKED(XML_ParserCreate),
                                  FSDP_LINKED(XML_ParserFree),
                                  FSDP_LINKED(XML_SetUserData),
                                  FSDP_LINKED(XML_SetElementHandler),
                                  FSDP_LINKED(XML_SetCharacterDataHandler),
                                  FSDP_LINKED(XML_SetStartDoctypeDeclHandler),
                                  FSDP_LINKED(XML_StopParser),
                                  FSDP_LINKED(XML_Parse),
                                  FSDP_LINKED(XML_GetErrorCode),
                                  FSDP_LINKED(XML_ErrorString)};

#undef FSDP_LINKED

}  // namespace

SharedLibrary::SharedLibrary(const std::string& file, const std::string& /*package*/)
    : file_(file) {}

void* SharedLibrary::address(const char* name) const {
  for (const LinkedFunction& function : kLinked) {
    if (function.name == name) return function.address;
  }
  throw Error(ErrorCode::kUnsupported, file_, ": has no function ", name);
}

}  // namespace fsdp::formats
