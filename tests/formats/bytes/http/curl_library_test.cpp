// SPDX-License-Identifier: Apache-2.0
// Our words for libcurl's interface against its own: most of the comparison is the compiler's.
#include "formats/bytes/http/curl_library.h"

#include <curl/curl.h>

#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

// The plus makes a number of an enumeration, which cannot be compared with another one.
static_assert(curl::kWriteData == +CURLOPT_WRITEDATA);
static_assert(curl::kUrl == +CURLOPT_URL);
static_assert(curl::kErrorBuffer == +CURLOPT_ERRORBUFFER);
static_assert(curl::kWriteFunction == +CURLOPT_WRITEFUNCTION);
static_assert(curl::kPostFields == +CURLOPT_POSTFIELDS);
static_assert(curl::kUserAgent == +CURLOPT_USERAGENT);
static_assert(curl::kLowSpeedLimit == +CURLOPT_LOW_SPEED_LIMIT);
static_assert(curl::kLowSpeedTime == +CURLOPT_LOW_SPEED_TIME);
static_assert(curl::kHttpHeader == +CURLOPT_HTTPHEADER);
static_assert(curl::kHeaderData == +CURLOPT_HEADERDATA);
static_assert(curl::kCustomRequest == +CURLOPT_CUSTOMREQUEST);
static_assert(curl::kNoBody == +CURLOPT_NOBODY);
static_assert(curl::kPost == +CURLOPT_POST);
static_assert(curl::kFreshConnect == +CURLOPT_FRESH_CONNECT);
static_assert(curl::kSslVerifyPeer == +CURLOPT_SSL_VERIFYPEER);
static_assert(curl::kCaInfo == +CURLOPT_CAINFO);
static_assert(curl::kHeaderFunction == +CURLOPT_HEADERFUNCTION);
static_assert(curl::kHttpGet == +CURLOPT_HTTPGET);
static_assert(curl::kSslVerifyHost == +CURLOPT_SSL_VERIFYHOST);
static_assert(curl::kHttpVersion == +CURLOPT_HTTP_VERSION);
static_assert(curl::kCaPath == +CURLOPT_CAPATH);
static_assert(curl::kBufferSize == +CURLOPT_BUFFERSIZE);
static_assert(curl::kNoSignal == +CURLOPT_NOSIGNAL);
static_assert(curl::kShare == +CURLOPT_SHARE);
static_assert(curl::kPostFieldSizeLarge == +CURLOPT_POSTFIELDSIZE_LARGE);
static_assert(curl::kTimeoutMs == +CURLOPT_TIMEOUT_MS);
static_assert(curl::kConnectTimeoutMs == +CURLOPT_CONNECTTIMEOUT_MS);
static_assert(curl::kNoProxy == +CURLOPT_NOPROXY);
// Its successor is of 7.85, and a later header calls this one old-fashioned.
static_assert(curl::kProtocols == CURLOPTTYPE_LONG + 181);
static_assert(curl::kTcpKeepAlive == +CURLOPT_TCP_KEEPALIVE);
static_assert(curl::kPathAsIs == +CURLOPT_PATH_AS_IS);
static_assert(curl::kErrorBufferBytes == CURL_ERROR_SIZE);
static_assert(curl::kHttpVersion11 == CURL_HTTP_VERSION_1_1);
static_assert(curl::kProtocolsHttp == (CURLPROTO_HTTP | CURLPROTO_HTTPS));

static_assert(curl::kOk == +CURLE_OK);
static_assert(curl::kUnsupportedProtocol == +CURLE_UNSUPPORTED_PROTOCOL);
static_assert(curl::kUrlMalformed == +CURLE_URL_MALFORMAT);
static_assert(curl::kCouldntResolveProxy == +CURLE_COULDNT_RESOLVE_PROXY);
static_assert(curl::kCouldntResolveHost == +CURLE_COULDNT_RESOLVE_HOST);
static_assert(curl::kCouldntConnect == +CURLE_COULDNT_CONNECT);
static_assert(curl::kPartialFile == +CURLE_PARTIAL_FILE);
static_assert(curl::kWriteError == +CURLE_WRITE_ERROR);
static_assert(curl::kOutOfMemory == +CURLE_OUT_OF_MEMORY);
static_assert(curl::kOperationTimedOut == +CURLE_OPERATION_TIMEDOUT);
static_assert(curl::kSslConnectError == +CURLE_SSL_CONNECT_ERROR);
static_assert(curl::kSslCertProblem == +CURLE_SSL_CERTPROBLEM);
static_assert(curl::kPeerFailedVerification == +CURLE_PEER_FAILED_VERIFICATION);
static_assert(curl::kSslCaCertBadFile == +CURLE_SSL_CACERT_BADFILE);

static_assert(curl::kShareData == +CURLSHOPT_SHARE);
static_assert(curl::kLockFunction == +CURLSHOPT_LOCKFUNC);
static_assert(curl::kUnlockFunction == +CURLSHOPT_UNLOCKFUNC);
static_assert(curl::kUserData == +CURLSHOPT_USERDATA);
static_assert(curl::kLockDataDns == CURL_LOCK_DATA_DNS);
static_assert(curl::kLockDataSslSession == CURL_LOCK_DATA_SSL_SESSION);
static_assert(curl::kLockDataCount >= CURL_LOCK_DATA_LAST, "a lock for each kind of data");

static_assert(curl::kMessageDone == CURLMSG_DONE);
static_assert(curl::kGlobalDefault == CURL_GLOBAL_DEFAULT);
static_assert(sizeof(curl::Message) == sizeof(CURLMsg));
static_assert(offsetof(curl::Message, kind) == offsetof(CURLMsg, msg));
static_assert(offsetof(curl::Message, easy) == offsetof(CURLMsg, easy_handle));
static_assert(offsetof(curl::Message, data) == offsetof(CURLMsg, data));
static_assert(offsetof(curl::VersionInfo, age) == offsetof(curl_version_info_data, age));
static_assert(offsetof(curl::VersionInfo, version) == offsetof(curl_version_info_data, version));
static_assert(offsetof(curl::VersionInfo, version_num) ==
              offsetof(curl_version_info_data, version_num));
static_assert(offsetof(curl::VersionInfo, cainfo) == offsetof(curl_version_info_data, cainfo));
static_assert(offsetof(curl::VersionInfo, capath) == offsetof(curl_version_info_data, capath));
static_assert(curl::kVersionWithCertificates == +CURLVERSION_SEVENTH);
// An enumeration travels as an int, and libcurl's own long file sizes as 64 bits.
static_assert(sizeof(CURLcode) == sizeof(int) && sizeof(CURLMcode) == sizeof(int));
static_assert(sizeof(CURLoption) == sizeof(int) && sizeof(CURLSHoption) == sizeof(int));
static_assert(sizeof(curl_off_t) == sizeof(long long));

// Whether a pointer to our type of a function can stand for one of libcurl's: as many arguments,
// each as wide.
template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename R1, typename... A1, typename R2, typename... A2>
requires(sizeof...(A1) == sizeof...(A2)) struct SameCall<R1 (*)(A1...), R2(A2...)>
    : std::bool_constant<(... && (sizeof(A1) == sizeof(A2) &&
                                  std::is_pointer_v<A1> == std::is_pointer_v<A2>))> {
};
template <typename R1, typename... A1, typename R2, typename... A2>
requires(sizeof...(A1) == sizeof...(A2)) struct SameCall<R1 (*)(A1..., ...), R2(A2..., ...)>
    : std::bool_constant<(... && (sizeof(A1) == sizeof(A2)))> {
};

#undef curl_easy_setopt  // macros that check types, and hide the functions
#undef curl_share_setopt
using curl::Library;
static_assert(SameCall<decltype(Library::global_init), decltype(curl_global_init)>::value);
static_assert(SameCall<decltype(Library::version_info), decltype(curl_version_info)>::value);
static_assert(SameCall<decltype(Library::easy_strerror), decltype(curl_easy_strerror)>::value);
static_assert(SameCall<decltype(Library::easy_init), decltype(curl_easy_init)>::value);
static_assert(SameCall<decltype(Library::easy_reset), decltype(curl_easy_reset)>::value);
static_assert(SameCall<decltype(Library::easy_cleanup), decltype(curl_easy_cleanup)>::value);
static_assert(SameCall<decltype(Library::easy_setopt), decltype(curl_easy_setopt)>::value);
static_assert(SameCall<decltype(Library::slist_append), decltype(curl_slist_append)>::value);
static_assert(SameCall<decltype(Library::slist_free_all), decltype(curl_slist_free_all)>::value);
static_assert(SameCall<decltype(Library::multi_init), decltype(curl_multi_init)>::value);
static_assert(
    SameCall<decltype(Library::multi_add_handle), decltype(curl_multi_add_handle)>::value);
static_assert(
    SameCall<decltype(Library::multi_remove_handle), decltype(curl_multi_remove_handle)>::value);
static_assert(SameCall<decltype(Library::multi_perform), decltype(curl_multi_perform)>::value);
static_assert(SameCall<decltype(Library::multi_poll), decltype(curl_multi_poll)>::value);
static_assert(SameCall<decltype(Library::multi_info_read), decltype(curl_multi_info_read)>::value);
static_assert(SameCall<decltype(Library::multi_cleanup), decltype(curl_multi_cleanup)>::value);
static_assert(SameCall<decltype(Library::share_init), decltype(curl_share_init)>::value);
static_assert(SameCall<decltype(Library::share_setopt), decltype(curl_share_setopt)>::value);
static_assert(SameCall<decltype(Library::share_cleanup), decltype(curl_share_cleanup)>::value);

TEST(CurlLibrary, is_loaded_once_and_has_every_function) {
  const curl::Library& library = curl::library();
  EXPECT_EQ(&library, &curl::library());
  EXPECT_GE(library.version_info(0)->version_num, 0x074200U);
  EXPECT_STREQ(library.easy_strerror(curl::kOk), "No error");
}

TEST(CurlLibrary, takes_options_by_our_numbers) {
  const curl::Library& library = curl::library();
  curl::Easy* easy = library.easy_init();
  ASSERT_NE(easy, nullptr);
  EXPECT_EQ(library.easy_setopt(easy, curl::kProtocols, curl::kProtocolsHttp), curl::kOk);
  EXPECT_EQ(library.easy_setopt(easy, curl::kPathAsIs, 1L), curl::kOk);
  EXPECT_EQ(library.easy_setopt(easy, curl::kPostFieldSizeLarge, 1LL << 40U), curl::kOk);
  EXPECT_NE(library.easy_setopt(easy, 9999, 1L), curl::kOk);
  library.easy_cleanup(easy);
}

}  // namespace
}  // namespace fsdp::formats
