#include "troika/cluster/outbox.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "troika/cluster/descriptor.h"

namespace troika::cluster {

void Outbox::add(std::string bytes) {
  if (bytes_.empty()) {
    bytes_ = std::move(bytes);
  } else {
    bytes_ += bytes;
  }
}

bool Outbox::flush(int socket, std::string& reason) {
  while (!bytes_.empty()) {
    const ssize_t sent = ::send(socket, bytes_.data() + sent_, bytes_.size() - sent_, MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_ += static_cast<size_t>(sent);
      if (sent_ < bytes_.size()) continue;
      bytes_.clear();
      sent_ = 0;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      reason = system_reason(errno);
      return false;
    }
  }
  return true;
}

}  // namespace troika::cluster
