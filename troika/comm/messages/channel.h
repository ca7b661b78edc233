// The messages of one collective. Each message carries the fingerprint of its call and its length.
// A receiver that is in another call refuses the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "troika/comm/call/call.h"
#include "troika/comm/messages/group_impl.h"
#include "troika/comm/messages/parcel.h"

namespace troika::comm {

// The header before the payload of every message. Sent as raw memory.
struct Frame {
  CollectiveFingerprint fingerprint;  // the sender's call
  uint64_t bytes = 0;                 // of the payload
  uint64_t group = 0;                 // GroupInfo::id
};

// Sends and receives the messages of one call. One thread may use a channel. Transfers must not
// outlive the channel.
//
// A payload that is a message of its own is received only after its length has been verified,
// because a transport may end the process when a message is longer than its receive. The first
// frame of a stream is enough: a sender that made the same call sends the lengths that the receiver
// expects.
class Channel {
 public:
  // Both arguments must outlive the channel.
  Channel(GroupImpl& impl, const CollectiveFingerprint& fingerprint)
      : impl_(impl), fingerprint_(fingerprint) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  GroupImpl& impl() const { return impl_; }
  const GroupInfo& info() const { return impl_.info(); }
  const CollectiveFingerprint& fingerprint() const { return fingerprint_; }

  class Arrival;

  // Messages of one (sender, receiver, lane) arrive in the order they were sent. The buffer must
  // stay valid until the transfer's wait() has returned.
  std::unique_ptr<Transfer> send(int peer, uint32_t lane, const void* data, size_t bytes);
  std::unique_ptr<Arrival> receive(int peer, uint32_t lane, void* data, size_t bytes);

 private:
  // The messages from one peer on one lane.
  struct Stream {
    int peer = 0;
    uint32_t lane = 0;
    bool verified = false;                  // the peer is in this call
    std::vector<Arrival*> unverified = {};  // in the order they were started
  };

  GroupImpl& impl_;
  const CollectiveFingerprint& fingerprint_;
  std::map<std::pair<int, uint32_t>, Stream> streams_;
};

class Channel::Arrival : public Transfer {
 public:
  ~Arrival() override;
  // Blocks until the frame has arrived. Throws Error(usage) that names both calls when the sender
  // made another call or sends another length.
  void verify(Deadline deadline);
  // Calls verify(), then blocks until the payload has arrived.
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
