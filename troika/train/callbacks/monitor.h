// The metric by which a callback decides, and whether a smaller or a greater value is better.
#pragma once

#include <map>
#include <string>

namespace troika::train {

struct Monitor {
  std::string name;
  bool is_max = false;

  // `mode` is "min" or "max". NaN is neither better nor worse than any value.
  Monitor(std::string name, const std::string& mode)
      : name(std::move(name)), is_max(mode == "max") {}
  bool is_better(double a, double b) const { return is_max ? a > b : a < b; }
  double worst() const;
};

// Throws the error of a monitored metric that was not logged; it lists the logged metrics.
[[noreturn]] void refuse_monitor(const std::string& callback, const std::string& monitored,
                                 const std::map<std::string, double>& known);

}  // namespace troika::train
