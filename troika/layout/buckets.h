// Buckets: tensors that lie together in memory, so that one message carries them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troika::layout {

// A tensor that goes into a bucket.
struct BucketItem {
  int64_t bytes = 0;
  int64_t kind = 0;  // buckets hold items of one kind: of one type on one device
};

// The indices of `items` that share a bucket, for buckets in the order of `order`, which is a
// permutation of them. One bucket is open per kind; it closes with the item that brings it to its
// limit, which is `first_bytes` for the first bucket of all (Li et al., VLDB 2020, section 3.2.3).
// Depends on nothing else, so that equal arguments give equal buckets on all ranks.
std::vector<std::vector<size_t>> assign_buckets(std::span<const BucketItem> items,
                                                std::span<const size_t> order, int64_t first_bytes,
                                                int64_t bytes);

// So that blocks start at the lines of a cache.
inline constexpr int64_t kBlockMultiple = 16;

// The element of a bucket, whose first `end` elements are taken, at which an item of `count`
// elements begins. Items of at least `piece_multiple` elements begin at a multiple of it.
int64_t item_offset(int64_t end, int64_t count, int64_t piece_multiple);
// The elements of a bucket of `end` elements once it is padded so that `ranks` equal blocks make it
// up; they are cut within items at multiples of `piece_multiple`.
int64_t padded_count(int64_t end, int64_t ranks, int64_t piece_multiple);

}  // namespace troika::layout
