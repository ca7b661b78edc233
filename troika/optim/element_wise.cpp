// Methods that treat every element separately, independent of its tensor.
#include <cmath>
#include <map>
#include <utility>

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

  // Called before a step with its parts. All parameters of a part have the same weight decay and
  // the same step count as parameter FlatRange::index.
  virtual void prepare(const std::vector<FlatRange>& parts) { static_cast<void>(parts); }
  // Called by several threads at once. `part` is its number in the parts of prepare(), `index` its
  // FlatRange::index.
  virtual void update_span(const kernels::ParameterSpan& span, size_t part, size_t index) = 0;
  // Steps tensors on a device. All have the same weight decay and the same step count as parameter
  // `index`.
  virtual void update_tensors(const DeviceTensors& tensors, size_t index) = 0;

  const OptimizerOptions options_;
  const Kernels& kernels_ = kernels::best();

 private:
  void update(const std::vector<FlatRange>& ranges) final {
    const auto alike = [this](size_t a, size_t b) {
      return parameters().list()[a].decay == parameters().list()[b].decay && steps(a) == steps(b);
    };
    const size_t bytes = parameters().element_bytes();
    const auto parts = cut(join(ranges, bytes, alike), bytes);
    prepare(parts);
    parallel_over(parts, [&](size_t i) { update_span(span(parts[i]), i, parts[i].index); });
  }

  void update_on_device(const std::vector<FlatRange>& ranges,
                        const std::vector<at::Tensor>& gradients) final {
    std::map<std::pair<bool, int64_t>, std::vector<size_t>> alike;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const size_t index = ranges[i].index;
      alike[{parameters().list()[index].decay, steps(index)}].push_back(i);
    }
    for (const auto& entry : alike) {
      update_tensors(device_tensors(ranges, gradients, entry.second),
                     ranges[entry.second.front()].index);
    }
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
  void update_span(const kernels::ParameterSpan& span, size_t, size_t index) override {
    kernels_.sgd(kernel_type(), span, factors(index));
  }
  void update_tensors(const DeviceTensors& tensors, size_t index) override {
    step_on_device(tensors, factors(index));
  }
  kernels::Sgd factors(size_t index) const {
    return {.rate = learning_rate(),
            .momentum = options_.momentum,
            .weight_decay = weight_decay_of(index, options_.weight_decay),
            .nesterov = options_.nesterov};
  }
};

class Adam final : public ElementWise {
 public:
  Adam(FlatParameters parameters, const OptimizerOptions& options, bool decoupled)
      : ElementWise(std::move(parameters), options, {"exp_avg", "exp_avg_sq"}, /*counts=*/true),
        decoupled_(decoupled) {}

 private:
  // Computing powers of the betas takes longer than a small part itself, and most parts share them.
  void prepare(const std::vector<FlatRange>& parts) override {
    factors_.clear();
    double last_decay = 0;
    int64_t last_steps = 0;
    for (const FlatRange& part : parts) {
      const double decay = weight_decay_of(part.index, options_.weight_decay);
      const int64_t made = steps(part.index);
      const bool is_as_last = !factors_.empty() && decay == last_decay && made == last_steps;
      factors_.push_back(is_as_last ? factors_.back() : factors(part.index));
      last_decay = decay;
      last_steps = made;
    }
  }
  void update_span(const kernels::ParameterSpan& span, size_t part, size_t) override {
    kernels_.adam(kernel_type(), span, factors_[part]);
  }
  void update_tensors(const DeviceTensors& tensors, size_t index) override {
    step_on_device(tensors, factors(index));
  }
  kernels::Adam factors(size_t index) const {
    return adam_factors(options_, learning_rate(), weight_decay_of(index, options_.weight_decay),
                        steps(index), decoupled_);
  }

  const bool decoupled_;
  std::vector<kernels::Adam> factors_;  // for each part of a step
};

class Adagrad final : public ElementWise {
 public:
  Adagrad(FlatParameters parameters, const OptimizerOptions& options)
      : ElementWise(std::move(parameters), options, {"sum"}, /*counts=*/true) {}

 private:
  void update_span(const kernels::ParameterSpan& span, size_t, size_t index) override {
    kernels_.adagrad(kernel_type(), span, factors(index));
  }
  void update_tensors(const DeviceTensors& tensors, size_t index) override {
    step_on_device(tensors, factors(index));
  }
  kernels::Adagrad factors(size_t index) const {
    return {.rate = learning_rate(),
            .eps = options_.eps,
            .weight_decay = weight_decay_of(index, options_.weight_decay)};
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
