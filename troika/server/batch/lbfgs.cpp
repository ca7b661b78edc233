#include "troika/server/batch/lbfgs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "troika/base/error.h"

namespace troika::server {

namespace {

using Op = VectorOperation;

constexpr size_t kBeforeSlots = 5;  // numbers of a state before the slots of the pairs

// Vectors by index: s of each slot, y of each slot, "g".
std::string name_of(int index, int slots) {
  if (index == 2 * slots) return "g";
  return index < slots ? fmt::format("s{}", index) : fmt::format("y{}", index - slots);
}

void check(bool is_right, const std::string& what, double got, const std::string& expected) {
  if (is_right) return;
  throw Error("server", ErrorKind::usage,
              {.what = "L-BFGS: " + what, .got = fmt::format("{}", got), .expected = expected});
}

}  // namespace

Lbfgs::Lbfgs(VectorSpace& space, Objective objective, LbfgsOptions options)
    : space_(space),
      objective_(std::move(objective)),
      options_(options),
      slots_(options.history + 1),
      size_(2 * slots_ + 1) {
  const auto& search = options_.line_search;
  check(options_.history >= 1 && options_.history <= 1000, "pairs of history", options_.history,
        "1 to 1000");
  check(search.most_evaluations >= 1, "evaluations of a line search", search.most_evaluations,
        "at least 1");
  check(search.decrease > 0 && search.decrease < search.curvature, "the factor of decrease",
        search.decrease, "above 0 and below that of curvature");
  check(search.curvature < 1, "the factor of curvature", search.curvature, "below 1");
  products_.resize(static_cast<size_t>(size_) * static_cast<size_t>(size_));
}

std::vector<std::string> Lbfgs::vector_names(int history) {
  std::vector<std::string> names{"x", "x0", "g0", "d"};
  for (int i = 0; i <= 2 * (history + 1); ++i) names.push_back(name_of(i, history + 1));
  return names;
}

void Lbfgs::read_numbers(VectorOperations first) {
  // The products of old pairs are known. New ones are those with "g" and with the newest pair.
  std::vector<std::pair<int, int>> wanted;
  const int g = 2 * slots_;
  std::vector<int> vectors{g};
  for (const int slot : pairs_) vectors.insert(vectors.end(), {slot, slots_ + slot});
  for (const int vector : vectors) {
    wanted.emplace_back(g, vector);
    if (pairs_.empty() || vector == g) continue;
    for (const int newest : {pairs_.back(), slots_ + pairs_.back()}) {
      wanted.emplace_back(newest, vector);
    }
  }
  for (const auto& [a, b] : wanted) {
    first.push_back(Op::dot(name_of(a, slots_), name_of(b, slots_)));
  }
  first.push_back(Op::one_norm("g"));
  first.push_back(Op::max_norm("g"));
  const auto numbers = space_.compute(first);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto [a, b] = wanted[i];
    products_[static_cast<size_t>(a * size_ + b)] = numbers[i];
    products_[static_cast<size_t>(b * size_ + a)] = numbers[i];
  }
  one_norm_ = numbers[wanted.size()];
  max_norm_ = numbers[wanted.size() + 1];
}

std::vector<double> Lbfgs::direction() const {
  std::vector<double> factors(static_cast<size_t>(size_));
  const auto at = [&](int index) -> double& { return factors[static_cast<size_t>(index)]; };
  const auto dot = [&](int vector) {
    double sum = at(2 * slots_) * product(2 * slots_, vector);
    for (const int slot : pairs_) {
      sum += at(slot) * product(slot, vector);
      sum += at(slots_ + slot) * product(slots_ + slot, vector);
    }
    return sum;
  };
  at(2 * slots_) = -1;
  if (pairs_.empty()) return factors;
  std::vector<double> alphas(static_cast<size_t>(slots_));
  for (auto slot = pairs_.rbegin(); slot != pairs_.rend(); ++slot) {
    const double alpha = dot(*slot) / product(*slot, slots_ + *slot);
    alphas[static_cast<size_t>(*slot)] = alpha;
    at(slots_ + *slot) -= alpha;
  }
  const int s = pairs_.back(), y = slots_ + s;
  for (auto& factor : factors) factor *= product(s, y) / product(y, y);
  for (const int slot : pairs_) {
    const double beta = dot(slots_ + slot) / product(slot, slots_ + slot);
    at(slot) += alphas[static_cast<size_t>(slot)] - beta;
  }
  return factors;
}

LinePoint Lbfgs::evaluate(double step) {
  space_.compute({Op::copy("x", "x0"), Op::add("x", step, "d")});
  const double value = objective_();
  return {step, value, space_.compute({Op::dot("g", "d")})[0]};
}

bool Lbfgs::move(LbfgsIteration& iteration) {
  const auto factors = direction();
  LinePoint begin{.value = value_};
  VectorOperations operations{Op::copy("x0", "x"), Op::copy("g0", "g"), Op::fill("d", 0)};
  for (int i = 0; i < size_; ++i) {
    const double factor = factors[static_cast<size_t>(i)];
    if (factor == 0) continue;
    begin.slope += factor * product(i, 2 * slots_);
    operations.push_back(Op::add("d", factor, name_of(i, slots_)));
  }
  if (!(begin.slope < 0)) return false;
  space_.compute(operations);
  // Without a pair nothing is known of the function's scale: |x| changes by at most 1.
  const double first = pairs_.empty() ? std::min(1.0, 1 / one_norm_) : 1;
  double last = 0;
  const auto found = search_line(
      [&](double step) {
        last = step;
        return evaluate(step);
      },
      begin, first, options_.line_search);
  iteration.evaluations += found.evaluations;
  const auto& point = found.point;
  if (!(point.step > 0) || !(point.value < value_ || found.is_wolfe)) {
    space_.compute({Op::copy("x", "x0"), Op::copy("g", "g0")});
    return false;
  }
  if (point.step != last) {
    evaluate(point.step);
    ++iteration.evaluations;
  }
  value_ = point.value;
  iteration.step = point.step;
  return true;
}

void Lbfgs::add_pair(LbfgsIteration& iteration) {
  int slot = 0;
  while (std::ranges::find(pairs_, slot) != pairs_.end()) ++slot;
  const auto s = name_of(slot, slots_), y = name_of(slots_ + slot, slots_);
  const auto before = pairs_;
  pairs_.push_back(slot);
  read_numbers({Op::copy(s, "x"), Op::add(s, -1, "x0"), Op::copy(y, "g"), Op::add(y, -1, "g0")});
  const int a = slot, b = slots_ + slot;
  const double least =
      options_.least_curvature * std::sqrt(product(a, a)) * std::sqrt(product(b, b));
  iteration.has_new_pair = product(a, b) > least;
  if (!iteration.has_new_pair) pairs_ = before;
  if (pairs_.size() == static_cast<size_t>(slots_)) pairs_.erase(pairs_.begin());
}

// The state is: whether iterations were made, the value, norms of the gradient, the number of
// pairs, their slots, and all products.
std::vector<double> Lbfgs::state() const {
  std::vector<double> numbers{has_begun_ ? 1.0 : 0.0, value_, one_norm_, max_norm_,
                              static_cast<double>(pairs_.size())};
  for (size_t i = 0; i < static_cast<size_t>(slots_); ++i) {
    numbers.push_back(i < pairs_.size() ? pairs_[i] : 0);
  }
  numbers.insert(numbers.end(), products_.begin(), products_.end());
  return numbers;
}

void Lbfgs::load_state(std::span<const double> state) {
  check(state.size() == state_size(options_.history), "numbers of a state",
        static_cast<double>(state.size()), std::to_string(state_size(options_.history)));
  has_begun_ = state[0] != 0;
  value_ = state[1];
  one_norm_ = state[2];
  max_norm_ = state[3];
  check(state[4] >= 0 && state[4] <= options_.history, "pairs of a state", state[4],
        "0 to " + std::to_string(options_.history));
  pairs_.clear();
  for (size_t i = 0; i < static_cast<size_t>(state[4]); ++i) {
    const double slot = state[kBeforeSlots + i];
    check(slot >= 0 && slot < slots_, "the slot of a pair", slot,
          "0 to " + std::to_string(slots_ - 1));
    pairs_.push_back(static_cast<int>(slot));
  }
  const auto products = state.subspan(kBeforeSlots + static_cast<size_t>(slots_));
  products_.assign(products.begin(), products.end());
}

size_t Lbfgs::state_size(int history) {
  const auto slots = static_cast<size_t>(history) + 1, size = 2 * slots + 1;
  return kBeforeSlots + slots + size * size;
}

std::vector<std::string> Lbfgs::kept_names(std::span<const double> state, int history) {
  std::vector<std::string> names;
  for (size_t i = 0; i < static_cast<size_t>(state[4]); ++i) {
    const auto slot = static_cast<int>(state[kBeforeSlots + i]);
    names.push_back(name_of(slot, history + 1));
    names.push_back(name_of(history + 1 + slot, history + 1));
  }
  return names;
}

LbfgsIteration Lbfgs::iterate() {
  LbfgsIteration iteration;
  if (!has_begun_) {
    value_ = objective_();
    iteration.evaluations = 1;
    read_numbers({});
    if (!std::isfinite(value_) || !std::isfinite(one_norm_)) {
      throw Error("server", ErrorKind::failure,
                  {.what = "L-BFGS cannot begin",
                   .got = fmt::format("value {}, gradient {}", value_, max_norm_),
                   .expected = "finite ones"});
    }
    has_begun_ = true;
  }
  if (max_norm_ <= options_.tolerance) {
    iteration.outcome = LbfgsOutcome::converged;
  } else {
    bool has_moved = move(iteration);
    if (!has_moved && !pairs_.empty()) {
      // The pairs do not describe the function here.
      pairs_.clear();
      has_moved = move(iteration);
    }
    if (has_moved) {
      add_pair(iteration);
    } else {
      iteration.outcome = LbfgsOutcome::stuck;
    }
  }
  iteration.value = value_;
  iteration.gradient = max_norm_;
  return iteration;
}

}  // namespace troika::server
