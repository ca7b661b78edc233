#include "troika/comm/shm/stores.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace troika::comm::shm {

namespace {

// For fewer bytes both kinds of store take the same time.
constexpr size_t kSmallestTried = 2048;
// The bits of a notice: this call's staging, and the slots of the next small call.
constexpr unsigned kStreams = 1, kNextSmallStreams = 2;

#if defined(__x86_64__)
constexpr size_t kVector = sizeof(__m128i);
constexpr size_t kAtOnce = 4 * kVector;

void stream(char* into, const char* from, size_t bytes) {
  const size_t head =
      std::min(bytes, (kVector - reinterpret_cast<uintptr_t>(into) % kVector) % kVector);
  std::memcpy(into, from, head);
  size_t at = head;
  for (; at + kAtOnce <= bytes; at += kAtOnce) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(into + at);
    for (size_t i = 0; i < kAtOnce / kVector; ++i) {
      _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
    }
  }
  std::memcpy(into + at, from + at, bytes - at);
  _mm_sfence();
}
#else
void stream(char* into, const char* from, size_t bytes) {
  std::memcpy(into, from, bytes);
}
#endif

}  // namespace

void give(char* into, const char* from, size_t bytes, bool streams) {
  if (streams) {
    stream(into, from, bytes);
  } else {
    std::memcpy(into, from, bytes);
  }
}

bool StoreTrial::streams(int later) const {
  const int call = (call_ + later) % period_;
  return streams_ != (call >= kUntimed + kTried && call < kUntimed + 2 * kTried);
}

void StoreTrial::add(bool streamed, double cost) {
  if (is_timed()) {
    auto& least = least_[streamed ? 1 : 0];
    least = std::min(least, cost);
  }
  ++call_;
  if (call_ == kUntimed + 2 * kTried) {
    const auto [cached, streaming] = least_;
    streams_ = streams_ ? cached >= kClearly * streaming : streaming < kClearly * cached;
    least_ = {kNever, kNever};
  }
  if (call_ < period_) return;
  call_ = 0;
  period_ = std::min(2 * period_, kLastPeriod);
}

void StoreChoice::start(int operation, size_t bytes, bool is_small) {
  small_now_ = small_next_;
  trial_ = nullptr;
  if (!decides_ || bytes < kSmallestTried) return;
  trial_ = is_small ? &small_ : &staged_[{operation, std::bit_width(bytes)}];
  is_small_ = is_small;
  bytes_ = bytes;
  if (trial_->is_timed()) watch_.restart();
}

// The slot of the next small call is written before that call's notice, so this notice announces
// its kind of store.
unsigned StoreChoice::notice() const {
  const unsigned next = small_next_ ? kNextSmallStreams : 0;
  if (!trial_) return next;
  if (is_small_) return trial_->streams(/*later=*/1) ? kNextSmallStreams : 0;
  return trial_->streams() ? next | kStreams : next;
}

void StoreChoice::take(unsigned notice) {
  streams_ = (notice & kStreams) != 0;
  small_next_ = (notice & kNextSmallStreams) != 0;
}

void StoreChoice::finish() {
  if (!trial_) return;
  const double cost = trial_->is_timed() ? watch_.seconds() / static_cast<double>(bytes_) : 0;
  trial_->add(is_small_ ? small_now_ : streams_, cost);
}

}  // namespace troika::comm::shm
