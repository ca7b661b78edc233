// Runs of strategy swarm whose peers are threads of this process.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/fitted_course.h"
#include "tests/train/waves.h"
#include "troika/cluster/discovery/port.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/swarm_run.h"

namespace troika::train {

template <typename SomeTask = Task>
std::shared_ptr<Task> make_smooth_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  fill_with_waves(*net);
  return std::make_shared<SomeTask>(nn::from_sequential(net));
}

// The samples that peers trained on, by step.
struct TrainedSamples {
  std::mutex mutex;
  std::map<int64_t, std::vector<int64_t>> of_step;
};

class RecordsSamples : public Callback {
 public:
  explicit RecordsSamples(TrainedSamples& to) : to_(to) {}
  std::string name() const override { return "records_samples"; }
  void on_train_batch_start(FitContext& context, const data::Batch& batch) override {
    const std::lock_guard lock(to_.mutex);
    auto& samples = to_.of_step[context.at.step];
    samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
  }

 private:
  TrainedSamples& to_;
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

// Waits in a step until others are there, and gives them its state meanwhile.
class WaitsFor : public Callback {
 public:
  WaitsFor(Arrivals& arrivals, int count, int64_t step, parallel::SwarmMember& member)
      : arrivals_(arrivals), count_(count), step_(step), member_(member) {}
  std::string name() const override { return "waits_for"; }
  void on_train_batch_start(FitContext& context, const data::Batch&) override {
    if (context.at.step != step_) return;
    while (!arrivals_.wait_shortly_for(count_)) member_.is_due();
  }

 private:
  Arrivals& arrivals_;
  const int count_;
  const int64_t step_;
  parallel::SwarmMember& member_;
};

class SwarmTraining : public CourseTest {
 protected:
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

  // The course of one process that takes the same samples in each step, with plain SGD.
  FittedCourse one_process(const TrainedSamples& trained) const {
    const auto task = make_smooth_task();
    task->module().to(torch::kDouble);
    torch::optim::SGD sgd(task->module().parameters(), options_.optimizer.lr);
    const Waves waves;
    for (const auto& [step, samples] : trained.of_step) {
      sgd.zero_grad();
      auto batch = waves.load(samples, {});
      batch.inputs = batch.inputs.to(torch::kDouble);
      task->training_step(batch).backward();
      sgd.step();
    }
    FittedCourse oracle;
    for (const auto& [name, tensor] : nn::named_state(task->module())) {
      oracle.weights.push_back(tensor.detach());
    }
    return oracle;
  }

  const net::Secret secret_ = net::Secret::random();
};

}  // namespace troika::train
