// SPDX-License-Identifier: Apache-2.0
// Settings of the tools of AWS: environment variables, and the profiles in the shared files
// ~/.aws/config and ~/.aws/credentials.
// Source: "Configuration and credential file settings" in the user guide of the AWS CLI.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "formats/bytes/http/secret.h"

namespace fsdp::formats {

// Returns the value of an environment variable; empty if it is not set.
std::string environment_value(const char* name);

// The settings of one profile.  Values may be keys, so messages must not show them.
class Profile {
 public:
  explicit Profile(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  // Returns whether a file has a section for this profile.
  bool exists() const { return exists_; }
  // Returns the value of `setting`; empty if there is none.  The name of a nested setting begins
  // with the outer one's: "s3.addressing_style".
  std::string find(const std::string& setting) const;
  Secret secret(const std::string& setting) const;

  // Adds the settings in a file's text; existing ones stay.  `in_config`: sections are named
  // "profile x" and "default"; in the other file "x".  `path` is for messages.  Throws: kUsage,
  // naming the line, for text that is not such a file.
  void add(std::string_view text, bool in_config, const std::string& path);

 private:
  std::string name_;
  bool exists_ = false;
  std::map<std::string, Secret, std::less<>> values_;
};

// Reads the profile of this name from the files that AWS_SHARED_CREDENTIALS_FILE and
// AWS_CONFIG_FILE name, or those of the home folder.  A missing file has no settings. Throws:
// kUsage for a malformed file; kIo.
Profile read_profile(const std::string& name);
// Reads the profile that AWS_PROFILE or AWS_DEFAULT_PROFILE names, else "default".
// Throws: like read_profile; kUsage if a named profile does not exist.
Profile chosen_profile();

}  // namespace fsdp::formats
