// Frames that come out of one socket: small ones through a buffer, payloads straight to where they
// belong.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "troika/net/frame_cipher.h"

namespace troika::net {

// Who takes the frames. What it throws ends the connection.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Where the payload belongs, a span of head.length bytes that stays until end() or forget();
  // null: nowhere.
  virtual char* begin(const FrameHead& head) = 0;
  // The frame is whole.
  virtual void end(const FrameHead& head) = 0;
};

// For a single thread.
class FrameReader {
 public:
  FrameReader(const Secret& key, Protection protection);

  // Reads what is there without waiting, at most about 1 MiB. False when the connection has ended;
  // `reason` says how. Throws Error(net, failure) for what the other end did not send.
  bool read(int socket, FrameSink& sink, std::string& reason);
  // Writes nothing more to this memory: what belongs there goes nowhere.
  void forget(std::span<const char> memory);

 private:
  enum class State : uint8_t { head, payload, tag };

  size_t buffered() const { return end_ - start_; }
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
  size_t missing_ = 0;                    // bytes of the payload
  const std::unique_ptr<char[]> buffer_;  // pages that nothing is read to cost no memory
  size_t start_ = 0, end_ = 0;            // what is in the buffer
  std::vector<char> nowhere_;
};

}  // namespace troika::net
