#include "troika/nn/recompute/budget.h"

#include <algorithm>
#include <limits>
#include <set>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/flop_counter.h"
#include "troika/compat/saved_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/surroundings.h"

namespace troika::nn {

namespace {

constexpr int64_t kSlots = 500;
constexpr int kMeasurements = 3;
// About the FLOPs that a core makes while it moves one byte from or to memory.
constexpr double kFlopsPerByte = 10;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Bytes of distinct memory that is saved, without parameters and buffers.
class Counting : public compat::SavedTensorHooks {
 public:
  explicit Counting(std::set<const void*> known) : known_(std::move(known)) {}
  std::function<at::Tensor()> pack(const at::Tensor& tensor) override {
    count(tensor);
    return [tensor = tensor.detach()] { return tensor; };
  }
  void count(const at::Tensor& tensor) {
    if (known_.insert(tensor.storage().data()).second) {
      bytes_ += static_cast<int64_t>(tensor.storage().nbytes());
    }
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::set<const void*> known_;
  int64_t bytes_ = 0;
};

// A counter that only grows, in seconds or FLOPs. Its readings around a block give the block's
// cost.
using Meter = std::function<double()>;

// The block's output, and what it cost. `sources` are what gradients are made of.
std::pair<at::Tensor, BlockCost> run(const Block& block, const at::Tensor& input,
                                     const std::set<const void*>& state,
                                     const std::vector<at::Tensor>& sources, const Meter& spent) {
  auto known = state;
  known.insert(input.storage().data());
  Counting counting(known);
  BlockCost cost;
  const double before = spent();
  at::Tensor output;
  {
    const compat::SavedTensorGuard guard(counting);
    output = block.forward(input);
  }
  cost.forward = spent() - before;
  counting.count(output);
  cost.output_bytes = static_cast<int64_t>(output.nbytes());
  cost.saved_bytes = std::max(counting.bytes(), cost.output_bytes);
  if (output.requires_grad()) {
    const auto gradient = at::ones_like(output);
    const double before_backward = spent();
    torch::autograd::grad({output}, sources, {gradient}, /*retain_graph=*/false,
                          /*create_graph=*/false, /*allow_unused=*/true);
    cost.backward = spent() - before_backward;
  }
  return {output.detach(), cost};
}

// Theorem 1 with memory in slots: cost(s, t, m) is the least time to run blocks s to t forward and
// backward in m slots, beside the input of s.
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

  // Cost of blocks s to t.
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
    // Forward as far as `next` without keeping anything but its input.
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
  std::vector<size_t> jump_;  // the next block after a recomputed segment; 0: block s is kept
};

// Each block runs so often, after a first time if more than once; the least counts.
std::vector<BlockCost> costs_of_blocks(const Model& model, const at::Tensor& input,
                                       int measurements, const Meter& spent) {
  std::set<const void*> state;
  std::vector<at::Tensor> buffers, model_parameters;
  for (const auto& entry : named_state(model)) {
    state.insert(entry.tensor.storage().data());
    if (entry.is_buffer) buffers.push_back(entry.tensor);
    if (entry.tensor.requires_grad()) model_parameters.push_back(entry.tensor);
  }
  std::vector<BlockCost> costs;
  Surroundings(input.device()).restored(buffers, [&] {
    at::Tensor x = input.detach();
    for (const auto& block : model.blocks()) {
      std::vector<at::Tensor> sources = model_parameters;
      if (x.requires_grad()) sources.push_back(x);
      if (measurements > 1) run(block, x, state, sources, spent);
      auto [output, cost] = run(block, x, state, sources, spent);
      for (int i = 1; i < measurements; ++i) {
        const auto again = run(block, x, state, sources, spent).second;
        cost.forward = std::min(cost.forward, again.forward);
        cost.backward = std::min(cost.backward, again.backward);
      }
      costs.push_back(cost);
      x = output.requires_grad_(at::isFloatingType(output.scalar_type()));
    }
  });
  return costs;
}

}  // namespace

std::vector<BlockCost> measure_blocks(const Model& model, const at::Tensor& input) {
  const compat::FlopCounter::Pause pause;
  const Stopwatch watch;
  return costs_of_blocks(model, input, kMeasurements, [&] { return watch.seconds(); });
}

std::vector<BlockCost> estimate_blocks(const Model& model, const at::Tensor& input) {
  const compat::FlopCounter counter;
  auto costs =
      costs_of_blocks(model, input, 1, [&] { return static_cast<double>(counter.flops()); });
  for (auto& cost : costs) {
    const double moving = kFlopsPerByte * static_cast<double>(cost.saved_bytes);
    cost.forward += moving;
    cost.backward += moving;
  }
  return costs;
}

std::optional<int64_t> recompute_budget(const std::string& policy) {
  constexpr std::string_view kPrefix = "budget:";
  if (!policy.starts_with(kPrefix)) return std::nullopt;
  const auto bytes = parse_bytes(std::string_view(policy).substr(kPrefix.size()));
  if (bytes && *bytes > 0) return bytes;
  throw Error("nn", ErrorKind::usage,
              {.what = "recomputation's budget",
               .got = policy,
               .expected = "budget:BYTES with BYTES >= 1, as in budget:6GiB"});
}

BudgetedPlan plan_for_budget(const std::vector<BlockCost>& blocks, int64_t budget_bytes) {
  if (blocks.empty()) return {};
  const int64_t slot_bytes = std::max<int64_t>(1, (budget_bytes + kSlots - 1) / kSlots);
  const int64_t slots = std::max<int64_t>(0, budget_bytes) / slot_bytes;
  const Table table(blocks, slot_bytes);
  const double time = table.cost(0, blocks.size() - 1, slots);
  if (time == kNever) {
    throw Error("nn", ErrorKind::usage,
                {.what = "activations do not fit into the memory for them, whatever is recomputed",
                 .got = human_bytes(static_cast<double>(budget_bytes)),
                 .expected = "more"});
  }
  return {table.plan(0, blocks.size() - 1, slots), time};
}

}  // namespace troika::nn
