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

class RefusalHandler final : public XmlHandler {
 public:
  S3Refusal refusal;
  void end(std::string_view path, const std::string& text) override {
    if (path == "Error/Code") refusal.code = text;
    if (path == "Error/Message") refusal.message = text;
    if (path == "Error/Region") refusal.region = text;
  }
};

class PageHandler final : public XmlHandler {
 public:
  PageHandler(std::string_view prefix, bool deep) : prefix_(prefix), deep_(deep) {}
  S3Page page;

  void begin(std::string_view path) override {
    if (path == "ListBucketResult") is_page_ = true;
    if (path == "ListBucketResult/Contents") file_ = {};
  }

  void end(std::string_view path, const std::string& text) override {
    constexpr std::string_view kRoot = "ListBucketResult/";
    if (!path.starts_with(kRoot)) return;
    path.remove_prefix(kRoot.size());
    // EncodingType may follow the keys, so keys are decoded later.
    if (path == "EncodingType") encoded_ = text == "url";
    if (path == "IsTruncated") truncated_ = text == "true";
    if (path == "NextContinuationToken") page.next = text;
    if (path == "CommonPrefixes/Prefix") page.entries.push_back({text, std::nullopt});
    if (path == "Contents") page.entries.push_back({std::exchange(key_, {}), file_});
    if (path == "Contents/Key") key_ = text;
    if (path == "Contents/ETag") file_.version = strong_etag(text);
    if (path == "Contents/LastModified") file_.mtime_ns = parse_iso_time(text).value_or(0);
    if (path == "Contents/Size") {
      const auto bytes = parse_length(text);
      if (!bytes) throw Error(ErrorCode::kNetwork, "the list has a size ", quote(text));
      file_.bytes = *bytes;
    }
  }

  S3Page finish() {
    if (!is_page_) throw Error(ErrorCode::kNetwork, "the answer is XML, but not a list of files");
    if (!truncated_) page.next.clear();
    if (truncated_ && page.next.empty())
      throw Error(ErrorCode::kNetwork,
                  "the list is incomplete, but has no token for the next page");
    std::vector<StoredEntry> members;
    for (StoredEntry& entry : page.entries) {
      if (take_name(entry)) members.push_back(std::move(entry));
    }
    page.entries = std::move(members);
    return std::move(page);
  }

 private:
  // Turns a key into the name of a member of the folder; returns false if it is not one.
  bool take_name(StoredEntry& entry) const {
    std::string key = std::move(entry.name);
    if (encoded_) {
      auto decoded = percent_decode(key, true);
      if (!decoded) throw Error(ErrorCode::kNetwork, "the list has a key ", quote(key));
      key = std::move(*decoded);
    }
    if (!key.starts_with(prefix_))
      throw Error(ErrorCode::kNetwork, "the list of ", quote(prefix_), " has ", quote(key));
    key.erase(0, prefix_.size());
    if (!entry.file && key.ends_with('/')) key.pop_back();
    // A slash at the end marks a folder; an empty name is the listed folder itself.
    if (deep_ && key.ends_with('/')) {
      key.pop_back();
      entry.file.reset();
    }
    // A file name with a slash comes from a server without delimiters.
    if (key.empty() || (!deep_ && key.find('/') != std::string::npos)) return false;
    entry.name = std::move(key);
    return true;
  }

  std::string prefix_;
  bool deep_;
  bool is_page_ = false;
  bool encoded_ = false;
  bool truncated_ = false;
  std::string key_;
  StoredFile file_;
};

class UploadHandler final : public XmlHandler {
 public:
  std::string id;
  void end(std::string_view path, const std::string& text) override {
    // The outermost element has another name in some clones.
    if (path.substr(path.find('/') + 1) == "UploadId") id = text;
  }
};

class BegunHandler final : public XmlHandler {
 public:
  void begin(std::string_view path) override {
    if (path == "ListMultipartUploadsResult") is_list_ = true;
    if (path == "ListMultipartUploadsResult/Upload") begun_.emplace_back();
  }

  void end(std::string_view path, const std::string& text) override {
    constexpr std::string_view kRoot = "ListMultipartUploadsResult/";
    if (!path.starts_with(kRoot)) return;
    path.remove_prefix(kRoot.size());
    if (path == "EncodingType") encoded_ = text == "url";
    if (path == "Upload/Key") begun_.back().key = text;
    if (path == "Upload/UploadId") begun_.back().id = text;
    if (path == "Upload/Initiated") begun_.back().time_ns = parse_iso_time(text).value_or(0);
  }

  std::vector<S3Begun> finish() {
    if (!is_list_) throw Error(ErrorCode::kNetwork, "the answer is XML, but not a list of uploads");
    for (S3Begun& upload : begun_) {
      if (!encoded_) break;
      auto decoded = percent_decode(upload.key, true);
      if (!decoded) throw Error(ErrorCode::kNetwork, "the list has a key ", quote(upload.key));
      upload.key = std::move(*decoded);
    }
    return std::move(begun_);
  }

 private:
  bool is_list_ = false;
  bool encoded_ = false;
  std::vector<S3Begun> begun_;
};

class PartsHandler final : public XmlHandler {
 public:
  bool is_list = false;
  std::size_t count = 0;
  void begin(std::string_view path) override {
    // The name of the outermost element differs between servers.
    if (path.starts_with("ListParts") && path.find('/') == path.npos) is_list = true;
    if (is_list && path.substr(path.find('/') + 1) == "Part") ++count;
  }
};

}  // namespace

S3Refusal parse_s3_refusal(std::string_view document) {
  RefusalHandler handler;
  if (document.find("<Error") == std::string_view::npos) return {};
  try {
    parse_xml(document, handler);
  } catch (const Error& e) {
    // The document is not XML, or ends early: the fields read so far count.
    if (e.code() != ErrorCode::kNetwork) throw;
  }
  return std::move(handler.refusal);
}

S3Page parse_s3_page(std::string_view document, std::string_view prefix, bool deep) {
  PageHandler handler(prefix, deep);
  parse_xml(document, handler);
  return handler.finish();
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
  UploadHandler handler;
  parse_xml(document, handler);
  if (handler.id.empty())
    throw Error(ErrorCode::kNetwork, "the answer that begins the upload has no upload id");
  return std::move(handler.id);
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
  BegunHandler handler;
  parse_xml(document, handler);
  return handler.finish();
}

std::size_t parse_s3_part_count(std::string_view document) {
  PartsHandler handler;
  parse_xml(document, handler);
  if (!handler.is_list)
    throw Error(ErrorCode::kNetwork, "the answer is XML, but not a list of parts");
  return handler.count;
}

}  // namespace fsdp::formats
