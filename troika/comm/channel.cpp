#include "troika/comm/channel.h"

#include <fmt/format.h>

#include <cstring>

#include "troika/base/error.h"

namespace troika::comm {

namespace {

bool is_inline(size_t bytes) {
  return bytes <= Channel::kInlineBytes;
}

class Sending : public Transfer {
 public:
  Sending(GroupImpl& impl, int peer, uint32_t lane, const Frame& frame, const void* data)
      : buffer_(std::make_unique_for_overwrite<char[]>(frame_bytes(frame))) {
    std::memcpy(buffer_.get(), &frame, sizeof(Frame));
    if (is_inline(frame.bytes) && frame.bytes > 0) {
      std::memcpy(buffer_.get() + sizeof(Frame), data, frame.bytes);
    }
    frame_ = impl.send(peer, kCollectiveTag | lane, buffer_.get(), frame_bytes(frame));
    if (!is_inline(frame.bytes)) {
      payload_ = impl.send(peer, kPayloadTag | lane, data, frame.bytes);
    }
  }
  void wait(Deadline deadline) override {
    frame_->wait(deadline);
    if (payload_) payload_->wait(deadline);
  }

 private:
  static size_t frame_bytes(const Frame& frame) {
    return sizeof(Frame) + (is_inline(frame.bytes) ? frame.bytes : 0);
  }

  const std::unique_ptr<char[]> buffer_;
  std::unique_ptr<Transfer> frame_;
  std::unique_ptr<Transfer> payload_;
};

}  // namespace

std::unique_ptr<Transfer> Channel::send(int peer, uint32_t lane, const void* data, size_t bytes) {
  return std::make_unique<Sending>(impl_, peer, lane, Frame{print_, bytes, station().id}, data);
}

std::unique_ptr<Channel::Arrival> Channel::receive(int peer, uint32_t lane, void* data,
                                                   size_t bytes) {
  Stream& stream = streams_.try_emplace({peer, lane}, Stream{peer, lane}).first->second;
  return std::unique_ptr<Arrival>(new Arrival(*this, stream, data, bytes));
}

// A peer in another call may send any payload behind its frame.
Channel::Arrival::Arrival(Channel& channel, Stream& stream, void* data, size_t bytes)
    : channel_(channel),
      stream_(stream),
      data_(data),
      bytes_(bytes),
      buffer_(std::make_unique_for_overwrite<char[]>(sizeof(Frame) + kInlineBytes)),
      frame_(channel.impl_.receive(stream.peer, kCollectiveTag | stream.lane, buffer_.get(),
                                   sizeof(Frame) + kInlineBytes)) {
  stream_.unverified.push_back(this);
  if (stream_.verified) post_payload();
}

Channel::Arrival::~Arrival() {
  std::erase(stream_.unverified, this);
}

void Channel::Arrival::post_payload() {
  if (is_inline(bytes_)) return;
  payload_ = channel_.impl_.receive(stream_.peer, kPayloadTag | stream_.lane, data_, bytes_);
}

// Payloads arrive in the order of the frames, so frames are looked at in that order.
void Channel::Arrival::verify(Deadline deadline) {
  while (!verified_) stream_.unverified.front()->verify_first(deadline);
}

void Channel::Arrival::verify_first(Deadline deadline) {
  frame_->wait(deadline);
  Frame frame;
  std::memcpy(&frame, buffer_.get(), sizeof(Frame));
  refuse_unless_expected(frame);
  verified_ = true;
  if (!std::exchange(stream_.verified, true)) {
    for (Arrival* arrival : stream_.unverified) arrival->post_payload();
  }
  stream_.unverified.erase(stream_.unverified.begin());
}

void Channel::Arrival::refuse_unless_expected(const Frame& frame) const {
  const Station& station = channel_.station();
  const auto world_rank = [&](int rank) { return station.world_ranks[static_cast<size_t>(rank)]; };
  if (!channel_.print_.agrees_with(frame.print) || frame.group != station.id) {
    throw_disagreement(world_rank(station.rank), channel_.print_, world_rank(stream_.peer),
                       frame.print);
  }
  if (frame.bytes == bytes_) return;
  throw Error(
      "comm", ErrorKind::usage,
      {.what = fmt::format("rank {} sends rank {} another length in {}", world_rank(stream_.peer),
                           world_rank(station.rank), channel_.print_.describe()),
       .got = fmt::format("{} bytes", frame.bytes),
       .expected = fmt::format("{}", bytes_)});
}

void Channel::Arrival::wait(Deadline deadline) {
  verify(deadline);
  if (payload_) {
    payload_->wait(deadline);
  } else if (bytes_ > 0) {
    std::memcpy(data_, buffer_.get() + sizeof(Frame), bytes_);
  }
}

}  // namespace troika::comm
