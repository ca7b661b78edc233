// Independent parts of the two ends of an edge.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/error.h"

namespace troika::comm {

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

// The buffers of one receiving end. Any thread may give back a buffer that was taken.
class BufferPool {
 public:
  // Keeps at most `most` free buffers.
  explicit BufferPool(size_t most) : most_(most) {}

  at::Tensor take(size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      const auto wanted = static_cast<int64_t>(bytes);
      if (std::exchange(bytes_, wanted) != wanted) {
        for (const auto& buffer : free_) held_ -= buffer.numel();
        free_.clear();
      }
      if (!free_.empty()) {
        const auto buffer = std::move(free_.back());
        free_.pop_back();
        return buffer;
      }
      held_ += wanted;
    }
    return at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  }

  void give_back(const at::Tensor& buffer) {
    const std::lock_guard lock(mutex_);
    if (buffer.numel() == bytes_ && free_.size() < most_) {
      free_.push_back(buffer);
    } else {
      held_ -= buffer.numel();
    }
  }

  int64_t held() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }

 private:
  const size_t most_;
  mutable std::mutex mutex_;
  int64_t bytes_ = 0;             // of one buffer
  std::vector<at::Tensor> free_;  // each of bytes_ bytes
  int64_t held_ = 0;              // bytes of taken and free buffers
};

}  // namespace troika::comm
