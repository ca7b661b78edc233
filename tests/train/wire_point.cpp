// Replaces the two functions of the C library by which frames leave and arrive.
#include "tests/train/wire_point.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/net/frame.h"
#include "troika/server/control.h"
#include "troika/server/gathered_messages.h"

namespace troika::train {

namespace {

// Finds messages in the bytes of one direction of one socket.
class FrameStream {
 public:
  template <typename Take>
  void take(const iovec* parts, size_t bytes, const Take& take_message) {
    for (; bytes > 0; ++parts) {
      const size_t part = std::min(bytes, parts->iov_len);
      bytes_.append(static_cast<const char*>(parts->iov_base), part);
      bytes -= part;
    }
    while (bytes_.size() >= net::kFrameHead) {
      const auto head = head_of();
      if (!head) return bytes_.clear();
      const size_t size = net::kFrameHead + head->length;
      if (bytes_.size() < size) return;
      if (head->kind == net::FrameKind::message) {
        take_message(head->channel, bytes_.substr(net::kFrameHead, head->length));
      }
      bytes_.erase(0, size);
    }
  }

 private:
  // Returns nullopt for bytes that are not a frame's.
  std::optional<net::FrameHead> head_of() const {
    try {
      return net::decode(std::span<const char, net::kFrameHead>(bytes_.data(), net::kFrameHead));
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  std::string bytes_;
};

class Watch {
 public:
  explicit Watch(WirePoint point) : point_(std::move(point)) {}

  void pass(Passage passage, int socket, const iovec* parts, size_t bytes) {
    if (passage != point_.passage) return;
    const std::lock_guard lock(mutex_);
    streams_[socket].take(parts, bytes, [this](net::Channel channel, const std::string& message) {
      const auto look = [&](const std::string& each) {
        if (point_.is_it(channel, each) && --point_.number == 0) ::raise(SIGKILL);
      };
      if (channel != server::kRequests && channel != server::kAnswers) return look(message);
      server::for_each_message(message, look);
    });
  }

 private:
  std::mutex mutex_;
  WirePoint point_;
  std::map<int, FrameStream> streams_;
};

std::unique_ptr<Watch> g_watch;

}  // namespace

void die_at(WirePoint point) {
  g_watch = std::make_unique<Watch>(std::move(point));
}

}  // namespace troika::train

extern "C" {

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  const auto sent = ::syscall(SYS_sendmsg, socket, message, flags);
  if (sent > 0 && troika::train::g_watch) {
    troika::train::g_watch->pass(troika::train::Passage::sent, socket, message->msg_iov,
                                 static_cast<size_t>(sent));
  }
  return sent;
}

ssize_t readv(int socket, const iovec* parts, int count) {
  const auto got = ::syscall(SYS_readv, socket, parts, count);
  if (got > 0 && troika::train::g_watch) {
    troika::train::g_watch->pass(troika::train::Passage::received, socket, parts,
                                 static_cast<size_t>(got));
  }
  return got;
}

}  // extern "C"
