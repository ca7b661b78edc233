#include "troika/layout/recompute.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::layout {

namespace {

constexpr int64_t kSlots = 500;
constexpr double kNever = std::numeric_limits<double>::infinity();

RecomputePlan each(size_t step, size_t blocks, bool keep_products = false) {
  RecomputePlan plan;
  for (size_t i = 0; i < blocks; i += step) {
    plan.push_back({.begin = i, .end = i + 1, .keep_products = keep_products});
  }
  return plan;
}

RecomputePlan square_root(size_t blocks) {
  const auto segments = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(blocks))));
  RecomputePlan plan;
  for (size_t i = 0; i + 1 < segments; ++i) {
    plan.push_back({blocks * i / segments, blocks * (i + 1) / segments});
  }
  return plan;
}

// Theorem 1 with memory in slots: cost(s, t, m) is the least time to run blocks s to t forward and
// backward in m slots, without the input of s.
class Table {
 public:
  Table(const std::vector<BlockCost>& blocks, int64_t slot_bytes)
      : blocks_(blocks), slot_bytes_(slot_bytes), length_(blocks.size()) {
    best_.resize(length_ * length_ * (kSlots + 1), kNever);
    jump_.resize(best_.size(), 0);
    for (size_t count = 1; count <= length_; ++count) {
      for (size_t s = 0; s + count <= length_; ++s) {
        for (int64_t m = 0; m <= kSlots; ++m) fill(s, s + count - 1, m);
      }
    }
  }

  double cost(size_t s, size_t t, int64_t m) const { return m < 0 ? kNever : best_[at(s, t, m)]; }

  // Returns the plan with the cost cost(s, t, m).
  RecomputePlan plan(size_t s, size_t t, int64_t m) const {
    const size_t next = jump_[at(s, t, m)];
    RecomputePlan result;
    if (next > 0) {
      result.push_back({s, next, plan(s, next - 1, m)});
      append(result, plan(next, t, m - output(next - 1)));
    } else if (s < t) {
      append(result, plan(s + 1, t, m - saved(s)));
    }
    return result;
  }

 private:
  static void append(RecomputePlan& plan, RecomputePlan more) {
    std::move(more.begin(), more.end(), std::back_inserter(plan));
  }
  size_t at(size_t s, size_t t, int64_t m) const {
    return (s * length_ + t) * (kSlots + 1) + static_cast<size_t>(m);
  }
  int64_t slots(int64_t bytes) const { return (bytes + slot_bytes_ - 1) / slot_bytes_; }
  int64_t output(size_t i) const { return slots(blocks_[i].output_bytes); }
  int64_t saved(size_t i) const { return slots(blocks_[i].saved_bytes); }

  void fill(size_t s, size_t t, int64_t m) {
    double& best = best_[at(s, t, m)];
    const int64_t input_gradient = s > 0 ? output(s - 1) : 0;
    const int64_t keeping = saved(s) + std::max(output(t), output(s) + input_gradient);
    if (m >= keeping) {
      best = blocks_[s].forward + blocks_[s].backward;
      if (s < t) best += cost(s + 1, t, m - saved(s));
    }
    // Runs forward up to `next` and keeps only the input of `next`.
    double forward = 0;
    for (size_t next = s + 1; next <= t; ++next) {
      forward += blocks_[next - 1].forward;
      const int64_t passing = output(next - 1) + (next - 1 > s ? output(next - 2) : 0);
      if (m < output(t) + passing) break;
      const double whole = forward + cost(next, t, m - output(next - 1)) + cost(s, next - 1, m);
      if (whole < best) {
        best = whole;
        jump_[at(s, t, m)] = next;
      }
    }
  }

  const std::vector<BlockCost>& blocks_;
  const int64_t slot_bytes_;
  const size_t length_;
  std::vector<double> best_;
  std::vector<size_t> jump_;  // the block after a recomputed segment; 0: block s is kept
};

}  // namespace

RecomputePlan recompute_plan(const std::string& policy, size_t blocks) {
  if (policy == "none") return {};
  if (policy == "full") return each(1, blocks);
  if (policy == "selective") return each(1, blocks, /*keep_products=*/true);
  if (policy == "sqrt") return square_root(blocks);
  if (policy.starts_with("every_")) {
    const auto step = parse_int(std::string_view(policy).substr(6));
    if (step && *step >= 1) return each(static_cast<size_t>(*step), blocks);
  }
  throw Error("layout", ErrorKind::usage,
              {.what = "unknown policy of recomputation",
               .got = policy,
               .expected = "none, full, selective, sqrt, or every_K with K >= 1"});
}

std::vector<std::string> recompute_policies(const std::string& policies, size_t stages) {
  auto result = split(policies, '|');
  if (result.size() == 1) result.resize(stages, result.front());
  if (result.size() == stages) return result;
  throw Error(
      "layout", ErrorKind::usage,
      {.what = "policies of recomputation for the stages of a pipeline",
       .got = policies,
       .expected = std::to_string(stages) + " policies, one for each stage, or a single one"});
}

RecomputePlan recompute_plan(const std::string& policies, const std::vector<size_t>& ends) {
  const auto of_stages = recompute_policies(policies, ends.size());
  RecomputePlan result;
  size_t begin = 0;
  for (size_t s = 0; s < ends.size(); ++s) {
    for (auto& segment : recompute_plan(of_stages[s], ends[s] - begin)) {
      segment.begin += begin;
      segment.end += begin;
      result.push_back(std::move(segment));
    }
    begin = ends[s];
  }
  return result;
}

std::optional<int64_t> recompute_budget(const std::string& policy) {
  constexpr std::string_view kPrefix = "budget:";
  if (!policy.starts_with(kPrefix)) return std::nullopt;
  const auto bytes = parse_bytes(std::string_view(policy).substr(kPrefix.size()));
  if (bytes && *bytes > 0) return bytes;
  throw Error("layout", ErrorKind::usage,
              {.what = "recomputation's budget",
               .got = policy,
               .expected = "budget:BYTES with BYTES >= 1, for example budget:6GiB"});
}

BudgetedPlan plan_for_budget(const std::vector<BlockCost>& blocks, int64_t budget_bytes) {
  if (blocks.empty()) return {};
  const int64_t slot_bytes = std::max<int64_t>(1, (budget_bytes + kSlots - 1) / kSlots);
  const int64_t slots = std::max<int64_t>(0, budget_bytes) / slot_bytes;
  const Table table(blocks, slot_bytes);
  const double time = table.cost(0, blocks.size() - 1, slots);
  if (time == kNever) {
    throw Error("layout", ErrorKind::usage,
                {.what = "activations do not fit into the memory for them, whatever is recomputed",
                 .got = human_bytes(static_cast<double>(budget_bytes)),
                 .expected = "more"});
  }
  return {table.plan(0, blocks.size() - 1, slots), time};
}

}  // namespace troika::layout
