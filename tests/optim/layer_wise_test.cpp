// LARS and LAMB against the papers' algorithms written with tensors.
#include <gtest/gtest.h>

#include <cmath>

#include "troika/compat/torch.h"
#include "troika/optim/optimizer.h"

namespace troika::optim {
namespace {

const OptimizerOptions kOptions{.lr = 0.02,
                                .weight_decay = 0.1,
                                .momentum = 0.8,
                                .beta1 = 0.7,
                                .beta2 = 0.9,
                                .eps = 1e-3,
                                .trust_coefficient = 0.01};

// A tensor of several ranges, a small one, a vector, and one of zeros.
std::vector<at::Tensor> make_layers(at::ScalarType type) {
  torch::manual_seed(5);
  std::vector<at::Tensor> parameters;
  for (const auto& shape : std::vector<std::vector<int64_t>>{{181, 333}, {3, 4}, {7}}) {
    parameters.push_back(at::randn(shape, at::kDouble).to(type));
  }
  parameters.push_back(at::zeros({2, 3}, type));
  return parameters;
}

double length(const at::Tensor& x) {
  return x.norm().item<double>();
}

// arXiv 1708.03888, algorithm 1.
struct Lars {
  at::Tensor v;
  void step(at::Tensor& w, const at::Tensor& g, int /*t*/, double rate, bool adapts) {
    if (!v.defined()) v = at::zeros_like(w);
    const double decay = adapts ? kOptions.weight_decay : 0;
    const double local =
        adapts && length(w) > 0 && length(g) > 0
            ? kOptions.trust_coefficient * length(w) / (length(g) + decay * length(w))
            : 1.0;
    v = kOptions.momentum * v + rate * local * (g + decay * w);
    w = w - v;
  }
};

// arXiv 1904.00962, algorithm 2.
struct Lamb {
  at::Tensor m, v;
  void step(at::Tensor& x, const at::Tensor& g, int t, double rate, bool adapts) {
    if (!m.defined()) m = at::zeros_like(x), v = at::zeros_like(x);
    m = kOptions.beta1 * m + (1 - kOptions.beta1) * g;
    v = kOptions.beta2 * v + (1 - kOptions.beta2) * g * g;
    const auto r = m / (1 - std::pow(kOptions.beta1, t)) /
                   ((v / (1 - std::pow(kOptions.beta2, t))).sqrt() + kOptions.eps);
    const auto u = r + (adapts ? kOptions.weight_decay : 0) * x;
    const double ratio = adapts && length(x) > 0 && length(u) > 0 ? length(x) / length(u) : 1.0;
    x = x - rate * ratio * u;
  }
};

template <typename Paper>
void expect_the_papers_course(const std::string& name, bool decay_vectors) {
  for (const auto& [type, tolerance] : {std::pair(at::kDouble, 1e-12), {at::kFloat, 2e-6}}) {
    const auto ours = make_layers(type);
    auto expected = make_layers(at::kDouble);
    auto options = kOptions;
    options.name = name;
    options.decay_vectors = decay_vectors;
    const auto optimizer = make_optimizer(ours, options);
    std::vector<Paper> papers(ours.size());
    for (size_t i = 0; i < ours.size(); ++i) expected[i] = ours[i].to(at::kDouble);
    for (int t = 1; t <= 20; ++t) {
      const double rate = 0.02 / t;  // LARS keeps the rate of each step in its momentum
      optimizer->set_learning_rate(rate);
      for (size_t i = 0; i < ours.size(); ++i) {
        ours[i].mutable_grad() = at::randn(ours[i].sizes(), at::kDouble).to(type);
        papers[i].step(expected[i], ours[i].grad().to(at::kDouble), t, rate,
                       decay_vectors || ours[i].dim() > 1);
      }
      optimizer->step();
    }
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LE((ours[i] - expected[i]).abs().max().template item<double>(),
                tolerance * expected[i].abs().max().template item<double>())
          << c10::toString(type) << " parameter " << i;
    }
  }
}

TEST(LayerWise, LarsIsThePapers) {
  for (const bool decay_vectors : {true, false}) {
    expect_the_papers_course<Lars>("lars", decay_vectors);
  }
}

TEST(LayerWise, LambIsThePapers) {
  for (const bool decay_vectors : {true, false}) {
    expect_the_papers_course<Lamb>("lamb", decay_vectors);
  }
}

}  // namespace
}  // namespace troika::optim
