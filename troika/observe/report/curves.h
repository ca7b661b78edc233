// The curves of what a run logged: which metrics share a chart, and where on the page it is.
#pragma once

#include <string>
#include <vector>

#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// Metrics that share a chart, as "train/loss", "train/epoch_loss" and "validation/loss".
struct CurveGroup {
  std::string title;
  std::string unit;  // what the y axis is labelled with
  std::vector<Series> series;
  std::string family;  // not empty: one of many of a family, such as "gradient_norm"
};

// Every metric that has a point, in one group; but not `epoch`, which loggers add by themselves.
// Groups of well-known metrics come first, those of large families last.
std::vector<CurveGroup> curve_groups(const std::vector<Series>& metrics);

// The charts as HTML, with their numbers below them; families are folded away.
std::string curves(const std::vector<Series>& metrics);

}  // namespace troika::observe::report
