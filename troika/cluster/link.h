// A rank's end of its connection to rank 0's server or a relay.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "troika/cluster/connected.h"
#include "troika/cluster/outbox.h"

namespace troika::cluster {

// post() and wake() may be called from any thread; all else belongs to the thread that reads.
class Link {
 public:
  explicit Link(Connected connected);

  // Never blocks: what the socket does not take now is sent during wait().
  void post(std::string_view frames);
  // Ends wait().
  void wake() const { wake_.wake(); }

  // Blocks until there is something to read, or wake(). Reads it; after the end only wake() counts.
  void wait();
  // The next frame that was read. Throws Error(cluster or net, failure) for bytes that the other
  // end did not send.
  std::optional<Frame> next();
  // How the connection has ended; nothing while it has not.
  const std::optional<std::string>& ended() const { return ended_; }
  void end(const std::string& why);
  // Goes on with another connection. What was posted and not sent is lost.
  void replace(Connected connected);
  void shut() const;

 private:
  bool flush();

  net::Waker wake_;
  std::string bytes_;  // read and not opened yet
  std::optional<std::string> ended_;
  std::mutex mutex_;  // guards writing
  Connected connected_;
  Outbox out_;
};

}  // namespace troika::cluster
