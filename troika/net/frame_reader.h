// Reads frames from one socket: small ones through a buffer, payloads directly into their
// destination.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "troika/net/frame_cipher.h"

namespace troika::net {

// Receives the frames. An exception from it ends the connection.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Returns the destination of the payload: head.length bytes that stay valid until end() or
  // forget(). Null: the payload is dropped.
  virtual char* begin(const FrameHead& head) = 0;
  // The frame is complete.
  virtual void end(const FrameHead& head) = 0;
};

// Not thread-safe.
class FrameReader {
 public:
  FrameReader(const Secret& key, Protection protection);

  // Reads available bytes without waiting, at most about 1 MiB. Returns false when the connection
  // has ended; `reason` says why. Throws Error(net, failure) for invalid frames.
  bool read(int socket, FrameSink& sink, std::string& reason);
  // Stops writing to `memory`: a payload that is being read into it is dropped.
  void forget(std::span<const char> memory);

 private:
  enum class State : uint8_t { head, payload, tag };

  size_t buffered() const { return end_ - start_; }
  bool is_near_end() const;
  void parse(FrameSink& sink);
  bool take_head(FrameSink& sink);
  void take_payload(const char* bytes, size_t size);
  bool take_tag();
  char* nowhere();

  const Protection protection_;
  FrameCipher cipher_;
  State state_ = State::head;
  FrameHead head_;
  char* payload_ = nullptr;
  size_t missing_ = 0;                    // bytes of the payload still to be read
  const std::unique_ptr<char[]> buffer_;  // uninitialized, so that unused pages take no memory
  size_t start_ = 0, end_ = 0;            // the unparsed bytes in buffer_
  std::vector<char> nowhere_;
};

}  // namespace troika::net
