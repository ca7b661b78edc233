// The axes of a report's charts, and the curves that share a chart.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <regex>

#include "troika/observe/report/chart.h"
#include "troika/observe/report/curves.h"

namespace troika::observe::report {
namespace {

std::vector<std::string> texts(const Scale& scale, double unit = 0) {
  std::vector<std::string> result;
  for (const auto& tick : ticks(scale, 5, unit)) result.push_back(tick.text);
  return result;
}

TEST(Ticks, AreRoundNumbersThatDiffer) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts({{0, 1}}), (Texts{"0", "0.2", "0.4", "0.6", "0.8", "1.0"}));
  EXPECT_EQ(texts({{2.0001, 2.0006}}),
            (Texts{"2.0001", "2.0002", "2.0003", "2.0004", "2.0005", "2.0006"}));
  EXPECT_EQ(texts({{-0.02, 0.03}}), (Texts{"-0.02", "-0.01", "0", "0.01", "0.02", "0.03"}));
  EXPECT_EQ(texts({{0, 3e-4}}),
            (Texts{"0", "0.5e-4", "1.0e-4", "1.5e-4", "2.0e-4", "2.5e-4", "3.0e-4"}));
  EXPECT_EQ(texts({{0, 30'000}}), (Texts{"0", "5k", "10k", "15k", "20k", "25k", "30k"}));
  EXPECT_EQ(texts({{1.2e9, 1.8e9}}),
            (Texts{"1.2G", "1.3G", "1.4G", "1.5G", "1.6G", "1.7G", "1.8G"}));
  EXPECT_EQ(texts({{0.7, 3.2}}, 1), (Texts{"1", "2", "3"})) << "there are no half steps";
}

TEST(Ticks, ScalesLeaveAMargin) {
  const auto range = [](double low, double high) {
    Range values;
    values.include(low);
    values.include(high);
    return scale_with_margin(values).range;
  };
  EXPECT_DOUBLE_EQ(range(1, 3).low, 0.9);
  EXPECT_DOUBLE_EQ(range(1, 3).high, 3.1);
  EXPECT_EQ(range(0, 3).low, 0) << "no loss is negative";
  EXPECT_LT(range(-1, 3).low, -1);
  EXPECT_EQ(scale_with_margin({4, 4})(4), 0.5);
  EXPECT_EQ(scale_with_margin({-4, -4})(-4), 0.5);
  EXPECT_LT(range(0, 0).low, range(0, 0).high);
}

std::vector<std::string> titles(const std::vector<std::string>& names) {
  std::vector<Series> metrics;
  for (const auto& name : names) metrics.push_back({name, {{1, 1}}});
  std::vector<std::string> result;
  for (const auto& group : curve_groups(metrics)) {
    std::string title = group.family + "[" + group.title + "]";
    for (const auto& series : group.series) title += " " + series.name;
    result.push_back(title);
  }
  return result;
}

TEST(Curves, WhatIsAlikeSharesAChart) {
  EXPECT_THAT(
      titles({"epoch", "mine", "train/lr", "train/loss", "validation/f1", "train/epoch_loss",
              "greatest_step", "validation/loss", "greatest_epoch", "step_epoch"}),
      testing::ElementsAre("[Loss] train/loss train/epoch_loss validation/loss",
                           "[f1] validation/f1", "[Learning rate] train/lr", "[mine] mine",
                           "[greatest] greatest_step greatest_epoch", "[step] step_epoch"));
}

TEST(Curves, OfOneChartAreToldApartByColour) {
  std::vector<std::string> names;
  for (const char* stage : {"train/", "validation/", "test/"}) {
    for (const char* kind : {"x", "x_step", "x_epoch", "epoch_x"})
      names.push_back(std::string(stage) + kind);
  }
  EXPECT_THAT(
      titles(names),
      testing::ElementsAre(
          "[x] train/x train/x_step train/x_epoch train/epoch_x validation/x validation/x_step",
          "[x] validation/x_epoch validation/epoch_x test/x test/x_step test/x_epoch "
          "test/epoch_x"));
}

// Returns the legend of a chart: the names in the order of colours.
std::string legend_of(const std::vector<std::string>& names) {
  std::vector<Series> metrics;
  for (const auto& name : names) metrics.push_back({name, {{1, 1}, {2, 3}}});
  const auto html = curves(metrics);
  static const std::regex key(R"re(key k([0-9])"></span>([^<]*)<)re");
  std::string result;
  for (std::sregex_iterator at(html.begin(), html.end(), key), end; at != end; ++at) {
    result += fmt::format("{}={} ", (*at)[2].str(), (*at)[1].str());
  }
  return result;
}

TEST(Curves, ASeriesHasOneColourInEveryChartOfEveryRun) {
  EXPECT_EQ(legend_of({"train/loss", "train/epoch_loss", "validation/loss", "train/lr",
                       "validation/accuracy", "mine_step", "mine_epoch"}),
            "train/loss=0 train/epoch_loss=1 validation/loss=2 validation/accuracy=2 train/lr=0 "
            "mine_step=4 mine_epoch=5 ");
  EXPECT_EQ(legend_of({"validation/loss", "train/epoch_loss"}),
            "validation/loss=2 train/epoch_loss=1 ");
  EXPECT_EQ(legend_of({"validation/x", "validation/x_epoch", "test/x"}),
            "validation/x=2 validation/x_epoch=3 test/x=4 ")
      << "apart within a chart";
}

TEST(Curves, PeaksAmongManyPointsStay) {
  Series series{"loss", {}};
  for (int i = 0; i < 20'000; ++i) series.points.push_back({static_cast<double>(i), 1});
  series.points[7777].y = 100;
  series.points[7778].y = NAN;
  series.points[7780].y = 80;
  const auto html = curves({series});
  EXPECT_LT(html.size(), 40'000u);
  const auto line = html.substr(html.find("class=\"line"));
  // The axis ends at 100 and a margin of 4.95.
  EXPECT_THAT(line.substr(0, line.find("/>")),
              testing::ContainsRegex("L[0-9.]+ 47[.]2M.*L[0-9.]+ 237[.]7L"));
}

}  // namespace
}  // namespace troika::observe::report
