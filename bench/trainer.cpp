// What Trainer::fit costs beside a hand-written loop: the same model, batch and optimizer, one
// process, one thread, taking turns. Prints one JSON object: per model the medians over the rounds
// of microseconds a step, from one step's start to a later one's, so of all that lies between; what
// the trainer adds, also in processor time of the thread that trains, which other work on the
// machine disturbs less; and, for the GPT, what a checkpoint every 10 steps, written beside
// training, adds to that. The bars: 20 microseconds a step on the tiny MLP; on the small GPT 1 %
// and, for checkpoints, 3.5 %.
//
// trainer [ROUNDS [MLP_STEPS [GPT_STEPS]]]; checkpoints go to TMPDIR, the log to standard error.
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/world.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/train/trainer.h"

namespace {

// Steps before the measured ones and the one after, which ends the last of them.
constexpr int64_t kBefore = 1, kAfter = 1;
constexpr int64_t kCheckpointEvery = 10;

struct Moment {
  double wall = 0, processor = 0;  // microseconds; of this thread

  static double read(clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
  }
  static Moment now() { return {read(CLOCK_MONOTONIC), read(CLOCK_THREAD_CPUTIME_ID)}; }
};

// One batch, ready at once, so that loading is not what is measured.
class OneBatch : public troika::data::Dataset {
 public:
  OneBatch(const troika::nn::ModelOptions& model, int64_t batch, int64_t size) : size_(size) {
    const bool is_text = model.name == "gpt";
    classes_ = is_text ? model.vocab_size : model.num_classes;
    batch_.inputs = troika::nn::example_input(model, batch);
    batch_.targets = at::randint(
        classes_, is_text ? batch_.inputs.sizes() : at::IntArrayRef({batch}), at::kLong);
  }

  int64_t size() const override { return size_; }
  troika::data::Batch load(std::span<const int64_t>, std::optional<uint64_t>) const override {
    return batch_;
  }
  int64_t num_classes() const override { return classes_; }
  std::vector<int64_t> input_shape() const override { return batch_.inputs.sizes().slice(1).vec(); }

 private:
  const int64_t size_;
  int64_t classes_ = 0;
  troika::data::Batch batch_;
};

class TimedTask : public troika::train::Task {
 public:
  using Task::Task;
  at::Tensor training_step(const troika::data::Batch& batch) override {
    starts.push_back(Moment::now());
    return Task::training_step(batch);
  }

  std::vector<Moment> starts;
};

struct Run {
  Moment step;  // what a step takes
  std::vector<at::Tensor> parameters;
};

struct Setup {
  troika::nn::ModelOptions model;
  int64_t batch = 0;
  int64_t steps = 0;

  troika::optim::OptimizerOptions optimizer{.name = "adamw", .lr = 1e-4};

  int64_t all_steps() const { return kBefore + steps + kAfter; }
  std::shared_ptr<troika::nn::Model> make_model() const {
    torch::manual_seed(1);
    return troika::nn::make_model(model);
  }
  Run finish(const std::vector<Moment>& starts, const torch::nn::Module& module) const {
    TROIKA_CHECK(static_cast<int64_t>(starts.size()) == all_steps(), "one start a step");
    const auto& [wall, processor] = starts[static_cast<size_t>(kBefore)];
    const auto count = static_cast<double>(steps);
    return {{(starts.back().wall - wall) / count, (starts.back().processor - processor) / count},
            module.parameters()};
  }
};

Run run_loop(const Setup& setup, const OneBatch& data) {
  const auto model = setup.make_model();
  const auto optimizer = troika::optim::make_optimizer(model->parameters(), setup.optimizer);
  std::vector<Moment> starts;
  double sum = 0;
  for (int64_t i = 0; i < setup.all_steps(); ++i) {
    const auto batch = data.load({}, {});
    starts.push_back(Moment::now());
    model->zero_grad(/*set_to_none=*/true);
    const auto loss = at::cross_entropy_loss(model->forward(batch.inputs).flatten(0, -2),
                                             batch.targets.flatten());
    loss.backward();
    optimizer->step();
    sum += loss.item<double>();
  }
  TROIKA_CHECK(sum > 0, "a loop that trains");
  return setup.finish(starts, *model);
}

Run run_trainer(const Setup& setup, const OneBatch& data, const OneBatch& validation,
                bool with_checkpoints) {
  const troika::TemporaryFolder folder;
  troika::train::TrainOptions options;
  options.run.folder = folder.path().string();
  options.trainer.max_steps = setup.all_steps();
  options.checkpoint.every_n_train_steps = with_checkpoints ? kCheckpointEvery : 0;
  options.checkpoint.async = true;
  options.data.batch_size = setup.batch;
  options.optimizer = setup.optimizer;
  options.schedule.name = "constant";
  options.model = setup.model;
  TimedTask task(setup.make_model());
  troika::train::Trainer trainer(options, troika::comm::world());
  trainer.fit(task, data, validation);
  return setup.finish(task.starts, task.module());
}

void require_equal(const Run& run, const Run& loop) {
  for (size_t i = 0; i < loop.parameters.size(); ++i) {
    TROIKA_CHECK(at::equal(run.parameters[i], loop.parameters[i]),
                 "the trainer and the loop train the same");
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json measure(const Setup& setup, int rounds, bool with_checkpoints) {
  const OneBatch data(setup.model, setup.batch, setup.batch * setup.all_steps());
  const OneBatch validation(setup.model, setup.batch, setup.batch);
  std::vector<double> loop, trainer, added, added_processor, checkpoints, added_by_checkpoints;
  for (int i = 0; i < rounds; ++i) {
    const Run by_hand = run_loop(setup, data);
    const Run ours = run_trainer(setup, data, validation, false);
    require_equal(ours, by_hand);
    loop.push_back(by_hand.step.wall);
    trainer.push_back(ours.step.wall);
    added.push_back(ours.step.wall - by_hand.step.wall);
    added_processor.push_back(ours.step.processor - by_hand.step.processor);
    if (!with_checkpoints) continue;
    const Run saving = run_trainer(setup, data, validation, true);
    require_equal(saving, by_hand);
    checkpoints.push_back(saving.step.wall);
    added_by_checkpoints.push_back(saving.step.wall - ours.step.wall);
  }
  nlohmann::json row{{"steps", setup.steps},
                     {"loop_us", median(loop)},
                     {"trainer_us", median(trainer)},
                     {"added_us", median(added)},
                     {"added_percent", 100 * median(added) / median(loop)},
                     {"added_processor_us", median(added_processor)},
                     {"rounds", {{"loop_us", loop}, {"trainer_us", trainer}}}};
  if (with_checkpoints) {
    row["checkpoints_us"] = median(checkpoints);
    row["checkpoints_percent"] = 100 * median(added_by_checkpoints) / median(trainer);
    row["rounds"]["checkpoints_us"] = checkpoints;
  }
  return row;
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  const auto argument = [&](int i, int otherwise) {
    return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise;
  };
  const int rounds = argument(1, 9);
  const Setup mlp{.model = {.name = "mlp", .image_size = 8, .hidden_width = 16},
                  .batch = 8,
                  .steps = argument(2, 2000)};
  const Setup gpt{.model = {.name = "gpt", .context = 128, .layers = 4, .heads = 4, .width = 192},
                  .batch = 16,
                  .steps = argument(3, 4 * kCheckpointEvery)};
  nlohmann::json result{{"torch", troika::compat::torch_version()}};
  result["tiny_mlp"] = measure(mlp, rounds, false);
  result["small_gpt"] = measure(gpt, rounds, true);
  std::cout << result.dump(2) << "\n";
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << std::endl;
  return troika::exit_code(error);
}
