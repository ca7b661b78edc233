// Runs with strategy swarm, whose peers are threads of this process.
#pragma once

#include <fmt/format.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/train/fitted_course.h"
#include "tests/train/waves.h"
#include "troika/cluster/discovery/port.h"
#include "troika/nn/state.h"
#include "troika/parallel/parameter_store.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/swarm_run.h"

namespace troika::train {

template <typename SomeTask = Task>
std::shared_ptr<Task> make_smooth_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  fill_with_waves(*net);
  return std::make_shared<SomeTask>(nn::from_sequential(net));
}

inline std::shared_ptr<Task> make_normed_task() {
  return std::make_shared<Task>(make_waves_model(8, 0.2));
}

// The samples that peers trained on, by step; with delayed updates, by the step that their
// gradients update.
struct TrainedSamples {
  std::mutex mutex;
  std::map<int64_t, std::vector<int64_t>> of_step;
};

class RecordsSamples : public Callback {
 public:
  // Leaves out those before step `first`.
  explicit RecordsSamples(TrainedSamples& to, int64_t first = 0) : to_(to), first_(first) {}
  std::string name() const override { return "records_samples"; }
  void on_train_batch_start(FitContext& context, const data::Batch& batch) override {
    if (context.at.micro_batch == 0) ++portions_;
    if (context.at.step < first_) return;
    // The first portion of a run from its beginning is that of its first step.
    const bool is_ahead =
        context.options.swarm.delay_optimizer_step && (context.at.step > 0 || portions_ > 1);
    const std::lock_guard lock(to_.mutex);
    auto& samples = to_.of_step[context.at.step + (is_ahead ? 1 : 0)];
    samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
  }

 private:
  TrainedSamples& to_;
  const int64_t first_;
  int portions_ = 0;  // of the samples of a step
};

// How many peers have come to a step.
class Arrivals {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  // Returns early after some milliseconds.
  bool wait_shortly_for(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, Milliseconds(5), [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

class TellsArrival : public Callback {
 public:
  TellsArrival(Arrivals& arrivals, int64_t step) : arrivals_(arrivals), step_(step) {}
  std::string name() const override { return "tells_arrival"; }
  void on_train_batch_start(FitContext& context, const data::Batch&) override {
    if (context.at.step >= step_ && !std::exchange(has_told_, true)) arrivals_.add();
  }

 private:
  Arrivals& arrivals_;
  const int64_t step_;
  bool has_told_ = false;
};

// Waits in a step until others are there. They get its state meanwhile: its weights, and with
// delayed updates the mean that is not applied yet.
class WaitsFor : public Callback {
 public:
  WaitsFor(Arrivals& arrivals, int count, int64_t step, parallel::SwarmMember& member)
      : arrivals_(arrivals), count_(count), step_(step), member_(member) {}
  std::string name() const override { return "waits_for"; }
  void on_train_batch_start(FitContext& context, const data::Batch&) override {
    if (context.at.step != step_) return;
    context.training.store->fetch_states();
    while (!arrivals_.wait_shortly_for(count_)) member_.is_due();
  }

 private:
  Arrivals& arrivals_;
  const int count_;
  const int64_t step_;
  parallel::SwarmMember& member_;
};

// Ends a peer.
class LeavesAt : public Callback {
 public:
  explicit LeavesAt(int64_t step) : step_(step) {}
  std::string name() const override { return "leaves_at"; }
  void on_train_batch_start(FitContext& context, const data::Batch&) override {
    if (context.at.step >= step_) throw Error("test", ErrorKind::failure, {.what = "lost"});
  }

 private:
  const int64_t step_;
};

// Ends the pause of another peer at a step.
class RemovesFile : public Callback {
 public:
  RemovesFile(std::filesystem::path file, int64_t step) : file_(std::move(file)), step_(step) {}
  std::string name() const override { return "removes_file"; }
  void on_train_batch_start(FitContext& context, const data::Batch&) override {
    if (context.at.step >= step_) std::filesystem::remove(file_);
  }

 private:
  const std::filesystem::path file_;
  const int64_t step_;
};

// The gradients of one of its micro-batches are not finite.
class SickTask : public Task {
 public:
  using Task::Task;
  at::Tensor training_step(const data::Batch& batch) override {
    const auto loss = Task::training_step(batch);
    return ++calls_ == 3 ? loss * NAN : loss;
  }

 private:
  int calls_ = 0;
};

class SwarmTraining : public CourseTest {
 protected:
  using MakeTask = std::function<std::shared_ptr<Task>()>;

  SwarmTraining() {
    options_.trainer.strategy = "swarm";
    options_.trainer.max_epochs = -1;
    options_.trainer.max_steps = 6;
    options_.trainer.num_sanity_val_steps = 0;
    options_.trainer.limit_val_batches = "0";
    options_.checkpoint.enabled = false;
    options_.data.global_batch_size = 8;
    options_.data.batch_size = 2;
    options_.swarm.discovery_seconds = 0.05;
  }

  // So that course_on() tells what comes out.
  void use_plain_sgd() {
    options_.optimizer.momentum = options_.optimizer.weight_decay = 0;
    options_.schedule.name = "constant";
  }

  // The options of `count` peers that know each other.
  std::vector<TrainOptions> peers(int count) const {
    std::vector<TrainOptions> all(static_cast<size_t>(count), options_);
    std::vector<std::string> addresses;
    for (int i = 0; i < count; ++i) {
      addresses.push_back(fmt::format("127.0.0.1:{}", cluster::free_port()));
    }
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].run.name = fmt::format("peer-{}", i);
      all[i].swarm.listen = addresses[i];
      all[i].swarm.peers = addresses;
      all[i].swarm.min_peers = count;
    }
    return all;
  }

  // The courses of peers that train at a time.
  std::vector<FittedCourse> fit_all(const std::vector<TrainOptions>& all, const MakeTask& make_task,
                                    TrainedSamples* trained = nullptr) {
    std::vector<FittedCourse> courses(all.size());
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        Callbacks callbacks;
        if (trained) callbacks.push_back(std::make_shared<RecordsSamples>(*trained));
        courses[i] = fit(all[i], make_task(), member(all[i]), callbacks);
      });
    }
    threads.clear();
    return courses;
  }

  // The course of one process with plain SGD on these samples.
  FittedCourse course_on(const TrainedSamples& trained, const MakeTask& make_task) const {
    const auto task = make_task();
    task->module().to(torch::kDouble);
    torch::optim::SGD sgd(task->module().parameters(), options_.optimizer.lr);
    const Waves waves;
    const auto parameters = task->module().parameters();
    std::vector<at::Tensor> delayed;  // gradients of the step before
    for (const auto& [step, samples] : trained.of_step) {
      sgd.zero_grad();
      auto batch = waves.load(samples, {});
      batch.inputs = batch.inputs.to(torch::kDouble);
      task->training_step(batch).backward();
      if (options_.swarm.delay_optimizer_step) {
        std::vector<at::Tensor> own;
        for (const auto& parameter : parameters) own.push_back(parameter.grad().clone());
        own.swap(delayed);
        if (own.empty()) continue;
        for (size_t i = 0; i < own.size(); ++i) parameters[i].mutable_grad() = own[i];
      }
      sgd.step();
    }
    FittedCourse course;
    for (const auto& [name, tensor] : nn::named_state(task->module())) {
      course.weights.push_back(tensor.detach());
    }
    return course;
  }

  static void expect_course(const std::vector<FittedCourse>& courses, const FittedCourse& oracle,
                            int64_t steps) {
    for (const auto& course : courses) {
      EXPECT_EQ(course.summary.steps, steps);
      EXPECT_EQ(distance(course, courses.front()), 0);
      EXPECT_LE(distance(course, oracle), 1e-10);
    }
  }

  std::shared_ptr<parallel::SwarmMember> member(const TrainOptions& options) const {
    return make_swarm_member(options, {}, [this](const std::string& name) {
      return name == "TROIKA_RUN_SECRET" ? std::optional(secret_.to_hex()) : std::nullopt;
    });
  }

  FittedCourse fit(const TrainOptions& options, const std::shared_ptr<Task>& task,
                   std::shared_ptr<parallel::SwarmMember> member, const Callbacks& callbacks) {
    Trainer trainer(options, comm::local::alone());
    for (const auto& callback : callbacks) trainer.add(callback);
    trainer.take_part(std::move(member));
    const Waves waves;
    FittedCourse course{.summary = trainer.fit(*task, waves, waves), .weights = {}};
    for (const auto& [name, tensor] : nn::named_state(task->module())) {
      course.weights.push_back(tensor.detach().to(at::kDouble));
    }
    return course;
  }

  const net::Secret secret_ = net::Secret::random();
};

}  // namespace troika::train
