// Methods of exchange that runs are not simulated with.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/support/errors.h"
#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {
namespace {

TEST(RunSimulator, RefusesParameterServers) {
  using layout::ExchangeMethod;
  SimulatedRun run;
  run.plan.mesh = layout::Mesh(layout::Axis::data, 2);
  run.cluster = layout::Cluster::uniform(1, 2);
  run.stages = {{.passes = {1, 1, 1}}};
  for (const auto& [name, method] : {std::pair("servers", ExchangeMethod::servers),
                                     {"summation", ExchangeMethod::summation},
                                     {"downpour_sgd", ExchangeMethod::downpour},
                                     {"sandblaster_lbfgs", ExchangeMethod::sandblaster},
                                     {"quorum", ExchangeMethod::fault_tolerant}}) {
    const bool is_exact = method == ExchangeMethod::sandblaster;
    run.plan.exchange = {.method = method,
                         .servers = {.consistency = is_exact ? "sequential" : "eventual"}};
    EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
                 fmt::format("[plan] exchange.method of a simulation; got {}, expected all_reduce, "
                             "zero or local_steps",
                             name));
  }
}

}  // namespace
}  // namespace troika::plan
