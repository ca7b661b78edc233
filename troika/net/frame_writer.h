// Writes frames to one socket: several per system call, payloads directly from the caller's memory.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>
#include <vector>

#include "troika/net/frame_cipher.h"
#include "troika/net/send_queue.h"

namespace troika::net {

// Not thread-safe.
class FrameWriter {
 public:
  FrameWriter(const Secret& key, Protection protection);

  // Adds a frame. Call add() until is_full(), then flush() until is_empty(). One frame without a
  // payload may be added beyond. Payloads must stay valid until then.
  void add(OutFrame frame);
  bool is_full() const;
  bool is_empty() const { return frames_.empty(); }
  // Sends what the socket accepts without waiting. Once everything is sent, moves the frames to
  // `written`. Returns false when the connection has ended; `reason` says why.
  bool flush(int socket, std::vector<OutFrame>& written, std::string& reason);
  // Drops all frames. The payloads are not accessed any more.
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
  size_t payload_ = 0;         // total payload bytes of frames_
  std::vector<char> heads_;    // also the tags; never reallocated
  std::vector<char> scratch_;  // encrypted or gathered payloads; never reallocated
};

}  // namespace troika::net
