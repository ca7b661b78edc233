// Calls that may block forever; a thread that waits for one can stop waiting.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace troika::comm::nccl {

// Runs calls in order on a separate thread. If a call is still running at destruction, the thread
// is detached together with everything the call holds.
class DetachableWorker {
 public:
  DetachableWorker() : thread_([box = box_] { box->run(); }) {}
  ~DetachableWorker() {
    box_->put({});
    const bool busy = last_.valid() && !done(last_);
    busy ? thread_.detach() : thread_.join();
  }
  DetachableWorker(const DetachableWorker&) = delete;
  DetachableWorker& operator=(const DetachableWorker&) = delete;

  // The future is ready once `call` has returned or thrown.
  std::shared_future<void> start(std::function<void()> call) {
    std::packaged_task<void()> task(std::move(call));
    last_ = task.get_future().share();
    box_->put(std::move(task));
    return last_;
  }

  static bool done(const std::shared_future<void>& started) {
    return started.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

 private:
  struct Box {
    void put(std::packaged_task<void()> task) {
      const std::lock_guard lock(mutex);
      tasks.push_back(std::move(task));
      changed.notify_all();
    }
    void run() {
      while (true) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return !tasks.empty(); });
        auto task = std::move(tasks.front());
        tasks.pop_front();
        lock.unlock();
        if (!task.valid()) return;
        task();
      }
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::packaged_task<void()>> tasks;  // an empty task ends the thread
  };

  const std::shared_ptr<Box> box_ = std::make_shared<Box>();
  std::shared_future<void> last_;
  std::thread thread_;
};

}  // namespace troika::comm::nccl
