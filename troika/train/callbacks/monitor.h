// Which metric a callback decides by, and which way is better.
#pragma once

#include <map>
#include <string>

namespace troika::train {

struct Monitor {
  std::string name;
  bool is_max = false;

  // `mode` is "min" or "max". A NaN is neither better nor worse than anything.
  Monitor(std::string name, const std::string& mode)
      : name(std::move(name)), is_max(mode == "max") {}
  bool is_better(double a, double b) const { return is_max ? a > b : a < b; }
  double worst() const;
};

// Throws the error of a monitored metric that was not logged; it lists those that were.
[[noreturn]] void refuse_monitor(const std::string& callback, const std::string& monitored,
                                 const std::map<std::string, double>& known);

}  // namespace troika::train
