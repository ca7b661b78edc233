#include "tests/pretend_device/streams.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <stdexcept>
#include <thread>

namespace troika::pretend {

namespace {

// An entry either runs work or waits for another stream.
struct Entry {
  std::string name = {};
  std::function<void()> run = {};
  int other = -1;
  uint64_t position = 0;  // of the other stream
};

struct Stream {
  std::deque<Entry> waiting;
  uint64_t done = 0;
  Clock clock;  // its own count is that of the entries queued so far
};

struct State {
  std::recursive_mutex mutex;
  Stream streams[kStreams];
  // The clock of all host threads: work that one of them has waited for is ordered before
  // everything that any of them does next.
  Clock host;
  int next_of_pool[kDevices] = {};
  std::string failure;
  Counts counts;
};

// Never destroyed: threads of LibTorch may outlive main().
State& state() {
  static auto* const result = new State;
  return *result;
}

thread_local int t_device = 0;
thread_local int t_streams[kDevices] = {-1, -1, -1, -1};
thread_local bool t_is_device_thread = false;

// A thread without autograd that runs all work of the device.
class DeviceThread {
 public:
  DeviceThread() {
    std::thread([this] { work(); }).detach();
  }

  void run(const std::function<void()>& body) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return body_ == nullptr; });
    body_ = &body;
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ == &body; });
    const auto failure = std::exchange(failure_, nullptr);
    done_ = nullptr;
    body_ = nullptr;
    changed_.notify_all();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  void work() {
    t_is_device_thread = true;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return body_ != nullptr && done_ == nullptr; });
      lock.unlock();
      std::exception_ptr failure;
      try {
        (*body_)();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
      done_ = body_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* body_ = nullptr;  // to run, until its caller has seen the end of it
  const std::function<void()>* done_ = nullptr;
  std::exception_ptr failure_;
};

// Only on the device's thread, while a thread that waits for it holds the mutex.
void run_one(int stream);

void run_until(int stream, uint64_t position) {
  while (state().streams[stream].done < position) run_one(stream);
}

void run_one(int stream) {
  Stream& own = state().streams[stream];
  Entry entry = std::move(own.waiting.front());
  own.waiting.pop_front();
  if (entry.other >= 0) {
    run_until(entry.other, entry.position);
  } else {
    try {
      entry.run();
    } catch (const std::exception& error) {
      if (state().failure.empty()) state().failure = entry.name + ": " + error.what();
    }
  }
  ++own.done;
}

void throw_failure() {
  const std::string failure = std::exchange(state().failure, {});
  if (!failure.empty()) throw std::runtime_error("pretend device: late failure of " + failure);
}

}  // namespace

int current_device() {
  return t_device;
}

int exchange_device(int device) {
  return std::exchange(t_device, device);
}

int current_stream(int device) {
  const int stream = t_streams[device];
  return stream < 0 ? stream_number(device, 0) : stream;
}

int exchange_stream(int stream) {
  const int device = stream / kStreamsEach;
  const int before = current_stream(device);
  t_streams[device] = stream;
  return before;
}

int stream_from_pool(int device) {
  const std::lock_guard lock(device_mutex());
  int& next = state().next_of_pool[device];
  next = next % (kStreamsEach - 1) + 1;
  return stream_number(device, next);
}

void enqueue(int stream, const std::string& name, const std::vector<Access>& accesses,
             std::function<void()> run) {
  const std::lock_guard lock(device_mutex());
  Stream& own = state().streams[stream];
  Clock clock = own.clock;
  clock.join(state().host);
  ++clock[stream];
  note_accesses(accesses, stream, clock, name);
  own.clock = clock;
  own.waiting.push_back({.name = name, .run = std::move(run)});
  ++state().counts.enqueued;
}

Mark mark(int stream) {
  const std::lock_guard lock(device_mutex());
  Mark result{stream, state().streams[stream].clock};
  result.clock.join(state().host);
  return result;
}

void wait_on_stream(int stream, const Mark& mark) {
  if (mark.stream < 0 || mark.stream == stream) return;
  const std::lock_guard lock(device_mutex());
  Stream& own = state().streams[stream];
  own.clock.join(mark.clock);
  ++own.clock[stream];
  own.waiting.push_back({.other = mark.stream, .position = mark.clock[mark.stream]});
}

void wait_on_host(const Mark& mark) {
  if (mark.stream < 0) return;
  const std::lock_guard lock(device_mutex());
  if (!is_done_already(mark)) {
    ++state().counts.host_waits;
    on_device_thread([&] { run_until(mark.stream, mark.clock[mark.stream]); });
  }
  state().host.join(mark.clock);
  throw_failure();
}

void wait_on_host_for_device(int device) {
  for (int id = 0; id < kStreamsEach; ++id) wait_on_host(stream_number(device, id));
}

bool is_done(const Mark& mark) {
  if (mark.stream < 0) return true;
  const std::lock_guard lock(device_mutex());
  if (!is_done_already(mark)) on_device_thread([&] { run_one(mark.stream); });
  if (!is_done_already(mark)) return false;
  state().host.join(mark.clock);
  return true;
}

bool is_done_already(const Mark& mark) {
  const std::lock_guard lock(device_mutex());
  return mark.stream < 0 || state().streams[mark.stream].done >= mark.clock[mark.stream];
}

void on_device_thread(const std::function<void()>& body) {
  if (t_is_device_thread) return body();
  static auto* const thread = new DeviceThread;
  thread->run(body);
}

std::recursive_mutex& device_mutex() {
  return state().mutex;
}

Counts counts() {
  const std::lock_guard lock(device_mutex());
  return state().counts;
}

void reset_counts() {
  const std::lock_guard lock(device_mutex());
  state().counts = {};
}

}  // namespace troika::pretend
