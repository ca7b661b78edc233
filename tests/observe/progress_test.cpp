#include "troika/observe/progress.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

namespace troika::observe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Returns the number of terminal cells of a text of ASCII and box-drawing characters.
size_t cells(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

ProgressState typical() {
  return {.label = "epoch 2/5",
          .done = 158,
          .total = 250,
          .samples_per_second = 412.3,
          .has_loss = true,
          .loss = 0.31234,
          .seconds_left = 41.4};
}

TEST(ProgressText, FillsTheTerminalWithItsBar) {
  EXPECT_EQ(live_line(typical(), 80, false),
            "epoch 2/5 ━━━━━━━━━        63% 158/250 | 412 samples/s | loss 0.3123 | ETA 0:41");
  EXPECT_EQ(cells(live_line(typical(), 80, false)), 79u);
  EXPECT_EQ(live_line(typical(), 500, false),
            "epoch 2/5 ━━━━━━━━━━━━━━━━━━━━━━━━━                 63% 158/250 | 412 samples/s | "
            "loss 0.3123 | ETA 0:41");
  EXPECT_EQ(plain_line(typical()),
            "epoch 2/5 63% 158/250 | 412 samples/s | loss 0.3123 | ETA 0:41");
}

TEST(ProgressText, NarrowTerminalsLoseTheBarThenFieldsFromTheRight) {
  const std::pair<int, std::string> table[] = {
      {69, "epoch 2/5 ━━╸   63% 158/250 | 412 samples/s | loss 0.3123 | ETA 0:41"},
      {68, "epoch 2/5  63% 158/250 | 412 samples/s | loss 0.3123 | ETA 0:41"},
      {60, "epoch 2/5 ━━━╸    63% 158/250 | 412 samples/s | loss 0.3123"},
      {40, "epoch 2/5  63% 158/250 | 412 samples/s"},
      {23, "epoch 2/5  63% 158/250"},
      {12, "epoch 2/5  "},
      {1, ""},
      {0, ""},
  };
  for (const auto& [columns, line] : table) EXPECT_EQ(live_line(typical(), columns, false), line);
  for (int columns = 1; columns < 200; ++columns) {
    EXPECT_LT(cells(live_line(typical(), columns, false)), static_cast<size_t>(columns));
  }
}

TEST(ProgressText, BarGrowsByHalfCellsFromNothingToAll) {
  ProgressState state{.label = "e", .total = 8};
  const auto bar = [&](int64_t done, bool color) {
    state.done = done;
    const std::string line = live_line(state, 16, color);  // leaves 4 cells for the bar
    return line.substr(2, line.rfind(std::to_string(100 * done / 8) + "%") - 2);
  };
  EXPECT_EQ(bar(0, false), "       ");
  EXPECT_EQ(bar(1, false), "╸     ");
  EXPECT_EQ(bar(2, false), "━     ");
  EXPECT_EQ(bar(7, false), "━━━╸  ");
  EXPECT_EQ(bar(8, false), "━━━━ ");
  EXPECT_EQ(bar(3, true), "\x1b[36m━╸\x1b[90m━━\x1b[0m  ");
  EXPECT_EQ(bar(9, false).substr(0, 12), "━━━━") << "more than all is still all";
}

TEST(ProgressText, SaysOnlyWhatIsKnown) {
  const double nan = kUnknown;
  const std::pair<ProgressState, std::string> table[] = {
      {{.label = "e", .done = 3}, "e 3"},
      {{.label = "e", .done = 0, .total = 7}, "e 0% 0/7"},
      {{.label = "e", .done = 199, .total = 200}, "e 99% 199/200"},
      {{.label = "e", .done = 1, .total = 1, .samples_per_second = 3.14},
       "e 100% 1/1 | 3.1 samples/s"},
      {{.label = "e", .done = 1, .samples_per_second = INFINITY}, "e 1"},
      {{.label = "e", .done = 1, .has_loss = true, .loss = nan}, "e 1 | loss nan"},
      {{.label = "e", .done = 1, .has_loss = true, .loss = INFINITY}, "e 1 | loss inf"},
      {{.label = "e", .done = 1, .has_loss = true, .loss = 12}, "e 1 | loss 12.00"},
      {{.label = "e", .done = 1, .has_loss = true, .loss = 1.5e-7}, "e 1 | loss 1.500e-07"},
      {{.label = "e", .done = 1, .seconds = 75, .seconds_left = nan}, "e 1 | in 1:15"},
  };
  for (const auto& [state, line] : table) EXPECT_EQ(plain_line(state), line);
  EXPECT_EQ(live_line({.label = "e", .done = 3}, 80, true), "e 3") << "no total, no bar";
  EXPECT_EQ(clock_text(0.4), "0:00");
  EXPECT_EQ(clock_text(59.6), "1:00");
  EXPECT_EQ(clock_text(3700), "1:01:40");
  EXPECT_EQ(clock_text(1e300), "277777:46:40");
}

// A progress bar with a clock and a terminal of the test.
struct Screen {
  Clock::time_point now{};
  std::string text;

  ProgressOutput output(bool live) {
    return {.live = live,
            .color = false,
            .columns = [] { return 60; },
            .write = [this](std::string_view more) { text += more; },
            .now = [this] { return now; }};
  }
  std::string take() { return std::exchange(text, {}); }
};

TEST(ProgressBar, RedrawsInPlaceTenTimesASecondAndEndsWithALine) {
  Screen screen;
  ProgressBar bar(screen.output(true));
  bar.start("e", 40);
  EXPECT_EQ(screen.take(), fmt::format("\re {:40}   0%  0/40\x1b[K", ""));
  int drawn = 0;
  for (int i = 0; i < 20; ++i) {
    screen.now += milliseconds(50);
    bar.add_loss(2.0);
    bar.advance(1, 10);
    const std::string text = screen.take();
    drawn += !text.empty();
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
  EXPECT_EQ(drawn, 10);
  screen.now += milliseconds(100);
  bar.advance(2, 20);
  EXPECT_EQ(screen.take(), "\re ━━━     55% 22/40 | 200 samples/s | loss 2.000 | ETA 0:01\x1b[K");
  screen.now += milliseconds(900);
  bar.advance(18, 180);
  screen.take();
  bar.finish();
  EXPECT_EQ(screen.take(), "\re ━━━━━━━ 100% 40/40 | 200 samples/s | loss 2.000 | in 0:02\x1b[K\n");
}

TEST(ProgressBar, ShowsTheLatestOfEachMetric) {
  Screen screen;
  ProgressBar bar(screen.output(false));
  bar.start("e", 10);
  bar.show_metrics({{"accuracy", 0.5}, {"scale", 2}});
  bar.show_metrics({{"accuracy", NAN}});
  screen.now += std::chrono::seconds(20);
  bar.add_loss(1.0);
  bar.advance(5, 40);
  EXPECT_EQ(screen.take(),
            "e 50% 5/10 | 2.0 samples/s | loss 1.000 | accuracy nan | scale 2.000 | ETA 0:20\n");
}

TEST(ProgressBar, ClearsItselfAndComesBack) {
  Screen screen;
  {
    ProgressBar bar(screen.output(true));
    bar.clear();
    EXPECT_EQ(screen.take(), "") << "nothing to clear";
    bar.start("e", 10);
    screen.take();
    bar.clear();
    EXPECT_EQ(screen.take(), "\r\x1b[K");
    bar.clear();
    EXPECT_EQ(screen.take(), "");
    bar.advance(1, 1);
    EXPECT_NE(screen.take(), "") << "at once, though no time has passed";
  }
  EXPECT_EQ(screen.take(), "\n") << "the line stays, what follows starts on the next";
}

TEST(ProgressBar, WritesPlainLinesAtIntervals) {
  Screen screen;
  {
    ProgressBar bar(screen.output(false));
    bar.start("e", 100, /*done=*/20);
    for (int i = 0; i < 25; ++i) {
      screen.now += seconds(1);
      bar.add_loss(0.5);
      bar.advance(2, 8);
    }
    bar.clear();
    EXPECT_EQ(screen.take(),
              "e 40% 40/100 | 8.0 samples/s | loss 0.5000 | ETA 0:30\n"
              "e 60% 60/100 | 8.0 samples/s | loss 0.5000 | ETA 0:20\n");
    bar.finish();
  }
  EXPECT_EQ(screen.take(), "e 70% 70/100 | 8.0 samples/s | loss 0.5000 | in 0:25\n");
}

TEST(ProgressBar, RateAndEtaFollowTheLastSeconds) {
  Screen screen;
  ProgressBar bar(screen.output(false));
  bar.start("e", 1000);
  for (int i = 0; i < 10; ++i) {  // a slow start: 1 batch a second
    screen.now += seconds(1);
    bar.advance(1, 1);
  }
  EXPECT_EQ(screen.take(), "e 1% 10/1000 | 1.0 samples/s | ETA 16:30\n");
  for (int i = 0; i < 10; ++i) {
    screen.now += seconds(1);
    bar.advance(9, 90);
  }
  EXPECT_EQ(screen.take(), "e 10% 100/1000 | 90 samples/s | ETA 1:40\n");
}

TEST(ProgressBar, LossIsARunningMeanAndANaNStays) {
  Screen screen;
  ProgressBar bar(screen.output(false));
  const auto shown_after = [&](double loss) {
    bar.add_loss(loss);
    bar.advance(1, 1);
    bar.finish();
    const std::string text = screen.take();
    return text.substr(text.find("loss"));
  };
  bar.start("e", 0);
  EXPECT_EQ(shown_after(1), "loss 1.000 | in 0:00\n");
  EXPECT_EQ(shown_after(3), "loss 2.026 | in 0:00\n");  // (0.95 * 1 + 3) / (0.95 + 1)
  EXPECT_EQ(shown_after(NAN), "loss nan | in 0:00\n");
  EXPECT_EQ(shown_after(1), "loss nan | in 0:00\n");
}

// Sets an environment variable for one test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Environment() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST(ProgressOutput, FollowsTheEnvironment) {
  {
    const Environment tty("TROIKA_TTY", "1"), no_color("NO_COLOR", "");
    EXPECT_TRUE(ProgressOutput::standard_error().live);
    EXPECT_TRUE(ProgressOutput::standard_error().color);
  }
  const Environment tty("TROIKA_TTY", "0"), no_color("NO_COLOR", "1");
  EXPECT_FALSE(ProgressOutput::standard_error().live);
  EXPECT_FALSE(ProgressOutput::standard_error().color);
  EXPECT_EQ(ProgressOutput::standard_error().interval, seconds(10));
}

}  // namespace
}  // namespace troika::observe
