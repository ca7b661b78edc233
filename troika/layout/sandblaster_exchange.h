// The settings of Sandblaster L-BFGS (docs/sandblaster.md).
#pragma once

#include <cstdint>

#include "troika/base/config_fwd.h"

namespace troika::layout {

// Sandblaster L-BFGS (Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.2).
struct SandblasterExchange {
  int64_t history = 10;     // pairs of changes of parameters and gradient
  double tolerance = 1e-7;  // the run has converged if no element of the gradient is larger
  int64_t portions = 4;     // of the samples, for each replica
  int64_t backups = 1;      // replicas that compute a portion besides the first one
  double penalty = 0;       // half of it, times the sum of squares of parameters, is in the loss
  // The constants of the strong Wolfe conditions, and the evaluations of a line search.
  double decrease = 1e-4;
  double curvature = 0.9;
  int64_t most_evaluations = 25;

  bool operator==(const SandblasterExchange&) const = default;
  // Throws Error(usage) for values that do not go together.
  void verify() const;
};

// Binds the values to keys of section [sandblaster]. `sandblaster` must outlive the table.
void add_keys(config::Table& table, SandblasterExchange& sandblaster);

}  // namespace troika::layout
