// The error for schedules whose ranks deadlock.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "troika/layout/errors/refuse.h"
#include "troika/layout/schedules/schedule.h"

namespace troika::layout {

struct Waiting {
  size_t rank = 0;
  Action action;
  std::optional<Action> needs;
};

[[noreturn]] inline void refuse_standstill(const std::vector<Waiting>& all) {
  constexpr size_t kShown = 8;
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(all.size(), kShown); ++i) {
    texts.push_back(fmt::format("rank {} at {}", all[i].rank, describe(all[i].action)));
    if (all[i].needs) texts.back() += ", which needs " + text_of(*all[i].needs);
  }
  if (all.size() > kShown) texts.push_back(fmt::format("{} more ranks", all.size() - kShown));
  refuse("a schedule deadlocks", fmt::format("{}", fmt::join(texts, "; ")),
         "a receive for each send, in one order on both ranks, and each action after those it "
         "needs");
}

}  // namespace troika::layout
