#include "troika/swarm/simplex.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "troika/base/error.h"

namespace troika::swarm {

namespace {

// Coefficients are of the order of 1: callers scale theirs.
constexpr double kZero = 1e-10;

// The basic variables as functions of the others: row i is basic = bound - sum(coefficients x).
// The last row is the objective, with the signs turned.
class Tableau {
 public:
  explicit Tableau(const LinearProgramme& programme)
      : variables_(programme.objective.size()),
        rows_(programme.rows.size()),
        cells_((rows_ + 1) * width()),
        basic_(rows_),
        other_(variables_) {
    std::iota(other_.begin(), other_.end(), size_t{0});
    std::iota(basic_.begin(), basic_.end(), variables_);
    for (size_t i = 0; i < rows_; ++i) {
      const auto& row = programme.rows[i];
      require(std::isfinite(row.bound) && row.bound >= 0, "the bound of a row", row.bound);
      cell(i, variables_) = row.bound;
      for (const auto& [variable, coefficient] : row.terms) {
        require(variable < variables_ && std::isfinite(coefficient), "a term of a row",
                coefficient);
        cell(i, variable) += coefficient;
      }
    }
    for (size_t j = 0; j < variables_; ++j) {
      require(std::isfinite(programme.objective[j]), "the objective", programme.objective[j]);
      cell(rows_, j) = -programme.objective[j];
    }
  }

  Optimum solve() {
    size_t idle = 0;  // pivots without gain since the last one with a gain
    for (;;) {
      const size_t column = entering(idle > kPatience);
      if (column == variables_) break;
      const size_t row = leaving(column);
      if (row == rows_) {
        throw Error("swarm", ErrorKind::usage, {.what = "a linear programme has no maximum"});
      }
      idle = cell(row, variables_) > kZero ? 0 : idle + 1;
      pivot(row, column);
    }
    Optimum optimum{.value = cell(rows_, variables_), .x = std::vector<double>(variables_)};
    for (size_t i = 0; i < rows_; ++i) {
      // Rounding may give -1e-17.
      if (basic_[i] < variables_) optimum.x[basic_[i]] = std::max(0.0, cell(i, variables_));
    }
    return optimum;
  }

 private:
  static constexpr size_t kPatience = 20;

  static void require(bool holds, const char* what, double got) {
    if (holds) return;
    throw Error("swarm", ErrorKind::usage,
                {.what = fmt::format("{} of a linear programme", what),
                 .got = fmt::format("{}", got),
                 .expected = "finite numbers of its variables, and bounds from 0"});
  }

  size_t width() const { return variables_ + 1; }
  double& cell(size_t row, size_t column) { return cells_[row * width() + column]; }

  // The column that enters the basis; variables_ at the optimum.
  size_t entering(bool by_number) {
    size_t best = variables_;
    for (size_t j = 0; j < variables_; ++j) {
      if (cell(rows_, j) >= -kZero) continue;
      if (best == variables_ ||
          (by_number ? other_[j] < other_[best] : cell(rows_, j) < cell(rows_, best))) {
        best = j;
      }
    }
    return best;
  }

  size_t leaving(size_t column) {
    size_t best = rows_;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < rows_; ++i) {
      if (cell(i, column) <= kZero) continue;
      const double ratio = cell(i, variables_) / cell(i, column);
      if (ratio < least || (ratio == least && basic_[i] < basic_[best])) {
        least = ratio;
        best = i;
      }
    }
    return best;
  }

  void pivot(size_t row, size_t column) {
    const double scale = 1 / cell(row, column);
    for (size_t j = 0; j < width(); ++j) cell(row, j) *= scale;
    cell(row, column) = scale;
    for (size_t i = 0; i <= rows_; ++i) {
      const double factor = cell(i, column);
      if (i == row || factor == 0) continue;
      for (size_t j = 0; j < width(); ++j) {
        if (j != column) cell(i, j) -= factor * cell(row, j);
      }
      cell(i, column) = -factor * scale;
    }
    std::swap(basic_[row], other_[column]);
  }

  const size_t variables_, rows_;
  std::vector<double> cells_;
  std::vector<size_t> basic_, other_;  // variables of the rows and of the columns
};

}  // namespace

Optimum maximize(const LinearProgramme& programme) {
  return Tableau(programme).solve();
}

}  // namespace troika::swarm
