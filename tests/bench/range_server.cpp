// SPDX-License-Identifier: Apache-2.0
// A server of HTTP/1.1 for benchmarks that answers as S3 does to who reads, each time after a
// while, as one that is far away: lists of folders, sizes, ranges of files.  It costs little beside
// the clients that it measures, and looks at no signature.
// Run: range_server FOLDER LATENCY_MS [LOG]     prints its port; ends when its input does; LOG gets
// "PATH FIRST LAST" for each range that was asked for
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPage = 1000;  // entries of a list

fs::path root;
std::chrono::milliseconds latency;
int log_fd = -1;

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string decoded(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      plain += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

struct Request {
  std::string method;
  std::string path;   // decoded
  std::string query;  // not decoded
  std::string range;  // "0-99", "100-", "-22" or empty

  // The value of a name in the query.
  std::string asked(std::string_view name) const {
    std::size_t at = 0;
    while (at < query.size()) {
      const std::size_t end = std::min(query.find('&', at), query.size());
      const std::string_view part = std::string_view(query).substr(at, end - at);
      if (part.starts_with(name) && part.substr(name.size()).starts_with('='))
        return decoded(part.substr(name.size() + 1));
      at = end + 1;
    }
    return {};
  }
};

// What one client has opened.
class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { ::close(fd_); }

  void serve() {
    while (const auto request = next()) {
      std::this_thread::sleep_for(latency);
      const bool sent = request->query.empty() ? answer_file(*request) : answer_list(*request);
      if (!sent) return;
    }
  }

 private:
  std::optional<Request> next() {
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      char block[1 << 14];
      const ssize_t got = ::recv(fd_, block, sizeof block, 0);
      if (got <= 0) return std::nullopt;
      buffer_.append(block, static_cast<std::size_t>(got));
    }
    const std::string head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    Request request;
    const std::size_t space = head.find(' ');
    request.method = head.substr(0, space);
    const std::string target = head.substr(space + 1, head.find(' ', space + 1) - space - 1);
    const std::size_t mark = std::min(target.find('?'), target.size());
    request.path = decoded(std::string_view(target).substr(0, mark));
    if (mark != target.size()) request.query = target.substr(mark + 1);
    for (const std::string_view name : {"\r\nrange: bytes=", "\r\nRange: bytes="}) {
      const std::size_t at = head.find(name);
      if (at == std::string::npos) continue;
      const std::size_t begin = at + name.size();
      request.range = head.substr(begin, head.find('\r', begin) - begin);
    }
    return request;
  }

  bool send(std::string_view text, int flags) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd_, text.data(), text.size(), flags | MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  bool answer(std::string_view status, const std::string& fields, std::string_view body) {
    return send("HTTP/1.1 " + std::string(status) +
                    "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + fields + "\r\n",
                body.empty() ? 0 : MSG_MORE) &&
           send(body, 0);
  }

  bool answer_file(const Request& request) {
    const int file = ::open((root / request.path.substr(1)).c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info {};
    if (file < 0 || ::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
      if (file >= 0) ::close(file);
      return answer("404 Not Found", "", "");
    }
    const auto size = static_cast<std::uint64_t>(info.st_size);
    std::uint64_t begin = 0;
    std::uint64_t end = size;
    if (!request.range.empty()) {
      const std::size_t dash = request.range.find('-');
      const std::string_view last = std::string_view(request.range).substr(dash + 1);
      begin = dash == 0 ? size - std::min(size, number(last)) : number(request.range);
      if (dash != 0 && !last.empty()) end = std::min(size, number(last) + 1);
    }
    if (begin > end) {
      ::close(file);
      return answer("416 Range Not Satisfiable", "", "");
    }
    if (log_fd >= 0 && request.method == "GET") {
      const std::string line =
          request.path + ' ' + std::to_string(begin) + ' ' + std::to_string(end - 1) + '\n';
      if (::write(log_fd, line.data(), line.size()) < 0) std::abort();
    }
    std::string head = request.range.empty() ? "HTTP/1.1 200 OK" : "HTTP/1.1 206 Partial Content";
    head += "\r\nContent-Length: " + std::to_string(end - begin) + "\r\nETag: " + etag(info);
    if (!request.range.empty()) {
      head += "\r\nContent-Range: bytes " + std::to_string(begin) + '-' + std::to_string(end - 1) +
              '/' + std::to_string(size);
    }
    bool sent = send(head + "\r\n\r\n", request.method == "HEAD" ? 0 : MSG_MORE);
    auto at = static_cast<off_t>(begin);
    while (sent && request.method != "HEAD" && static_cast<std::uint64_t>(at) < end)
      sent = ::sendfile(fd_, file, &at, end - static_cast<std::uint64_t>(at)) > 0;
    ::close(file);
    return sent;
  }

  static std::string etag(const struct stat& info) {
    return '"' + std::to_string(info.st_size) + '-' + std::to_string(info.st_mtim.tv_nsec) + '"';
  }

  bool answer_list(const Request& request) {
    const std::string prefix = request.asked("prefix");
    const fs::path folder = root / request.path.substr(1) / prefix;
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
      names.push_back(entry.path().filename().native());
    std::sort(names.begin(), names.end());
    const std::size_t first = number(request.asked("continuation-token"));
    const std::size_t behind = std::min(names.size(), first + kPage);
    std::string body = "<ListBucketResult><IsTruncated>" +
                       std::string(behind < names.size() ? "true" : "false") + "</IsTruncated>";
    if (behind < names.size())
      body += "<NextContinuationToken>" + std::to_string(behind) + "</NextContinuationToken>";
    for (std::size_t i = first; i < behind; ++i) {
      struct stat info {};
      if (::stat((folder / names[i]).c_str(), &info) != 0) continue;
      if (S_ISDIR(info.st_mode)) {
        body += "<CommonPrefixes><Prefix>" + prefix + names[i] + "/</Prefix></CommonPrefixes>";
      } else {
        body += "<Contents><Key>" + prefix + names[i] + "</Key><ETag>" + etag(info) +
                "</ETag><Size>" + std::to_string(info.st_size) + "</Size></Contents>";
      }
    }
    return answer("200 OK", "Content-Type: application/xml\r\n", body + "</ListBucketResult>");
  }

  int fd_;
  std::string buffer_;  // what came and was not looked at
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: range_server FOLDER LATENCY_MS [LOG]\n";
    return 2;
  }
  root = argv[1];
  latency = std::chrono::milliseconds(number(argv[2]));
  if (argc > 3) log_fd = ::open(argv[3], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      ::listen(listener, 128) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    std::cerr << "no port\n";
    return 2;
  }
  std::cout << ntohs(address.sin_port) << std::endl;
  std::thread([] {
    while (std::cin.get() != EOF) {
    }
    std::_Exit(0);
  }).detach();
  for (;;) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    std::thread([fd] { Connection(fd).serve(); }).detach();
  }
}
