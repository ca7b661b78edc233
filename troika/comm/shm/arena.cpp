#include "troika/comm/shm/arena.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "troika/base/error.h"
#include "troika/base/memory.h"

namespace troika::comm::shm {

namespace {

// Segments grow with the allocated bytes, so that a few segments suffice. They use physical memory
// only where they are written to.
constexpr size_t kSmallestSegment = size_t{1} << 20;
constexpr size_t kGrownSegment = size_t{256} << 20;
// Evicted memory that is taken again within so many calls of take() was evicted too soon: a
// training step takes less often.
constexpr int kSoon = 4096;
// The smallest block whose pages are returned to the system; smaller ones do not pay for the system
// call.
constexpr size_t kSmallestEvicted = size_t{64} << 10;

Ref make_ref(size_t segment, size_t offset) {
  return static_cast<Ref>(segment + 1) << kOffsetBits | offset;
}
size_t segment_of(Ref ref) {
  return static_cast<size_t>(ref >> kOffsetBits) - 1;
}
size_t offset_of(Ref ref) {
  return static_cast<size_t>(ref & ((Ref{1} << kOffsetBits) - 1));
}

}  // namespace

// Written before the other ranks get any Ref into the segment; they read it afterwards.
struct Arena::Entry {
  int32_t pid;
  int32_t fd;
  uint64_t bytes;
};

size_t Arena::directory_bytes(int size) {
  return static_cast<size_t>(size) * kMaxSegments * sizeof(Entry);
}

Arena::Arena(Segment directory, int rank, int size, const std::shared_ptr<Lifeline>& lifeline)
    : directory_(std::move(directory)),
      rank_(rank),
      lifeline_(lifeline),
      others_(static_cast<size_t>(size)) {}

Arena::~Arena() = default;

Arena::Entry& Arena::entry(int rank, size_t segment) const {
  return reinterpret_cast<Entry*>(
      directory_.data())[static_cast<size_t>(rank) * kMaxSegments + segment];
}

void Arena::add_segment(size_t bytes) {
  if (own_.size() == kMaxSegments) {
    throw Error("comm", ErrorKind::failure,
                {.what = "too many segments of shared memory",
                 .got = fmt::format("{} on this rank", kMaxSegments),
                 .hint = "allocate fewer, larger tensors"});
  }
  const Segment& made = own_.emplace_back(Segment::create(bytes));
  entry(rank_, own_.size() - 1) = {::getpid(), made.fd(), bytes};
  free_.add(make_ref(own_.size() - 1, 0), bytes);
}

char* Arena::own(Ref ref) const {
  return own_[segment_of(ref)].data() + offset_of(ref);
}

Arena::Piece Arena::take(size_t bytes) {
  if (bytes > BuddyAllocator::kLargestBlock) {
    throw Error("comm", ErrorKind::usage,
                {.what = "a segment of shared memory is too large",
                 .got = fmt::format("{} bytes", bytes),
                 .expected = fmt::format("at most {}", BuddyAllocator::kLargestBlock)});
  }
  const std::lock_guard lock(mutex_);
  const size_t resident = free_.resident_free();
  auto ref = free_.take(bytes);
  if (ref) {
    note_taken(bytes, resident - free_.resident_free());
  } else {
    const size_t grown = std::clamp(std::bit_floor(free_.taken()), kSmallestSegment, kGrownSegment);
    add_segment(std::max(grown, BuddyAllocator::block_size(bytes)));
    ref = free_.take(bytes);
  }
  return {own(*ref), *ref, bytes};
}

void Arena::note_taken(size_t bytes, size_t resident) {
  if (evicted_ == 0) return;
  if (++takes_ > kSoon) {
    evicted_ = 0;
    return;
  }
  const size_t again = std::min(evicted_, bytes - std::min(bytes, resident));
  evicted_ -= again;
  kept_ += again;
}

void Arena::give_back(const Piece& piece) {
  const auto lifeline = lifeline_.lock();
  if (!lifeline || lifeline->is_cut()) return;
  const std::lock_guard lock(mutex_);
  free_.give_back(piece.ref, piece.bytes);
  const size_t kept = std::max(kept_, free_.taken());
  while (free_.resident_free() > kept) {
    const size_t before = free_.resident_free();
    const auto block = free_.evict(kSmallestEvicted);
    if (!block) return;
    evicted_ += before - free_.resident_free();
    takes_ = 0;
    ::madvise(own(block->ref), block->bytes, MADV_REMOVE);
  }
}

at::Tensor Arena::tensor(int64_t count, c10::ScalarType type) {
  const size_t bytes = static_cast<size_t>(count) * c10::elementSize(type);
  const Piece piece = take(bytes);
  memory::add(static_cast<int64_t>(bytes));
  return at::from_blob(
      piece.data, {count},
      [self = shared_from_this(), piece, bytes](void*) {
        memory::add(-static_cast<int64_t>(bytes));
        self->give_back(piece);
      },
      type);
}

Ref Arena::locate(const void* data, size_t bytes) const {
  const auto* begin = static_cast<const char*>(data);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < own_.size(); ++i) {
    const char* start = own_[i].data();
    if (begin < start || begin + bytes > start + own_[i].bytes()) continue;
    return make_ref(i, static_cast<size_t>(begin - start));
  }
  return 0;
}

const Segment& Arena::segment_at(int rank, Ref ref, std::unique_lock<std::mutex>& lock) {
  const size_t segment = segment_of(ref);
  if (rank == rank_ && segment < own_.size()) return own_[segment];
  const bool is_listed = rank != rank_ && segment < kMaxSegments && entry(rank, segment).bytes > 0;
  if (!is_listed) {
    throw Error("comm", ErrorKind::peer,
                {.what = fmt::format("local rank {} refers to memory that it does not share", rank),
                 .got = fmt::format("reference {:#x}", ref),
                 .expected = "one of its segments"});
  }
  auto& known = others_[static_cast<size_t>(rank)];
  if (known.size() <= segment) known.resize(segment + 1);
  if (!known[segment]) {
    const auto& [pid, fd, bytes] = entry(rank, segment);
    try {
      known[segment] = std::make_unique<Segment>(Segment::open(pid, fd, bytes));
    } catch (const Error& error) {
      // The ranks could access each other's memory at rendezvous, so the owner must have ended.
      lock.unlock();
      if (const auto lifeline = lifeline_.lock()) lifeline->explain_broken_connection();
      throw Error("comm", ErrorKind::peer,
                  {.what = "shared memory of another rank is gone", .got = error.what()});
    }
  }
  return *known[segment];
}

char* Arena::at(int rank, Ref ref, size_t bytes) {
  std::unique_lock lock(mutex_);
  const Segment& segment = segment_at(rank, ref, lock);
  const size_t offset = offset_of(ref);
  if (offset > segment.bytes() || bytes > segment.bytes() - offset) {
    throw Error("comm", ErrorKind::peer,
                {.what = fmt::format("local rank {} refers to memory outside of its segment", rank),
                 .got = fmt::format("{} bytes at byte {}", bytes, offset),
                 .expected = fmt::format("at most {} bytes", segment.bytes())});
  }
  return segment.data() + offset;
}

}  // namespace troika::comm::shm
