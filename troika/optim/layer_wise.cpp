// Methods in which every tensor has its own rate, computed from norms over the tensor.
#include <ATen/ATen.h>

#include <cmath>

#include "troika/optim/methods.h"
#include "troika/optim/optimizer.h"

namespace troika::optim {

namespace {

class LayerWise : public FlatOptimizer {
 protected:
  LayerWise(FlatParameters parameters, const OptimizerOptions& options,
            std::vector<std::string> states, bool counts)
      : FlatOptimizer(std::move(parameters), options.lr, std::move(states), counts,
                      options.offload),
        options_(options) {}

  // Updates the states that the norms need. Returns sums of squares of the parameter and of the
  // gradient (LARS) or direction (LAMB).
  virtual kernels::Squares prepare(const kernels::ParameterSpan& span, size_t index) = 0;
  // Returns the factor on the rate, from both norms (> 0).
  virtual double ratio(double parameter, double other) const = 0;
  virtual void apply(const kernels::ParameterSpan& span, size_t index, double rate) = 0;

  const OptimizerOptions options_;
  const kernels::Kernels& kernels_ = kernels::best();

 private:
  void update(const std::vector<FlatRange>& ranges) final {
    const auto parts = cut(ranges, parameters().element_bytes());
    std::vector<kernels::Squares> squares(parts.size());
    parallel_over(parts, [&](size_t i) { squares[i] = prepare(span(parts[i]), parts[i].index); });
    const auto count = static_cast<int64_t>(parameters().list().size());
    const auto sums = at::zeros({count, 2}, at::kDouble);
    auto* sum = sums.data_ptr<double>();
    for (size_t i = 0; i < parts.size(); ++i) {
      sum[2 * parts[i].index] += squares[i].parameter;
      sum[2 * parts[i].index + 1] += squares[i].other;
    }
    complete_sums(sums);
    parallel_over(parts, [&](size_t i) {
      const size_t index = parts[i].index;
      apply(span(parts[i]), index, rate_of(index, sum[2 * index], sum[2 * index + 1]));
    });
  }

  // Computes the rate from sums of squares. A tensor of zeros, or with a zero direction, has the
  // plain rate.
  double rate_of(size_t index, double parameter, double other) const {
    const bool adapts = parameters().list()[index].decay && parameter > 0 && other > 0;
    if (!adapts) return learning_rate();
    return learning_rate() * ratio(std::sqrt(parameter), std::sqrt(other));
  }
};

class Lars final : public LayerWise {
 public:
  Lars(FlatParameters parameters, const OptimizerOptions& options)
      : LayerWise(std::move(parameters), options, {"momentum_buffer"}, /*counts=*/false) {}

 private:
  kernels::Squares prepare(const kernels::ParameterSpan& span, size_t /*index*/) override {
    return kernels_.squares(kernel_type(), span);
  }
  double ratio(double parameter, double gradient) const override {
    return options_.trust_coefficient * parameter / (gradient + options_.weight_decay * parameter);
  }
  void apply(const kernels::ParameterSpan& span, size_t index, double rate) override {
    kernels_.lars(kernel_type(), span,
                  {.rate = rate,
                   .momentum = options_.momentum,
                   .weight_decay = weight_decay_of(index, options_.weight_decay)});
  }
};

class Lamb final : public LayerWise {
 public:
  Lamb(FlatParameters parameters, const OptimizerOptions& options)
      : LayerWise(std::move(parameters), options, {"exp_avg", "exp_avg_sq"}, /*counts=*/true) {}

 private:
  kernels::Squares prepare(const kernels::ParameterSpan& span, size_t index) override {
    return kernels_.lamb_moments(kernel_type(), span, factors(index));
  }
  double ratio(double parameter, double direction) const override { return parameter / direction; }
  void apply(const kernels::ParameterSpan& span, size_t index, double rate) override {
    kernels_.lamb_apply(kernel_type(), span, factors(index), rate);
  }

  kernels::Lamb factors(size_t index) const {
    const auto t = static_cast<double>(steps(index));
    return {.beta1 = options_.beta1,
            .beta2 = options_.beta2,
            .correction = 1 / (1 - std::pow(options_.beta1, t)),
            .inverse_root = 1 / std::sqrt(1 - std::pow(options_.beta2, t)),
            .eps = options_.eps,
            .weight_decay = weight_decay_of(index, options_.weight_decay)};
  }
};

}  // namespace

std::unique_ptr<FlatOptimizer> make_lars(FlatParameters parameters,
                                         const OptimizerOptions& options) {
  return std::make_unique<Lars>(std::move(parameters), options);
}

std::unique_ptr<FlatOptimizer> make_lamb(FlatParameters parameters,
                                         const OptimizerOptions& options) {
  return std::make_unique<Lamb>(std::move(parameters), options);
}

}  // namespace troika::optim
