#include "troika/comm/shm/presence.h"

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "troika/base/error.h"

namespace troika::comm::shm {

namespace {

void make_robust(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = ::pthread_mutex_init(&mutex, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  if (error != 0) {
    throw Error("comm", ErrorKind::failure,
                {.what = "cannot make a robust mutex", .got = std::strerror(error)});
  }
}

}  // namespace

// Other ranks access the mutex only after the state says that it is held.
struct Presence::Place {
  enum class State : int { absent, present, parted, dead };
  alignas(64) std::atomic<State> state;
  pthread_mutex_t mutex;
};

size_t Presence::bytes_for(int size) {
  return static_cast<size_t>(size) * sizeof(Place);
}

Presence::Presence(Segment segment, int rank, std::vector<int> world_ranks,
                   std::shared_ptr<Lifeline> lifeline)
    : segment_(std::move(segment)),
      rank_(static_cast<size_t>(rank)),
      world_ranks_(std::move(world_ranks)),
      lifeline_(std::move(lifeline)) {
  make_robust(place(rank_).mutex);
  lifeline_->wake_with(this, [this] {
    if (lifeline_->is_cut()) part();
  });
  holder_ = std::thread([this] { hold(); });
}

Presence::~Presence() {
  part();
  lifeline_->wake_with(this, nullptr);
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ended_.notify_one();
  holder_.join();
}

Presence::Place& Presence::place(size_t index) const {
  return reinterpret_cast<Place*>(segment_.data())[index];
}

void Presence::hold() {
  Place& own = place(rank_);
  ::pthread_mutex_lock(&own.mutex);
  Place::State absent = Place::State::absent;
  own.state.compare_exchange_strong(absent, Place::State::present);
  {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return ends_; });
  }
  ::pthread_mutex_unlock(&own.mutex);
}

void Presence::part() {
  place(rank_).state = Place::State::parted;
}

bool Presence::is_dead(size_t index) const {
  Place& other = place(index);
  using State = Place::State;
  State seen = State::present;
  if (other.state == seen) {
    const int got = ::pthread_mutex_trylock(&other.mutex);
    // Only one rank gets EOWNERDEAD from the mutex, and tells the others through the state. The
    // owner may have left since the first check.
    if (got == EOWNERDEAD) other.state.compare_exchange_strong(seen, State::dead);
    if (got == 0 || got == EOWNERDEAD) ::pthread_mutex_unlock(&other.mutex);
  }
  return other.state == State::dead;
}

void Presence::require_all(uint32_t tag_space) const {
  lifeline_->require_live(tag_space);
  for (size_t r = 0; r < world_ranks_.size(); ++r) {
    if (r != rank_ && is_dead(r)) lifeline_->witness_death(world_ranks_[r]);
  }
  lifeline_->require_live();
}

}  // namespace troika::comm::shm
