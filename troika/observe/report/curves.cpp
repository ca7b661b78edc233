#include "troika/observe/report/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "troika/observe/report/html.h"
#include "troika/observe/report/plots.h"
#include "troika/observe/report/style.h"

namespace troika::observe::report {

namespace {

// Tables with more rows are thinned out; the whole table is in metrics.csv.
constexpr size_t kRows = 200;
// Metrics with a common prefix form a folded family from this number on.
constexpr int64_t kFamily = 6;

struct Known {
  std::string_view key;
  const char* title;
  const char* unit;
};
// In the page's order. Other metrics of a stage come after the first two; all remaining metrics
// come last.
constexpr std::array<Known, 8> kKnown{
    {{"loss", "Loss", "loss"},
     {"accuracy", "Accuracy", "fraction of samples"},
     {"lr", "Learning rate", "learning rate"},
     {"samples_per_second", "Throughput", "samples/s"},
     {"throughput/batches_per_second", "Batches", "batches/s"},
     {"throughput/tokens_per_second", "Tokens", "tokens/s"},
     {"throughput/flops_per_second", "Floating-point operations", "FLOP/s"},
     {"throughput/mfu", "Model FLOPs utilization (MFU)", "fraction of the peak"}}};
constexpr size_t kOfStages = 2;  // the position of other metrics of stages in kKnown

bool take_prefix(std::string& name, std::string_view prefix) {
  if (!name.starts_with(prefix) || name.size() == prefix.size()) return false;
  name.erase(0, prefix.size());
  return true;
}

struct Key {
  std::string name;  // the common part of the names in a chart
  bool is_of_stage;
};

Key key_of(std::string name) {
  const bool is_of_stage =
      take_prefix(name, "train/") || take_prefix(name, "validation/") || take_prefix(name, "test/");
  if (is_of_stage) take_prefix(name, "epoch_");
  for (const std::string_view suffix : {"_step", "_epoch"}) {
    if (name.ends_with(suffix) && name.size() > suffix.size()) {
      name.erase(name.size() - suffix.size());
      break;
    }
  }
  return {name, is_of_stage};
}

// Returns "gradient_norm" for "gradient_norm/layer1.weight"; empty without a prefix.
std::string prefix_of(const std::string& key) {
  const auto slash = key.find('/');
  return slash == std::string::npos ? "" : key.substr(0, slash);
}

size_t place_of(const Key& key) {
  const auto known = std::ranges::find(kKnown, key.name, &Known::key);
  const auto place = static_cast<size_t>(known - kKnown.begin());
  if (known == kKnown.end()) return key.is_of_stage ? kOfStages : kKnown.size() + 1;
  return place < kOfStages ? place : place + 1;
}

CurveGroup group_of(const std::string& key) {
  const auto known = std::ranges::find(kKnown, key, &Known::key);
  if (known != kKnown.end()) return {known->title, known->unit, {}, {}};
  return {key, key.substr(key.rfind('/') + 1), {}, {}};
}

std::string numbers_of(const Series& series) {
  const auto& points = series.points;
  const size_t rows = std::min(points.size(), kRows);
  std::vector<Cells> cells;
  for (size_t i = 0; i < rows; ++i) {
    const Point& point = points[rows == 1 ? 0 : i * (points.size() - 1) / (rows - 1)];
    cells.push_back({fmt::format("{:.0f}", point.x), number(point.y)});
  }
  const std::string thinned =
      rows < points.size()
          ? fmt::format(" ({} rows of {}; all are in metrics.csv)", rows, points.size())
          : "";
  return table(series.name + thinned, {"step", series.name}, cells);
}

// Splits a group into charts in which no two curves have the same colour.
std::vector<CurveGroup> readable(const CurveGroup& group) {
  std::vector<CurveGroup> result;
  for (size_t i = 0; i < group.series.size(); ++i) {
    if (i % kColours.size() == 0) result.push_back({group.title, group.unit, {}, group.family});
    result.back().series.push_back(group.series[i]);
  }
  return result;
}

}  // namespace

std::vector<CurveGroup> curve_groups(const std::vector<Series>& metrics) {
  std::vector<Key> keys;  // in logging order
  std::map<std::string, CurveGroup> groups;
  std::map<std::string, int64_t> families;
  for (const Series& series : metrics) {
    if (series.points.empty() || series.name == "epoch") continue;
    const auto key = key_of(series.name);
    const auto [group, is_new] = groups.try_emplace(key.name, group_of(key.name));
    group->second.series.push_back(series);
    if (!is_new) continue;
    keys.push_back(key);
    ++families[prefix_of(key.name)];
  }
  families.erase("");
  std::ranges::stable_sort(keys, {}, place_of);
  std::vector<CurveGroup> ordered, folded;
  for (const auto& key : keys) {
    const auto family = families.find(prefix_of(key.name));
    const bool is_many = family != families.end() && family->second >= kFamily;
    for (auto& group : readable(groups.at(key.name))) {
      if (is_many) group.family = family->first;
      (is_many ? folded : ordered).push_back(std::move(group));
    }
  }
  std::ranges::stable_sort(folded, {}, &CurveGroup::family);
  ordered.insert(ordered.end(), folded.begin(), folded.end());
  return ordered;
}

std::string curves(const std::vector<Series>& metrics) {
  std::string open;
  std::map<std::string, std::string> families;
  std::map<std::string, int> counts;
  Range steps;  // the same for all charts, so they can be compared
  for (const Series& series : metrics) {
    for (const Point& point : series.points) steps.include(point.x);
  }
  for (const auto& group : curve_groups(metrics)) {
    const auto plot = line_plot(group.title, group.unit, steps, group.series);
    if (!group.family.empty()) {
      families[group.family] += "<div>\n" + plot + "</div>\n";
      ++counts[group.family];
      continue;
    }
    std::string numbers;
    for (const Series& one : group.series) numbers += numbers_of(one);
    open += "<div>\n" + plot + folded("As numbers", numbers) + "</div>\n";
  }
  if (open.empty() && families.empty()) return paragraph("The run logged none.");
  std::string html = "<div class=\"charts\">\n" + open + "</div>\n";
  for (const auto& [family, plots] : families) {
    html += folded(fmt::format("{}: {} charts", family, counts[family]),
                   "<div class=\"charts\">\n" + plots + "</div>\n");
  }
  return html;
}

}  // namespace troika::observe::report
