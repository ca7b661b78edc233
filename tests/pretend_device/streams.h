// Streams of the pretend device, which run as late as they may.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/pretend_device/clock.h"
#include "tests/pretend_device/memory.h"

namespace troika::pretend {

// Streams have numbers: device * kStreamsEach + the stream's own, 0 for the default stream.
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

// Appends a piece of work to a stream. Nothing runs before somebody waits: then what the wait needs
// runs, and nothing else. Work that other work does not wait for has therefore always happened
// last, and what nothing orders is refused besides (note_accesses). `run` must not touch tensors of
// the device but through in_operator(), and owns nothing of it.
void enqueue(int stream, const std::string& name, const std::vector<Access>& accesses,
             std::function<void()> run);
Mark mark(int stream);
// Later work of `stream` comes after the mark.
void wait_on_stream(int stream, const Mark& mark);
// Blocks this thread until the work before the mark is done; later work of all streams that the
// host queues comes after it. Throws std::runtime_error if a piece of work has failed since the
// last call.
void wait_on_host(const Mark& mark);
inline void wait_on_host(int stream) {
  wait_on_host(mark(stream));
}
void wait_on_host_for_device(int device);
// Whether the work before the mark is done; runs one piece of it if not, as nothing else would.
bool is_done(const Mark& mark);
// Whether that is so now.
bool is_done_already(const Mark& mark);

// Runs `body` on the device's own thread, which has none of the caller's thread-local state, before
// returning. Throws what it throws.
void on_device_thread(const std::function<void()>& body);

// Guards streams and memory; held while work runs.
std::recursive_mutex& device_mutex();

// Counts what has happened since the last call of reset_counts(), over all devices.
struct Counts {
  int64_t enqueued = 0;
  int64_t host_waits = 0;  // that found work to be done
};
Counts counts();
void reset_counts();

}  // namespace troika::pretend
