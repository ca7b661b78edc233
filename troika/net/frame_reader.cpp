#include "troika/net/frame_reader.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "troika/net/descriptor.h"

namespace troika::net {

namespace {

constexpr size_t kBuffer = size_t{64} << 10;
// Between payloads, at most this many bytes are read at once: of a long payload that follows, only
// these are copied out of the buffer.
constexpr size_t kBetweenPayloads = size_t{8} << 10;
// While a long payload is read, at most this many bytes behind it are read into the buffer, because
// they would have to be copied out of it.
constexpr size_t kBehindPayload = 512;
constexpr size_t kMostAtOnce = size_t{1} << 20;
// Where the next long payload is expected to begin, and how much of it is read into its place
// before its head has been parsed. A message of kEagerBytes usually takes one system call.
constexpr size_t kMostOffset = 512;
constexpr size_t kMostAhead = kEagerBytes;
// Has room for read_some(), and for what read_ahead() reads if another frame than the expected one
// arrives.
constexpr size_t kAllocated = kBuffer + kMostAhead;
static_assert(kAllocated >= kMostOffset + kMostAhead + kBehindPayload);
// The end of a payload usually follows within microseconds. Asking the socket again this many times
// takes less than a return to the poller.
constexpr size_t kNearEnd = size_t{64} << 10;
constexpr int kTries = 8;

}  // namespace

FrameReader::FrameReader(const Secret& key, Protection protection)
    : protection_(protection),
      cipher_(key),
      buffer_(std::make_unique_for_overwrite<char[]>(kAllocated)) {}

bool FrameReader::read(int socket, FrameSink& sink, std::string& reason) {
  int tries = kTries;
  for (size_t total = 0; total < kMostAtOnce;) {
    // Moves the rest to the front, so that a head and a tag always fit.
    if (start_ > 0) {
      std::memmove(buffer_.get(), buffer_.get() + start_, buffered());
      end_ -= std::exchange(start_, 0);
    }
    bool is_drained = false;
    std::span<char> expected;
    if (state_ == State::head && end_ == 0) {
      parsed_ = 0;
      if (offset_ > 0) expected_ = sink.expected();
      if (offset_ > 0 && expected_.place.size() <= kMostAhead) expected = expected_.place;
    }
    const ssize_t got =
        expected.empty() ? read_some(socket, is_drained) : read_ahead(socket, expected, is_drained);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (is_near_end() && tries-- > 0) continue;
      return true;
    }
    if (got <= 0) {
      reason = got == 0 ? "its connection closed" : system_reason(errno);
      return false;
    }
    total += static_cast<size_t>(got);
    if (!expected.empty()) offset_ = 0;  // set again by the next long payload
    parse(sink);
    if (is_drained && !is_near_end()) return true;
  }
  return true;
}

// Reads the rest of a payload, and bytes into the buffer. Returns what readv(2) does.
ssize_t FrameReader::read_some(int socket, bool& is_drained) {
  std::array<iovec, 2> parts;
  int count = 0;
  const bool reads_payload = state_ == State::payload;
  size_t room = kBuffer - end_;
  if (!reads_payload) {
    room = std::min(room, kBetweenPayloads);
  } else {
    parts[static_cast<size_t>(count++)] = {payload_, missing_};
    if (missing_ > kBuffer / 2) room = std::min(room, kBehindPayload);
  }
  const size_t wanted = room + (reads_payload ? missing_ : 0);
  parts[static_cast<size_t>(count++)] = {buffer_.get() + end_, room};
  const ssize_t got = ::readv(socket, parts.data(), count);
  if (got <= 0) return got;
  auto bytes = static_cast<size_t>(got);
  is_drained = bytes < wanted;
  if (reads_payload) {
    const size_t direct = std::min(bytes, missing_);
    take_payload(payload_, direct);
    bytes -= direct;
  }
  end_ += bytes;
  return got;
}

// Reads as if the frames that come next have the sizes of the last ones: heads into the buffer, and
// the long payload behind them into its place.
ssize_t FrameReader::read_ahead(int socket, std::span<char> place, bool& is_drained) {
  const size_t wanted = offset_ + place.size() + kBehindPayload;
  const std::array<iovec, 3> parts{{{buffer_.get(), offset_},
                                    {place.data(), place.size()},
                                    {buffer_.get() + offset_, kBehindPayload}}};
  const ssize_t got = ::readv(socket, parts.data(), static_cast<int>(parts.size()));
  if (got <= 0) return got;
  auto bytes = static_cast<size_t>(got);
  is_drained = bytes < wanted;
  end_ = std::min(bytes, offset_);
  bytes -= end_;
  ahead_ = place.first(std::min(bytes, place.size()));
  tail_ = bytes - ahead_.size();
  return got;
}

bool FrameReader::keep_read_ahead() {
  const size_t added = ahead_.size() + tail_;
  if (added == 0) return false;
  char* const end = buffer_.get() + end_;
  std::memmove(end + ahead_.size(), end, tail_);
  if (!ahead_.empty()) std::memcpy(end, ahead_.data(), ahead_.size());
  ahead_ = {};
  tail_ = 0;
  end_ += added;
  return true;
}

// Whether bytes that were read ahead are in memory that does not begin with them.
bool FrameReader::would_overwrite_ahead(std::span<const char> memory) const {
  const bool overlaps = !ahead_.empty() && ahead_.data() < memory.data() + memory.size() &&
                        memory.data() < ahead_.data() + ahead_.size();
  return overlaps && (buffered() > 0 || memory.data() != ahead_.data());
}

// Whether the owner of the memory that was read ahead into may use it before the frame of head_ has
// ended, or when it ends and more than this frame is there.
bool FrameReader::may_end_expected() const {
  if (ahead_.empty() || head_.channel != expected_.channel) return false;
  if (head_.kind == FrameKind::message) return head_.length != expected_.place.size();
  return head_.kind == FrameKind::announce;
}

bool FrameReader::is_near_end() const {
  return state_ == State::payload && missing_ <= kNearEnd;
}

void FrameReader::parse(FrameSink& sink) {
  while (parse_frame(sink) || keep_read_ahead()) {
  }
}

// Returns false if the frame is incomplete.
bool FrameReader::parse_frame(FrameSink& sink) {
  if (state_ == State::head && !take_head(sink)) return false;
  if (state_ == State::payload) {
    const size_t size = std::min(missing_, buffered());
    take_payload(buffer_.get() + start_, size);
    start_ += size;
    const auto part = ahead_.first(std::min(missing_, ahead_.size()));
    ahead_ = ahead_.subspan(part.size());
    if (!part.empty()) take_payload(part.data(), part.size());
    if (state_ == State::payload) return false;
    // When the frame has ended, others may use its memory, where more may have been read.
    if (!part.empty()) keep_read_ahead();
  }
  if (state_ == State::tag && !take_tag()) return false;
  state_ = State::head;
  sink.end(head_);
  return true;
}

// Parses the next head. Returns false if it is incomplete. A frame without payload is complete
// afterwards.
bool FrameReader::take_head(FrameSink& sink) {
  const bool is_sealed = protection_ != Protection::none;
  const size_t size = is_sealed ? kSealedHead : kFrameHead;
  if (buffered() < size) return false;
  const char* const bytes = buffer_.get() + start_;
  std::array<char, kFrameHead> plain;
  if (is_sealed) {
    cipher_.open_head(std::span<const char, kSealedHead>(bytes, kSealedHead), plain);
  } else {
    std::copy_n(bytes, kFrameHead, plain.begin());
  }
  start_ += size;
  parsed_ += size;
  head_ = decode(plain);
  if (may_end_expected()) keep_read_ahead();
  payload_ = sink.begin(head_);
  missing_ = head_.length;
  if (missing_ == 0) return true;
  if (!payload_) payload_ = nowhere();
  if (would_overwrite_ahead({payload_, missing_})) keep_read_ahead();
  if (missing_ > kBetweenPayloads) offset_ = parsed_ <= kMostOffset ? parsed_ : 0;
  state_ = State::payload;
  return true;
}

// Adds bytes to the payload. They are not copied if they were read in place.
void FrameReader::take_payload(const char* bytes, size_t size) {
  if (bytes != payload_ && size > 0) std::memcpy(payload_, bytes, size);
  payload_ += size;
  parsed_ += size;
  missing_ -= size;
  if (missing_ > 0) return;
  payload_ -= head_.length;
  state_ = State::tag;
}

bool FrameReader::take_tag() {
  if (protection_ == Protection::none) return true;
  if (buffered() < kFrameTag) return false;
  const std::span<const char, kFrameTag> tag(buffer_.get() + start_, kFrameTag);
  if (protection_ == Protection::encrypted) {
    cipher_.open({payload_, head_.length}, tag);
  } else {
    cipher_.verify({payload_, head_.length}, tag);
  }
  start_ += kFrameTag;
  parsed_ += kFrameTag;
  return true;
}

char* FrameReader::nowhere() {
  nowhere_.resize(kMaxFramePayload);
  return nowhere_.data();
}

void FrameReader::forget(std::span<const char> memory) {
  keep_read_ahead();
  if (state_ == State::head) return;
  const size_t taken = head_.length - missing_;
  char* const begin = state_ == State::tag ? payload_ : payload_ - taken;
  if (begin < memory.data() || begin >= memory.data() + memory.size()) return;
  // Keeps the bytes read so far, since the tag covers them.
  std::copy_n(begin, taken, nowhere());
  payload_ = nowhere_.data() + (payload_ - begin);
}

}  // namespace troika::net
