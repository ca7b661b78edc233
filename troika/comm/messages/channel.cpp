#include "troika/comm/messages/channel.h"

#include <fmt/format.h>

#include "troika/base/error.h"

namespace troika::comm {

namespace {

ParcelTags tags_of(uint32_t lane) {
  return {.head = kCollectiveTag | lane, .payload = kPayloadTag | lane};
}

}  // namespace

std::unique_ptr<Transfer> Channel::send(int peer, uint32_t lane, const void* data, size_t bytes) {
  const Frame frame{fingerprint_, bytes, info().id};
  return std::make_unique<SentParcel>(impl_, peer, tags_of(lane), &frame, sizeof(Frame), data,
                                      bytes);
}

std::unique_ptr<Channel::Arrival> Channel::receive(int peer, uint32_t lane, void* data,
                                                   size_t bytes) {
  Stream& stream = streams_.try_emplace({peer, lane}, Stream{peer, lane}).first->second;
  return std::unique_ptr<Arrival>(new Arrival(*this, stream, data, bytes));
}

Channel::Arrival::Arrival(Channel& channel, Stream& stream, void* data, size_t bytes)
    : channel_(channel),
      stream_(stream),
      bytes_(bytes),
      parcel_(channel.impl_, stream.peer, tags_of(stream.lane), sizeof(Frame), data, bytes) {
  stream_.unverified.push_back(this);
  if (stream_.verified) parcel_.post_payload();
}

Channel::Arrival::~Arrival() {
  std::erase(stream_.unverified, this);
}

// Payloads arrive in the order of their frames, so frames are verified in that order.
void Channel::Arrival::verify(Deadline deadline) {
  while (!verified_) stream_.unverified.front()->verify_first(deadline);
}

void Channel::Arrival::verify_first(Deadline deadline) {
  Frame frame;
  parcel_.wait_for_head(&frame, deadline);
  refuse_unless_expected(frame);
  verified_ = true;
  if (!std::exchange(stream_.verified, true)) {
    for (Arrival* arrival : stream_.unverified) arrival->parcel_.post_payload();
  }
  stream_.unverified.erase(stream_.unverified.begin());
}

void Channel::Arrival::refuse_unless_expected(const Frame& frame) const {
  const GroupImpl& group = channel_.impl();
  if (!channel_.fingerprint_.matches(frame.fingerprint) || frame.group != group.info().id) {
    throw_disagreement(group, channel_.fingerprint_, stream_.peer, frame.fingerprint);
  }
  if (frame.bytes == bytes_) return;
  throw Error(
      "comm", ErrorKind::usage,
      {.what = fmt::format("{} sends {} another length in {}", group.rank_name(stream_.peer),
                           group.rank_name(group.rank()), channel_.fingerprint_.describe()),
       .got = fmt::format("{} bytes", frame.bytes),
       .expected = fmt::format("{}", bytes_)});
}

void Channel::Arrival::wait(Deadline deadline) {
  verify(deadline);
  parcel_.wait_for_payload(deadline);
}

}  // namespace troika::comm
