#include "troika/net/frame_writer.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "troika/net/descriptor.h"

namespace troika::net {

namespace {

constexpr size_t kMostFrames = 64;
// A frame may be added while the payloads have fewer bytes than this.
constexpr size_t kEnoughPayload = kMaxFramePayload;

}  // namespace

FrameWriter::FrameWriter(const Secret& key, Protection protection)
    : protection_(protection), cipher_(key) {
  heads_.reserve((kMostFrames + 1) * (kSealedHead + kFrameTag));
}

bool FrameWriter::is_full() const {
  return frames_.size() >= kMostFrames || payload_ >= kEnoughPayload;
}

void FrameWriter::add_part(const char* data, size_t size) {
  parts_.push_back({const_cast<char*>(data), size});
}

void FrameWriter::add_head(const FrameHead& head) {
  std::array<char, kFrameHead> plain;
  encode(head, plain);
  const size_t start = heads_.size();
  if (protection_ == Protection::none) {
    heads_.insert(heads_.end(), plain.begin(), plain.end());
  } else {
    heads_.resize(start + kSealedHead);
    cipher_.seal_head(plain, std::span<char, kSealedHead>(heads_.data() + start, kSealedHead));
  }
  add_part(heads_.data() + start, heads_.size() - start);
}

// Copies the payload into one contiguous piece.
char* FrameWriter::gather(const OutFrame& frame) {
  scratch_.reserve(kEnoughPayload + kMaxFramePayload);
  const size_t start = scratch_.size();
  frame.message->message.slice(frame.offset(), frame.head.length, [&](std::string_view part) {
    scratch_.insert(scratch_.end(), part.begin(), part.end());
  });
  return scratch_.data() + start;
}

void FrameWriter::add_payload(const OutFrame& frame) {
  const size_t size = frame.head.length;
  if (protection_ == Protection::none) {
    frame.message->message.slice(
        frame.offset(), size, [&](std::string_view part) { add_part(part.data(), part.size()); });
    return;
  }
  const size_t start = heads_.size();
  heads_.resize(start + kFrameTag);
  const std::span<char, kFrameTag> tag(heads_.data() + start, kFrameTag);
  std::string_view first;
  frame.message->message.slice(frame.offset(), size, [&](std::string_view part) {
    if (first.empty()) first = part;
  });
  const bool is_one_piece = first.size() == size;
  const char* payload = first.data();
  if (protection_ == Protection::encrypted || !is_one_piece) {
    char* const copy = gather(frame);
    payload = copy;
    if (protection_ == Protection::encrypted) cipher_.seal({copy, size}, copy, tag);
  }
  if (protection_ == Protection::authenticated) cipher_.sign({payload, size}, tag);
  add_part(payload, size);
  add_part(tag.data(), tag.size());
}

void FrameWriter::add(OutFrame frame) {
  add_head(frame.head);
  if (frame.head.length > 0) add_payload(frame);
  payload_ += frame.head.length;
  frames_.push_back(std::move(frame));
}

bool FrameWriter::flush(int socket, std::vector<OutFrame>& written, std::string& reason) {
  while (next_part_ < parts_.size()) {
    msghdr message{};
    message.msg_iov = &parts_[next_part_];
    message.msg_iovlen = parts_.size() - next_part_;
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      reason = system_reason(errno);
      return false;
    }
    auto left = static_cast<size_t>(sent);
    while (next_part_ < parts_.size() && left >= parts_[next_part_].iov_len) {
      left -= parts_[next_part_++].iov_len;
    }
    if (left == 0) continue;
    iovec& part = parts_[next_part_];
    part.iov_base = static_cast<char*>(part.iov_base) + left;
    part.iov_len -= left;
  }
  std::ranges::move(frames_, std::back_inserter(written));
  clear();
  return true;
}

void FrameWriter::clear() {
  frames_.clear();
  parts_.clear();
  heads_.clear();
  scratch_.clear();
  next_part_ = payload_ = 0;
}

}  // namespace troika::net
