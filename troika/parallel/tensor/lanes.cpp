#include "troika/parallel/tensor/lanes.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/processors.h"
#include "troika/base/trace.h"
#include "troika/compat/torch.h"
#include "troika/compat/warnings.h"
#include "troika/nn/keyed_draws.h"

namespace troika::parallel {

namespace {

// Ends a pass whose other pass has failed.
struct Abandoned {};

}  // namespace

// The lane that a thread runs, if any.
struct Lanes::OwnLane {
  Lanes* lanes = nullptr;
  size_t lane = 0;
  std::optional<Clock::time_point> computes_since = {};  // beside a collective of the other lane
};

Lanes::OwnLane& Lanes::own_lane() {
  thread_local OwnLane own;
  return own;
}

Lanes::Lanes(c10::Device device, Trace* trace)
    : device_(device), trace_(trace), thread_([this] { work(); }) {}

Lanes::~Lanes() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Lanes::run(const Pass& first, const Pass& second) {
  if (nn::DrawState::current().keys) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "keyed draws of two passes that take turns",
                 .got = "keys of the calling thread",
                 .expected = "keys that each pass sets for itself"});
  }
  const at::ThreadLocalState state;
  const compat::WarningsOfThread warnings;
  const auto processors = allowed_processors();
  const auto stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  const int threads = at::get_num_threads();
  const Pass with_state = [&] {
    // New threads may run beside those that compute; this one computes.
    if (allowed_processors() != processors) run_on(processors);
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
    const c10::StreamGuard on_stream(stream);
    const at::ThreadLocalStateGuard guard(state);
    warnings.during(second);
  };
  {
    const std::lock_guard lock(mutex_);
    ended_ = {false, false};
    failure_ = nullptr;
    second_ = &with_state;
    turn_ = 0;
  }
  run_lane(0, first);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_[1]; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

bool Lanes::take_turns() {
  const auto& own = own_lane();
  if (!own.lanes) return false;
  const std::lock_guard lock(own.lanes->mutex_);
  return !own.lanes->ended_.at(1 - own.lane);
}

void Lanes::wait(const comm::Work& work) {
  auto& own = own_lane();
  if (!own.lanes) return work.wait();
  own.lanes->record_computation(own);
  if (take_turns()) own.lanes->hand_over(own.lane);
  work.wait();
  if (take_turns()) own.computes_since = Clock::now();
}

void Lanes::record_computation(OwnLane& own) const {
  const auto since = std::exchange(own.computes_since, std::nullopt);
  if (!trace_ || !since) return;
  trace_->add({.track = "compute", .name = "beside a sum", .start = *since, .end = Clock::now()});
}

void Lanes::hand_over(size_t lane) {
  std::unique_lock lock(mutex_);
  turn_ = 1 - lane;
  changed_.notify_all();
  changed_.wait(lock, [&] { return turn_ == lane; });
  if (failure_) throw Abandoned();
}

void Lanes::run_lane(size_t lane, const Pass& pass) {
  auto& own = own_lane();
  own = {this, lane};
  std::exception_ptr failure;
  try {
    // The second lane begins when the first one has started its first collective.
    if (lane == 1 && take_turns()) own.computes_since = Clock::now();
    pass();
  } catch (...) {
    failure = std::current_exception();
  }
  record_computation(own);
  own = {};
  const std::lock_guard lock(mutex_);
  if (failure && !failure_) failure_ = failure;
  ended_.at(lane) = true;
  turn_ = 1 - lane;
  changed_.notify_all();
}

void Lanes::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || (second_ && turn_ == 1); });
    if (closing_) return;
    const auto* const pass = std::exchange(second_, nullptr);
    const bool is_abandoned = failure_ != nullptr;
    lock.unlock();
    run_lane(1, is_abandoned ? Pass([] {}) : *pass);
    lock.lock();
  }
}

}  // namespace troika::parallel
