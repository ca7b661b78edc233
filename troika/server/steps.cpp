#include "troika/server/steps.h"

#include <algorithm>
#include <utility>

namespace troika::server {

std::shared_ptr<Call> Steps::follow(const State& state) {
  if (!has_joined_ && state.worker != 0) {
    has_joined_ = true;
    wanted_ = ended_ = finished_ = state.before_first;
    if (waiting_) ++wanted_;
  }
  granted_ = std::max(granted_, state.granted);
  committed_ = std::max(committed_, state.committed);
  if (!waiting_ || !has_joined_ || granted_ < wanted_) return nullptr;
  current_ = wanted_;
  return std::exchange(waiting_, nullptr);
}

void Steps::begin(std::shared_ptr<Call> call) {
  waiting_ = std::move(call);
  if (has_joined_) ++wanted_;
}

bool Steps::end() {
  ended_ = std::exchange(current_, -1);
  return update();
}

bool Steps::remove_call(int64_t step) {
  if (--open_[step] == 0) open_.erase(step);
  return update();
}

bool Steps::update() {
  int64_t finished = ended_;
  if (!open_.empty()) finished = std::min(finished, open_.begin()->first - 1);
  return std::exchange(finished_, std::max(finished_, finished)) < finished;
}

}  // namespace troika::server
