// Frames on their way into one socket: several in one system call, payloads from where they lie.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>
#include <vector>

#include "troika/net/frame_cipher.h"
#include "troika/net/send_queue.h"

namespace troika::net {

// For a single thread.
class FrameWriter {
 public:
  FrameWriter(const Secret& key, Protection protection);

  // Frames are added until it is full, then flushed until it is empty. Payloads must stay until
  // then.
  void add(OutFrame frame);
  bool is_full() const;
  bool is_empty() const { return frames_.empty(); }
  // Sends what the socket takes without waiting. When all is out, moves the frames to `written`.
  // False when the connection has ended; `reason` says how.
  bool flush(int socket, std::vector<OutFrame>& written, std::string& reason);
  // Keeps nothing of the payloads.
  void clear();

 private:
  void add_head(const FrameHead& head);
  void add_payload(const OutFrame& frame);
  void add_part(const char* data, size_t size);
  char* gather(const OutFrame& frame);

  const Protection protection_;
  FrameCipher cipher_;
  std::vector<OutFrame> frames_;
  std::vector<iovec> parts_;
  size_t next_part_ = 0;
  size_t payload_ = 0;         // bytes in frames_
  std::vector<char> heads_;    // and tags; never moved
  std::vector<char> scratch_;  // payloads that are encrypted or put together; never moved
};

}  // namespace troika::net
