// The messages of one collective. Each carries the call it belongs to and its length, and is
// refused by a receiver that is in another call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "troika/comm/call.h"
#include "troika/comm/group_impl.h"
#include "troika/comm/parcel.h"

namespace troika::comm {

// Precedes the payload of every message. Sent as it lies in memory.
struct Frame {
  Print print;         // the sender's call
  uint64_t bytes = 0;  // of the payload
  uint64_t group = 0;  // Station::id
};

// The receive of a payload that is a message of its own is posted once its length is known to be
// right, because a transport may end the process when a message is longer than its receive. It is
// known from the first frame of a stream on: a sender that made the same call sends what the
// receiver expects.
//
// For one call, by one thread. Transfers must not outlive the channel.
class Channel {
 public:
  // Sends and receives for the call of `print`. Both must outlive the channel.
  Channel(GroupImpl& impl, const Print& print) : impl_(impl), print_(print) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  GroupImpl& impl() const { return impl_; }
  const Station& station() const { return impl_.station(); }
  const Print& print() const { return print_; }

  class Arrival;

  // Messages of one (sender, receiver, lane) arrive in the order they were sent. The buffer must
  // stay until the transfer's wait() has returned.
  std::unique_ptr<Transfer> send(int peer, uint32_t lane, const void* data, size_t bytes);
  std::unique_ptr<Arrival> receive(int peer, uint32_t lane, void* data, size_t bytes);

 private:
  // The messages that arrive from one peer on one lane.
  struct Stream {
    int peer = 0;
    uint32_t lane = 0;
    bool verified = false;                  // the peer is in this call
    std::vector<Arrival*> unverified = {};  // in the order of starting
  };

  GroupImpl& impl_;
  const Print& print_;
  std::map<std::pair<int, uint32_t>, Stream> streams_;
};

class Channel::Arrival : public Transfer {
 public:
  ~Arrival() override;
  // Blocks until the frame has come. Throws Error(usage) naming both calls when the sender made
  // another one, and when it sends another length.
  void verify(Deadline deadline);
  // verify(), then blocks until the payload has come.
  void wait(Deadline deadline) override;

 private:
  friend class Channel;
  Arrival(Channel& channel, Stream& stream, void* data, size_t bytes);
  void verify_first(Deadline deadline);
  void refuse_unless_expected(const Frame& frame) const;

  Channel& channel_;
  Stream& stream_;
  const size_t bytes_;
  ArrivingParcel parcel_;
  bool verified_ = false;
};

}  // namespace troika::comm
