#include "troika/comm/shm/buddy.h"

#include <algorithm>
#include <bit>

namespace troika::comm::shm {

size_t BuddyAllocator::block_size(size_t bytes) {
  return std::bit_ceil(std::max(bytes, kSmallestBlock));
}

size_t BuddyAllocator::order_of(size_t block) {
  return static_cast<size_t>(std::countr_zero(block));
}

void BuddyAllocator::add(Ref ref, size_t bytes) {
  free_[order_of(bytes)].emplace(ref, 0);
}

std::optional<Ref> BuddyAllocator::take(size_t bytes) {
  const size_t wanted = order_of(block_size(bytes));
  size_t order = wanted;
  while (order < kOrders && free_[order].empty()) ++order;
  if (order == kOrders) return std::nullopt;
  const auto [ref, resident] = *free_[order].begin();
  free_[order].erase(free_[order].begin());
  size_t left = resident;
  while (order > wanted) {
    const size_t half = size_t{1} << --order;
    const size_t lower = std::min(left, half);
    free_[order].emplace(ref + half, left - lower);
    left = lower;
  }
  resident_free_ -= left;
  taken_ += bytes;
  return ref;
}

void BuddyAllocator::give_back(Ref ref, size_t bytes) {
  size_t resident = bytes;
  taken_ -= bytes;
  resident_free_ += resident;
  size_t block = block_size(bytes);
  // The buddy of a whole segment would be outside of it, and is never free.
  for (; order_of(block) + 1 < kOrders; block *= 2) {
    auto& same = free_[order_of(block)];
    const auto buddy = same.find(ref ^ block);
    if (buddy == same.end()) break;
    resident += buddy->second;
    ref &= ~static_cast<Ref>(block);
    same.erase(buddy);
  }
  free_[order_of(block)].emplace(ref, resident);
}

std::optional<BuddyAllocator::Block> BuddyAllocator::evict(size_t smallest) {
  for (size_t order = kOrders; order-- > order_of(block_size(smallest));) {
    for (auto& [ref, resident] : free_[order]) {
      if (resident == 0) continue;
      resident_free_ -= resident;
      resident = 0;
      return Block{ref, size_t{1} << order};
    }
  }
  return std::nullopt;
}

}  // namespace troika::comm::shm
