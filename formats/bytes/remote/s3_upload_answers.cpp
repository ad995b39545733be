// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_upload_answers.h"

#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/encoding.h"
#include "formats/bytes/http/times.h"
#include "formats/bytes/http/xml.h"

namespace fsdp::formats {
namespace {

class UploadHandler final : public XmlHandler {
 public:
  std::string id;
  void begin(std::string_view /*path*/) override {}
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
      if (!decoded) {
        throw Error(ErrorCode::kNetwork, cat("the list has a key ", quote(upload.key)));
      }
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
  void end(std::string_view /*path*/, const std::string& /*text*/) override {}
};

}  // namespace

std::string parse_s3_upload_id(std::string_view document) {
  UploadHandler handler;
  parse_xml(document, handler);
  if (handler.id.empty()) {
    throw Error(ErrorCode::kNetwork, "the answer that begins the upload has no upload id");
  }
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
  if (!handler.is_list) {
    throw Error(ErrorCode::kNetwork, "the answer is XML, but not a list of parts");
  }
  return handler.count;
}

}  // namespace fsdp::formats
