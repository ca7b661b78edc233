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

double ServedRanks::busy(int number) {
  auto& own = rank(number);
  if (own.messages > 0) own.busy += now() - own.busy_since;
  own.busy_since = now();
  return own.busy;
}

void ServedRanks::begin_message(int number) {
  busy(number);
  ++rank(number).messages;
}

void ServedRanks::end_message(int number) {
  busy(number);
  --rank(number).messages;
}

void ServedRanks::compute(int number, double seconds, Call then) {
  rank(number).computes_since = now();
  continue_computing(number, {.begin = now(), .seconds = seconds, .busy_before = busy(number)},
                     now() + seconds, std::move(then));
}

void ServedRanks::continue_computing(int number, const Computing& computing, double end,
                                     Call then) {
  timeline_.after(end - now(), [this, number, computing, then = std::move(then)] {
    constexpr double kNegligible = 1e-6;  // of the computing
    const double added = (1 - run_.overlap) * (busy(number) - computing.busy_before);
    const double later = computing.begin + computing.seconds + added;
    if (later - now() > kNegligible * computing.seconds) {
      return continue_computing(number, computing, later, then);
    }
    use(number).compute_seconds += computing.seconds;
    use(number).exposed_seconds += added;
    rank(number).computes_since = -1;
    then();
  });
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
  count_received(number, bytes);
  timeline_.send(device, number, bytes, std::move(arrives));
}

void ServedRanks::record(int number, const char* track, const std::string& name, double begin,
                         int bucket, double bytes) {
  if (!run_.records_trace) return;
  result_.spans.push_back({number, rank(number).step, track, name, begin, now(), bucket, bytes});
}

void ServedRanks::record_pass(int number, const ProgramItem& item, double begin) {
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
  result_.makespan = ends_.front();
  double before = 0;
  for (size_t step = 1; step <= steps; ++step) {
    const double end = ends_[step * ranks_.size() - 1];
    result_.step_seconds.push_back(end - std::exchange(before, end));
  }
  for (int number = 0; number < ranks(); ++number) {
    const auto& own = rank(number);
    auto& use = result_.ranks[static_cast<size_t>(number)];
    if (own.computes_since >= 0) use.compute_seconds += now() - own.computes_since;
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
