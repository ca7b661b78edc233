#include "troika/parallel/quorum_statistics.h"

namespace troika::parallel {

std::vector<std::pair<std::string, double>> quorum_statistics(quorum::Member& member) {
  const auto totals = member.totals();
  return {{"samples_begun", static_cast<double>(totals.begun)},
          {"samples_counted", static_cast<double>(totals.counted)},
          {"replicas", static_cast<double>(member.counted().members.size())},
          {"replicas_lost", static_cast<double>(totals.lost)}};
}

}  // namespace troika::parallel
