#include "troika/comm/shm/arena.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/base/memory.h"

namespace troika::comm::shm {

namespace {

constexpr int kOffsetBits = 40;
constexpr size_t kPage = 4096;

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

// Written before any Ref into the segment is told to others, who read it after.
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

Arena::Piece Arena::new_segment(size_t bytes) {
  if (own_.size() == kMaxSegments) {
    throw Error("comm", ErrorKind::failure,
                {.what = "too many pieces of shared memory",
                 .got = fmt::format("{} on this rank", kMaxSegments),
                 .hint = "allocate fewer, larger tensors"});
  }
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  const Segment& made = own_.emplace_back(Segment::create(whole));
  entry(rank_, own_.size() - 1) = {::getpid(), made.fd(), whole};
  return {made.data(), make_ref(own_.size() - 1, 0), whole};
}

Arena::Piece Arena::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes = std::max<size_t>(bytes, 1);
  const auto fits = std::ranges::find_if(free_, [&](const Piece& piece) {
    return piece.bytes >= bytes && piece.bytes <= 2 * std::max(bytes, kPage);
  });
  if (fits == free_.end()) return new_segment(bytes);
  const Piece piece = *fits;
  free_.erase(fits);
  return piece;
}

void Arena::give_back(const Piece& piece) {
  const auto lifeline = lifeline_.lock();
  if (!lifeline || lifeline->is_cut()) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(piece);
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

char* Arena::at(int rank, Ref ref) {
  const size_t segment = segment_of(ref);
  const std::lock_guard lock(mutex_);
  if (rank == rank_) return own_[segment].data() + offset_of(ref);
  auto& known = others_[static_cast<size_t>(rank)];
  if (known.size() <= segment) known.resize(segment + 1);
  if (!known[segment]) {
    const auto& [pid, fd, bytes] = entry(rank, segment);
    try {
      known[segment] = std::make_unique<Segment>(Segment::open(pid, fd, bytes));
    } catch (const Error& error) {
      // Ranks could reach each other's memory when they met: its owner has ended.
      throw Error("comm", ErrorKind::peer,
                  {.what = "shared memory of another rank is gone", .got = error.what()});
    }
  }
  return known[segment]->data() + offset_of(ref);
}

}  // namespace troika::comm::shm
