// Programs that run beside a test.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <utility>

#include "troika/net/descriptor.h"

namespace troika {

// A program whose output, of both kinds, comes through a pipe.
class Process {
 public:
  Process(const std::filesystem::path& folder, const std::string& arguments) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    output_ = net::Descriptor(ends[0]);
    const net::Descriptor written(ends[1]);
    const auto command =
        fmt::format("cd {}; exec {} {}", folder.string(), TROIKA_PROGRAM, arguments);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::dup2(written.get(), STDOUT_FILENO);
    ::dup2(written.get(), STDERR_FILENO);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  ~Process() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Reads until the output has `mark` and a word behind it, which is returned.
  std::string word_behind(const std::string& mark) {
    for (;;) {
      const auto at = text_.find(mark);
      const auto begin = at + mark.size();
      const auto end = at == text_.npos ? text_.npos : text_.find_first_of(" \n", begin);
      if (end != text_.npos) return text_.substr(begin, end - begin);
      if (!read_some()) {
        ADD_FAILURE() << "no " << mark << " in " << text_;
        return "";
      }
    }
  }
  // Reads to the end, and returns the exit code.
  int wait() {
    while (read_some()) {
    }
    if (pid_ <= 0) return exit_code_;
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void stop() { ::kill(pid_, SIGTERM); }
  const std::string& text() const { return text_; }

 private:
  // False at the end, or if nothing comes for a minute.
  bool read_some() {
    if (!net::wait_for(output_.get(), POLLIN, Deadline::after(std::chrono::minutes(1)))) {
      return false;
    }
    std::array<char, 4096> bytes;
    const auto count = ::read(output_.get(), bytes.data(), bytes.size());
    if (count <= 0) return false;
    text_.append(bytes.data(), static_cast<size_t>(count));
    return true;
  }

  net::Descriptor output_;
  pid_t pid_ = 0;
  int exit_code_ = -1;
  std::string text_;
};

}  // namespace troika
