// L-BFGS on vectors of this process: known minima, and the textbook's two-loop recursion.
#include <gmock/gmock.h>

#include <cmath>
#include <deque>
#include <limits>

#include "tests/support/errors.h"
#include "troika/base/random.h"
#include "troika/server/batch/lbfgs.h"

namespace troika::server {
namespace {

using Vector = std::vector<double>;
// Returns the value, and sets the gradient.
using Function = std::function<double(const Vector&, Vector&)>;

double inner(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
void add_to(Vector& to, double factor, const Vector& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * from[i];
}

// Rosenbrock's function of any even dimension; the minimum is 0 at (1, ..., 1).
double rosenbrock(const Vector& x, Vector& gradient) {
  double value = 0;
  for (size_t i = 0; i + 1 < x.size(); i += 2) {
    const double a = x[i + 1] - x[i] * x[i], b = 1 - x[i];
    value += 100 * a * a + b * b;
    gradient[i] = -400 * a * x[i] - 2 * b;
    gradient[i + 1] = 200 * a;
  }
  return value;
}

// 1/2 x.A x - b.x with a positive definite A of condition 1000.
Function random_quadratic(size_t size) {
  Random random(4);
  std::vector<Vector> rows(size, Vector(size));
  Vector scale(size), b(size);
  for (size_t i = 0; i < size; ++i) {
    scale[i] = std::pow(1000.0, static_cast<double>(i) / static_cast<double>(size - 1));
    b[i] = random.normal();
    for (auto& value : rows[i]) value = random.normal();
    // Gram and Schmidt: the rows become orthonormal.
    for (size_t k = 0; k < i; ++k) add_to(rows[i], -inner(rows[i], rows[k]), rows[k]);
    const double norm = std::sqrt(inner(rows[i], rows[i]));
    for (auto& value : rows[i]) value /= norm;
  }
  return [rows, scale, b](const Vector& x, Vector& gradient) {
    double value = -inner(b, x);
    for (size_t k = 0; k < x.size(); ++k) gradient[k] = -b[k];
    for (size_t i = 0; i < x.size(); ++i) {
      const double along = inner(rows[i], x);
      value += scale[i] * along * along / 2;
      add_to(gradient, scale[i] * along, rows[i]);
    }
    return value;
  };
}

constexpr size_t kFeatures = 6, kSamples = 40;

double logistic(const Vector& w, Vector& gradient) {
  double value = 0.005 * inner(w, w);
  for (size_t j = 0; j < kFeatures; ++j) gradient[j] = 0.01 * w[j];
  for (size_t i = 0; i < kSamples; ++i) {
    Vector x(kFeatures);
    for (size_t j = 0; j < kFeatures; ++j) {
      const auto row = static_cast<double>(i), column = static_cast<double>(j);
      x[j] = std::sin(1.7 * row + 2.3 * column + 0.1 * row * column);
    }
    const double label = std::cos(3.1 * static_cast<double>(i)) + x[0] > 0 ? 1 : -1;
    const double margin = label * inner(w, x);
    value += std::log1p(std::exp(-margin)) / kSamples;
    add_to(gradient, -label / (1 + std::exp(margin)) / kSamples, x);
  }
  return value;
}

// L-BFGS as the book writes it, with the same line search.
class Textbook {
 public:
  Textbook(Function function, Vector begin, size_t history)
      : function_(std::move(function)), x_(std::move(begin)), g_(x_.size()), history_(history) {
    value_ = function_(x_, g_);
  }
  const Vector& x() const { return x_; }

  void iterate() {
    Vector d = g_;
    std::vector<double> alphas(pairs_.size());
    for (size_t i = pairs_.size(); i-- > 0;) {
      alphas[i] = inner(pairs_[i].first, d) / inner(pairs_[i].first, pairs_[i].second);
      add_to(d, -alphas[i], pairs_[i].second);
    }
    if (!pairs_.empty()) {
      const auto& [s, y] = pairs_.back();
      const double scale = inner(s, y) / inner(y, y);
      for (auto& value : d) value *= scale;
    }
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const auto& [s, y] = pairs_[i];
      add_to(d, alphas[i] - inner(y, d) / inner(s, y), s);
    }
    for (auto& value : d) value = -value;
    double one_norm = 0;
    for (const double value : g_) one_norm += std::abs(value);
    const Vector x = x_, g = g_;
    const auto found = search_line(
        [&](double step) {
          x_ = x;
          add_to(x_, step, d);
          value_ = function_(x_, g_);
          return LinePoint{step, value_, inner(g_, d)};
        },
        {0, value_, inner(g, d)}, pairs_.empty() ? std::min(1.0, 1 / one_norm) : 1, {});
    ASSERT_TRUE(found.is_wolfe);
    Vector s = x_, y = g_;
    add_to(s, -1, x);
    add_to(y, -1, g);
    pairs_.emplace_back(s, y);
    if (pairs_.size() > history_) pairs_.pop_front();
  }

 private:
  const Function function_;
  Vector x_, g_;
  const size_t history_;
  double value_ = 0;
  std::deque<std::pair<Vector, Vector>> pairs_;
};

class LocalRun {
 public:
  LocalRun(Function function, const Vector& begin, LbfgsOptions options = {})
      : space_(begin.size()),
        lbfgs_(
            space_, [this, function] { return function(space_.vector("x"), space_.vector("g")); },
            options) {
    space_.vector("x") = begin;
  }
  LbfgsIteration iterate() { return lbfgs_.iterate(); }
  // Returns the last iteration, and counts those that moved.
  LbfgsIteration run(int most, int* moved = nullptr) {
    LbfgsIteration last;
    for (int i = 0; i < most; ++i) {
      const double before = last.value;
      last = lbfgs_.iterate();
      if (last.outcome != LbfgsOutcome::moved) break;
      EXPECT_TRUE(i == 0 || last.value <= before + 1e-14 * std::abs(before));
      if (moved) ++*moved;
    }
    return last;
  }
  const Vector& x() { return space_.vector("x"); }

 private:
  LocalVectors space_;
  Lbfgs lbfgs_;
};

void expect_near(const Vector& got, const Vector& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << i;
}

TEST(ServerLbfgs, FindsTheMinimumOfRosenbrocksFunction) {
  Vector begin;
  for (int i = 0; i < 10; ++i) begin.insert(begin.end(), {-1.2, 1});
  LocalRun run(rosenbrock, begin, {.tolerance = 1e-9});
  int moved = 0;
  EXPECT_EQ(run.run(200, &moved).outcome, LbfgsOutcome::converged);
  expect_near(run.x(), Vector(20, 1), 1e-8);
  EXPECT_LT(moved, 60);
}

TEST(ServerLbfgs, IteratesAreThoseOfTheTwoLoopRecursion) {
  for (const int history : {1, 3, 10}) {
    SCOPED_TRACE(history);
    const auto quadratic = random_quadratic(30);
    Vector begin(30, 0.5);
    LocalRun run(quadratic, begin, {.history = history});
    Textbook textbook(quadratic, begin, static_cast<size_t>(history));
    for (int i = 0; i < 20; ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(run.iterate().outcome, LbfgsOutcome::moved);
      textbook.iterate();
      expect_near(run.x(), textbook.x(), 1e-8);
    }
  }
}

TEST(ServerLbfgs, FindsTheMinimumOfAQuadratic) {
  LocalRun run(random_quadratic(30), Vector(30, 0.5), {.tolerance = 1e-9});
  EXPECT_EQ(run.run(500).outcome, LbfgsOutcome::converged);
  Vector gradient(30);
  random_quadratic(30)(run.x(), gradient);
  expect_near(gradient, Vector(30, 0), 1e-9);
}

TEST(ServerLbfgs, FindsTheMinimumOfScipy) {
  LocalRun run(logistic, Vector(kFeatures), {.tolerance = 1e-10});
  const auto last = run.run(200);
  EXPECT_EQ(last.outcome, LbfgsOutcome::converged);
  // scipy.optimize.minimize(method="BFGS", options={"gtol": 1e-13}) of the same function, and
  // Newton's steps with NumPy until the gradient was 0 up to rounding.
  EXPECT_NEAR(last.value, 0.5204979668952595, 1e-12);
  expect_near(run.x(),
              {1.886662973115561, 0.4889469351561074, -0.06493959106945271, -0.07635125719802503,
               0.07591783187222804, -0.1826310384005152},
              1e-8);
}

// Functions 1 and 2 of Moré and Thuente, "Line search algorithms with guaranteed sufficient
// decrease" (1994), one whose values become infinite, and one that grows fast.
TEST(ServerLineSearch, FindsPointsThatFulfilBothConditions) {
  // Value and slope at a step.
  using Line = std::function<std::pair<double, double>(double)>;
  const std::vector<Line> functions{
      [](double t) {
        return std::pair(-t / (t * t + 2), (t * t - 2) / ((t * t + 2) * (t * t + 2)));
      },
      [](double t) {
        const double u = t + 0.004;
        return std::pair(std::pow(u, 5) - 2 * std::pow(u, 4), 5 * std::pow(u, 4) - 8 * u * u * u);
      },
      [](double t) {
        return std::pair(t < 3 ? -t + t * t / 4 : std::numeric_limits<double>::infinity(),
                         t / 2 - 1);
      },
      [](double t) { return std::pair(std::exp(t) - 3 * t, std::exp(t) - 3); },
  };
  const auto at = [&](size_t f, double t) {
    const auto [value, slope] = functions[f](t);
    return LinePoint{t, value, slope};
  };
  for (size_t f = 0; f < functions.size(); ++f) {
    for (const double first : {1e-3, 0.1, 1.0, 10.0, 1000.0}) {
      for (const double curvature : {0.9, 0.1}) {
        // Values of function 2 that are this near its minimum differ by rounding only.
        if (f == 1 && curvature < 0.9) continue;
        SCOPED_TRACE(testing::Message() << f << " from " << first << ", " << curvature);
        LineSearchOptions options{.curvature = curvature};
        if (f == 1) options.most_evaluations = 40;
        const auto begin = at(f, 0);
        const auto found = search_line([&](double t) { return at(f, t); }, begin, first, options);
        EXPECT_TRUE(found.is_wolfe) << found.point.step;
        const auto& [step, value, slope] = found.point;
        EXPECT_GT(step, 0);
        EXPECT_LE(value, begin.value + 1e-4 * step * begin.slope);
        EXPECT_LE(std::abs(slope), curvature * std::abs(begin.slope));
      }
    }
  }
}

TEST(ServerLbfgs, LeavesOutPairsWithoutCurvature) {
  const Function falls = [](const Vector& x, Vector& gradient) {
    gradient[0] = -x[0];
    return -x[0] * x[0] / 2;
  };
  LocalRun run(falls, {0.1}, {.line_search = {.most_evaluations = 1}});
  for (int i = 0; i < 3; ++i) {
    const auto iteration = run.iterate();
    EXPECT_EQ(iteration.outcome, LbfgsOutcome::moved);
    EXPECT_FALSE(iteration.has_new_pair);
  }
}

TEST(ServerLbfgs, StaysWhereNoStepLowersTheValue) {
  const Function wrong = [](const Vector& x, Vector& gradient) {
    gradient = {-2 * x[0], -2 * x[1]};  // of the opposite sign
    return inner(x, x);
  };
  LocalRun run(wrong, {3, 4});
  EXPECT_EQ(run.iterate().outcome, LbfgsOutcome::stuck);
  EXPECT_THAT(run.x(), testing::ElementsAre(3, 4));
}

TEST(ServerLbfgs, RefusesWhatCannotWork) {
  LocalVectors space(1);
  EXPECT_ERROR(Lbfgs(space, [] { return 0.0; }, {.history = 0}), ErrorKind::usage,
               "[server] L-BFGS: pairs of history; got 0, expected 1 to 1000");
  Lbfgs lbfgs(space, [] { return std::nan(""); });
  EXPECT_ERROR(lbfgs.iterate(), ErrorKind::failure,
               "[server] L-BFGS cannot begin; got value nan, gradient 0, expected finite ones");
}

}  // namespace
}  // namespace troika::server
