#include "troika/plan/drawing.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/layout/schedules/table.h"
#include "troika/plan/simulated_trace.h"

namespace troika::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

Simulation simulated(std::string_view name, int p, int m) {
  const auto schedule = layout::make_schedule(name, {p, m});
  return simulate(schedule, stage_times(schedule, {layout::StageTimes{}}));
}

TEST(Drawing, ShowsPassesOverTime) {
  EXPECT_EQ(draw_text(simulated("1f1b", 2, 2), 80),
            "0 |F0 F1       B0---    B1---\n"
            "1 |   F0 B0--- F1 B1---\n");
  EXPECT_EQ(draw_text(simulated("zb-h1", 2, 2), 80),
            "0 |F0 F1    I0 W0 I1 W1\n"
            "1 |   F0 I0 F1 I1 W0 W1\n");
}

TEST(Drawing, MarksChunksAndPairs) {
  EXPECT_THAT(draw_text(simulated("zb-v", 2, 4), 200), HasSubstr("0 |F0 F1 F2 f0 i0 w0 f1 "));
  EXPECT_THAT(draw_text(simulated("dualpipe-v", 2, 4), 400), HasSubstr("F3+b1"));
}

TEST(Drawing, KeepsToItsWidth) {
  for (const int width : {20, 60, 117}) {
    const auto text = draw_text(simulated("1f1b", 12, 40), width);
    size_t begin = 0, longest = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      longest = std::max(longest, end - begin);
    }
    EXPECT_EQ(longest, static_cast<size_t>(width));
    EXPECT_THAT(text, testing::StartsWith(" 0 |F"));
    EXPECT_THAT(text, HasSubstr("\n11 | "));
  }
  EXPECT_ERROR(draw_text(simulated("1f1b", 2, 2), 19), ErrorKind::usage,
               "[plan] columns of a drawing; got 19, expected at least 20");
}

TEST(SimulatedTrace, HasASpanForEachPass) {
  const auto trace = trace_of(simulated("1f1b", 2, 2), 1e-3);
  EXPECT_THAT(trace, HasSubstr("rank 1, simulated"));
  size_t spans = 0;
  for (size_t at = 0; (at = trace.find("\"ph\":\"X\"", at)) != std::string::npos; ++at) ++spans;
  EXPECT_EQ(spans, 2u * 2 * 2);
  EXPECT_THAT(trace, HasSubstr(R"({"ph":"X","name":"1B0","pid":1,"tid":1,"ts":2000.0,)"));
  EXPECT_THAT(trace, HasSubstr(R"("dur":2000.0})"));
}

TEST(Drawing, IsSvg) {
  const auto svg = draw_svg(simulated("zb-v", 2, 4), "a < b & c");
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\" "));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr(">a &lt; b &amp; c</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>3F0 (forward, stage 3, micro-batch 0), 1.5 to 2</title>"));
  size_t passes = 0;
  for (size_t at = 0; (at = svg.find("<g>", at)) != std::string::npos; ++at) ++passes;
  EXPECT_EQ(passes, 2u * 2 * 4 * 3) << "one for each pass";
  EXPECT_THAT(draw_svg(simulated("dualpipe-v", 2, 4), ""), HasSubstr("height=\"12.0\""));
}

}  // namespace
}  // namespace troika::plan
