// The output of ranks: split into lines for logs, and forwarded to the launcher's own outputs.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace troika::cluster {

// Splits a byte stream into lines. Keeps only the last state of a line that is overwritten
// with carriage returns (a progress bar). Very long lines are split.
class LineCutter {
 public:
  // Calls `take` with each complete line, including its '\n'.
  using Take = std::function<void(std::string_view line)>;
  void feed(std::string_view bytes, const Take& take);
  // Passes on the rest, with '\n' appended, at the end of the stream.
  void finish(const Take& take);

 private:
  std::string line_;
  bool returned_ = false;  // after '\r': the next characters overwrite the line
};

// One of the launcher's own outputs. Never blocks on its reader.
class Outlet {
 public:
  explicit Outlet(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  void add(std::string_view bytes);
  bool pending() const { return !bytes_.empty(); }
  // The reader is slow: the caller should stop reading from the ranks.
  bool full() const { return bytes_.size() >= kFull; }
  // Call after poll() reported POLLOUT or an error. After an error, discards all output.
  void write_some();

 private:
  static constexpr size_t kFull = size_t{1} << 18;

  int fd_;
  std::string bytes_;
  bool gone_ = false;
};

}  // namespace troika::cluster
