#include "troika/comm/shm/block_pool.h"

#include "troika/comm/shm/buddy.h"
#include "troika/comm/shm/cells.h"

namespace troika::comm::shm {

size_t BlockPool::block_size(size_t bytes) {
  return bytes > kLargestBlock ? bytes : BuddyAllocator::block_size(bytes);
}

std::optional<Arena::Piece> BlockPool::take(size_t size) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(size);
  if (found == blocks_.end() || found->second.empty()) return std::nullopt;
  auto& blocks = found->second;
  const bool is_rotated = size > Cells::kBytes;
  if (is_rotated && bytes_ < kMostBytes && blocks.size() * size < kRotatedBytes) {
    return std::nullopt;
  }
  const auto block = blocks.front();
  blocks.pop_front();
  bytes_ -= size;
  return block;
}

bool BlockPool::keep(const Arena::Piece& block) {
  const std::lock_guard lock(mutex_);
  if (block.bytes > kLargestBlock || bytes_ + block.bytes > kMostBytes) return false;
  blocks_[block.bytes].push_back(block);
  bytes_ += block.bytes;
  return true;
}

std::vector<Arena::Piece> BlockPool::take_all() {
  std::vector<Arena::Piece> all;
  const std::lock_guard lock(mutex_);
  for (auto& [_, blocks] : blocks_) all.insert(all.end(), blocks.begin(), blocks.end());
  blocks_.clear();
  bytes_ = 0;
  return all;
}

}  // namespace troika::comm::shm
