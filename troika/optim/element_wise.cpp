// Methods that treat every element for itself, whichever tensor it is of.
#include <cmath>

#include "troika/optim/methods.h"
#include "troika/optim/optimizer.h"

namespace troika::optim {

namespace {

class ElementWise : public FlatOptimizer {
 protected:
  using Kernels = kernels::Kernels;

  ElementWise(FlatParameters parameters, const OptimizerOptions& options,
              std::vector<std::string> states, bool counts)
      : FlatOptimizer(std::move(parameters), options.lr, std::move(states), counts,
                      options.offload),
        options_(options) {}

  // `index` is of a parameter that decays as all of the span do and has made as many steps.
  virtual void update_span(const kernels::Span& span, size_t index) = 0;

  const OptimizerOptions options_;
  const Kernels& kernels_ = kernels::best();

 private:
  void update(const std::vector<Piece>& pieces) final {
    const auto alike = [this](size_t a, size_t b) {
      return parameters().list()[a].decay == parameters().list()[b].decay && steps(a) == steps(b);
    };
    const size_t bytes = parameters().element_bytes();
    const auto parts = cut(join(pieces, bytes, alike), bytes);
    share(parts, [&](size_t i) { update_span(span(parts[i]), parts[i].index); });
  }
};

class Sgd final : public ElementWise {
 public:
  Sgd(FlatParameters parameters, const OptimizerOptions& options)
      : ElementWise(std::move(parameters), options,
                    options.momentum > 0 ? std::vector<std::string>{"momentum_buffer"}
                                         : std::vector<std::string>{},
                    /*counts=*/false) {}

 private:
  void update_span(const kernels::Span& span, size_t index) override {
    kernels_.sgd(kernel_type(), span,
                 {.rate = learning_rate(),
                  .momentum = options_.momentum,
                  .weight_decay = weight_decay_of(index, options_.weight_decay),
                  .nesterov = options_.nesterov});
  }
};

class Adam final : public ElementWise {
 public:
  Adam(FlatParameters parameters, const OptimizerOptions& options, bool decoupled)
      : ElementWise(std::move(parameters), options, {"exp_avg", "exp_avg_sq"}, /*counts=*/true),
        decoupled_(decoupled) {}

 private:
  void update_span(const kernels::Span& span, size_t index) override {
    kernels_.adam(
        kernel_type(), span,
        adam_factors(options_, learning_rate(), weight_decay_of(index, options_.weight_decay),
                     steps(index), decoupled_));
  }

  const bool decoupled_;
};

class Adagrad final : public ElementWise {
 public:
  Adagrad(FlatParameters parameters, const OptimizerOptions& options)
      : ElementWise(std::move(parameters), options, {"sum"}, /*counts=*/true) {}

 private:
  void update_span(const kernels::Span& span, size_t index) override {
    kernels_.adagrad(kernel_type(), span,
                     {.rate = learning_rate(),
                      .eps = options_.eps,
                      .weight_decay = weight_decay_of(index, options_.weight_decay)});
  }
};

}  // namespace

kernels::Adam adam_factors(const OptimizerOptions& options, double rate, double weight_decay,
                           int64_t steps, bool decoupled) {
  const auto t = static_cast<double>(steps);
  return {.beta1 = options.beta1,
          .beta2 = options.beta2,
          .step_size = rate / (1 - std::pow(options.beta1, t)),
          .inverse_root = 1 / std::sqrt(1 - std::pow(options.beta2, t)),
          .eps = options.eps,
          .weight_decay = decoupled ? 0 : weight_decay,
          .shrink = decoupled ? 1 - rate * weight_decay : 1};
}

std::unique_ptr<FlatOptimizer> make_sgd(FlatParameters parameters,
                                        const OptimizerOptions& options) {
  return std::make_unique<Sgd>(std::move(parameters), options);
}

std::unique_ptr<FlatOptimizer> make_adam(FlatParameters parameters, const OptimizerOptions& options,
                                         bool decoupled) {
  return std::make_unique<Adam>(std::move(parameters), options, decoupled);
}

std::unique_ptr<FlatOptimizer> make_adagrad(FlatParameters parameters,
                                            const OptimizerOptions& options) {
  return std::make_unique<Adagrad>(std::move(parameters), options);
}

}  // namespace troika::optim
