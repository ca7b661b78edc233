// Whole peers with caps on bandwidth.
#include "troika/swarm/metered_endpoint.h"

#include <gmock/gmock.h>

#include "tests/swarm/trainers.h"

namespace troika::swarm {
namespace {

// Peers of which one has a cap make the same steps as ever, and the cap holds.
TEST(Metering, PeersKeepTheirCap) {
  constexpr double kRate = 20e3, kSeconds = 60;
  Trainers run(13);
  run.add(8, {.bandwidth = 1e6});
  auto& capped = run.add(8, {.bandwidth = kRate}, {.up = kRate, .down = kRate});
  run.add(8, {.bandwidth = 1e6});
  run.checked = [](size_t, const SwarmStep& step, const std::vector<double>&) {
    EXPECT_THAT(step.members, testing::SizeIs(3)) << step.epoch;
    EXPECT_TRUE(step.averaging.is_complete()) << step.epoch;
    // The shares follow the cap.
    EXPECT_EQ(step.averaging.parts.size(), 2U);
  };
  pass(run.network, kSeconds);
  EXPECT_GT(capped.steps, 10);
  const auto [sent, received] = capped.metered->traffic();
  const double most = kRate * (kSeconds + .25) + 8 * kNumbers;
  EXPECT_GT(sent, capped.steps * 8 * kNumbers);
  EXPECT_LE(static_cast<double>(sent), most);
  EXPECT_LE(static_cast<double>(received), most);
}

}  // namespace
}  // namespace troika::swarm
