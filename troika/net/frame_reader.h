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
  // A guess: memory for the payload of the next long message, and the channel of that message.
  struct Expected {
    Channel channel = 0;
    std::span<char> place = {};
  };

  virtual ~FrameSink() = default;
  // Returns the destination of the payload: head.length bytes that stay valid until end() or
  // forget(). Null: the payload is dropped.
  virtual char* begin(const FrameHead& head) = 0;
  // The frame is complete.
  virtual void end(const FrameHead& head) = 0;
  // Returns memory that begin() will probably return for the next message of the place's size on
  // the channel; an empty place if unknown. The reader may write to it at any time. It stays valid
  // until forget() or keep_read_ahead(), or until a message or an announcement of the channel has
  // ended. begin() must not invalidate it.
  virtual Expected expected() const = 0;
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
  // Copies what was read into memory of the sink ahead of its frame, so that the reader uses that
  // memory no more. Returns whether there was any.
  bool keep_read_ahead();

 private:
  enum class State : uint8_t { head, payload, tag };

  size_t buffered() const { return end_ - start_; }
  bool would_overwrite_ahead(std::span<const char> memory) const;
  ssize_t read_some(int socket, bool& is_drained);
  bool may_end_expected() const;
  ssize_t read_ahead(int socket, std::span<char> place, bool& is_drained);
  bool is_near_end() const;
  void parse(FrameSink& sink);
  bool parse_frame(FrameSink& sink);
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
  // The unparsed bytes, in their order: buffer_[start_, end_), ahead_, and tail_ bytes at end_.
  size_t start_ = 0, end_ = 0;
  std::span<const char> ahead_;   // in memory of the sink
  FrameSink::Expected expected_;  // when it was read
  size_t tail_ = 0;
  size_t parsed_ = 0;  // bytes since the buffer was last empty between two frames
  size_t offset_ = 0;  // where the last long payload began after such a point; 0: unknown
  std::vector<char> nowhere_;
};

}  // namespace troika::net
