// A head and a payload from one rank to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "troika/comm/group_impl.h"

namespace troika::comm {

// A payload of at most this size travels behind its head, in one message. A larger one is a message
// of its own, straight from and into the caller's buffer.
inline constexpr size_t kInlineBytes = size_t{8} << 10;

// The tags of the message that begins with the head and of the one that is a large payload.
struct ParcelTags {
  uint32_t head = 0;
  uint32_t payload = 0;
};

// Sends a parcel whose payload is inline, and returns true, if the back end can at once; see
// GroupImpl::send_at_once().
bool send_parcel_at_once(GroupImpl& impl, int peer, const ParcelTags& tags, std::string_view head,
                         std::string_view payload);

class SentParcel : public Transfer {
 public:
  // How the messages are sent: GroupImpl::send or send_until_received.
  using Send = std::unique_ptr<Transfer> (GroupImpl::*)(int peer, uint32_t tag, const void* data,
                                                        size_t bytes);
  // Starts sending. The head is copied; the payload must stay until wait() has returned.
  SentParcel(GroupImpl& impl, int peer, const ParcelTags& tags, const void* head, size_t head_bytes,
             const void* payload, size_t bytes, Send send = &GroupImpl::send);
  void wait(Deadline deadline) override;
  bool done() override;
  bool has_copied() override { return !payload_ || payload_->has_copied(); }

 private:
  const std::unique_ptr<char[]> buffer_;  // the head and an inline payload
  std::unique_ptr<Transfer> head_;
  std::unique_ptr<Transfer> payload_;
};

class ArrivingParcel {
 public:
  // Starts receiving the head. The buffer of the payload must stay until wait_for_payload() has
  // returned.
  ArrivingParcel(GroupImpl& impl, int peer, const ParcelTags& tags, size_t head_bytes,
                 void* payload, size_t bytes);

  // Blocks until the head has come, and copies it to `into`. Called once.
  void wait_for_head(void* into, Deadline deadline);
  // Starts receiving a payload that is a message of its own; does nothing for an inline one.
  // Payloads of one peer and tag arrive in the order of these calls.
  void post_payload();
  // Blocks until the payload has come. Called after post_payload(), and after a head that says that
  // the sender sends as many bytes.
  void wait_for_payload(Deadline deadline);
  // Whether both waits would return at once; false where that cannot be told.
  bool done() const;

 private:
  bool is_inline() const { return bytes_ <= kInlineBytes; }

  GroupImpl& impl_;
  const int peer_;
  const uint32_t payload_tag_;
  const size_t head_bytes_;
  void* const data_;
  const size_t bytes_;
  const std::unique_ptr<LentMessage> head_;  // and any inline payload
  std::string_view first_;                   // its bytes
  std::unique_ptr<Transfer> payload_;
};

}  // namespace troika::comm
