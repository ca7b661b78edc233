#include "troika/plan/memory/kept_at_pass.h"

#include <algorithm>
#include <set>

#include "troika/layout/schedules/pairs.h"

namespace troika::plan {

using layout::ActionKind;

std::vector<KeptAtPass> kept_at_passes(const std::vector<layout::Action>& actions, bool splits) {
  std::set<KeptAtPass> all;
  KeptAtPass now;
  for (size_t i = 0; i < actions.size(); ++i) {
    now.kind = actions[i].kind;
    switch (now.kind) {
      case ActionKind::forward: {
        if (layout::begins_pair(actions, i)) {
          ++now.whole;
          ++i;
        }
        all.insert(now);
        ++now.whole;
        break;
      }
      case ActionKind::backward:
      case ActionKind::backward_input:
        if (!splits) now.kind = ActionKind::backward;
        --now.whole;
        all.insert(now);
        now.has_gradients = true;
        if (now.kind == ActionKind::backward_input) ++now.weight_parts;
        break;
      case ActionKind::backward_weight:
        if (!splits) break;
        --now.weight_parts;
        all.insert(now);
        break;
      default:
        break;
    }
  }
  // Passes of one kind follow each other here, with ever fewer whole ones.
  std::vector<KeptAtPass> most;
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    const bool is_same = !most.empty() && most.back().kind == one->kind &&
                         most.back().has_gradients == one->has_gradients;
    if (!is_same || one->weight_parts > most.back().weight_parts) most.push_back(*one);
  }
  return most;
}

}  // namespace troika::plan
