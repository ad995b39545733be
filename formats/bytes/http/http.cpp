// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/http.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <string_view>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/certificates.h"
#include "formats/bytes/http/curl_library.h"

namespace fsdp::formats {
namespace curl {

// A handle, which is destroyed before its open connections.
struct Connection {
  std::unique_ptr<Multi, int (*)(Multi*)> multi;
  std::unique_ptr<Easy, void (*)(Easy*)> easy;

  explicit Connection(const Library& curl)
      : multi(curl.multi_init(), curl.multi_cleanup), easy(curl.easy_init(), curl.easy_cleanup) {
    if (!easy || !multi) throw std::bad_alloc();
  }
};

}  // namespace curl

namespace {

constexpr std::size_t kMaxRefusal = std::size_t{64} << 10U;
// Small enough that the buffers of some connections stay in the processor's cache.
constexpr long kBufferBytes = 128L << 10U;
constexpr int kPollMs = 100;  // an interrupt is noticed within this time
constexpr long kConnectMs = 10'000;
// Bytes per second; a slower transfer counts as stalled.
constexpr long kSlowestBytes = 1024;
constexpr std::size_t kMaxIdle = 128;

using FieldList = std::unique_ptr<curl::List, void (*)(curl::List*)>;

// Returns the fields of a request as a list of libcurl.
// Throws: TransferError if a value has a line end; std::bad_alloc.
FieldList field_list(const curl::Library& curl, const HttpRequest& request) {
  FieldList list(nullptr, curl.slist_free_all);
  const auto add = [&](const std::string& line) {
    curl::List* longer = curl.slist_append(list.get(), line.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    (void)list.release();  // the longer list owns it
    list.reset(longer);
  };
  for (const auto& [name, value] : request.fields) {
    // Text after a line end would become another field.
    if (value.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos)
      throw TransferError(cat("the value of the field ", name, " has a line end"), 1);
    add(cat(name, ": ", value));
  }
  // Removes two fields that libcurl adds: the Content-Type of a form, and Expect, which costs a
  // round trip before a long body, or a second if the server does not answer.
  if (!request.body.empty() || request.method == "PUT" || request.method == "POST") {
    add("Expect:");
    if (std::ranges::none_of(request.fields,
                             [](const auto& field) { return field.first == "content-type"; })) {
      add("Content-Type:");
    }
  }
  return list;
}

// Blocks SIGPIPE in this thread while libcurl writes to sockets that may be closed, and drops
// signals that came.  libcurl's own handler would be the whole process's.
class NoPipeSignal : NotCopied {
 public:
  NoPipeSignal() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    if (::sigismember(&before_, SIGPIPE) == 0) {
      const timespec no_time{};
      while (::sigtimedwait(&pipe_, nullptr, &no_time) == SIGPIPE) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

// Returns how often to try a request that failed with this code.
unsigned tries_after(int code) {
  switch (code) {
    // Trying again would change nothing.
    case curl::kUrlMalformed:
    case curl::kSslCertProblem:
    case curl::kPeerFailedVerification:
    case curl::kSslCaCertBadFile:
      return 1;
    // Most often a typing error or a missing server; sometimes temporary.
    case curl::kCouldntResolveHost:
    case curl::kCouldntResolveProxy:
      return 3;
    case curl::kCouldntConnect:
    // The server does not speak HTTP, or its answer is garbled.
    case curl::kUnsupportedProtocol:
      return 5;
    default:
      return 1000;
  }
}

std::string environment_path(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing sets variables
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

// What the callbacks of one request share.
struct Transfer {
  HttpSink* sink = nullptr;
  std::size_t max_text = 0;
  HttpAnswer answer;
  bool begun = false;
  bool enough = false;
  std::exception_ptr thrown;

  void head_line(std::string_view line) { add_head_line(answer.head, line); }

  void body(std::string_view bytes) {
    if (answer.succeeded() && sink != nullptr) {
      if (!begun) sink->begin(answer.head);
      begun = true;
      enough = !sink->take(std::as_bytes(std::span(bytes)));
      return;
    }
    const std::size_t most = answer.succeeded() ? max_text : kMaxRefusal;
    if (answer.succeeded() && bytes.size() > most - answer.text.size())
      throw TransferError(cat("the answer has more than ", human_bytes(most)), 1);
    answer.text.append(bytes.substr(0, most - answer.text.size()));
  }

  // Calls one of the above; returns the number of bytes taken, as libcurl's callbacks do.
  std::size_t taken(void (Transfer::*take)(std::string_view), std::string_view bytes) {
    try {
      (this->*take)(bytes);
      return enough ? 0 : bytes.size();
    } catch (...) {
      thrown = std::current_exception();
      return 0;
    }
  }
};

extern "C" std::size_t fsdp_take_head_line(char* data, std::size_t size, std::size_t count,
                                           void* transfer) {
  return static_cast<Transfer*>(transfer)->taken(&Transfer::head_line, {data, size * count});
}

extern "C" std::size_t fsdp_take_body(char* data, std::size_t size, std::size_t count,
                                      void* transfer) {
  return static_cast<Transfer*>(transfer)->taken(&Transfer::body, {data, size * count});
}

using Locks = std::array<std::mutex, curl::kLockDataCount>;

extern "C" void fsdp_lock_share(void*, int data, int, void* locks) {
  static_cast<Locks*>(locks)->at(static_cast<std::size_t>(data)).lock();
}

extern "C" void fsdp_unlock_share(void*, int data, void* locks) {
  static_cast<Locks*>(locks)->at(static_cast<std::size_t>(data)).unlock();
}

}  // namespace

struct HttpClient::State {
  const curl::Library& curl = curl::library();
  Locks locks;
  curl::Share* share = nullptr;
  std::string authorities = environment_path({"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"});
  std::string authority_folder = environment_path({"SSL_CERT_DIR"});
  bool trusts_nobody = false;
  std::mutex mutex;
  std::vector<std::unique_ptr<curl::Connection>> idle;

  State() : share(curl.share_init()) {
    if (share == nullptr) throw std::bad_alloc();
    if (authorities.empty() && authority_folder.empty() && !curl::knows_certificates(curl)) {
      authorities = system_certificates();
      trusts_nobody = authorities.empty();
    }
    curl.share_setopt(share, curl::kLockFunction, &fsdp_lock_share);
    curl.share_setopt(share, curl::kUnlockFunction, &fsdp_unlock_share);
    curl.share_setopt(share, curl::kUserData, &locks);
    curl.share_setopt(share, curl::kShareData, curl::kLockDataDns);
    curl.share_setopt(share, curl::kShareData, curl::kLockDataSslSession);
  }
  ~State() {
    idle.clear();
    curl.share_cleanup(share);
  }

  // Prefers the connection used last, which is likeliest to be open still.
  std::unique_ptr<curl::Connection> borrow() {
    {
      const std::scoped_lock lock(mutex);
      if (!idle.empty()) {
        auto connection = std::move(idle.back());
        idle.pop_back();
        return connection;
      }
    }
    return std::make_unique<curl::Connection>(curl);
  }

  void give_back(std::unique_ptr<curl::Connection> connection) {
    const std::scoped_lock lock(mutex);
    if (idle.size() < kMaxIdle) idle.push_back(std::move(connection));
  }

  void describe(curl::Easy* easy, const HttpRequest& request, const curl::List* fields,
                Transfer& transfer, std::array<char, curl::kErrorBufferBytes>& words) const {
    const auto set = [&](curl::Option option, auto value) {
      const int code = curl.easy_setopt(easy, option, value);
      if (code == curl::kOutOfMemory) throw std::bad_alloc();
      if (code != curl::kOk) {
        throw TransferError(cat("libcurl refuses its option ", static_cast<int>(option), ": ",
                                curl.easy_strerror(code)),
                            1);
      }
    };
    curl.easy_reset(easy);
    set(curl::kErrorBuffer, words.data());
    set(curl::kShare, share);
    set(curl::kUrl, request.url.c_str());
    set(curl::kPathAsIs, 1L);  // a/../b is a name like any other
    set(curl::kProtocols, curl::kProtocolsHttp);
    set(curl::kHttpVersion,
        curl::kHttpVersion11);  // a connection per request carries more than one for all
    set(curl::kNoSignal, 1L);
    set(curl::kTcpKeepAlive, 1L);
    // Ignores a failure: some versions refuse this option for a used handle, and it only affects
    // speed.
    (void)curl.easy_setopt(easy, curl::kBufferSize, kBufferBytes);
    set(curl::kUserAgent, "fsdp-ckpt");
    set(curl::kSslVerifyPeer, 1L);
    set(curl::kSslVerifyHost, 2L);
    if (!authorities.empty()) set(curl::kCaInfo, authorities.c_str());
    if (!authority_folder.empty()) set(curl::kCaPath, authority_folder.c_str());
    if (request.past_proxies) set(curl::kNoProxy, "*");
    if (request.once) set(curl::kFreshConnect, 1L);
    set(curl::kConnectTimeoutMs, request.timeout.count() > 0
                                     ? std::min<long>(kConnectMs, request.timeout.count())
                                     : kConnectMs);
    set(curl::kTimeoutMs, static_cast<long>(request.timeout.count()));
    set(curl::kLowSpeedLimit, kSlowestBytes);
    set(curl::kLowSpeedTime, static_cast<long>(request.stall.count()));
    set(curl::kHeaderFunction, &fsdp_take_head_line);
    set(curl::kHeaderData, &transfer);
    set(curl::kWriteFunction, &fsdp_take_body);
    set(curl::kWriteData, &transfer);
    if (request.method == "HEAD") {
      set(curl::kNoBody, 1L);
    } else if (request.method == "PUT" || request.method == "POST") {
      set(curl::kPost, 1L);
      set(curl::kPostFields,
          request.body.empty() ? "" : reinterpret_cast<const char*>(request.body.data()));
      set(curl::kPostFieldSizeLarge, static_cast<long long>(request.body.size()));
    } else {
      set(curl::kHttpGet, 1L);
    }
    if (request.method != "GET" && request.method != "HEAD")
      set(curl::kCustomRequest, request.method.c_str());
    set(curl::kHttpHeader, fields);
  }

  int perform(const curl::Connection& connection, const HttpRequest& request) const {
    const NoPipeSignal no_pipe_signal;
    curl::Easy* const easy = connection.easy.get();
    curl::Multi* const multi = connection.multi.get();
    if (curl.multi_add_handle(multi, easy) != curl::kOk) throw std::bad_alloc();
    const auto remove = [&](curl::Easy* added) { curl.multi_remove_handle(multi, added); };
    const std::unique_ptr<curl::Easy, decltype(remove)> added(easy, remove);
    for (;;) {
      int running = 0;
      if (curl.multi_perform(multi, &running) != curl::kOk) throw std::bad_alloc();
      int left = 0;
      while (const curl::Message* message = curl.multi_info_read(multi, &left)) {
        if (message->kind == curl::kMessageDone) return message->data.result;
      }
      if (!request.though_interrupted) throw_if_interrupted();
      curl.multi_poll(multi, nullptr, 0, kPollMs, nullptr);
    }
  }
};

HttpClient::HttpClient() : state_(std::make_unique<State>()) {}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::send(const HttpRequest& request, HttpSink* sink, std::size_t max_text) {
  if (!request.though_interrupted) throw_if_interrupted();
  Transfer transfer;
  transfer.sink = sink;
  transfer.max_text = max_text;
  std::array<char, curl::kErrorBufferBytes> words{};
  const FieldList fields = field_list(state_->curl, request);
  auto connection = state_->borrow();
  state_->describe(connection->easy.get(), request, fields.get(), transfer, words);
  const int code = state_->perform(*connection, request);
  // The handle points to objects of this call, which end here.
  state_->curl.easy_reset(connection->easy.get());
  if (code == curl::kOk) state_->give_back(std::move(connection));
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  // libcurl reports both with the same code.
  if (code == curl::kOutOfMemory)
    throw TransferError("a line of the answer's head is too long, or libcurl is out of memory", 3);
  // A refusal that came during the upload says more than the connection that broke after it.
  if (code != curl::kOk && !transfer.enough && transfer.answer.head.status < 400) {
    const std::string_view said =
        words[0] == '\0' ? state_->curl.easy_strerror(code) : words.data();
    const bool unknown = code == curl::kPeerFailedVerification && state_->trusts_nobody;
    throw TransferError(
        cat(escape(said), unknown ? "; no file with certificates of authorities was "
                                    "found here: SSL_CERT_FILE names one"
                                  : ""),
        tries_after(code));
  }
  if (transfer.answer.head.status == 0) throw TransferError("the answer has no status", 1000);
  if (sink != nullptr && transfer.answer.succeeded()) {
    if (!transfer.begun) sink->begin(transfer.answer.head);
    sink->end();
  }
  return std::move(transfer.answer);
}

}  // namespace fsdp::formats
