#include "troika/nn/linear_cross_entropy.h"

#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "troika/compat/autocast.h"
#include "troika/compat/autograd.h"
#include "troika/compat/compute_threads.h"
#include "troika/compat/torch.h"
#include "troika/nn/kernels/numbers.h"

namespace troika::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The logits of a part fit into a third-level cache. A part has at least kLeastRows rows, so that
// products are not limited by reading the weight and by reading and writing its gradient for each
// part.
constexpr int64_t kLogits = int64_t{1} << 22;
constexpr int64_t kLeastRows = 256;

// Replaces logits by `scale` times the gradients of the sum of losses. Registered with the
// dispatcher, so that compat::FakeTensorGuard can skip it.
at::Tensor& softmax_gradient_(at::Tensor& logits, const at::Tensor& targets, int64_t ignored,
                              double scale, at::Tensor& losses) {
  const int64_t columns = logits.size(1);
  const auto* all_targets = targets.data_ptr<int64_t>();
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, columns));
  compat::parallel_for(0, logits.size(0), grain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(columns));
    for (int64_t row = begin; row < end; ++row) {
      const bool counts = all_targets[row] != ignored;
      const auto found = kernels::best().softmax_gradient(
          kernels::number_of(logits), kernels::at_element(logits, row * columns),
          static_cast<size_t>(columns), counts ? static_cast<size_t>(all_targets[row]) : 0,
          counts ? static_cast<float>(scale) : 0.0F, scratch.data());
      losses.data_ptr<double>()[row] =
          counts ? std::log(static_cast<double>(found.sum)) + found.below_most : 0;
    }
  });
  return logits;
}

TORCH_LIBRARY_FRAGMENT(troika, library) {
  library.def(
      "softmax_gradient_(Tensor(a!) logits, Tensor targets, int ignored, float scale, Tensor(b!) "
      "losses) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(troika, CPU, library) {
  library.impl("softmax_gradient_", softmax_gradient_);
}

// Replaces logits by gradients; returns the sum of the losses in float64.
at::Tensor take_gradient(at::Tensor& logits, const at::Tensor& targets, int64_t ignored,
                         const LossTerms& terms, double scale) {
  if (terms.is_plain() && kernels::takes(logits)) {
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("troika::softmax_gradient_", "")
            .typed<at::Tensor&(at::Tensor&, const at::Tensor&, int64_t, double, at::Tensor&)>();
    at::Tensor losses = at::empty({logits.size(0)}, at::kDouble);
    op.call(logits, targets, ignored, scale, losses);
    return losses.sum();
  }
  const auto type = at::promote_types(logits.scalar_type(), at::kFloat);
  const at::Tensor ignores = targets.eq(ignored);
  const at::Tensor column = targets.masked_fill(ignores, 0).unsqueeze(1);
  at::Tensor scores = at::log_softmax(logits, 1, type);
  const at::Tensor of_target = scores.gather(1, column).squeeze(1);
  const double of_each = terms.label_smoothing / static_cast<double>(logits.size(1));
  at::Tensor losses = of_target * (terms.label_smoothing - 1);
  if (terms.label_smoothing != 0) losses.sub_(scores.sum(1), of_each);
  scores.exp_();
  if (terms.z_loss != 0) {
    const auto sums = logits.gather(1, column).squeeze(1).to(type) - of_target;  // logsumexp
    losses.add_(sums.square(), terms.z_loss);
    scores.mul_((sums * (2 * terms.z_loss) + 1).unsqueeze(1));
  }
  if (terms.label_smoothing != 0) scores.sub_(of_each);
  scores.scatter_add_(1, column,
                      at::full_like(column, terms.label_smoothing - 1, scores.options()));
  logits.copy_(scores.mul_(scale).masked_fill_(ignores.unsqueeze(1), 0));
  return losses.masked_fill_(ignores, 0).sum(at::kDouble);
}

// Throws with LibTorch's own message.
void check_targets(const at::Tensor& targets, int64_t classes, int64_t ignored) {
  if (!targets.is_cpu()) return;
  const auto* begin = targets.data_ptr<int64_t>();
  for (const auto* target = begin; target != begin + targets.numel(); ++target) {
    TORCH_CHECK_INDEX(*target == ignored || (*target >= 0 && *target < classes), "Target ", *target,
                      " is out of bounds.");
  }
}

struct Rows {
  at::Tensor hidden;   // [rows, width]
  at::Tensor targets;  // [rows]
};

Rows rows_of(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
             int64_t ignored) {
  Rows rows{hidden.flatten(0, -2), targets.flatten().contiguous()};
  TORCH_CHECK(rows.hidden.size(0) == rows.targets.size(0), "Expected input batch_size (",
              rows.hidden.size(0), ") to match target batch_size (", rows.targets.size(0), ").");
  check_targets(rows.targets, weight.size(0), ignored);
  return rows;
}

// Sums the gradient of the weight, part by part.
class WeightGradient {
 public:
  WeightGradient(const at::Tensor& weight, at::ScalarType compute, bool is_single)
      : sum_(at::empty(
            weight.sizes(),
            weight.options().dtype(is_single ? compute : at::promote_types(compute, at::kFloat)))) {
    if (sum_.scalar_type() != compute)
      part_ = at::empty(sum_.sizes(), sum_.options().dtype(compute));
  }

  // Adds logits^T hidden; the first call overwrites.
  void add(const at::Tensor& logits, const at::Tensor& hidden) {
    auto& product = part_.defined() ? part_ : sum_;
    if (is_first_ || part_.defined()) {
      at::mm_out(product, logits.t(), hidden);
    } else {
      at::addmm_out(sum_, sum_, logits.t(), hidden);
    }
    if (part_.defined() && is_first_) sum_.copy_(part_);
    if (part_.defined() && !is_first_) sum_.add_(part_);
    is_first_ = false;
  }

  const at::Tensor& sum() const { return sum_; }

 private:
  at::Tensor sum_;
  at::Tensor part_;  // used if products have a narrower type than the sum
  bool is_first_ = true;
};

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets, int64_t ignored,
                            const LossTerms& terms, double count, at::ScalarType compute) {
    // Autocast would cast the operands again.
    const compat::AutocastGuard in_own_type(hidden.device().type(), {});
    const at::Tensor left = hidden.detach().to(compute), right = weight.detach().to(compute);
    const int64_t rows = left.size(0), classes = right.size(0);
    const int64_t rows_of_part = std::min(rows, linear_cross_entropy_rows(classes));
    const at::Tensor buffer = at::empty({rows_of_part, classes}, left.options());
    const at::Tensor of_hidden = hidden.requires_grad() ? at::empty_like(left) : at::Tensor();
    std::optional<WeightGradient> of_weight;
    if (weight.requires_grad()) of_weight.emplace(right, compute, rows_of_part == rows);
    at::Tensor loss = at::zeros({}, left.options().dtype(at::kDouble));
    for (int64_t begin = 0; begin < rows; begin += rows_of_part) {
      const int64_t end = std::min(begin + rows_of_part, rows);
      const at::Tensor part = left.slice(0, begin, end);
      at::Tensor logits = buffer.slice(0, 0, end - begin);
      // Writes into existing tensors: a compat::ProductHook would keep newly made ones.
      at::mm_out(logits, part, right.t());
      loss.add_(take_gradient(logits, targets.slice(0, begin, end), ignored, terms, 1 / count));
      if (of_hidden.defined()) {
        at::Tensor gradient = of_hidden.slice(0, begin, end);
        at::mm_out(gradient, logits, right);
      }
      if (of_weight) of_weight->add(logits, part);
    }
    context->save_for_backward({of_hidden, of_weight ? of_weight->sum() : at::Tensor()});
    context->saved_data["hidden"] = hidden.scalar_type();
    context->saved_data["weight"] = weight.scalar_type();
    return loss.div_(count).to(at::promote_types(compute, at::kFloat));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    compat::refuse_create_graph("nn::linear_cross_entropy");
    const auto saved = context->get_saved_variables();
    const at::Tensor& factor = gradients[0];
    const bool is_one = factor.is_cpu() && factor.item<double>() == 1;
    // A pass for all gradients is the only one. It scales in place, which saves a copy, and the
    // tensors' versions reveal a second one. A pass for some of them leaves the others as they are.
    bool is_only = true;
    for (size_t i = 0; i < saved.size(); ++i) {
      is_only = is_only && (!saved[i].defined() || context->needs_input_grad(i));
    }
    const auto scaled = [&](size_t i, const char* type) -> at::Tensor {
      if (!saved[i].defined() || !context->needs_input_grad(i)) return {};
      at::Tensor gradient = saved[i];
      if (!is_one) gradient = is_only ? gradient.mul_(factor) : gradient.mul(factor);
      return gradient.to(context->saved_data[type].toScalarType());
    };
    return {scaled(0, "hidden"), scaled(1, "weight"), {}, {}, {}, {}, {}};
  }
};

}  // namespace

bool takes_linear_cross_entropy(const at::Tensor& hidden) {
  return compat::compute_type(hidden) != at::kHalf;
}

int64_t linear_cross_entropy_rows(int64_t classes) {
  return std::max(kLeastRows, kLogits / std::max<int64_t>(classes, 1));
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, int64_t ignored, const LossTerms& terms,
                                const std::optional<int64_t>& divisor) {
  const auto rows = rows_of(hidden, weight, targets, ignored);
  const auto compute = compat::compute_type(hidden);
  const double count =
      divisor ? static_cast<double>(*divisor) : rows.targets.ne(ignored).sum().item<double>();
  if (at::GradMode::is_enabled() && (hidden.requires_grad() || weight.requires_grad())) {
    return LinearCrossEntropy::apply(rows.hidden, weight, rows.targets, ignored, terms, count,
                                     compute);
  }
  if (!terms.is_plain()) {
    return LinearCrossEntropy::apply(rows.hidden.detach(), weight.detach(), rows.targets, ignored,
                                     terms, count, compute);
  }
  const auto losses = linear_cross_entropy_of_rows(hidden, weight, targets, ignored).losses;
  return losses.sum(at::kDouble).div_(count).to(losses.scalar_type());
}

RowLosses linear_cross_entropy_of_rows(const at::Tensor& hidden, const at::Tensor& weight,
                                       const at::Tensor& targets, int64_t ignored) {
  const at::NoGradGuard no_grad;
  const auto rows = rows_of(hidden, weight, targets, ignored);
  const auto type = at::promote_types(compat::compute_type(hidden), at::kFloat);
  const int64_t count = rows.hidden.size(0), of_part = linear_cross_entropy_rows(weight.size(0));
  RowLosses result{at::empty({count}, hidden.options().dtype(type)),
                   at::empty({count}, rows.targets.options())};
  for (int64_t begin = 0; begin < count; begin += of_part) {
    const int64_t end = std::min(begin + of_part, count);
    const at::Tensor logits = at::linear(rows.hidden.slice(0, begin, end), weight);
    result.predictions.slice(0, begin, end).copy_(logits.argmax(1));
    result.losses.slice(0, begin, end)
        .copy_(at::cross_entropy_loss(logits.to(type), rows.targets.slice(0, begin, end),
                                      /*weight=*/{}, at::Reduction::None, ignored));
  }
  return result;
}

}  // namespace troika::nn
