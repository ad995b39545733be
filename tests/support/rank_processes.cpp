// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rank_processes.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace fsdp::test {
namespace {

constexpr std::chrono::seconds kTooLong(60);
constexpr std::chrono::milliseconds kPause(10);

bool of_a_launcher(std::string_view variable) {
  for (const std::string_view prefix :
       {"RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "MASTER_ADDR=", "MASTER_PORT=",
        "OMPI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "GLOO_"}) {
    if (variable.starts_with(prefix)) return true;
  }
  return false;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!of_a_launcher(*variable)) result.emplace_back(*variable);
  }
  for (const auto& [name, value] : variables) {
    result.push_back(name + "=" + value);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

template <typename Done>
void wait_until(const Done& done, const std::string& what) {
  const auto deadline = std::chrono::steady_clock::now() + kTooLong;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error(what);
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool found = ::bind(fd, any, bytes) == 0 && ::getsockname(fd, any, &bytes) == 0;
  ::close(fd);
  if (!found) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

Processes::~Processes() {
  for (auto& process : processes_) {
    if (ended(process)) continue;
    ::kill(process.pid, SIGKILL);
    ::waitpid(process.pid, nullptr, 0);
  }
}

std::size_t Processes::start(const std::vector<std::string>& command,
                             const std::map<std::string, std::string>& variables) {
  auto arguments = command;
  auto environment = environment_with(variables);
  const auto argument_pointers = pointers(arguments);
  const auto environment_pointers = pointers(environment);
  const std::size_t index = processes_.size();
  const std::string log_path = log(index).string();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("cannot fork");
  if (pid == 0) {
    const int fd = ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
    ::execve(argument_pointers[0], argument_pointers.data(), environment_pointers.data());
    ::_exit(127);
  }
  processes_.push_back({pid, false, 0});
  return index;
}

void Processes::send(std::size_t process, int signal) {
  if (::kill(processes_.at(process).pid, signal) != 0) throw std::runtime_error("cannot signal");
}

std::filesystem::path Processes::log(std::size_t process) const {
  return folder_ / std::to_string(process);
}

std::string Processes::output(std::size_t process) const {
  std::ifstream in(log(process), std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

bool Processes::ended(Process& process) {
  if (!process.ended && ::waitpid(process.pid, &process.status, WNOHANG) == process.pid) {
    process.ended = true;
  }
  return process.ended;
}

void Processes::wait_for_line(std::size_t process, const std::string& line) {
  const auto printed = [&] {
    return ("\n" + output(process)).find("\n" + line + "\n") != std::string::npos;
  };
  wait_until([&] { return printed() || ended(processes_.at(process)); },
             "no line '" + line + "' in: " + output(process));
  if (!printed()) {
    throw std::runtime_error("ended without the line '" + line + "': " + output(process));
  }
}

int Processes::wait(std::size_t process) {
  auto& waited = processes_.at(process);
  wait_until([&] { return ended(waited); }, "still running: " + output(process));
  return WIFEXITED(waited.status) ? WEXITSTATUS(waited.status) : -WTERMSIG(waited.status);
}

}  // namespace fsdp::test
