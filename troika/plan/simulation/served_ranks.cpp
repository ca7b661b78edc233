#include "troika/plan/simulation/served_ranks.h"

#include <algorithm>
#include <utility>

#include "troika/base/error.h"

namespace troika::plan {

using layout::ActionKind;

ServedRanks::ServedRanks(const SimulatedRun& run)
    : run_(run),
      links_(run.cluster),
      programs_(run.schedule(), run.plan.mesh),
      times_(run),
      timeline_(links_),
      ranks_(static_cast<size_t>(programs_.ranks())) {
  result_.ranks.resize(ranks_.size());
  const auto& stage = work();
  for (auto& use : result_.ranks) {
    use.peak_bytes = stage.resident_bytes + stage.activation_bytes + stage.workspace_bytes;
  }
}

std::vector<ServedRanks::Pass> ServedRanks::passes(int rank, int step) const {
  std::vector<Pass> passes;
  const auto& program = programs_.of(rank);
  for (size_t i = 0; i < program.size(); ++i) {
    if (!is_pass(program[i].action.kind)) continue;
    passes.push_back({&program[i], times_.seconds(rank, step, i, program[i])});
  }
  return passes;
}

double ServedRanks::batch_seconds(int rank, int pass, int number) const {
  double seconds = 0;
  size_t item = 2 * static_cast<size_t>(number);
  for (const auto& one : programs_.of(rank)) {
    if (is_pass(one.action.kind)) seconds += times_.seconds(rank, pass, item++, one);
  }
  return seconds;
}

double ServedRanks::optimizer_seconds(int rank, double share) const {
  return work().optimizer_seconds * share * times_.factor(rank);
}

void ServedRanks::begin_message(int number) {
  change_messages(number, 1);
}

void ServedRanks::end_message(int number) {
  change_messages(number, -1);
}

void ServedRanks::change_messages(int number, int by) {
  auto& own = rank(number).computing;
  const double before = rate(number);
  rank(number).messages += by;
  if (own.begin < 0 || rate(number) == before) return;
  own.left -= before * (now() - own.since);
  own.since = now();
  schedule_end(number);
}

void ServedRanks::compute(int number, double seconds, Call then) {
  auto& own = rank(number).computing;
  own = {.begin = now(),
         .seconds = seconds,
         .left = seconds,
         .since = now(),
         .version = own.version,
         .then = std::move(then)};
  schedule_end(number);
}

// Without overlap, computing stands still until the messages end.
void ServedRanks::schedule_end(int number) {
  auto& own = rank(number).computing;
  ++own.version;
  const double left = std::max(0.0, own.left);
  if (left > 0 && rate(number) <= 0) return;
  const double after = left > 0 ? left / rate(number) : 0;
  timeline_.after(after, [this, number, version = own.version] {
    if (rank(number).computing.version == version) end_computing(number);
  });
}

void ServedRanks::end_computing(int number) {
  auto& own = rank(number).computing;
  const double seconds = now() - std::exchange(own.begin, -1);
  use(number).compute_seconds += own.seconds;
  use(number).exposed_seconds += std::max(0.0, seconds - own.seconds);  // up to rounding
  std::exchange(own.then, nullptr)();
}

void ServedRanks::begin_wait(int number) {
  rank(number).waits_since = now();
}

void ServedRanks::end_wait(int number) {
  const double since = std::exchange(rank(number).waits_since, -1);
  use(number).exposed_seconds += now() - since;
  record(number, "compute", "finish_backward", since);
}

void ServedRanks::send(int number, int device, double bytes, Call arrives) {
  count_sent(number, bytes);
  timeline_.send(number, device, bytes, std::move(arrives));
}

void ServedRanks::receive(int number, int device, double bytes, Call arrives) {
  timeline_.send(device, number, bytes, [this, number, bytes, arrives = std::move(arrives)] {
    count_received(number, bytes);
    arrives();
  });
}

void ServedRanks::record(int number, const char* track, const std::string& name, double begin,
                         int bucket, double bytes) {
  if (!run_.records_trace) return;
  result_.spans.push_back({number, rank(number).step, track, name, begin, now(), bucket, bytes});
}

void ServedRanks::count_pass(int number, double begin) {
  if (rank(number).step > 0) return;
  first_begin_ = std::min(first_begin_, begin);
  result_.makespan = now() - first_begin_;
}

void ServedRanks::record_pass(int number, const ProgramItem& item, double begin) {
  count_pass(number, begin);
  const bool is_forward = item.action.kind == ActionKind::forward;
  record(number, "compute", is_forward ? "forward" : "backward", begin);
  if (run_.records_trace) record(number, "passes", text_of(item.action), begin);
}

void ServedRanks::end_step(int number) {
  auto& own = rank(number);
  record(number, "compute", "step", own.step_begin);
  own.step_begin = now();
  ++own.step;
  ends_.push_back(now());
  const auto all = ranks_.size() * static_cast<size_t>(run_.steps);
  if (ends_.size() == all) timeline_.stop();
}

RunSimulation ServedRanks::simulate() {
  timeline_.run();
  const size_t steps = static_cast<size_t>(run_.steps);
  TROIKA_CHECK(ends_.size() == ranks_.size() * steps, "ranks end all steps");
  result_.seconds = now();
  double before = 0;
  for (size_t step = 1; step <= steps; ++step) {
    const double end = ends_[step * ranks_.size() - 1];
    result_.step_seconds.push_back(end - std::exchange(before, end));
  }
  for (int number = 0; number < ranks(); ++number) {
    const auto& own = rank(number);
    auto& use = result_.ranks[static_cast<size_t>(number)];
    const double computes_since = own.computing.begin;
    if (computes_since >= 0) use.compute_seconds += now() - computes_since;
    if (own.waits_since >= 0) use.exposed_seconds += now() - own.waits_since;
    use.idle_seconds = std::max(0.0, result_.seconds - use.compute_seconds - use.exposed_seconds);
    for (double* sum : {&use.compute_seconds, &use.exposed_seconds, &use.idle_seconds,
                        &use.sent_bytes, &use.received_bytes}) {
      *sum /= run_.steps;
    }
  }
  result_.links = timeline_.traffic();
  return std::move(result_);
}

void StalenessCounts::add(int64_t staleness) {
  ++count_;
  sum_ += staleness;
  most_ = std::max(most_, staleness);
}

Staleness StalenessCounts::staleness() const {
  const double mean = count_ > 0 ? static_cast<double>(sum_) / static_cast<double>(count_) : 0;
  return {.mean = mean, .most = most_, .count = count_};
}

void PushCounts::push(int replica, int64_t seen) {
  counts_.add(of_others(replica) - seen);
  ++own_[static_cast<size_t>(replica)];
  ++total_;
}

}  // namespace troika::plan
