#include "troika/cluster/outbox.h"

#include <string_view>
#include <utility>

#include "troika/net/socket.h"

namespace troika::cluster {

void Outbox::add(std::string bytes) {
  if (bytes_.empty()) {
    bytes_ = std::move(bytes);
  } else {
    bytes_ += bytes;
  }
}

bool Outbox::flush(int socket, std::string& reason) {
  auto unsent = std::string_view(bytes_).substr(sent_);
  const bool open = net::send_some(socket, unsent, reason);
  sent_ = bytes_.size() - unsent.size();
  if (unsent.empty()) {
    bytes_.clear();
    sent_ = 0;
  }
  return open;
}

}  // namespace troika::cluster
