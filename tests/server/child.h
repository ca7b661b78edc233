// Processes of a parameter server, and their outputs.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/net/secret.h"
#include "troika/net/socket.h"

namespace troika::server {

// A child process with its standard output.
class Child {
 public:
  Child(const std::string& program, const std::map<std::string, std::string>& variables,
        std::vector<std::string> words) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    words.insert(words.begin(), program);
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    out_ = ends[0];
  }
  ~Child() {
    if (!status_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(out_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int signal) const { ::kill(pid_, signal); }
  // Reads until this line, or the end.
  bool wait_for(const std::string& line) {
    const auto deadline = Deadline::after(std::chrono::seconds(40));
    while (("\n" + text_).find("\n" + line + "\n") == std::string::npos) {
      pollfd entry{out_, POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(deadline.left().count())) <= 0) return false;
      std::array<char, 4096> chunk;
      const auto got = ::read(out_, chunk.data(), chunk.size());
      if (got <= 0) return false;
      text_.append(chunk.data(), static_cast<size_t>(got));
    }
    return true;
  }
  // Reads to the end, and returns the exit code, or 128 + the signal.
  int end() {
    wait_for("no line is like this");
    int status = 0;
    ::waitpid(pid_, &status, 0);
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return *status_;
  }
  const std::string& text() const { return text_; }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
  std::string text_;
  std::optional<int> status_;
};

inline int free_port_of_loopback() {
  int error = 0;
  return net::port_of(net::listen_at("127.0.0.1", 0, error));
}

// A scheduler, servers and workers, which all run the same program.
class Processes {
 public:
  Processes(std::string program, int servers, int workers, std::vector<std::string> words)
      : program_(std::move(program)),
        servers_(servers),
        workers_(workers),
        words_(std::move(words)) {
    start("scheduler", 0);
    for (int i = 0; i < servers; ++i) start("server", i);
    for (int i = 0; i < workers; ++i) start("worker", i);
  }
  void start(const std::string& role, int index, const std::string& word = "") {
    auto words = words_;
    if (!word.empty()) words.push_back(word);
    children_[role + std::to_string(index)] = std::make_unique<Child>(
        program_,
        std::map<std::string, std::string>{{"TROIKA_ROLE", role},
                                           {"TROIKA_ROLE_INDEX", std::to_string(index)},
                                           {"TROIKA_SCHEDULER", address_},
                                           {"TROIKA_SERVERS", std::to_string(servers_)},
                                           {"TROIKA_WORKERS", std::to_string(workers_)},
                                           {"TROIKA_EMBEDDED", servers_ == 0 ? "1" : "0"},
                                           {"TROIKA_RUN_SECRET", secret_.to_hex()}},
        words);
  }
  Child& operator[](const std::string& name) { return *children_.at(name); }
  const std::string& address() const { return address_; }
  const net::Secret& secret() const { return secret_; }

 private:
  const std::string program_;
  const int servers_;
  const int workers_;
  const std::vector<std::string> words_;
  const net::Secret secret_ = net::Secret::random();
  const std::string address_ = fmt::format("127.0.0.1:{}", free_port_of_loopback());
  std::map<std::string, std::unique_ptr<Child>> children_;
};

}  // namespace troika::server
