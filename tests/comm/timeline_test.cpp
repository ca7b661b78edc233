#include "troika/comm/timeline.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <nlohmann/json.hpp>

#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"

namespace troika::comm {
namespace {

using nlohmann::json;

// Ranks are threads, so they share a clock; each pretends that its own is off by this much.
constexpr std::array<std::chrono::milliseconds, 3> kShifts{
    std::chrono::milliseconds(0), std::chrono::hours(1), std::chrono::milliseconds(-700)};

Now shifted(int rank) {
  return [rank] { return Clock::now() + kShifts.at(static_cast<size_t>(rank)); };
}

TEST(Timeline, FindsTheOffsetOfEveryClock) {
  local::run(3, [](const Group& group) {
    const auto offset = measure_clock_offset(group, shifted(group.rank()));
    const auto truth = -kShifts.at(static_cast<size_t>(group.rank()));
    EXPECT_LE(std::chrono::abs(offset.offset - truth), offset.error) << group.rank();
    EXPECT_EQ(offset.error == Clock::duration(0), group.rank() == 0);
  });
}

TEST(Timeline, PutsAllRanksOnRankZerosClock) {
  const TemporaryFolder folder;
  const auto path = folder / "trace.json";
  local::run(3, [&](const Group& group) {
    Timeline timeline(group, shifted(group.rank()));
    // One instant between the two measurements, known to all.
    group.barrier();
    const auto now = at::full({1}, int64_t{Clock::now().time_since_epoch().count()}, at::kLong);
    group.broadcast(now);
    const Clock::time_point instant{Clock::duration(now.item<int64_t>())};
    timeline.trace().add({.track = "compute",
                          .name = std::string(static_cast<size_t>(group.rank()), 'x'),
                          .start = instant + kShifts.at(static_cast<size_t>(group.rank())),
                          .end = {}});
    timeline.write(path, fmt::format("rank {}", group.rank()));
  });
  const auto file = json::parse(read_file(path));
  const auto& errors = file["otherData"]["clock_error_microseconds"];
  ASSERT_EQ(errors.size(), 3u);
  std::vector<double> times;
  for (const auto& event : file["traceEvents"]) {
    if (event["ph"] != "i") continue;
    EXPECT_EQ(event["pid"], times.size()) << "in rank order";
    EXPECT_EQ(event["name"].get<std::string>().size(), times.size());
    times.push_back(event["ts"]);
  }
  ASSERT_EQ(times.size(), 3u);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_NEAR(times[r], times[0], errors[r].get<double>() + 0.01) << r;
    EXPECT_LT(errors[r], 1e6);
  }
}

TEST(Timeline, OfOneRank) {
  const TemporaryFolder folder;
  Timeline(local::alone()).write(folder / "trace.json", "rank 0");
  const auto file = json::parse(read_file(folder / "trace.json"));
  EXPECT_EQ(file["otherData"]["clock_error_microseconds"], json({0.0}));
}

}  // namespace
}  // namespace troika::comm
