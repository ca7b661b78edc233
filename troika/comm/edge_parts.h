// Independent parts of the two ends of an edge.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/comm/messages/parcel.h"
#include "troika/compat/accelerator.h"

namespace troika::comm {

inline constexpr int64_t kMostDims = 64;

// Precedes the header, if any, and the data.
struct EdgeFrame {
  uint32_t group = 0;  // GroupInfo::id
  uint16_t depth = 0;
  uint16_t header_bytes = 0;
};

inline constexpr size_t kMostHeaderBytes = (1 + kMostDims) * sizeof(int64_t);
inline constexpr size_t kFrameRoom = sizeof(EdgeFrame) + kMostHeaderBytes + kInlineBytes;

// Whether payload receives of this size are posted before their frames have arrived. MPI splits
// longer messages into several, and one filler cannot match these.
inline bool is_posted_ahead(size_t bytes) {
  return bytes > kInlineBytes && bytes <= size_t{1} << 30;
}

// Shape and dtype of a tensor: the content of its header on the wire.
struct TensorKind {
  c10::ScalarType type = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;

  static TensorKind of(const at::Tensor& tensor) {
    return {tensor.scalar_type(), tensor.sizes().vec()};
  }
  static TensorKind from_header(std::span<const char> header) {
    std::vector<int64_t> words(header.size() / sizeof(int64_t));
    std::memcpy(words.data(), header.data(), words.size() * sizeof(int64_t));
    TROIKA_CHECK(!words.empty(), "the header of an edge holds a dtype");
    return {static_cast<c10::ScalarType>(words[0]), {words.begin() + 1, words.end()}};
  }
  std::vector<int64_t> header() const {
    std::vector<int64_t> words{static_cast<int64_t>(type)};
    words.insert(words.end(), sizes.begin(), sizes.end());
    return words;
  }
  size_t bytes() const {
    return static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  }
  std::string describe() const {
    return fmt::format("{} [{}]", c10::toString(type), fmt::join(sizes, ", "));
  }
  bool operator==(const TensorKind&) const = default;
};

// A buffer of a pool.
struct PoolBuffer {
  at::Tensor memory;    // bytes
  uint32_t series = 0;  // the buffers of one size and kind of memory have the same number
};

// The buffers of one receiving end. Any thread may give back a buffer that was taken.
class BufferPool {
 public:
  // Keeps at most `most` free buffers.
  explicit BufferPool(size_t most) : most_(most) {}

  PoolBuffer take(size_t bytes) {
    uint32_t series = 0;
    c10::TensorOptions options;
    {
      const std::lock_guard lock(mutex_);
      const auto wanted = static_cast<int64_t>(bytes);
      if (std::exchange(bytes_, wanted) != wanted) begin_series();
      if (!free_.empty()) {
        auto buffer = std::move(free_.back());
        free_.pop_back();
        return buffer;
      }
      held_ += wanted;
      series = series_;
      options = options_;
    }
    return {at::empty({static_cast<int64_t>(bytes)}, options), series};
  }

  void give_back(PoolBuffer buffer) {
    const std::lock_guard lock(mutex_);
    if (buffer.series == series_ && free_.size() < most_) {
      free_.push_back(std::move(buffer));
    } else {
      held_ -= buffer.memory.numel();
    }
  }

  // Makes the buffers that are taken from now on memory from which the tensor's device copies
  // asynchronously.
  void stage_for(const at::Tensor& on_device) {
    const auto options = compat::staging_options(on_device).dtype(at::kByte);
    const std::lock_guard lock(mutex_);
    if (options.pinned_memory() == options_.pinned_memory()) return;
    options_ = options;
    begin_series();
  }

  int64_t held() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }

 private:
  // With mutex_ held.
  void begin_series() {
    for (const auto& buffer : free_) held_ -= buffer.memory.numel();
    free_.clear();
    ++series_;
  }

  const size_t most_;
  mutable std::mutex mutex_;
  int64_t bytes_ = 0;  // of one buffer
  c10::TensorOptions options_ = at::kByte;
  uint32_t series_ = 0;
  std::vector<PoolBuffer> free_;  // of the current series
  int64_t held_ = 0;              // bytes of taken and free buffers
};

// Received tensors from which a device still copies: their memory must not be reused until then.
class CopiesToDevice {
 public:
  // Keeps at most `most` tensors.
  explicit CopiesToDevice(size_t most) : most_(most) {}
  // Waits for all copies. If the device does not run them, their memory stays allocated.
  ~CopiesToDevice() {
    const auto deadline = Deadline::after(std::chrono::seconds(5));
    while (!copies_.empty() && is_first_done_by(deadline)) copies_.pop_front();
    if (!copies_.empty()) static_cast<void>(new std::deque(std::move(copies_)));
  }
  CopiesToDevice(const CopiesToDevice&) = delete;
  CopiesToDevice& operator=(const CopiesToDevice&) = delete;

  // Queues a copy on the current stream of `into`'s device. Waits on the host only if as many
  // copies as it keeps have not run; throws Error(timeout) after the deadline.
  void copy(const at::Tensor& from, const at::Tensor& into, Deadline deadline) {
    while (!copies_.empty() && copies_.front().end.query()) copies_.pop_front();
    if (copies_.size() == most_) {
      if (!is_first_done_by(deadline)) {
        throw Error("comm", ErrorKind::timeout,
                    {.what = "a device has not copied a received tensor in time"});
      }
      copies_.pop_front();
    }
    const auto type = into.device().type();
    into.copy_(from, /*non_blocking=*/true);
    copies_.push_back({from, c10::Event(type)});
    copies_.back().end.record(c10::impl::VirtualGuardImpl(type).getStream(into.device()));
  }

 private:
  struct Copy {
    at::Tensor from;
    c10::Event end;
  };

  bool is_first_done_by(Deadline deadline) const {
    constexpr std::chrono::microseconds kPause{50};
    while (!copies_.front().end.query()) {
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(kPause);
    }
    return true;
  }

  const size_t most_;
  std::deque<Copy> copies_;
};

}  // namespace troika::comm
