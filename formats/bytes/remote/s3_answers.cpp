// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_answers.h"

#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/encoding.h"
#include "formats/bytes/http/headers.h"
#include "formats/bytes/http/times.h"
#include "formats/bytes/http/xml.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxWords = 300;

// Throws: kNetwork for a key that cannot be decoded.
std::string decoded_key(const std::string& key) {
  auto decoded = percent_decode(key, true);
  if (!decoded) throw Error(ErrorCode::kNetwork, "the list has a key ", quote(key));
  return *std::move(decoded);
}

// Turns a key into the name of a member of the folder; returns false if it is not one.
bool take_name(StoredEntry& entry, std::string_view prefix, bool deep) {
  std::string key = std::move(entry.name);
  if (!key.starts_with(prefix))
    throw Error(ErrorCode::kNetwork, "the list of ", quote(prefix), " has ", quote(key));
  key.erase(0, prefix.size());
  if (!entry.file && key.ends_with('/')) key.pop_back();
  // A slash at the end marks a folder; an empty name is the listed folder itself.
  if (deep && key.ends_with('/')) {
    key.pop_back();
    entry.file.reset();
  }
  entry.name = std::move(key);
  // A file name with a slash comes from a server without delimiters.
  return !entry.name.empty() && (deep || entry.name.find('/') == std::string::npos);
}

}  // namespace

S3Refusal parse_s3_refusal(std::string_view document) {
  S3Refusal refusal;
  if (document.find("<Error") == std::string_view::npos) return refusal;
  try {
    parse_xml(document, {.end = [&](std::string_view path, const std::string& text) {
                if (path == "Error/Code") refusal.code = text;
                if (path == "Error/Message") refusal.message = text;
                if (path == "Error/Region") refusal.region = text;
              }});
  } catch (const Error& e) {
    // The document is not XML, or ends early: the fields read so far count.
    if (e.code() != ErrorCode::kNetwork) throw;
  }
  return refusal;
}

S3Page parse_s3_page(std::string_view document, std::string_view prefix, bool deep) {
  S3Page page;
  bool is_page = false;
  bool encoded = false;
  bool truncated = false;
  std::string key;
  StoredFile file;
  const auto begin = [&](std::string_view path) {
    if (path == "ListBucketResult") is_page = true;
    if (path == "ListBucketResult/Contents") file = {};
  };
  const auto end = [&](std::string_view path, const std::string& text) {
    constexpr std::string_view kRoot = "ListBucketResult/";
    if (!path.starts_with(kRoot)) return;
    path.remove_prefix(kRoot.size());
    // EncodingType may follow the keys, so keys are decoded later.
    if (path == "EncodingType") encoded = text == "url";
    if (path == "IsTruncated") truncated = text == "true";
    if (path == "NextContinuationToken") page.next = text;
    if (path == "CommonPrefixes/Prefix") page.entries.push_back({text, std::nullopt});
    if (path == "Contents") page.entries.push_back({std::exchange(key, {}), file});
    if (path == "Contents/Key") key = text;
    if (path == "Contents/ETag") file.version = strong_etag(text);
    if (path == "Contents/LastModified") file.mtime_ns = parse_iso_time(text).value_or(0);
    if (path == "Contents/Size") {
      const auto bytes = parse_length(text);
      if (!bytes) throw Error(ErrorCode::kNetwork, "the list has a size ", quote(text));
      file.bytes = *bytes;
    }
  };
  parse_xml(document, {begin, end});
  if (!is_page) throw Error(ErrorCode::kNetwork, "the answer is XML, but not a list of files");
  if (!truncated) page.next.clear();
  if (truncated && page.next.empty())
    throw Error(ErrorCode::kNetwork, "the list is incomplete, but has no token for the next page");
  std::erase_if(page.entries, [&](StoredEntry& entry) {
    if (encoded) entry.name = decoded_key(entry.name);
    return !take_name(entry, prefix, deep);
  });
  return page;
}

std::string S3Dialect::words(const HttpAnswer& answer) const {
  const S3Refusal refusal = parse_s3_refusal(answer.text);
  std::string out = std::to_string(answer.head.status);
  if (!refusal.code.empty()) out += ' ' + quote(refusal.code);
  if (!refusal.message.empty()) out += ": " + quote(refusal.message, kMaxWords);
  return out;
}

bool S3Dialect::passes(const HttpAnswer& answer) const {
  if (Dialect::passes(answer)) return true;
  if (answer.head.status != 400 && answer.head.status != 409) return false;
  const std::string code = parse_s3_refusal(answer.text).code;
  return code == "RequestTimeout" || code == "SlowDown" || code == "OperationAborted" ||
         code == "ConditionalRequestConflict";
}

std::string parse_s3_upload_id(std::string_view document) {
  std::string id;
  parse_xml(document, {.end = [&](std::string_view path, const std::string& text) {
              // The outermost element has another name in some clones.
              if (path.substr(path.find('/') + 1) == "UploadId") id = text;
            }});
  if (id.empty())
    throw Error(ErrorCode::kNetwork, "the answer that begins the upload has no upload id");
  return id;
}

std::string s3_completion(const std::vector<std::string>& etags) {
  std::string out = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (std::size_t i = 0; i < etags.size(); ++i) {
    out += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>&quot;";
    for (const char c : etags[i]) {
      if (c == '<') {
        out += "&lt;";
      } else if (c == '&') {
        out += "&amp;";
      } else {
        out += c;
      }
    }
    out += "&quot;</ETag></Part>";
  }
  return out + "</CompleteMultipartUpload>";
}

std::vector<S3Begun> parse_s3_begun(std::string_view document) {
  bool is_list = false;
  bool encoded = false;
  std::vector<S3Begun> begun;
  const auto begin = [&](std::string_view path) {
    if (path == "ListMultipartUploadsResult") is_list = true;
    if (path == "ListMultipartUploadsResult/Upload") begun.emplace_back();
  };
  const auto end = [&](std::string_view path, const std::string& text) {
    constexpr std::string_view kRoot = "ListMultipartUploadsResult/";
    if (!path.starts_with(kRoot)) return;
    path.remove_prefix(kRoot.size());
    if (path == "EncodingType") encoded = text == "url";
    if (path == "Upload/Key") begun.back().key = text;
    if (path == "Upload/UploadId") begun.back().id = text;
    if (path == "Upload/Initiated") begun.back().time_ns = parse_iso_time(text).value_or(0);
  };
  parse_xml(document, {begin, end});
  if (!is_list) throw Error(ErrorCode::kNetwork, "the answer is XML, but not a list of uploads");
  for (S3Begun& upload : begun) {
    if (encoded) upload.key = decoded_key(upload.key);
  }
  return begun;
}

std::size_t parse_s3_part_count(std::string_view document) {
  bool is_list = false;
  std::size_t count = 0;
  parse_xml(document, {.begin = [&](std::string_view path) {
              // The name of the outermost element differs between servers.
              if (path.starts_with("ListParts") && path.find('/') == path.npos) is_list = true;
              if (is_list && path.substr(path.find('/') + 1) == "Part") ++count;
            }});
  if (!is_list) throw Error(ErrorCode::kNetwork, "the answer is XML, but not a list of parts");
  return count;
}

}  // namespace fsdp::formats
