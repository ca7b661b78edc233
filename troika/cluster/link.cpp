#include "troika/cluster/link.h"

#include <sys/socket.h>

#include <utility>

#include "troika/net/socket.h"

namespace troika::cluster {

Link::Link(Connected connected) : connected_(std::move(connected)) {}

void Link::post(std::string_view frames) {
  {
    const std::lock_guard lock(mutex_);
    out_.add(connected_.session.sealer.seal(frames));
  }
  if (!flush()) wake();
}

// Whether all is out.
bool Link::flush() {
  const std::lock_guard lock(mutex_);
  std::string reason;
  // The reading side tells why a connection ended, after the news that came before.
  if (!out_.flush(connected_.socket.get(), reason)) out_ = {};
  return out_.empty();
}

void Link::wait() {
  const auto events = static_cast<short>(flush() ? POLLIN : POLLIN | POLLOUT);
  // poll() ignores negative descriptors.
  pollfd entries[] = {{wake_.fd(), POLLIN, 0}, {ended_ ? -1 : connected_.socket.get(), events, 0}};
  if (::poll(entries, 2, -1) < 0) return;
  if (entries[0].revents) wake_.clear();
  std::string reason;
  if (entries[1].revents && !net::receive(connected_.socket.get(), bytes_, reason)) end(reason);
}

std::optional<Frame> Link::next() {
  std::string text;
  connected_.session.opener.open(std::exchange(bytes_, {}), text);
  connected_.in.feed(text);
  return connected_.in.next();
}

void Link::end(const std::string& why) {
  if (!ended_) ended_ = why;
  // The server waits for our end before it is gone.
  shut();
}

void Link::replace(Connected connected) {
  const std::lock_guard lock(mutex_);
  connected_ = std::move(connected);
  out_ = {};
  bytes_.clear();
  ended_.reset();
}

void Link::shut() const {
  ::shutdown(connected_.socket.get(), SHUT_RDWR);
}

}  // namespace troika::cluster
