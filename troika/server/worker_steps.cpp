// The steps of a worker.
#include <fmt/format.h>

#include "troika/server/send.h"
#include "troika/server/worker.h"

namespace troika::server {

Handle Worker::begin_step() {
  const auto call = std::make_shared<Call>(endpoint_);
  call->what = "the beginning of a step";
  call->missing = [this] {
    return fmt::format("step {} was not granted; {}", steps_.wanted(), member_.scheduler_age());
  };
  bool is_wrong = false;
  net::act_on(endpoint_, [&] {
    is_wrong = steps_.has_begun() || steps_.is_waiting();
    if (is_wrong) return;
    call->timestamp = ++last_timestamp_;
    calls_[call->timestamp] = call;
    if (!member_.refusal().empty()) return fail_all(member_.refusal());
    steps_.begin(call);
    member_.beat();
  });
  if (is_wrong) {
    throw Error(
        "server", ErrorKind::usage,
        {.what = "a step begins before the one before was ended", .hint = "call end_step() first"});
  }
  return Handle(call);
}

void Worker::end_step() {
  bool is_wrong = false;
  net::act_on(endpoint_, [&] {
    is_wrong = !steps_.has_begun();
    if (!is_wrong && steps_.end()) member_.beat();
  });
  if (is_wrong) {
    throw Error("server", ErrorKind::usage,
                {.what = "no step has begun", .hint = "wait for the handle of begin_step()"});
  }
}

int64_t Worker::step() {
  int64_t step = -1;
  net::act_on(endpoint_, [&] { step = steps_.current(); });
  return step;
}

int64_t Worker::committed() {
  int64_t step = -1;
  net::act_on(endpoint_, [&] { step = steps_.committed(); });
  return step;
}

void Worker::wait_until_committed(int64_t step, Deadline deadline) {
  std::string problem;
  const auto is_over = [&] {
    problem = hopeless();
    return !problem.empty() || steps_.committed() >= step;
  };
  const bool is_in_time = endpoint_.run_until(is_over, time_left(deadline));
  if (is_in_time && problem.empty()) return;
  if (!is_in_time) net::act_on(endpoint_, [&] { problem = member_.scheduler_age(); });
  throw Error("server", is_in_time ? ErrorKind::peer : ErrorKind::timeout,
              {.what = fmt::format("not all workers have finished step {}", step), .got = problem});
}

}  // namespace troika::server
