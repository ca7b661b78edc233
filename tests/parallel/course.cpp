#include "tests/parallel/course.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/norm.h"
#include "troika/parallel/sharded.h"
#include "troika/parallel/sync_batch_norm.h"

namespace troika::parallel {

namespace {

constexpr int kCourseSteps = 6;
constexpr int64_t kLeastBatch = 7;
constexpr int64_t kTokens = 19;
constexpr int64_t kClasses = 10;
constexpr double kClippedNorm = 0.1;

// A range of the samples of a global batch.
struct Share {
  int64_t first = 0;
  int64_t count = 0;
};

nn::RecomputePlan plan_of(const Lesson& lesson, size_t blocks) {
  if (lesson.recompute != "nested") return nn::recompute_plan(lesson.recompute, blocks);
  return {{0, blocks, {{1, blocks}}}};
}

// The module under test: a model of the zoo with the additions of the lesson.
class Learner : public torch::nn::Module {
 public:
  explicit Learner(const Lesson& lesson) : lesson_(lesson) {
    // Ranks may be threads, and LibTorch's generator belongs to the process.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    torch::manual_seed(3);
    model_ = register_module("model", nn::make_model({.name = lesson.model,
                                                      .num_classes = kClasses,
                                                      .image_size = 8,
                                                      .hidden_width = 40,
                                                      .vocab_size = kTokens,
                                                      .context = 8,
                                                      .layers = 2,
                                                      .heads = 2,
                                                      .width = 16}));
    if (lesson.feature == "unused") {
      sometimes_ = register_parameter("sometimes", at::zeros({classes()}));
      register_parameter("never", at::ones({3}));
    }
    if (lesson.feature == "tied") {
      register_parameter("head", model_->named_parameters()["transformer.wte.weight"]);
    }
    to(lesson.type);
    train(lesson.feature == "sync_batch_norm");
  }

  // Returns the mean loss of a share. Only the sample `special` uses a certain parameter.
  at::Tensor loss(int step, int64_t batch, int64_t special, Share share) {
    const auto [inputs, targets] = make_batch(step, batch);
    const auto recomputed = nn::recompute(*model_, plan_);
    auto logits = model_->forward(inputs.narrow(0, share.first, share.count));
    if (sometimes_.defined() && special >= share.first && special < share.first + share.count) {
      std::vector<int64_t> shape(static_cast<size_t>(logits.dim()), 1);
      shape[0] = share.count;
      const auto chosen = at::zeros(shape, logits.options());
      chosen[special - share.first].fill_(1);
      logits = logits + chosen * sometimes_;
    }
    return at::cross_entropy_loss(logits.flatten(0, -2),
                                  targets.narrow(0, share.first, share.count).flatten());
  }

  torch::nn::Module& model() { return *model_; }
  void recompute() { plan_ = plan_of(lesson_, model_->blocks().size()); }

 private:
  int64_t classes() const { return lesson_.model == "gpt" ? kTokens : kClasses; }

  // Returns the global batch of a step, a fixed function of the step's number.
  std::pair<at::Tensor, at::Tensor> make_batch(int step, int64_t batch) const {
    const auto numbers = [&](std::vector<int64_t> shape, double factor) {
      const auto count =
          std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      return at::sin((at::arange(count, at::kDouble) + step * 1000) * factor).view(shape);
    };
    const auto integers = [&](std::vector<int64_t> shape, double factor) {
      return (numbers(std::move(shape), factor) * 43758.5).abs().to(at::kLong) % classes();
    };
    if (lesson_.model == "gpt") {
      const auto tokens = integers({batch, 9}, 12.9898);
      return {tokens.narrow(1, 0, 8).contiguous(), tokens.narrow(1, 1, 8).contiguous()};
    }
    return {numbers({batch, 3, 8, 8}, 0.731).to(lesson_.type), integers({batch}, 78.233)};
  }

  const Lesson lesson_;
  std::shared_ptr<nn::Model> model_;
  nn::RecomputePlan plan_;
  at::Tensor sometimes_;
};

int64_t parts_of(const Lesson& lesson) {
  return lesson.feature == "accumulation" ? 3 : 1;
}

// Returns the share of each rank in a global batch.
std::vector<Share> shares(const Lesson& lesson, int step, int ranks) {
  const int64_t pieces = ranks * parts_of(lesson);
  std::vector<Share> result;
  int64_t first = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    int64_t count = (kLeastBatch + pieces - 1) / pieces * parts_of(lesson);
    if (lesson.feature == "uneven") count = rank == 0 ? 2 + step % 2 : (2 * rank + step) % 4;
    result.push_back({first, count});
    first += count;
  }
  return result;
}

int64_t size_of(const std::vector<Share>& shares) {
  return shares.back().first + shares.back().count;
}

// Returns the first sample, the last, or none.
int64_t special_sample(int step, int64_t batch) {
  return step % 3 == 0 ? 0 : step % 3 == 1 ? batch - 1 : -1;
}

std::unique_ptr<optim::FlatOptimizer> make_optimizer(std::vector<optim::Parameter> parameters,
                                                     const Lesson& lesson) {
  const std::map<std::string, double> rates{{"sgd", 0.05}, {"lars", 1}};
  const auto rate = rates.find(lesson.optimizer);
  return optim::make_optimizer(std::move(parameters),
                               {.name = lesson.optimizer,
                                .lr = rate == rates.end() ? 1e-3 : rate->second,
                                .weight_decay = 1e-3,
                                .decay_vectors = false});
}

std::unique_ptr<Exchange> make_exchange(Learner& learner, const comm::Group& group,
                                        const Lesson& lesson) {
  const DataParallelOptions options{.bucket_bytes = 4096,
                                    .first_bucket_bytes = 512,
                                    .find_unused_parameters = lesson.feature == "unused"};
  if (lesson.stage > 0) {
    auto& module = lesson.stage == 3 ? learner.model() : static_cast<torch::nn::Module&>(learner);
    return std::make_unique<Sharded>(
        module, group,
        ShardedOptions{.stage = lesson.stage,
                       .group_size = lesson.group_size,
                       .shard_multiple = optim::shard_multiple(lesson.optimizer),
                       .keep_elements = 1000,
                       .data_parallel = options});
  }
  auto ddp = std::make_unique<DataParallel>(learner, group, options);
  if (group.size() > 1) {
    EXPECT_GT(ddp->bucket_count(), 1u);
  } else {
    EXPECT_EQ(ddp->bucket_count(), 0u) << "one rank has nothing to average";
  }
  return ddp;
}

std::vector<at::Tensor> state_of(const Learner& learner) {
  std::vector<at::Tensor> state;
  for (const auto& entry : nn::named_state(learner)) {
    state.push_back(entry.second.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true));
  }
  return state;
}

void expect_same_state_on_all_ranks(const comm::Group& group, const Learner& learner, int step) {
  std::vector<at::Tensor> flat;
  for (const auto& tensor : state_of(learner)) flat.push_back(tensor.view({-1}));
  const auto mine = at::cat(flat);
  const auto all = at::empty({group.size(), mine.numel()}, mine.options());
  group.all_gather(all, mine);
  for (int r = 1; r < group.size(); ++r) {
    EXPECT_TRUE(all[r].equal(all[0])) << "step " << step << ", rank " << r;
  }
}

// Runs the forward and backward pass of this rank's share, and returns its loss.
double make_gradients(Exchange& exchange, Learner& learner, const Lesson& lesson, int step,
                      int64_t batch, Share share) {
  const int64_t parts = parts_of(lesson);
  const int64_t count = share.count / parts;
  double loss = 0;
  for (int64_t part = 0; part < parts && count > 0; ++part) {
    const auto one = learner.loss(step, batch, special_sample(step, batch),
                                  {share.first + part * count, count}) /
                     parts;
    loss += one.item<double>();
    if (part + 1 < parts) {
      const auto guard = exchange.no_sync();
      one.backward();
    } else {
      one.backward();
    }
  }
  return loss;
}

}  // namespace

Course train(comm::Group group, const Lesson& lesson) {
  Learner learner(lesson);
  learner.recompute();
  if (lesson.feature == "sync_batch_norm") {
    EXPECT_EQ(convert_batch_norm(learner, group).size(), 19u);
  }
  const auto exchange = make_exchange(learner, group, lesson);
  const auto optimizer = make_optimizer(exchange->parameters(), lesson);
  optimizer->complete_sums_by(
      [&](const at::Tensor& sums) { exchange->reducer().sum(sums, "norms of parameters"); });
  Course course;
  for (int step = 0; step < kCourseSteps; ++step) {
    const auto all_shares = shares(lesson, step, group.size());
    const Share share = all_shares[static_cast<size_t>(group.rank())];
    const auto samples = static_cast<double>(share.count);
    if (lesson.feature == "uneven") {
      EXPECT_TRUE(exchange->begin_step(samples));
    }
    // Users may leave gradients undefined or set them to zero; Sharded supports only the former.
    if (step % 2 == 0 || lesson.stage > 0) {
      learner.zero_grad(/*set_to_none=*/true);
    } else {
      optimizer->zero_grad();
    }
    const double loss =
        make_gradients(*exchange, learner, lesson, step, size_of(all_shares), share);
    exchange->finish_backward();
    if (lesson.feature == "clipping") {
      EXPECT_GT(exchange->clip_grad_norm(kClippedNorm), kClippedNorm);
    }
    exchange->step(*optimizer);
    exchange->synchronize_replicas();
    const auto sums = at::tensor({loss * samples, samples}, at::kDouble);
    group.all_reduce(sums);
    course.losses.push_back((sums[0] / sums[1]).item<double>());
    expect_same_state_on_all_ranks(group, learner, step);
  }
  course.state = state_of(learner);
  return course;
}

Course train_alone(int ranks, const Lesson& lesson) {
  Learner learner(lesson);
  std::vector<optim::Parameter> parameters;
  for (auto& entry : nn::trained_parameters(learner)) {
    parameters.push_back({entry.first, entry.second});
  }
  const auto optimizer = make_optimizer(parameters, lesson);
  Course course;
  for (int step = 0; step < kCourseSteps; ++step) {
    const int64_t batch = size_of(shares(lesson, step, ranks));
    if (step % 2 == 0 || lesson.stage > 0) {
      learner.zero_grad(/*set_to_none=*/true);
    } else {
      optimizer->zero_grad();
    }
    const auto loss = learner.loss(step, batch, special_sample(step, batch), {0, batch});
    loss.backward();
    if (lesson.feature == "clipping") {
      std::vector<at::Tensor> gradients;
      for (const auto& parameter : parameters) gradients.push_back(parameter.tensor.grad());
      clip_to(gradients, std::sqrt(sum_of_squares(gradients)), kClippedNorm);
    }
    optimizer->step();
    course.losses.push_back(loss.item<double>());
  }
  course.state = state_of(learner);
  return course;
}

void expect_equal(const Course& course, const Course& oracle, double tolerance) {
  ASSERT_EQ(course.losses.size(), oracle.losses.size());
  for (size_t i = 0; i < oracle.losses.size(); ++i) {
    EXPECT_NEAR(course.losses[i], oracle.losses[i], tolerance * oracle.losses[i]) << "step " << i;
  }
  EXPECT_NE(oracle.losses.front(), oracle.losses.back());
  ASSERT_EQ(course.state.size(), oracle.state.size());
  for (size_t i = 0; i < oracle.state.size(); ++i) {
    const auto difference = (course.state[i] - oracle.state[i]).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * oracle.state[i].abs().max().item<double>()) << "tensor " << i;
  }
}

}  // namespace troika::parallel
