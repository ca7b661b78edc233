#include "troika/nn/key_value_cache.h"

#include <algorithm>

#include "troika/compat/torch.h"

namespace troika::nn {

namespace {

thread_local KeyValueCache* current_cache = nullptr;

// Copies `added` behind the first `held` positions of `buffer`, which grows if it is too short, and
// returns all of them.
at::Tensor append_positions(at::Tensor& buffer, int64_t held, const at::Tensor& added) {
  constexpr int64_t kLeast = 64;
  const int64_t end = held + added.size(1);
  if (!buffer.defined() || buffer.size(1) < end) {
    auto sizes = added.sizes().vec();
    sizes[1] = std::max(kLeast, 2 * end);
    const at::Tensor longer = at::empty(sizes, added.options());
    if (held > 0) longer.slice(1, 0, held).copy_(buffer.slice(1, 0, held));
    buffer = longer;
  }
  buffer.slice(1, held, end).copy_(added);
  return buffer.slice(1, 0, end);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> KeyValueCache::extend(const AttentionModule& module,
                                                        const at::Tensor& keys,
                                                        const at::Tensor& values) {
  auto& held = held_[&module];
  return {append_positions(held.keys, length_, keys),
          append_positions(held.values, length_, values)};
}

KeyValueCache* KeyValueCache::current() {
  return current_cache;
}

KeyValueCacheGuard::KeyValueCacheGuard(KeyValueCache& cache)
    : before_(std::exchange(current_cache, &cache)) {}

KeyValueCacheGuard::~KeyValueCacheGuard() {
  current_cache = before_;
}

}  // namespace troika::nn
