// The output of ranks: cut into lines for logs, and passed on to the launcher's own outputs.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace troika::cluster {

// A stream of bytes as lines. Of a line that carriage returns draw over (a progress bar), only the
// last state is kept; very long lines come in pieces.
class LineCutter {
 public:
  // Calls `take` with each whole line, its '\n' included.
  using Take = std::function<void(std::string_view line)>;
  void feed(std::string_view bytes, const Take& take);
  // The rest, completed with '\n', when the stream has ended.
  void finish(const Take& take);

 private:
  std::string line_;
  bool returned_ = false;  // a '\r' came; what follows draws over the line
};

// One of the launcher's own outputs, written without ever waiting for its reader.
class Outlet {
 public:
  explicit Outlet(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  void add(std::string_view bytes);
  bool pending() const { return !bytes_.empty(); }
  // The reader is slow: stop reading from the ranks for a while.
  bool full() const { return bytes_.size() >= kFull; }
  // After poll() said POLLOUT (or an error). An output that is gone swallows everything.
  void write_some();

 private:
  static constexpr size_t kFull = size_t{1} << 18;

  int fd_;
  std::string bytes_;
  bool gone_ = false;
};

}  // namespace troika::cluster
