#include "troika/layout/sandblaster_exchange.h"

#include <fmt/format.h>

#include "troika/base/config.h"
#include "troika/layout/errors/refuse.h"

namespace troika::layout {

void SandblasterExchange::verify() const {
  if (decrease >= curvature) {
    refuse("sandblaster.decrease", fmt::format("{}", decrease),
           fmt::format("below {}, sandblaster.curvature", curvature));
  }
}

void add_keys(config::Table& table, SandblasterExchange& sandblaster) {
  table.add("sandblaster.history", &sandblaster.history,
            "sandblaster: number of pairs of L-BFGS; servers keep 2 vectors for each",
            config::between(int64_t{1}, int64_t{1000}));
  table.add("sandblaster.tolerance", &sandblaster.tolerance,
            "sandblaster: the run ends when no element of the gradient of the mean loss is larger",
            config::at_least(0.0));
  table.add("sandblaster.portions", &sandblaster.portions,
            "sandblaster: number of portions of the samples for each process; a process that is "
            "done with one gets another one",
            config::between(int64_t{1}, int64_t{1000000}));
  table.add("sandblaster.backups", &sandblaster.backups,
            "sandblaster: number of idle processes that compute a portion besides the one that "
            "computes it already",
            config::between(int64_t{0}, int64_t{1000}));
  table.add("sandblaster.penalty", &sandblaster.penalty,
            "sandblaster: half of this number times the sum of squares of the parameters is added "
            "to the mean loss",
            config::at_least(0.0));
  table.add("sandblaster.decrease", &sandblaster.decrease,
            "sandblaster: a step lowers the value by at least this part of what the slope promises",
            config::above_to(0.0, 1.0));
  table.add("sandblaster.curvature", &sandblaster.curvature,
            "sandblaster: a step leaves at most this part of the slope",
            config::from_to_below(0.0, 1.0));
  table.add("sandblaster.most_evaluations", &sandblaster.most_evaluations,
            "sandblaster: evaluations of a line search, each a pass over the samples",
            config::between(int64_t{1}, int64_t{1000}));
}

}  // namespace troika::layout
