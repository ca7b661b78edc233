// Streams of the pretend device. They run work as late as possible.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/pretend_device/clock.h"
#include "tests/pretend_device/memory.h"

namespace troika::pretend {

// The number of a stream is device * kStreamsEach + its id; id 0 is the device's default stream.
inline int stream_number(int device, int64_t id) {
  return device * kStreamsEach + static_cast<int>(id);
}

// This thread's current device, and its current stream on each.
int current_device();
int exchange_device(int device);
int current_stream(int device);
int exchange_stream(int stream);  // that of its device; returns the one before
int stream_from_pool(int device);

// A point in the order of a stream.
struct Mark {
  int stream = -1;  // none yet
  Clock clock;
};

// Appends a piece of work to a stream. Work runs only when something waits for it: a wait runs the
// work that it needs, and no other. So work that no other work waits for always runs last, and
// unordered accesses are errors in addition (note_accesses()). `run` may access tensors of the
// device only through in_operator(), and must not own any.
void enqueue(int stream, const std::string& name, const std::vector<Access>& accesses,
             std::function<void()> run);
Mark mark(int stream);
// Orders later work of `stream` after the mark.
void wait_on_stream(int stream, const Mark& mark);
// Blocks this thread until the work before the mark is done. All work that the host queues later,
// on any stream, comes after it. Throws std::runtime_error if a piece of work has failed since the
// last call.
void wait_on_host(const Mark& mark);
inline void wait_on_host(int stream) {
  wait_on_host(mark(stream));
}
void wait_on_host_for_device(int device);
// Whether the work before the mark is done. If not, runs one piece of it, because nothing else
// would.
bool is_done(const Mark& mark);
// Whether the work before the mark is done; runs nothing.
bool is_done_already(const Mark& mark);

// Runs `body` on the device's own thread, which has none of the caller's thread-local state, before
// returning. Throws what it throws.
void on_device_thread(const std::function<void()>& body);

// Guards streams and memory; held while work runs.
std::recursive_mutex& device_mutex();

// Numbers of operations on all devices since the last call of reset_counts().
struct Counts {
  int64_t enqueued = 0;
  int64_t host_waits = 0;  // waits of the host for work that was not done
};
Counts counts();
void reset_counts();

}  // namespace troika::pretend
