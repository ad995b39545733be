// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/certificates.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "formats/bytes/http/curl_library.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

TEST(Certificates, the_first_file_that_a_distribution_would_have_is_found) {
  const test::TempDir root;
  EXPECT_EQ(system_certificates(root.path()), "");
  std::string last;
  // Later ones first: each that appears is preferred to those before it.
  for (const char* name : {"/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/certs/ca-certificates.crt"}) {
    const std::string path = root.path().string() + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    EXPECT_EQ(system_certificates(root.path()), last);
    test::write_file(path, "certificates");
    EXPECT_EQ(system_certificates(root.path()), path);
    last = path;
  }
}

// Returns whether a libcurl of this age and these places knows where certificates are.
bool knows(int age, const char* file, const char* folder) {
  static curl::VersionInfo info;
  info = {};
  info.age = age;
  info.cainfo = file;
  info.capath = folder;
  curl::Library library{};
  library.version_info = [](int) { return &info; };
  return curl::knows_certificates(library);
}

TEST(Certificates, a_libcurl_that_was_built_for_a_place_is_believed) {
  EXPECT_TRUE(knows(curl::kVersionWithCertificates, "/a", nullptr));
  EXPECT_TRUE(knows(curl::kVersionWithCertificates + 1, nullptr, "/a"));
  EXPECT_FALSE(knows(curl::kVersionWithCertificates, nullptr, nullptr));
  // An older one does not say, and has no such members.
  EXPECT_TRUE(knows(curl::kVersionWithCertificates - 1, nullptr, nullptr));
}

}  // namespace
}  // namespace fsdp::formats
