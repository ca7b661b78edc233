// Keys and values of the tokens that a language model has read, so that a forward pass needs only
// the tokens after them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

namespace troika::nn {

class AttentionModule;

// For one sequence, or several of equal length. Used by one thread at a time.
class KeyValueCache {
 public:
  // The number of positions that are held.
  int64_t length() const { return length_; }
  void clear() { length_ = 0; }
  // Counts the positions of a finished forward pass as held.
  void advance(int64_t positions) { length_ += positions; }

  // Stores keys and values of the next positions, [batch, new positions, heads, size], and returns
  // those of all positions up to them. The results are views of the cache.
  std::pair<at::Tensor, at::Tensor> extend(const AttentionModule& module, const at::Tensor& keys,
                                           const at::Tensor& values);

  // Returns the cache that this thread's forward pass uses; null if there is none. Models read it:
  // attention extends it, and positions are counted from its length.
  static KeyValueCache* current();

 private:
  struct Held {
    at::Tensor keys, values;  // [batch, capacity, heads, size]
  };

  int64_t length_ = 0;
  std::map<const AttentionModule*, Held> held_;
};

// Makes this thread's forward passes use `cache` during its lifetime.
class KeyValueCacheGuard {
 public:
  explicit KeyValueCacheGuard(KeyValueCache& cache);
  ~KeyValueCacheGuard();
  KeyValueCacheGuard(const KeyValueCacheGuard&) = delete;
  KeyValueCacheGuard& operator=(const KeyValueCacheGuard&) = delete;

 private:
  KeyValueCache* const before_;
};

}  // namespace troika::nn
