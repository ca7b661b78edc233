// A rank of bench/distbelief: trains logistic regression with a strategy, as a processor that needs
// a given time for each sample would.
//
// distbelief_rank SLOW MILLISECONDS TARGET KEY=VALUE..., with options of a run, and with torchrun's
// variables. A sample takes MILLISECONDS, on the last rank SLOW times as long: the rank sleeps.
// Rank 0 prints a line of JSON: the seconds from the start of training until the mean loss of all
// samples is at most TARGET, which it computes after each of its steps, or until the end of the
// run; the loss and the steps by then. It then ends, and so do the others if they need it.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/config.h"
#include "troika/base/random.h"
#include "troika/base/text.h"
#include "troika/comm/world/world.h"
#include "troika/compat/torch.h"
#include "troika/nn/sequential.h"
#include "troika/train/callbacks/callbacks.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/trainer.h"

namespace {

namespace train = troika::train;
namespace data = troika::data;

constexpr int64_t kSamples = 2048, kFeatures = 32;

// Points whose class follows a plane in nine of ten cases.
class Points : public data::Dataset {
 public:
  Points() : inputs_(at::empty({kSamples, kFeatures})), targets_(at::empty({kSamples}, at::kLong)) {
    troika::Random random(1);
    std::vector<double> plane(kFeatures);
    for (auto& number : plane) number = random.normal();
    auto inputs = inputs_.accessor<float, 2>();
    auto targets = targets_.accessor<int64_t, 1>();
    for (int64_t i = 0; i < kSamples; ++i) {
      double side = 0;
      for (int64_t j = 0; j < kFeatures; ++j) {
        const double x = random.normal();
        inputs[i][j] = static_cast<float>(x);
        side += x * plane[static_cast<size_t>(j)];
      }
      targets[i] = static_cast<int64_t>((side > 0) != (random.uniform() < 0.1));
    }
  }
  int64_t size() const override { return kSamples; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    return {inputs_.index_select(0, numbers), targets_.index_select(0, numbers)};
  }
  double loss(train::Task& task) const {
    const at::NoGradGuard no_grad;
    auto& model = dynamic_cast<troika::nn::Model&>(task.module());
    const auto type = model.parameters().front().scalar_type();
    const auto outputs = model.forward(inputs_.to(type));
    return at::cross_entropy_loss(outputs, targets_).item<double>();
  }

 private:
  at::Tensor inputs_, targets_;
};

class PacedTask : public train::Task {
 public:
  PacedTask(const std::shared_ptr<troika::nn::Model>& model, double milliseconds)
      : Task(model), milliseconds_(milliseconds) {}
  at::Tensor training_step(const data::Batch& batch) override {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(
        milliseconds_ * static_cast<double>(batch.targets.size(0))));
    return Task::training_step(batch);
  }

 private:
  const double milliseconds_;
};

class Watch : public train::Callback {
 public:
  Watch(const Points& points, double target) : points_(points), target_(target) {}
  std::string name() const override { return "watch"; }
  void on_train_start(train::FitContext&) override { start_ = troika::Clock::now(); }
  void on_train_batch_end(train::FitContext& context, const data::Batch&,
                          const at::Tensor&) override {
    if (points_.loss(context.task) <= target_) report(context);
  }
  void on_train_end(train::FitContext& context) override { report(context); }

 private:
  void report(train::FitContext& context) const {
    const std::chrono::duration<double> took = troika::Clock::now() - start_;
    const nlohmann::json line{{"seconds", took.count()},
                              {"loss", points_.loss(context.task)},
                              {"steps", context.at.step}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
    ::_exit(0);
  }

  const Points& points_;
  const double target_;
  troika::Clock::time_point start_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const auto group = troika::comm::world();
    const bool is_slow = group.rank() + 1 == group.size();
    const double pace =
        *troika::parse_double(words.at(1)) * (is_slow ? *troika::parse_double(words.at(0)) : 1.0);
    train::TrainOptions options;
    options.trainer.enable_progress_bar = options.trainer.enable_model_summary = false;
    options.trainer.num_sanity_val_steps = 0;
    options.trainer.limit_val_batches = "0";
    options.trainer.loggers = {};
    options.checkpoint.every_n_epochs = 0;
    auto table = train::make_table(options);
    for (size_t i = 3; i < words.size(); ++i) table.set_argument("--" + words[i]);
    torch::nn::Sequential net(torch::nn::Linear(kFeatures, 2));
    for (const auto& parameter : net->parameters()) parameter.detach().zero_();
    PacedTask task(troika::nn::from_sequential(net), pace);
    const Points points;
    train::Trainer trainer(options, group);
    if (group.rank() == 0) {
      trainer.add(std::make_shared<Watch>(points, *troika::parse_double(words.at(2))));
    }
    trainer.fit(task, points, points);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
