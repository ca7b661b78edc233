// Bytes on their way into a nonblocking socket.
#pragma once

#include <string>

namespace troika::cluster {

// Grows without bound while the other side does not read. For a single thread.
class Outbox {
 public:
  void add(std::string bytes);
  bool empty() const { return bytes_.empty(); }
  // Sends what the socket takes without waiting and keeps the rest. False when the connection has
  // ended; `reason` says how.
  bool flush(int socket, std::string& reason);

 private:
  std::string bytes_;
  size_t sent_ = 0;  // of bytes_
};

}  // namespace troika::cluster
