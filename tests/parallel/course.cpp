#include "tests/parallel/course.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel {

namespace {

constexpr int kSteps = 20;
constexpr int64_t kGlobalBatch = 84;  // divisible by 1, 2, 3, 4 and 7

using Forward = std::function<at::Tensor(const at::Tensor&)>;

struct Learner {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
};

template <typename M>
Learner learner(std::shared_ptr<M> module) {
  return {module, [module](const at::Tensor& x) { return module->forward(x); }};
}

Learner make_learner(const std::string& model) {
  // Ranks may be threads, and LibTorch's generator belongs to the process.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  if (model == "gpt") {
    return learner(nn::make_model(
        {.name = "gpt", .vocab_size = 19, .context = 8, .layers = 2, .heads = 2, .width = 16}));
  }
  if (model == "mlp") {
    return learner(nn::make_model({.name = "mlp", .image_size = 8, .hidden_width = 40}));
  }
  return learner(
      torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1)),
                            torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 8, 3).stride(2)),
                            torch::nn::Tanh(), torch::nn::Flatten(), torch::nn::Linear(8, 10))
          .ptr());
}

// The global batch of a step: a fixed function of its number.
std::pair<at::Tensor, at::Tensor> make_batch(const std::string& model, int step,
                                             at::ScalarType type) {
  const auto count = [](at::IntArrayRef shape) {
    int64_t n = 1;
    for (const int64_t s : shape) n *= s;
    return n;
  };
  const auto numbers = [&](at::IntArrayRef shape, double factor) {
    return at::sin((at::arange(count(shape), at::kDouble) + step * 1000) * factor).view(shape);
  };
  if (model == "gpt") {
    const auto tokens = (numbers({kGlobalBatch, 9}, 12.9898) * 43758.5).abs().to(at::kLong) % 19;
    return {tokens.narrow(1, 0, 8).contiguous(), tokens.narrow(1, 1, 8).contiguous()};
  }
  return {numbers({kGlobalBatch, 3, 8, 8}, 0.731).to(type),
          (numbers({kGlobalBatch}, 78.233) * 43758.5).abs().to(at::kLong) % 10};
}

void expect_same_bits_on_all_ranks(comm::Group& group, const torch::nn::Module& module, int step) {
  std::vector<at::Tensor> flat;
  for (const auto& parameter : module.parameters()) flat.push_back(parameter.detach().view({-1}));
  const auto mine = at::cat(flat);
  const auto all = at::empty({group.size(), mine.numel()}, mine.options());
  group.all_gather(all, mine).wait();
  for (int r = 1; r < group.size(); ++r) {
    EXPECT_TRUE(all[r].equal(all[0])) << "step " << step << ", rank " << r;
  }
}

}  // namespace

Course train(comm::Group group, const std::string& model, const std::string& optimizer_name,
             at::ScalarType type) {
  const Learner learner = make_learner(model);
  learner.module->to(type);
  DataParallel ddp(*learner.module, group, {.bucket_bytes = 4096, .first_bucket_bytes = 512});
  EXPECT_GT(ddp.bucket_count(), 1u);
  const auto optimizer = optim::make_optimizer(
      learner.module->parameters(),
      {.name = optimizer_name, .lr = optimizer_name == "sgd" ? 0.05 : 1e-3, .weight_decay = 1e-3});
  const int64_t share = kGlobalBatch / group.size();
  Course course;
  for (int step = 0; step < kSteps; ++step) {
    const auto [inputs, targets] = make_batch(model, step, type);
    const auto logits = learner.forward(inputs.narrow(0, group.rank() * share, share));
    const auto loss = at::cross_entropy_loss(
        logits.flatten(0, -2), targets.narrow(0, group.rank() * share, share).flatten());
    // Both ways of users: undefined gradients, and zeroed ones.
    if (step % 2 == 0) {
      learner.module->zero_grad(/*set_to_none=*/true);
    } else {
      optimizer->zero_grad();
    }
    loss.backward();
    ddp.finish_backward();
    optimizer->step();
    const auto mean = loss.detach().clone();
    group.all_reduce(mean, comm::ReduceOp::average).wait();
    course.losses.push_back(mean.item<double>());
    expect_same_bits_on_all_ranks(group, *learner.module, step);
  }
  for (const auto& parameter : learner.module->parameters()) {
    course.weights.push_back(parameter.detach().clone());
  }
  return course;
}

void expect_equal(const Course& course, const Course& oracle, double tolerance) {
  ASSERT_EQ(course.losses.size(), oracle.losses.size());
  for (size_t i = 0; i < oracle.losses.size(); ++i) {
    EXPECT_NEAR(course.losses[i], oracle.losses[i], tolerance * oracle.losses[i]) << "step " << i;
  }
  EXPECT_NE(oracle.losses.front(), oracle.losses.back());
  ASSERT_EQ(course.weights.size(), oracle.weights.size());
  for (size_t i = 0; i < oracle.weights.size(); ++i) {
    const auto difference = (course.weights[i] - oracle.weights[i]).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * oracle.weights[i].abs().max().item<double>())
        << "parameter " << i;
  }
}

}  // namespace troika::parallel
