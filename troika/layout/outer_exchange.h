// The outer steps of a plan whose ranks train by themselves.
#pragma once

#include <cstdint>
#include <string>

#include "troika/base/config_fwd.h"

namespace troika::layout {

// DiLoCo (Douillard et al. 2023, arXiv 2311.08105) and streaming DiLoCo (Douillard et al. 2025,
// arXiv 2501.18512): an outer SGD with Nesterov momentum steps by the mean of the ranks' changes.
struct OuterExchange {
  bool is_on = false;
  double lr = 0.7;
  double momentum = 0.9;
  int64_t fragments = 1;  // parts of the model, which step at different times
  int64_t delay = 0;      // inner steps between the sending of changes and the outer step
  double mixing = 0;      // the part of a rank's own weights in its weights after an outer step
  std::string codec = "none";

  bool operator==(const OuterExchange&) const = default;

  // Returns the number of inner steps between two outer steps, of fragments that each step every
  // `period` inner steps.
  int64_t interval(int64_t period) const { return period / fragments; }
  // Throws Error(usage) for values that do not go together. `period` 0: it is not fixed.
  void verify(int64_t period) const;
  // Continues "ranks step by themselves and average parameters every N steps"; empty if not on.
  std::string text() const;
};

// Binds the values to keys of section [exchange]. `outer` must outlive the table.
void add_keys(config::Table& table, OuterExchange& outer);

}  // namespace troika::layout
