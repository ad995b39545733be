// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/xml.h"

#include <exception>
#include <memory>
#include <new>
#include <vector>

#include <climits>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/shared_library.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxName = 256;
constexpr std::size_t kMaxText = std::size_t{64} << 10U;

// The part of libexpat's binary interface that is used, stable since 2.0.
struct Expat {
  void* (*create)(const char* encoding);
  void (*free)(void*);
  void (*set_user_data)(void*, void*);
  void (*set_element_handler)(void*, void (*begin)(void*, const char*, const char**),
                              void (*end)(void*, const char*));
  void (*set_character_handler)(void*, void (*)(void*, const char*, int));
  void (*set_doctype_handler)(void*, void (*)(void*, const char*, const char*, const char*, int));
  int (*stop)(void*, unsigned char resumable);
  int (*parse)(void*, const char*, int size, int is_final);
  int (*error_code)(void*);
  const char* (*error_string)(int);
};

const Expat& expat_library() {
  static const Expat expat = [] {
    const SharedLibrary file("libexpat.so.1",
                             "expat (Debian and Ubuntu: libexpat1; Fedora and RHEL: expat)");
    Expat found{};
    file.find(found.create, "XML_ParserCreate");
    file.find(found.free, "XML_ParserFree");
    file.find(found.set_user_data, "XML_SetUserData");
    file.find(found.set_element_handler, "XML_SetElementHandler");
    file.find(found.set_character_handler, "XML_SetCharacterDataHandler");
    file.find(found.set_doctype_handler, "XML_SetStartDoctypeDeclHandler");
    file.find(found.stop, "XML_StopParser");
    file.find(found.parse, "XML_Parse");
    file.find(found.error_code, "XML_GetErrorCode");
    file.find(found.error_string, "XML_ErrorString");
    return found;
  }();
  return expat;
}

// One run of the parser: the open elements, and what was thrown.
struct XmlRun {
  const Expat& expat;
  void* parser;
  const XmlHandler& handler;
  std::string path;
  struct Open {
    std::size_t path_size;  // of its parent
    std::string text;
  };
  std::vector<Open> open;
  std::exception_ptr thrown;

  template <typename Body>
  void guarded(const Body& body) {
    if (thrown) return;
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
      expat.stop(parser, 0);
    }
  }

  [[noreturn]] static void refuse(const std::string& symptom) {
    throw Error(ErrorCode::kNetwork, "the answer is XML " + symptom);
  }

  void begin(std::string_view name) {
    if (open.size() == kMaxDepth) refuse(cat("with elements more than ", kMaxDepth, " deep"));
    if (name.size() > kMaxName) refuse(cat("with a name of ", name.size(), " bytes"));
    open.push_back({path.size(), {}});
    if (!path.empty()) path += '/';
    path += name.substr(name.rfind(':') + 1);  // npos + 1 is 0
    if (handler.begin) handler.begin(path);
  }

  void text(std::string_view characters) {
    if (open.empty()) return;
    std::string& to = open.back().text;
    if (characters.size() > kMaxText - to.size())
      refuse(cat("with text of more than ", human_bytes(kMaxText), " in ", quote(path)));
    to += characters;
  }

  void end() {
    const Open done = std::move(open.back());
    open.pop_back();
    if (handler.end) handler.end(path, done.text);
    path.resize(done.path_size);
  }
};

extern "C" void fsdp_xml_begin(void* run, const char* name, const char** /*attributes*/) {
  auto& to = *static_cast<XmlRun*>(run);
  to.guarded([&] { to.begin(name); });
}

extern "C" void fsdp_xml_end(void* run, const char* /*name*/) {
  auto& to = *static_cast<XmlRun*>(run);
  to.guarded([&] { to.end(); });
}

extern "C" void fsdp_xml_text(void* run, const char* text, int size) {
  auto& to = *static_cast<XmlRun*>(run);
  to.guarded([&] { to.text({text, static_cast<std::size_t>(size)}); });
}

extern "C" void fsdp_xml_doctype(void* run, const char*, const char*, const char*, int) {
  auto& to = *static_cast<XmlRun*>(run);
  to.guarded([] { XmlRun::refuse("with a document type"); });
}

}  // namespace

void parse_xml(std::string_view document, const XmlHandler& handler) {
  const Expat& expat = expat_library();
  const std::unique_ptr<void, void (*)(void*)> parser(expat.create(nullptr), expat.free);
  if (!parser) throw std::bad_alloc();
  if (document.size() > INT_MAX) XmlRun::refuse(cat("of ", document.size(), " bytes"));
  XmlRun run{expat, parser.get(), handler, {}, {}, {}};
  expat.set_user_data(parser.get(), &run);
  expat.set_element_handler(parser.get(), &fsdp_xml_begin, &fsdp_xml_end);
  expat.set_character_handler(parser.get(), &fsdp_xml_text);
  expat.set_doctype_handler(parser.get(), &fsdp_xml_doctype);
  const int parsed =
      expat.parse(parser.get(), document.data(), static_cast<int>(document.size()), 1);
  if (run.thrown) std::rethrow_exception(run.thrown);
  if (parsed != 1) {
    const char* words = expat.error_string(expat.error_code(parser.get()));
    XmlRun::refuse(cat("that is not well-formed: ", words == nullptr ? "no reason given" : words));
  }
}

}  // namespace fsdp::formats
