#include "troika/plan/paired_forward.h"

#include <algorithm>

namespace troika::plan {

void ForwardTurns::add(const layout::ProfiledBlock& block, int ranks, bool sequence_parallel) {
  const auto of_block = layout::forward_turns(block, ranks, sequence_parallel);
  if (of_block.empty()) {
    seconds_after += block.forward;
    return;
  }
  const size_t first = turns.size();
  turns.insert(turns.end(), of_block.begin(), of_block.end());
  turns[first].seconds += seconds_after;
  seconds_after = 0;
}

double ForwardTurns::seconds() const {
  double sum = seconds_after;
  for (const auto& turn : turns) sum += turn.seconds;
  return sum;
}

namespace {

// Returns the seconds of a part beside a collective that goes on for `running` seconds.
double seconds_beside(double part, double running, double overlap) {
  if (part == 0 || running <= 0) return part;
  const double done = overlap * running;  // until the collective ends
  return done >= part ? part / overlap : running + part - done;
}

}  // namespace

double paired_seconds(const ForwardTurns& pass, double factor,
                      const std::function<double(const layout::TensorTurn&)>& collective,
                      double overlap) {
  const PairedForward pair(pass.turns.size());
  double now = 0;
  std::vector<double> ends;  // of the collectives
  for (size_t part = 0; part < pair.parts(); ++part) {
    if (pair.waits(part)) now = std::max(now, ends[part - 2]);
    const double last_end = ends.empty() ? 0 : ends.back();
    const bool has = pair.has_collective(part);
    const double own = has ? pass.turns[pair.turn(part)].seconds : pass.seconds_after;
    now += seconds_beside(own * factor, last_end - now, overlap);
    if (has) ends.push_back(std::max(now, last_end) + collective(pass.turns[pair.turn(part)]));
  }
  return now;
}

}  // namespace troika::plan
