#include "troika/base/trace.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using testing::ElementsAre;

const Clock::time_point kZero{std::chrono::hours(5)};

Clock::time_point at(int64_t us) {
  return kZero + microseconds(us);
}

std::vector<std::string> names_of(const std::vector<TraceEvent>& events) {
  std::vector<std::string> names;
  for (const auto& event : events) names.push_back(event.name);
  return names;
}

TEST(Trace, KeepsTheFirstSteps) {
  Trace trace(2);
  trace.add({.track = "compute", .name = "before", .start = at(0), .end = at(1)});
  for (int64_t step = 0; step < 4; ++step) {
    trace.begin_step(step);
    trace.add({.track = "compute", .name = std::to_string(step), .start = at(step), .end = {}});
  }
  const auto events = trace.events();
  EXPECT_THAT(names_of(events), ElementsAre("before", "0", "1"));
  EXPECT_EQ(events[0].step, -1);
  EXPECT_EQ(events[2].step, 1);
}

TEST(Trace, SpansLieAroundTheirScope) {
  Trace trace;
  const auto before = Clock::now();
  {
    const TraceSpan outer(&trace, "compute", "outer");
    const TraceSpan inner(&trace, "compute", "inner", 3, 64);
    const TraceSpan nowhere(nullptr, "compute", "nowhere");
  }
  const auto events = trace.events();
  ASSERT_THAT(names_of(events), ElementsAre("inner", "outer"));
  EXPECT_LE(before, events[1].start);
  EXPECT_LE(events[1].start, events[0].start);
  EXPECT_LE(*events[0].end, *events[1].end);
  EXPECT_EQ(events[0].bucket, 3);
  EXPECT_EQ(events[0].bytes, 64);
}

// The questions are sent at 0 and 100, and a clock that is 1000 ahead answers at once. The first
// answer arrives late, so the middle of this exchange is far from the time when the other clock was
// read.
TEST(ClockOffset, TakesTheExchangeOfLeastRoundTrip) {
  const auto offset = clock_offset({{.sent = at(0), .there = at(1001), .received = at(90)},
                                    {.sent = at(100), .there = at(1106), .received = at(110)},
                                    {.sent = at(200), .there = at(1210), .received = at(250)}});
  EXPECT_EQ(offset.at, at(105));
  EXPECT_EQ(offset.offset, microseconds(1001));
  EXPECT_EQ(offset.error, microseconds(5));
  EXPECT_LE(std::chrono::abs(offset.offset - microseconds(1000)), offset.error);
}

TEST(ClockOffset, TheErrorOfAnOddRoundTripIsRoundedUp) {
  const auto odd = Clock::duration(3);
  EXPECT_EQ(clock_offset({{at(0), at(0), at(0) + odd}}).error, Clock::duration(2));
}

TEST(AlignedClock, TakesOutDrift) {
  const AlignedClock clock({at(0), microseconds(100), microseconds(2)},
                           {at(1000), microseconds(110), microseconds(7)});
  EXPECT_EQ(clock(at(0)), at(100));
  EXPECT_EQ(clock(at(500)), at(605));
  EXPECT_EQ(clock(at(1000)), at(1110));
  EXPECT_EQ(clock(at(2000)), at(2110));
  EXPECT_EQ(clock(at(-2000)), at(-1900));
  EXPECT_EQ(clock.error(), microseconds(7));
}

TEST(AlignedClock, OfOneMeasurementHasNoDrift) {
  const ClockOffset once{at(10), microseconds(-4), {}};
  EXPECT_EQ(AlignedClock(once, once)(at(50)), at(46));
}

TEST(TraceFile, IsWhatPerfettoReads) {
  const ClockOffset ahead{at(0), microseconds(-1000), microseconds(3)};
  const std::vector<TraceEvent> events{
      {.track = "compute", .name = "backward", .start = at(1010), .end = at(1050), .step = 4},
      {.track = "compute", .name = "step", .start = at(1010), .end = at(1060), .step = 4},
      {.track = "compute",
       .name = "bucket ready",
       .start = at(1020),
       .end = {},
       .step = 4,
       .bucket = 1,
       .bytes = 8},
      {.track = "communication",
       .name = "bucket",
       .start = at(1025),
       .end = at(1035),
       .step = 4,
       .bucket = 1,
       .bytes = 8}};
  const auto elements = trace_elements({.rank = 2, .name = "rank 2 on a\"b\xff", .events = events},
                                       AlignedClock(ahead, ahead), at(2));
  const auto file = json::parse(trace_file({elements}, {microseconds(3)}, 500));
  EXPECT_EQ(file["otherData"], json({{"format", "troika trace 1"},
                                     {"ranks", 1},
                                     {"first_steps", 500},
                                     {"clock_error_microseconds", {3.0}}}));
  std::vector<json> spans, flows;
  std::map<int, std::string> tracks;
  for (const auto& event : file["traceEvents"]) {
    EXPECT_EQ(event["pid"], 2);
    if (event["ph"] == "X") spans.push_back(event);
    if (event["ph"] == "s" || event["ph"] == "f") flows.push_back(event);
    if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "rank 2 on a\"b\xef\xbf\xbd");
    }
    if (event["ph"] == "i") {
      EXPECT_DOUBLE_EQ(event["ts"], 18);
    }
  }
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0]["name"], "step") << "the outer span first";
  EXPECT_EQ(spans[1]["name"], "backward");
  EXPECT_DOUBLE_EQ(spans[1]["ts"], 8);
  EXPECT_DOUBLE_EQ(spans[1]["dur"], 40);
  EXPECT_EQ(spans[1]["args"], json({{"step", 4}}));
  EXPECT_EQ(spans[2]["args"], json({{"step", 4}, {"bucket", 1}, {"bytes", 8}}));
  EXPECT_EQ(tracks.at(spans[0]["tid"]), "compute");
  EXPECT_EQ(tracks.at(spans[2]["tid"]), "communication");
  ASSERT_EQ(flows.size(), 2u);
  EXPECT_EQ(flows[0]["ph"], "s");
  EXPECT_EQ(flows[1]["ph"], "f");
  EXPECT_EQ(flows[0]["id"], flows[1]["id"]);
}

}  // namespace
}  // namespace troika
