// The current step of a worker, and the last step that it has finished. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "troika/server/call.h"
#include "troika/server/control.h"

namespace troika::server {

class Steps {
 public:
  // Uses a new state of the scheduler. Returns the call of begin() if its step begins now.
  std::shared_ptr<Call> follow(const State& state);
  // Asks for the next step. `call` is finished when the step begins.
  void begin(std::shared_ptr<Call> call);
  // Ends the current step. Returns whether finished() has changed.
  bool end();
  // Count a call of the step that begins or is finished. remove_call() returns whether finished()
  // has changed.
  void add_call(int64_t step) { ++open_[step]; }
  bool remove_call(int64_t step);

  bool has_begun() const { return current_ >= 0; }
  bool is_waiting() const { return waiting_ != nullptr; }
  int64_t current() const { return current_; }
  int64_t wanted() const { return wanted_; }
  int64_t finished() const { return finished_; }
  int64_t committed() const { return committed_; }

 private:
  bool update();

  bool has_joined_ = false;
  int64_t current_ = -1;    // the step that has begun; -1: none
  int64_t wanted_ = -1;     // the last one asked for
  int64_t ended_ = -1;      // the last one that was ended
  int64_t finished_ = -1;   // the last one without open calls, like all before
  int64_t committed_ = -1;  // of all workers
  int64_t granted_ = -1;
  std::shared_ptr<Call> waiting_;
  std::map<int64_t, int64_t> open_;  // number of calls of a step that are not finished
};

}  // namespace troika::server
