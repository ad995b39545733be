// SPDX-License-Identifier: Apache-2.0
// What people set for the tools of AWS: variables of the environment, and the profiles in the
// shared files ~/.aws/config and ~/.aws/credentials.
// Source: "Configuration and credential file settings" in the user guide of the AWS CLI.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "formats/bytes/http/secret.h"

namespace fsdp::formats {

// The value of a variable; empty: it is not set.
std::string environment_value(const char* name);

// The settings of one profile.  A value may be a key: none is for messages.
class Profile {
 public:
  explicit Profile(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  // Whether a file has a section of that name.
  bool exists() const { return exists_; }
  // The value of `setting`; empty: there is none.  Settings inside another one have its name before
  // theirs: "s3.addressing_style".
  std::string find(const std::string& setting) const;
  Secret secret(const std::string& setting) const;

  // Takes the settings of a file's text.  `in_config`: sections are named "profile x", and
  // "default"; in the other file "x".  What is there already stays. Throws: kUsage, naming the
  // line, for text that is no such file.  `path` is for messages.
  void add(std::string_view text, bool in_config, const std::string& path);

 private:
  std::string name_;
  bool exists_ = false;
  std::map<std::string, Secret, std::less<>> values_;
};

// Reads the profile of this name from the files that AWS_SHARED_CREDENTIALS_FILE and
// AWS_CONFIG_FILE name, or those of the home folder.  A file that is not there has no settings.
// Throws: kUsage for a file that cannot be understood; kIo.
Profile read_profile(const std::string& name);
// The one that AWS_PROFILE or AWS_DEFAULT_PROFILE names, else "default".
// Throws: like read_profile; kUsage if a profile that is named there does not exist.
Profile chosen_profile();

}  // namespace fsdp::formats
