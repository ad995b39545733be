// SPDX-License-Identifier: Apache-2.0
// Runs a command line of fsdp-ckpt as the first and the last rank of a job, two processes; the
// other ranks agree with the first and do nothing.  Instead of copying bytes, it divides them among
// all ranks.  File systems seem to have room for any output.
//
//   plan_for_ranks RANKS VERB ARG...
//
// Prints, after what the command prints, "last SECONDS PROCESSOR_SECONDS PEAK_BYTES" and "planned
// SECONDS PROCESSOR_SECONDS PEAK_BYTES LEAST MOST MEAN", for the last rank and for the first: from
// the start of the process until the first bytes would be copied, its memory until then, and the
// bytes of the output that the rank with the fewest, that with the most, and one on average has.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "formats/state/model/copy.h"
#include "formats/state/model/division.h"
#include "formats/state/model/extents.h"
#include "tools/command/cli.h"

namespace {

using fsdp::formats::CopyOptions;
using fsdp::formats::CopyResult;
using fsdp::formats::TargetPiece;

const auto g_begin = std::chrono::steady_clock::now();

struct Planned {
  double seconds = 0;
  double processor_seconds = 0;
  std::uint64_t peak_bytes = 0;
  std::vector<std::uint64_t> shares;  // by rank
};
Planned g_planned;

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) throw fsdp::Error(fsdp::ErrorCode::kIo, "the other rank is gone");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void receive_all(int socket, char* out, std::size_t size) {
  while (size != 0) {
    const ssize_t got = ::recv(socket, out, size, 0);
    if (got <= 0) throw fsdp::Error(fsdp::ErrorCode::kIo, "the other rank is gone");
    out += got;
    size -= static_cast<std::size_t>(got);
  }
}

// Its members between the first and the last say what the leader says, unless that is long: then it
// is what the leader alone knows, and they say nothing.
class AgreeingTeam : public fsdp::formats::Team {
 public:
  // `socket`: to the other one of the first and the last member.
  AgreeingTeam(std::size_t rank, std::size_t size, int socket)
      : Team(rank, size), socket_(socket) {}

 private:
  std::vector<std::string> gather(const std::string& mine) override {
    constexpr std::size_t kLong = 1U << 20U;
    std::string other;
    if (leads()) send(mine);
    std::uint64_t bytes = 0;
    receive_all(socket_, reinterpret_cast<char*>(&bytes), sizeof bytes);
    other.resize(bytes);
    receive_all(socket_, other.data(), other.size());
    if (!leads()) send(mine);
    const std::string& first = leads() ? mine : other;
    fsdp::formats::Unpacked fields(std::string_view(first).substr(1));
    const std::string nothing =
        first[0] + fsdp::formats::Packed().text(fields.text()).text("").take();
    std::vector<std::string> all(size(), first.size() < kLong ? first : nothing);
    all.front() = first;
    all.back() = leads() ? other : mine;
    return all;
  }

  void send(const std::string& message) const {
    const std::uint64_t bytes = message.size();
    send_all(socket_, {reinterpret_cast<const char*>(&bytes), sizeof bytes});
    send_all(socket_, message);
  }

  int socket_;
};

}  // namespace

// The linker gives the library's calls of copy_pieces to this function.
CopyResult divide_pieces(std::span<const TargetPiece> pieces, const CopyOptions& options) asm(
    "__wrap__ZN4fsdp7formats11copy_piecesESt4spanIKNS0_11TargetPieceELm18446744073709551615EERKNS0_"
    "11CopyOptionsE");

CopyResult divide_pieces(std::span<const TargetPiece> pieces, const CopyOptions& options) {
  using namespace fsdp::formats;
  const std::size_t ranks = options.team->size();
  agree_on_pieces(*options.team, pieces);
  const std::vector<PieceRange> work = rest_of(pieces, {});
  const Division division = divide_copy(pieces, work, ranks);
  if (g_planned.shares.empty()) {
    g_planned.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - g_begin).count();
    g_planned.processor_seconds = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    struct rusage usage {};
    ::getrusage(RUSAGE_SELF, &usage);
    g_planned.peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
    g_planned.shares.resize(ranks);
  }
  CopyResult result;
  result.crcs.resize(pieces.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    division.for_each(rank, [&](std::size_t part, ElementRange range) {
      const std::uint64_t item = item_bytes(pieces[work[part].piece].written_dtype());
      g_planned.shares[rank] += range.count * item;
    });
  }
  result.bytes = std::accumulate(g_planned.shares.begin(), g_planned.shares.end(), result.bytes);
  return result;
}

// In place of those of the C library.
extern "C" int fallocate(int, int, off_t, off_t) {
  errno = EOPNOTSUPP;
  return -1;
}

extern "C" int statvfs(const char*, struct statvfs* info) {
  *info = {};
  info->f_bsize = info->f_frsize = 4096;
  info->f_blocks = info->f_bfree = info->f_bavail = std::uint64_t{1} << 40U;
  return 0;
}

namespace {

// Returns the status; prints the times and the memory.
int run_last(std::size_t ranks, const std::vector<std::string>& words, int socket) {
  AgreeingTeam team(ranks - 1, ranks, socket);
  const int status = fsdp::cli::run(words, std::cout, std::cerr, team);
  std::cout << "last " << g_planned.seconds << ' ' << g_planned.processor_seconds << ' '
            << g_planned.peak_bytes << std::endl;
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  int sockets[2];
  if (argc < 3 || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return 2;
  const auto ranks = static_cast<std::size_t>(std::atol(argv[1]));
  const std::vector<std::string> words(argv + 2, argv + argc);
  if (ranks < 2) return 2;
  const pid_t last = ::fork();
  if (last == 0) {
    ::close(sockets[0]);
    ::_exit(run_last(ranks, words, sockets[1]));
  }
  ::close(sockets[1]);
  int status = 0;
  {
    AgreeingTeam team(0, ranks, sockets[0]);
    status = fsdp::cli::run(words, std::cout, std::cerr, team);
  }
  ::close(sockets[0]);
  int last_status = 0;
  if (last < 0 || ::waitpid(last, &last_status, 0) != last || last_status != 0) return 1;
  const auto [least, most] = std::minmax_element(g_planned.shares.begin(), g_planned.shares.end());
  if (status != 0 || g_planned.shares.empty()) return status == 0 ? 1 : status;
  const std::uint64_t total =
      std::accumulate(g_planned.shares.begin(), g_planned.shares.end(), std::uint64_t{0});
  std::cout << "planned " << g_planned.seconds << ' ' << g_planned.processor_seconds << ' '
            << g_planned.peak_bytes << ' ' << *least << ' ' << *most << ' '
            << total / g_planned.shares.size() << '\n';
  return 0;
}
