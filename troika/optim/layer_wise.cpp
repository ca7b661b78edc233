// Methods in which every tensor has a rate of its own, from norms over the tensor.
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

  // Updates what comes before the norms; sums of squares of the parameter and what it is held to.
  virtual kernels::Squares prepare(const kernels::Span& span, size_t index) = 0;
  // The factor on the rate, from both norms (> 0).
  virtual double ratio(double parameter, double other) const = 0;
  virtual void apply(const kernels::Span& span, size_t index, double rate) = 0;

  const OptimizerOptions options_;
  const kernels::Kernels& kernels_ = kernels::best();

 private:
  void update(const std::vector<Piece>& pieces) final {
    const auto parts = cut(pieces, parameters().element_bytes());
    std::vector<kernels::Squares> squares(parts.size());
    share(parts, [&](size_t i) { squares[i] = prepare(span(parts[i]), parts[i].index); });
    std::vector<kernels::Squares> sums(parameters().list().size(), kernels::Squares{});
    for (size_t i = 0; i < parts.size(); ++i) {
      sums[parts[i].index].parameter += squares[i].parameter;
      sums[parts[i].index].other += squares[i].other;
    }
    share(parts, [&](size_t i) {
      apply(span(parts[i]), parts[i].index, rate_of(parts[i].index, sums[parts[i].index]));
    });
  }

  // A tensor of zeros, or without a way to go, has the plain rate.
  double rate_of(size_t index, const kernels::Squares& sums) const {
    const bool adapts = parameters().list()[index].decay && sums.parameter > 0 && sums.other > 0;
    if (!adapts) return learning_rate();
    return learning_rate() * ratio(std::sqrt(sums.parameter), std::sqrt(sums.other));
  }
};

class Lars final : public LayerWise {
 public:
  Lars(FlatParameters parameters, const OptimizerOptions& options)
      : LayerWise(std::move(parameters), options, {"momentum_buffer"}, /*counts=*/false) {}

 private:
  kernels::Squares prepare(const kernels::Span& span, size_t /*index*/) override {
    return kernels_.squares(kernel_type(), span);
  }
  double ratio(double parameter, double gradient) const override {
    return options_.trust_coefficient * parameter / (gradient + options_.weight_decay * parameter);
  }
  void apply(const kernels::Span& span, size_t index, double rate) override {
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
  kernels::Squares prepare(const kernels::Span& span, size_t index) override {
    return kernels_.lamb_moments(kernel_type(), span, factors(index));
  }
  double ratio(double parameter, double direction) const override { return parameter / direction; }
  void apply(const kernels::Span& span, size_t index, double rate) override {
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
