// The charts of a run's logged metrics: grouping and order.
#pragma once

#include <string>
#include <vector>

#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// Metrics that share a chart, such as "train/loss", "train/epoch_loss" and "validation/loss".
struct CurveGroup {
  std::string title;
  std::string unit;  // the label of the y axis
  std::vector<Series> series;
  std::string family;  // a name such as "gradient_norm" if this chart is one of a family
};

// Puts each metric that has a point into one group, except `epoch`, which loggers add themselves.
// Groups of well-known metrics come first; those of large families come last.
std::vector<CurveGroup> curve_groups(const std::vector<Series>& metrics);

// Returns the charts as HTML, with tables of their numbers. Families are folded.
std::string curves(const std::vector<Series>& metrics);

}  // namespace troika::observe::report
