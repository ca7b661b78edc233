// Compares Trainer::fit with a hand-written loop: the same model, batch and optimizer, one thread,
// taking turns. Prints a record (troika/base/benchmark_record.h): for each model, the microseconds
// of a step in each round, including everything between two steps; the overhead of the trainer in
// time, in processor time of the training thread (which other work on the machine disturbs less),
// in allocations of the process and in instructions of that thread in user mode (if the kernel
// counts them; otherwise use the script trainer_instructions); and, for the GPT, the overhead of a
// checkpoint every 10 steps, written while training continues. The targets: an overhead of 20
// microseconds per step for the tiny MLP, of 1 % for the small GPT, and of 3.5 % for its
// checkpoints.
//
// trainer [ROUNDS [MLP_STEPS [GPT_STEPS]]]; checkpoints go to TMPDIR, the log to standard error.
// trainer loop|fit STEPS: only the tiny MLP, by hand or by the trainer, without output; callgrind
// --instr-atstart=no then counts only the measured steps.
//
// With `troika launch -n N`, all ranks train, and rank 0 prints its measurements. Each rank runs
// the hand-written loop by itself.
#include <fmt/format.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string_view>

#include "tests/support/allocations.h"
#include "troika/base/benchmark_record.h"
#include "troika/base/error.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/world/world.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/train/trainer.h"

namespace {

constexpr int64_t kAfter = 1;  // a step that ends the last of the measured ones
constexpr int64_t kCheckpointEvery = 10;

// Counts the user-mode instructions of the thread that made it; NaN if they cannot be counted.
class InstructionCounter {
 public:
  InstructionCounter() {
    perf_event_attr what{};
    what.size = sizeof what;
    what.type = PERF_TYPE_HARDWARE;
    what.config = PERF_COUNT_HW_INSTRUCTIONS;
    what.exclude_kernel = 1;
    what.exclude_hv = 1;
    file_ = static_cast<int>(::syscall(SYS_perf_event_open, &what, 0, -1, -1, 0));
  }
  double read() const {
    uint64_t count = 0;
    if (file_ < 0 || ::read(file_, &count, sizeof count) != sizeof count) return std::nan("");
    return static_cast<double>(count);
  }

 private:
  int file_;
};

struct Moment {
  double wall = 0, processor = 0;  // microseconds; the latter of this thread
  double instructions = 0;         // of this thread
  double allocations = 0;          // of this process

  static double read(clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
  }
  static Moment now() {
    static const InstructionCounter counter;
    return {read(CLOCK_MONOTONIC), read(CLOCK_THREAD_CPUTIME_ID), counter.read(),
            static_cast<double>(troika::testing_support::allocations_of_process())};
  }
};

// A single batch that needs no loading, so that loading is not measured.
class OneBatch : public troika::data::Dataset {
 public:
  OneBatch(const troika::nn::ModelOptions& model, int64_t batch, int64_t size) : size_(size) {
    torch::manual_seed(0);  // the same on all ranks
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

struct Run {
  Moment step;  // what a step takes
  std::vector<at::Tensor> parameters;
};

struct Setup {
  troika::nn::ModelOptions model;
  int64_t batch = 0;
  int64_t before = 0;  // steps that are not measured
  int64_t steps = 0;

  troika::optim::OptimizerOptions optimizer{.name = "adamw", .lr = 1e-4};

  int64_t all_steps() const { return before + steps + kAfter; }
  std::shared_ptr<troika::nn::Model> make_model() const {
    torch::manual_seed(1);
    return troika::nn::make_model(model);
  }
};

// Records the times at which steps start.
class Starts {
 public:
  explicit Starts(const Setup& setup) : setup_(setup) {
    moments_.reserve(static_cast<size_t>(setup.all_steps()));
  }

  void add() {
    const auto done = static_cast<int64_t>(moments_.size());
    if (done == setup_.before) CALLGRIND_START_INSTRUMENTATION;
    if (done + kAfter == setup_.all_steps()) CALLGRIND_STOP_INSTRUMENTATION;
    moments_.push_back(Moment::now());
  }
  Run finish(const torch::nn::Module& module) const {
    TROIKA_CHECK(static_cast<int64_t>(moments_.size()) == setup_.all_steps(), "one start a step");
    const Moment& first = moments_[static_cast<size_t>(setup_.before)];
    const Moment& last = moments_.back();
    const auto count = static_cast<double>(setup_.steps);
    return {{(last.wall - first.wall) / count, (last.processor - first.processor) / count,
             (last.instructions - first.instructions) / count,
             (last.allocations - first.allocations) / count},
            module.parameters()};
  }

 private:
  const Setup setup_;
  std::vector<Moment> moments_;
};

class TimedTask : public troika::train::Task {
 public:
  explicit TimedTask(const Setup& setup) : Task(setup.make_model()), starts(setup) {}
  at::Tensor training_step(const troika::data::Batch& batch) override {
    starts.add();
    return Task::training_step(batch);
  }

  Starts starts;
};

// Computes the loss as Task::training_step() does, because a model that computes its loss itself
// gives other bits.
at::Tensor loss_of(troika::nn::Model& model, const troika::data::Batch& batch) {
  using troika::nn::OutputLoss;
  if (model.has_output_layer()) {
    const OutputLoss loss{.targets = batch.targets, .ignored = troika::metrics::kIgnored};
    return troika::nn::only(
        model.forward({batch.inputs}, std::make_shared<const OutputLoss>(loss)));
  }
  return at::cross_entropy_loss(model.forward(batch.inputs).flatten(0, -2),
                                batch.targets.flatten());
}

Run run_loop(const Setup& setup, const OneBatch& data) {
  const auto model = setup.make_model();
  const auto optimizer = troika::optim::make_optimizer(model->parameters(), setup.optimizer);
  Starts starts(setup);
  double sum = 0;
  for (int64_t i = 0; i < setup.all_steps(); ++i) {
    const auto batch = data.load({}, {});
    starts.add();
    model->zero_grad(/*set_to_none=*/true);
    const auto loss = loss_of(*model, batch);
    loss.backward();
    optimizer->step();
    sum += loss.item<double>();
  }
  TROIKA_CHECK(sum > 0, "a loop that trains");
  return starts.finish(*model);
}

Run run_trainer(const Setup& setup, const troika::comm::Group& group, const OneBatch& data,
                const OneBatch& validation, bool with_checkpoints) {
  const troika::TemporaryFolder folder;
  troika::train::TrainOptions options;
  options.run.folder = group.broadcast_text(folder.path().string());  // one for all ranks
  options.trainer.max_steps = setup.all_steps();
  options.checkpoint.every_n_train_steps = with_checkpoints ? kCheckpointEvery : 0;
  options.checkpoint.async = "true";
  options.data.batch_size = setup.batch;
  options.optimizer = setup.optimizer;
  options.schedule.name = "constant";
  options.model = setup.model;
  TimedTask task(setup);
  troika::train::Trainer trainer(options, group);
  trainer.fit(task, data, validation);
  group.barrier();
  return task.starts.finish(task.module());
}

void require_equal(const Run& run, const Run& loop) {
  for (size_t i = 0; i < loop.parameters.size(); ++i) {
    TROIKA_CHECK(at::equal(run.parameters[i], loop.parameters[i]),
                 "the trainer and the loop train the same");
  }
}

void measure(troika::BenchmarkRecord& record, const std::string& name, const Setup& setup,
             const troika::comm::Group& group, int rounds, bool with_checkpoints) {
  using troika::Better;
  const int64_t global_batch = setup.batch * group.size();
  const OneBatch data(setup.model, setup.batch, global_batch * setup.all_steps());
  const OneBatch validation(setup.model, setup.batch, global_batch);
  std::map<std::string, std::vector<double>> microseconds, percent, counts;
  for (int i = 0; i < rounds; ++i) {
    const Run by_hand = run_loop(setup, data);
    const Run ours = run_trainer(setup, group, data, validation, false);
    // All ranks have the same batch, so the mean of their gradients equals the gradient of the
    // loop.
    require_equal(ours, by_hand);
    const Moment& loop = by_hand.step;
    const Moment& trainer = ours.step;
    microseconds["loop"].push_back(loop.wall);
    microseconds["trainer"].push_back(trainer.wall);
    microseconds["added"].push_back(trainer.wall - loop.wall);
    microseconds["added processor time"].push_back(trainer.processor - loop.processor);
    percent["added"].push_back(100 * (trainer.wall / loop.wall - 1));
    if (!std::isnan(trainer.instructions)) {
      counts["added instructions"].push_back(trainer.instructions - loop.instructions);
    }
    counts["allocations by hand"].push_back(loop.allocations);
    counts["allocations by the trainer"].push_back(trainer.allocations);
    if (!with_checkpoints) continue;
    const Run saving = run_trainer(setup, group, data, validation, true);
    require_equal(saving, by_hand);
    microseconds["trainer with checkpoints"].push_back(saving.step.wall);
    percent["added by checkpoints"].push_back(100 * (saving.step.wall / trainer.wall - 1));
  }
  const auto what = [&](const std::string& quantity) {
    return fmt::format("{} on {} ranks, {}", name, group.size(), quantity);
  };
  for (auto& [key, all] : microseconds) record.add(what(key), "us", Better::lower, all);
  for (auto& [key, all] : percent) record.add(what(key), "%", Better::lower, all);
  for (auto& [key, all] : counts) record.add(what(key), "1", Better::lower, all);
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  const auto group = troika::comm::world();
  const auto argument = [&](int i, int otherwise) {
    return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise;
  };
  Setup mlp{.model = {.name = "mlp", .image_size = 8, .hidden_width = 16},
            .batch = 8,
            .before = 100,
            .steps = argument(2, 2000)};
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "loop" || what == "fit") {
    const int64_t global_batch = mlp.batch * group.size();
    const OneBatch data(mlp.model, mlp.batch, global_batch * mlp.all_steps());
    const OneBatch validation(mlp.model, mlp.batch, global_batch);
    what == "loop" ? run_loop(mlp, data) : run_trainer(mlp, group, data, validation, false);
    return 0;
  }
  const int rounds = argument(1, 9);
  const Setup gpt{.model = {.name = "gpt", .context = 128, .layers = 4, .heads = 4, .width = 192},
                  .batch = 16,
                  .before = 1,
                  .steps = argument(3, 4 * kCheckpointEvery)};
  troika::BenchmarkRecord record("trainer", {{"libtorch", troika::compat::torch_version()}});
  measure(record, "tiny MLP", mlp, group, rounds, false);
  measure(record, "small GPT", gpt, group, rounds, true);
  if (group.rank() == 0) std::cout << record.to_json();
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << std::endl;
  return troika::exit_code(error);
}
