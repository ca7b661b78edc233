#include "troika/plan/simulation/forward_pairs.h"

namespace troika::plan {

bool ForwardPairs::begin(int rank, const ProgramItem& item, double seconds) {
  const bool is_pair = item.beside && item.beside->kind == layout::ActionKind::forward;
  const auto* turns = is_pair ? recipes_.turns(rank, item.action) : nullptr;
  if (!turns) return false;
  auto& own = pair(rank);
  own = {.turns = turns, .seconds = seconds / 2, .version = own.version};
  begin_part(rank);
  return true;
}

void ForwardPairs::begin_part(int rank) {
  auto& own = pair(rank);
  const PairedForward order(own.turns->size() - 1);
  // The pass's collective before is that of two parts before.
  own.waits =
      order.waits(own.part) && queue_of(rank).finished() < own.first_collective + own.part - 1;
  if (own.waits) return;
  own.left = own.seconds * (*own.turns)[order.turn(own.part)].share;
  own.since = loop_.now();
  own.rate = 1;
  expect_end(rank);
}

void ForwardPairs::expect_end(int rank) {
  auto& own = pair(rank);
  own.left -= (loop_.now() - own.since) * own.rate;
  own.since = loop_.now();
  own.rate = queue_of(rank).runs() ? overlap_ : 1;
  ++own.version;
  if (own.left > 0 && own.rate <= 0) return;  // until the collective ends
  const double seconds = own.left > 0 ? own.left / own.rate : 0;
  loop_.push({.time = loop_.now() + seconds,
              .kind = EventKind::part_ends,
              .who = rank,
              .what = own.version});
}

bool ForwardPairs::end_part(const Event& event) {
  const int rank = event.who;
  auto& own = pair(rank);
  if (event.what != own.version) return false;
  const PairedForward order(own.turns->size() - 1);
  if (order.has_collective(own.part)) {
    const auto& recipe = (*own.turns)[order.turn(own.part)].recipe;
    const size_t index = programs_.computing(rank).index;
    const size_t number = queue_of(rank).issue(index, recipe, loop_.now());
    if (own.part == 0) own.first_collective = number;
  }
  if (++own.part == order.parts()) {
    own.turns = nullptr;
    return true;
  }
  begin_part(rank);
  return false;
}

void ForwardPairs::change(size_t group) {
  for (const int rank : programs_.groups()[group]) {
    const auto& own = pair(rank);
    if (!own.turns || programs_.computing(rank).group != group) continue;
    if (own.waits) {
      begin_part(rank);
    } else {
      expect_end(rank);
    }
  }
}

}  // namespace troika::plan
