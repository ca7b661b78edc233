// Small linear programmes, solved by the simplex method.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace troika::swarm {

// Maximizes sum_j objective[j] x[j] over x >= 0, where sum(coefficient x[variable]) <= bound for
// each row. Bounds are at least 0, so x = 0 satisfies all rows.
struct LinearProgramme {
  struct Row {
    std::vector<std::pair<size_t, double>> terms;  // variable, coefficient
    double bound = 0;
  };

  std::vector<double> objective;
  std::vector<Row> rows;
};

struct Optimum {
  double value = 0;
  std::vector<double> x;
};

// Returns an optimal vertex. The tableau is dense: rows x variables numbers. The largest gain is
// entered first, and after pivots without gain Bland's rule, under which the method ends (R. G.
// Bland, New finite pivoting rules for the simplex method, 1977). Throws Error(swarm, usage) for a
// negative bound, a number that is not finite, an unknown variable, and an unbounded objective.
Optimum maximize(const LinearProgramme& programme);

}  // namespace troika::swarm
