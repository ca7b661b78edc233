#include "troika/cli/bench/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/net/descriptor.h"

namespace troika::cli::bench {

namespace {

constexpr auto kBarrierTime = std::chrono::minutes(1);

[[noreturn]] void fail(const std::string& action) {
  throw Error("bench", ErrorKind::failure,
              {.what = "cannot " + action, .got = net::system_reason(errno)});
}

void* map(const net::Descriptor& file, size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) fail(fmt::format("map {} bytes of shared memory", bytes));
  // Has no effect if the system lacks huge pages for shared memory.
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

SharedMemory::SharedMemory(const comm::Group& group, size_t bytes)
    : bytes_(bytes), parts_(static_cast<size_t>(group.size()), nullptr) {
  try {
    // Not a file in /dev/shm, because it would outlive a killed process and that file system is
    // often small.
    const net::Descriptor own(::memfd_create("troika-bench", MFD_CLOEXEC));
    if (!own || ::ftruncate(own.get(), static_cast<off_t>(bytes)) != 0) {
      fail(fmt::format("make {} bytes of shared memory", bytes));
    }
    void*& mine = parts_[static_cast<size_t>(group.rank())];
    mine = map(own, bytes);
    std::memset(mine, 0, bytes);
    const auto paths =
        group.all_gather_text(fmt::format("/proc/{}/fd/{}", ::getpid(), own.get()), "memory");
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      if (parts_[rank]) continue;
      const net::Descriptor file(::open(paths[rank].c_str(), O_RDWR | O_CLOEXEC));
      if (!file) fail(fmt::format("open the memory of rank {}", rank));
      parts_[rank] = map(file, bytes);
    }
    group.barrier();  // the other ranks open `own` by its number
  } catch (...) {
    unmap();
    throw;
  }
}

SharedMemory::~SharedMemory() {
  unmap();
}

void SharedMemory::unmap() {
  for (void* part : parts_) {
    if (part) ::munmap(part, bytes_);
  }
}

SpinBarrier::SpinBarrier(const comm::Group& group)
    : rank_(group.rank()),
      size_(group.size()),
      // With a core for each rank, yielding only costs time. With fewer cores, the awaited rank
      // needs this one.
      polls_before_yield_(
          group.size() <= static_cast<int>(std::thread::hardware_concurrency()) ? 1024 : 1),
      memory_(group, sizeof(Place)) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
}

// A new mapping is all zeroes, the initial value of the counters.
SpinBarrier::Place& SpinBarrier::place(int rank) const {
  return *std::launder(static_cast<Place*>(memory_.part(rank)));
}

bool SpinBarrier::wait(bool decision) {
  Place& own = place(rank_);
  ++round_;
  own.decisions[round_ % 2].store(decision, std::memory_order_relaxed);
  own.round.store(round_, std::memory_order_release);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) wait_for(rank);
  }
  return place(0).decisions[round_ % 2].load(std::memory_order_relaxed);
}

void SpinBarrier::wait_for(int rank) const {
  const auto& counter = place(rank).round;
  std::optional<Deadline> deadline;
  // A rank may be one round ahead, and the counters wrap around.
  for (uint64_t polls = 1;
       static_cast<int32_t>(counter.load(std::memory_order_acquire) - round_) < 0; ++polls) {
    pause();
    if (polls % polls_before_yield_ != 0) continue;
    ::sched_yield();
    if (!deadline) deadline = Deadline::after(kBarrierTime);
    if (deadline->passed()) {
      throw Error("bench", ErrorKind::timeout,
                  {.what = fmt::format("rank {} did not come to the barrier", rank)});
    }
  }
}

}  // namespace troika::cli::bench
