// SPDX-License-Identifier: Apache-2.0
// Our own declarations of the part of libcurl's binary interface that is used, stable since 7.66: a
// build needs neither its headers nor its library.
// tests/formats/bytes/http/curl_library_test.cpp compares the numbers with <curl/curl.h>.
#pragma once

#include <cstddef>

namespace fsdp::formats::curl {

using Easy = void;
using Multi = void;
using Share = void;
struct List;  // curl_slist

// Options of an easy handle: plain ones take a long, 10000 a pointer, 20000 a function, 30000 a
// curl_off_t, which is 64 bits.
enum Option : int {
  kWriteData = 10001,
  kUrl = 10002,
  kErrorBuffer = 10010,
  kWriteFunction = 20011,
  kPostFields = 10015,
  kUserAgent = 10018,
  kLowSpeedLimit = 19,
  kLowSpeedTime = 20,
  kHttpHeader = 10023,
  kHeaderData = 10029,
  kCustomRequest = 10036,
  kNoBody = 44,
  kPost = 47,
  kFreshConnect = 74,
  kSslVerifyPeer = 64,
  kCaInfo = 10065,
  kHeaderFunction = 20079,
  kHttpGet = 80,
  kSslVerifyHost = 81,
  kHttpVersion = 84,
  kCaPath = 10097,
  kBufferSize = 98,
  kNoSignal = 99,
  kShare = 10100,
  kPostFieldSizeLarge = 30120,
  kTimeoutMs = 155,
  kConnectTimeoutMs = 156,
  kNoProxy = 10177,
  kProtocols = 181,
  kTcpKeepAlive = 213,
  kPathAsIs = 234,
};
constexpr std::size_t kErrorBufferBytes = 256;
constexpr long kHttpVersion11 = 2;
constexpr long kProtocolsHttp = 3;  // http and https

enum Code : int {
  kOk = 0,
  kUnsupportedProtocol = 1,
  kUrlMalformed = 3,
  kCouldntResolveProxy = 5,
  kCouldntResolveHost = 6,
  kCouldntConnect = 7,
  kPartialFile = 18,
  kWriteError = 23,
  kOutOfMemory = 27,
  kOperationTimedOut = 28,
  kSslConnectError = 35,
  kSslCertProblem = 58,
  kPeerFailedVerification = 60,
  kSslCaCertBadFile = 77,
};

enum ShareOption : int { kShareData = 1, kLockFunction = 3, kUnlockFunction = 4, kUserData = 5 };
constexpr int kLockDataDns = 3;
constexpr int kLockDataSslSession = 4;
constexpr int kLockDataCount = 16;

struct Message {
  int kind;  // 1: a transfer is done
  Easy* easy;
  union {
    void* whatever;
    int result;
  } data;
};
constexpr int kMessageDone = 1;

struct VersionInfo {
  int age;
  const char* version;
  unsigned int version_num;  // 0xXXYYZZ
  const char* host;
  int features;
  const char* ssl_version;
  long ssl_version_num;
  const char* libz_version;
  const char* const* protocols;
  const char* ares;
  int ares_num;
  const char* libidn;
  int iconv_ver_num;
  const char* libssh_version;
  unsigned int brotli_ver_num;
  const char* brotli_version;
  unsigned int nghttp2_ver_num;
  const char* nghttp2_version;
  const char* quic_version;
  // Of libcurl 7.70 and later: where certificates are if nothing else is said; null: it does not
  // know.
  const char* cainfo;
  const char* capath;
};
constexpr int kVersionWithCertificates = 6;  // `age` of 7.70

constexpr long kGlobalDefault = 3;

struct Library {
  int (*global_init)(long);
  VersionInfo* (*version_info)(int);
  const char* (*easy_strerror)(int);
  Easy* (*easy_init)();
  void (*easy_reset)(Easy*);
  void (*easy_cleanup)(Easy*);
  int (*easy_setopt)(Easy*, int, ...);
  List* (*slist_append)(List*, const char*);
  void (*slist_free_all)(List*);
  Multi* (*multi_init)();
  int (*multi_add_handle)(Multi*, Easy*);
  int (*multi_remove_handle)(Multi*, Easy*);
  int (*multi_perform)(Multi*, int*);
  int (*multi_poll)(Multi*, void*, unsigned, int, int*);
  Message* (*multi_info_read)(Multi*, int*);
  int (*multi_cleanup)(Multi*);
  Share* (*share_init)();
  int (*share_setopt)(Share*, int, ...);
  int (*share_cleanup)(Share*);
};

// Loads libcurl.so.4 on the first call, except in a static program, which has it.  Thread-safe.
// Throws: kUnsupported if there is none, or one before 7.66.
const Library& library();

// Returns whether this libcurl was built for a place of certificates, or may have been.
bool knows_certificates(const Library& curl);

}  // namespace fsdp::formats::curl
