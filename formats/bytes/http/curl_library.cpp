// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/curl_library.h"

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/shared_library.h"

namespace fsdp::formats::curl {
namespace {

constexpr unsigned kOldest = 0x074200;  // 7.66.0, the first with curl_multi_poll

Library load() {
  const SharedLibrary file("libcurl.so.4",
                           "libcurl 7.66 or later (Debian and Ubuntu: libcurl4; Fedora and RHEL: "
                           "libcurl)");
  Library curl{};
  file.find(curl.version_info, "curl_version_info");
  const VersionInfo* version = curl.version_info(0);
  if (version->version_num < kOldest) {
    throw Error(ErrorCode::kUnsupported, "libcurl.so.4: is version ", escape(version->version),
                ", but a URL needs 7.66 or later");
  }
  file.find(curl.global_init, "curl_global_init");
  file.find(curl.easy_strerror, "curl_easy_strerror");
  file.find(curl.easy_init, "curl_easy_init");
  file.find(curl.easy_reset, "curl_easy_reset");
  file.find(curl.easy_cleanup, "curl_easy_cleanup");
  file.find(curl.easy_setopt, "curl_easy_setopt");
  file.find(curl.slist_append, "curl_slist_append");
  file.find(curl.slist_free_all, "curl_slist_free_all");
  file.find(curl.multi_init, "curl_multi_init");
  file.find(curl.multi_add_handle, "curl_multi_add_handle");
  file.find(curl.multi_remove_handle, "curl_multi_remove_handle");
  file.find(curl.multi_perform, "curl_multi_perform");
  file.find(curl.multi_poll, "curl_multi_poll");
  file.find(curl.multi_info_read, "curl_multi_info_read");
  file.find(curl.multi_cleanup, "curl_multi_cleanup");
  file.find(curl.share_init, "curl_share_init");
  file.find(curl.share_setopt, "curl_share_setopt");
  file.find(curl.share_cleanup, "curl_share_cleanup");
  if (curl.global_init(kGlobalDefault) != kOk)
    throw Error(ErrorCode::kUnsupported, "libcurl.so.4: could not be started");
  return curl;
}

}  // namespace

const Library& library() {
  static const Library curl = load();
  return curl;
}

bool knows_certificates(const Library& curl) {
  const VersionInfo& info = *curl.version_info(kVersionWithCertificates);
  return info.age < kVersionWithCertificates || info.cainfo != nullptr || info.capath != nullptr;
}

}  // namespace fsdp::formats::curl
