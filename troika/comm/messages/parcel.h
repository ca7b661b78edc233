// A head and a payload sent from one rank to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "troika/comm/messages/group_impl.h"

namespace troika::comm {

// A payload of at most this size follows its head in the same message. A larger payload is a
// separate message, sent from and received into the caller's buffer without a copy.
inline constexpr size_t kInlineBytes = size_t{8} << 10;

// The tag of the message that begins with the head, and the tag of a separate payload.
struct ParcelTags {
  uint32_t head = 0;
  uint32_t payload = 0;
};

// Sends a parcel with an inline payload and returns true, if the back end can send at once; see
// GroupImpl::send_at_once().
bool send_parcel_at_once(GroupImpl& impl, int peer, const ParcelTags& tags, std::string_view head,
                         std::string_view payload);

class SentParcel : public Transfer {
 public:
  // GroupImpl::send or GroupImpl::send_until_received.
  using Send = std::unique_ptr<Transfer> (GroupImpl::*)(int peer, uint32_t tag, const void* data,
                                                        size_t bytes);
  // Starts sending. The head is copied; the payload must stay valid until wait() has returned.
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
  // Starts receiving the head. The payload's buffer must stay valid until wait_for_payload() has
  // returned.
  ArrivingParcel(GroupImpl& impl, int peer, const ParcelTags& tags, size_t head_bytes,
                 void* payload, size_t bytes);

  // Blocks until the head has arrived, and copies it to `into`. Call once.
  void wait_for_head(void* into, Deadline deadline);
  // Starts receiving a separate payload; does nothing for an inline payload. Payloads from one peer
  // with one tag arrive in the order of these calls.
  void post_payload();
  // Blocks until the payload has arrived. Call after post_payload(), and only if the head says that
  // the sender sends this many bytes.
  void wait_for_payload(Deadline deadline);
  // Returns true if both waits would return at once; false also if this cannot be known.
  bool done() const;

 private:
  bool is_inline() const { return bytes_ <= kInlineBytes; }
  // Throws Error(peer) if the first message is shorter.
  void require_bytes(size_t bytes) const;

  GroupImpl& impl_;
  const int peer_;
  const uint32_t payload_tag_;
  const size_t head_bytes_;
  void* const data_;
  const size_t bytes_;
  const std::unique_ptr<LentMessage> head_;  // head and inline payload
  std::string_view first_;                   // bytes of head_
  std::unique_ptr<Transfer> payload_;
};

}  // namespace troika::comm
