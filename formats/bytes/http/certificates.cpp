// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/certificates.h"

#include <unistd.h>

namespace fsdp::formats {

std::string system_certificates(const std::string& root) {
  for (const char* path : {
           "/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Arch, Gentoo, NixOS
           "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, RHEL
           "/etc/pki/tls/certs/ca-bundle.crt",                   // RHEL 6
           "/etc/ssl/ca-bundle.pem",                             // SUSE
           "/var/lib/ca-certificates/ca-bundle.pem",             // SUSE
           "/etc/ssl/cert.pem",                                  // Alpine
       }) {
    std::string file = root + path;
    if (::access(file.c_str(), R_OK) == 0) return file;
  }
  return "";
}

}  // namespace fsdp::formats
