#include "troika/parallel/thread_team.h"

#include <algorithm>

#include "troika/compat/torch.h"

namespace troika::parallel {

ThreadTeam::ThreadTeam(int size) : busy_(size), failures_(static_cast<size_t>(size)) {
  const int mine = at::get_num_threads();
  for (int i = 0; i < size; ++i) {
    threads_.emplace_back([this, i, each = std::max(1, mine / size)] { work(i, each); });
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return busy_ == 0; });
  // A thread's own setting is also the default for threads that start later.
  at::set_num_threads(mine);
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
}

void ThreadTeam::run(const std::function<void(int)>& body) {
  const at::ThreadLocalState state;
  const std::function<void(int)> with_state = [&](int index) {
    const at::ThreadLocalStateGuard guard(state);
    body(index);
  };
  std::unique_lock lock(mutex_);
  body_ = &with_state;
  busy_ = static_cast<int>(threads_.size());
  std::fill(failures_.begin(), failures_.end(), nullptr);
  ++turn_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return busy_ == 0; });
  for (const auto& failure : failures_) {
    if (failure) std::rethrow_exception(failure);
  }
}

void ThreadTeam::work(int index, int torch_threads) {
  at::set_num_threads(torch_threads);
  std::unique_lock lock(mutex_);
  for (uint64_t turn = 1;; ++turn) {
    if (--busy_ == 0) changed_.notify_all();
    changed_.wait(lock, [&] { return closing_ || turn_ == turn; });
    if (closing_) return;
    const auto* body = body_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*body)(index);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failures_[static_cast<size_t>(index)] = failure;
  }
}

}  // namespace troika::parallel
