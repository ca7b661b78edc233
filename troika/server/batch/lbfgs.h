// L-BFGS on named vectors (Nocedal and Wright, "Numerical Optimization", 2nd edition, algorithm
// 7.5). It reads numbers only: the two-loop recursion (algorithm 7.4) works on dot products, as in
// Chen, Wang and Zhou, "Large-scale L-BFGS using MapReduce" (NIPS 2014, algorithm 3), so that an
// iteration needs one round of messages for its direction.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "troika/server/batch/line_search.h"
#include "troika/server/batch/vector_space.h"

namespace troika::server {

struct LbfgsOptions {
  int history = 10;  // pairs (s, y) that are kept
  // An iteration with max |g_i| of at most this does nothing.
  double tolerance = 1e-7;
  // A pair is left out if s.y is at most this times |s| |y|.
  double least_curvature = 1e-10;
  LineSearchOptions line_search = {};
};

enum class LbfgsOutcome {
  moved,      // the value has fallen, or rounding hides that it has
  converged,  // the gradient is within LbfgsOptions::tolerance
  stuck,      // no step along the negative gradient was found that lowers the value
};

struct LbfgsIteration {
  LbfgsOutcome outcome = LbfgsOutcome::moved;
  double value = 0;     // at x, after the iteration
  double gradient = 0;  // max |g_i| at x
  double step = 0;      // the multiple of the direction
  int evaluations = 0;  // of the objective, in this iteration
  bool has_new_pair = false;
};

// Minimises a function of the vector "x". Not thread-safe.
class Lbfgs {
 public:
  // Returns the function's value at "x", and stores its gradient in "g". It must not change other
  // vectors, and must be a function: equal "x" have equal results.
  using Objective = std::function<double()>;

  // `space` must outlive it. Uses the vectors of vector_names(); "x" has the first point.
  // Throws Error(server, usage) for options that cannot work.
  Lbfgs(VectorSpace& space, Objective objective, LbfgsOptions options = {});

  // The names of all vectors for this many pairs: 5 + 2 * (history + 1).
  static std::vector<std::string> vector_names(int history);

  // Makes one iteration: a direction, and a search along it. "x" is then the new point and "g" its
  // gradient. Blocks. Throws what the space and the objective throw, and Error(server, failure) if
  // value or gradient of the first point are not finite.
  LbfgsIteration iterate();

  // Numbers from which another object with the same options and vectors continues: these are "x",
  // "g" and the pairs of kept_names().
  std::vector<double> state() const;
  // Takes what state() returned; state_size() zeros: nothing has been made. Throws Error(server,
  // usage) for numbers that no object with this history returns.
  void load_state(std::span<const double> state);
  static size_t state_size(int history);
  // The names of the vectors s and y of the pairs in a state.
  static std::vector<std::string> kept_names(std::span<const double> state, int history);

 private:
  // Numbers of "g" and of the pairs, read in one round.
  void read_numbers(VectorOperations first);
  double product(int a, int b) const { return products_[static_cast<size_t>(a * size_ + b)]; }
  // Returns the direction as multiples of the vectors, by index.
  std::vector<double> direction() const;
  // Moves "x" along the direction. Returns false if no point was found.
  bool move(LbfgsIteration& iteration);
  LinePoint evaluate(double step);
  void add_pair(LbfgsIteration& iteration);

  VectorSpace& space_;
  const Objective objective_;
  const LbfgsOptions options_;
  const int slots_;               // one more than pairs, for a pair that may be left out
  const int size_;                // of products_: s and y of each slot, and "g"
  std::vector<int> pairs_;        // slots of the pairs, the oldest first
  std::vector<double> products_;  // dot products, by index of both vectors
  bool has_begun_ = false;
  double value_ = 0;
  double one_norm_ = 0;  // of "g"
  double max_norm_ = 0;
};

}  // namespace troika::server
