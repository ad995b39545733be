// SPDX-License-Identifier: Apache-2.0
// Compares the numbers of curl_library.h with what the library that is loaded says of itself.
#include "formats/http/curl_library.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "formats/http/shared_library.h"

namespace fsdp::formats::curl {
namespace {

// curl_easyoption, since 7.73.
struct OptionDescription {
  const char* name;
  int id;
  int type;
  unsigned int flags;
};

TEST(CurlLibrary, NumbersOfOptionsAreThoseOfTheLibrary) {
  const OptionDescription* (*by_name)(const char*) = nullptr;
  SharedLibrary("libcurl.so.4", "libcurl4").find(by_name, "curl_easy_option_by_name");
  const std::map<std::string, Option> options = {
      {"WRITEDATA", kWriteData},
      {"URL", kUrl},
      {"ERRORBUFFER", kErrorBuffer},
      {"WRITEFUNCTION", kWriteFunction},
      {"POSTFIELDS", kPostFields},
      {"USERAGENT", kUserAgent},
      {"LOW_SPEED_LIMIT", kLowSpeedLimit},
      {"LOW_SPEED_TIME", kLowSpeedTime},
      {"HTTPHEADER", kHttpHeader},
      {"HEADERDATA", kHeaderData},
      {"CUSTOMREQUEST", kCustomRequest},
      {"NOBODY", kNoBody},
      {"POST", kPost},
      {"SSL_VERIFYPEER", kSslVerifyPeer},
      {"CAINFO", kCaInfo},
      {"HEADERFUNCTION", kHeaderFunction},
      {"HTTPGET", kHttpGet},
      {"SSL_VERIFYHOST", kSslVerifyHost},
      {"HTTP_VERSION", kHttpVersion},
      {"CAPATH", kCaPath},
      {"BUFFERSIZE", kBufferSize},
      {"NOSIGNAL", kNoSignal},
      {"SHARE", kShare},
      {"POSTFIELDSIZE_LARGE", kPostFieldSizeLarge},
      {"TIMEOUT_MS", kTimeoutMs},
      {"CONNECTTIMEOUT_MS", kConnectTimeoutMs},
      {"NOPROXY", kNoProxy},
      {"PROTOCOLS", kProtocols},
      {"TCP_KEEPALIVE", kTcpKeepAlive},
      {"PATH_AS_IS", kPathAsIs},
  };
  for (const auto& [name, id] : options) {
    const OptionDescription* const found = by_name(name.c_str());
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->id, id) << name;
  }
}

TEST(CurlLibrary, NumbersOfErrorsAreThoseOfTheLibrary) {
  const Library& curl = library();
  EXPECT_STREQ(curl.easy_strerror(kOk), "No error");
  const std::map<int, std::string> words = {{kUnsupportedProtocol, "protocol"},
                                            {kUrlMalformed, "URL"},
                                            {kCouldntResolveProxy, "proxy"},
                                            {kCouldntResolveHost, "host name"},
                                            {kCouldntConnect, "connect to server"},
                                            {kPartialFile, "partial file"},
                                            {kWriteError, "writ"},
                                            {kOutOfMemory, "memory"},
                                            {kOperationTimedOut, "Timeout"},
                                            {kSslConnectError, "SSL connect"},
                                            {kSslCertProblem, "local SSL certificate"},
                                            {kPeerFailedVerification, "SSL peer certificate"},
                                            {kSslCaCertBadFile, "CA cert"}};
  for (const auto& [code, word] : words) {
    EXPECT_NE(std::string(curl.easy_strerror(code)).find(word), std::string::npos)
        << code << ": " << curl.easy_strerror(code);
  }
}

TEST(CurlLibrary, IsLoadedOnce) {
  EXPECT_EQ(&library(), &library());
  EXPECT_GE(library().version_info(0)->version_num, 0x074200U);
}

}  // namespace
}  // namespace fsdp::formats::curl
