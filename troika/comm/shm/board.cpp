#include "troika/comm/shm/board.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "troika/base/error.h"

namespace troika::comm::shm {

namespace {

// Polls for longer than a rank on another processor usually needs, and then yields the processor.
constexpr int kSpins = 4000;
constexpr int kCrowdedSpins = 64;
// How often a sleeping rank checks whether the other ranks are still running.
constexpr std::chrono::microseconds kLook{10'000};
// The same while messages of another back end need progress.
constexpr std::chrono::microseconds kDrive{100};

void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen,
                std::chrono::microseconds at_most) {
  const timespec timeout{.tv_sec = at_most.count() / 1'000'000,
                         .tv_nsec = at_most.count() % 1'000'000 * 1000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

// Everything here is sequentially consistent: if a rank changes something and then sees no sleeper,
// any later sleeper sees the change before it sleeps.
struct Board::Cell {
  alignas(64) std::atomic<uint64_t> stage;
  std::atomic<uint64_t> finished;
  std::atomic<bool> left;
  alignas(64) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleepers;
  alignas(64) cpu_set_t processors;  // on which the rank may run
};

namespace {

constexpr size_t kCellBytes = 512;

size_t lanes_bytes(int size) {
  return static_cast<size_t>(size) * static_cast<size_t>(size) * sizeof(Board::Lane);
}

}  // namespace

size_t Board::bytes_for(int size) {
  static_assert(sizeof(Cell) <= kCellBytes);
  return static_cast<size_t>(size) * (kCellBytes + 2 * sizeof(CallSlot)) + lanes_bytes(size);
}

Board::Board(Segment segment, int rank, int size, uint32_t tag_space,
             std::shared_ptr<Presence> presence)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(size),
      tag_space_(tag_space),
      presence_(std::move(presence)) {
  ::sched_getaffinity(0, sizeof(cpu_set_t), &cell(rank_).processors);
  // The other ranks' processors are unknown until the first barrier.
  spins_ = kCrowdedSpins;
  crowded_ = true;
}

Board::Cell& Board::cell(int rank) const {
  return *reinterpret_cast<Cell*>(segment_.data() + static_cast<size_t>(rank) * kCellBytes);
}

CallSlot& Board::slot(int rank, int64_t sequence) const {
  char* slots = segment_.data() + static_cast<size_t>(size_) * kCellBytes + lanes_bytes(size_);
  const size_t index = static_cast<size_t>(rank) * 2 + static_cast<size_t>(sequence % 2);
  return reinterpret_cast<CallSlot*>(slots)[index];
}

Board::Lane& Board::lane(int from, int to) const {
  char* lanes = segment_.data() + static_cast<size_t>(size_) * kCellBytes;
  return reinterpret_cast<Lane*>(lanes)[from * size_ + to];
}

void Board::publish(int64_t sequence, unsigned notice) {
  slot(rank_, sequence).published = (static_cast<uint64_t>(sequence) + 1) << kNoticeBits | notice;
  ring_others();
}

bool Board::has_published(int rank, int64_t sequence) const {
  return slot(rank, sequence).published >> kNoticeBits > static_cast<uint64_t>(sequence);
}

unsigned Board::notice(int rank, int64_t sequence) const {
  return static_cast<unsigned>(slot(rank, sequence).published) & ((1u << kNoticeBits) - 1);
}

void Board::barrier(Deadline deadline) {
  const uint64_t target = ++stage_;
  cell(rank_).stage = target;
  ring_others();
  int waited_for = 0;
  const auto all_there = [&] {
    while (waited_for < size_ && cell(waited_for).stage >= target) ++waited_for;
    return waited_for == size_;
  };
  await(all_there, deadline, [] { return "the other ranks"; });
  if (target == 1) choose_spins();
}

void Board::finish(int64_t sequence) {
  cell(rank_).finished = static_cast<uint64_t>(sequence) + 1;
  ring_others();
}

bool Board::has_finished(int rank, int64_t sequence) const {
  return cell(rank).finished > static_cast<uint64_t>(sequence);
}

void Board::leave() {
  cell(rank_).left = true;
  ring_others();
}

bool Board::has_left(int rank) const {
  return cell(rank).left;
}

// With fewer processors than ranks, a spinning rank keeps another from running.
void Board::choose_spins() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int r = 0; r < size_; ++r) CPU_OR(&all, &all, &cell(r).processors);
  crowded_ = CPU_COUNT(&all) < size_;
  spins_ = crowded_ ? kCrowdedSpins : kSpins;
}

void Board::ring(int rank) const {
  Cell& other = cell(rank);
  if (other.sleepers == 0) return;
  ++other.bell;
  futex_wake(other.bell);
}

void Board::ring_others() const {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) ring(r);
  }
}

void Board::pause(int tries) const {
  if (crowded_ && tries > 0) {
    ::sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Board::sleep_until(const std::function<bool()>& done, Deadline deadline, const Awaited& what) {
  Cell& own = cell(rank_);
  struct Asleep {
    explicit Asleep(std::atomic<uint32_t>& count) : count(count) { count.fetch_add(1); }
    ~Asleep() { count.fetch_sub(1); }
    std::atomic<uint32_t>& count;
  } const asleep(own.sleepers);
  while (true) {
    const uint32_t seen = own.bell;
    if (done()) return;
    presence_->require_all(tag_space_);
    if (deadline.passed()) {
      throw Error("comm", ErrorKind::timeout,
                  {.what = fmt::format("{} did not come in time", what())});
    }
    const bool soon = drive_ && drive_();
    const auto left = std::max<std::chrono::microseconds>(deadline.left(), Milliseconds(1));
    futex_wait(own.bell, seen, std::min(left, soon ? kDrive : kLook));
  }
}

}  // namespace troika::comm::shm
