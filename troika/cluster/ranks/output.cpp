#include "troika/cluster/ranks/output.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace troika::cluster {

namespace {
constexpr size_t kLongestLine = size_t{1} << 16;
}

void LineCutter::feed(std::string_view bytes, const Take& take) {
  while (!bytes.empty()) {
    if (bytes[0] == '\r') {
      returned_ = true;
      bytes.remove_prefix(1);
    } else if (bytes[0] == '\n') {
      line_ += '\n';
      take(line_);
      line_.clear();
      returned_ = false;
      bytes.remove_prefix(1);
    } else {
      if (returned_) line_.clear();
      returned_ = false;
      const size_t size = std::min(bytes.find_first_of("\r\n"), bytes.size());
      line_ += bytes.substr(0, size);
      bytes.remove_prefix(size);
      if (line_.size() < kLongestLine) continue;
      take(line_);
      line_.clear();
    }
  }
}

void LineCutter::finish(const Take& take) {
  if (!line_.empty()) feed("\n", take);
}

void Outlet::add(std::string_view bytes) {
  if (!gone_) bytes_ += bytes;
}

void Outlet::write_some() {
  // A writable pipe accepts this many bytes without blocking.
  const ssize_t written = ::write(fd_, bytes_.data(), std::min<size_t>(bytes_.size(), PIPE_BUF));
  if (written >= 0) {
    bytes_.erase(0, static_cast<size_t>(written));
  } else if (errno != EINTR && errno != EAGAIN) {
    gone_ = true;
    bytes_.clear();
  }
}

}  // namespace troika::cluster
