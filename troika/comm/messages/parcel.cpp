#include "troika/comm/messages/parcel.h"

#include <fmt/format.h>

#include <cstring>

#include "troika/base/error.h"

namespace troika::comm {

namespace {

size_t first_message_bytes(size_t head_bytes, size_t payload_bytes) {
  return head_bytes + (payload_bytes <= kInlineBytes ? payload_bytes : 0);
}

// Lets the two messages of a parcel leave together.
class HeldSends {
 public:
  HeldSends(GroupImpl& impl, int peer, bool holds) : impl_(holds ? &impl : nullptr), peer_(peer) {
    if (impl_) impl_->hold_sends(peer_);
  }
  ~HeldSends() {
    if (impl_) impl_->release_sends(peer_);
  }
  HeldSends(const HeldSends&) = delete;
  HeldSends& operator=(const HeldSends&) = delete;

 private:
  GroupImpl* const impl_;
  const int peer_;
};

}  // namespace

bool send_parcel_at_once(GroupImpl& impl, int peer, const ParcelTags& tags, std::string_view head,
                         std::string_view payload) {
  return payload.size() <= kInlineBytes && impl.send_at_once(peer, tags.head, head, payload);
}

SentParcel::SentParcel(GroupImpl& impl, int peer, const ParcelTags& tags, const void* head,
                       size_t head_bytes, const void* payload, size_t bytes, Send send)
    : buffer_(std::make_unique_for_overwrite<char[]>(first_message_bytes(head_bytes, bytes))) {
  const size_t first = first_message_bytes(head_bytes, bytes);
  std::memcpy(buffer_.get(), head, head_bytes);
  if (first > head_bytes) std::memcpy(buffer_.get() + head_bytes, payload, bytes);
  const bool is_inline = bytes <= kInlineBytes;
  const HeldSends held(impl, peer, !is_inline);
  head_ = (impl.*send)(peer, tags.head, buffer_.get(), first);
  if (!is_inline) payload_ = (impl.*send)(peer, tags.payload, payload, bytes);
}

void SentParcel::wait(Deadline deadline) {
  head_->wait(deadline);
  if (payload_) payload_->wait(deadline);
}

bool SentParcel::done() {
  return head_->done() && (!payload_ || payload_->done());
}

// A sender that is in another call, or sends another size, may send any inline payload after its
// head.
ArrivingParcel::ArrivingParcel(GroupImpl& impl, int peer, const ParcelTags& tags, size_t head_bytes,
                               void* payload, size_t bytes)
    : impl_(impl),
      peer_(peer),
      payload_tag_(tags.payload),
      head_bytes_(head_bytes),
      data_(payload),
      bytes_(bytes),
      head_(impl.receive_lent(peer, tags.head, head_bytes + kInlineBytes)) {}

void ArrivingParcel::post_payload() {
  if (!is_inline()) payload_ = impl_.receive(peer_, payload_tag_, data_, bytes_);
}

void ArrivingParcel::wait_for_head(void* into, Deadline deadline) {
  first_ = head_->wait(deadline);
  require_bytes(head_bytes_);
  std::memcpy(into, first_.data(), head_bytes_);
  if (!is_inline()) head_->let_go();
}

void ArrivingParcel::wait_for_payload(Deadline deadline) {
  if (payload_) return payload_->wait(deadline);
  require_bytes(head_bytes_ + bytes_);
  if (bytes_ > 0) std::memcpy(data_, first_.data() + head_bytes_, bytes_);
  head_->let_go();
}

void ArrivingParcel::require_bytes(size_t bytes) const {
  if (first_.size() >= bytes) return;
  throw Error("comm", ErrorKind::peer,
              {.what = fmt::format("a message from {} is too short", impl_.rank_name(peer_)),
               .got = fmt::format("{} bytes", first_.size()),
               .expected = fmt::format("at least {}", bytes)});
}

bool ArrivingParcel::done() const {
  return head_->done() && (is_inline() || (payload_ && payload_->done()));
}

}  // namespace troika::comm
