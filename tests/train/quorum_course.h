// Runs of replicas that may be lost: threads of this process, whose lighthouse is here, too.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/train/fitted_course.h"
#include "tests/train/waves.h"
#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/quorum_run.h"

namespace troika::train {

// Fails the run in the middle of it.
class Loses : public Callback {
 public:
  explicit Loses(int64_t step) : step_(step) {}
  std::string name() const override { return "loses"; }
  void on_train_batch_start(FitContext& context, const data::Batch&) override {
    if (context.at.step == step_) throw Error("test", ErrorKind::failure, {.what = "lost"});
  }

 private:
  const int64_t step_;
};

class QuorumCourse : public CourseTest {
 protected:
  explicit QuorumCourse(std::function<std::shared_ptr<Task>()> make_task)
      : make_task_(std::move(make_task)) {}

  TrainOptions with(const std::vector<std::string>& changes) const {
    auto options = options_;
    auto table = make_table(options);
    for (const auto& change : changes) table.set_argument("--" + change);
    return options;
  }

  FittedCourse fit_replica(const TrainOptions& options, int rank, int replicas,
                           const Callbacks& callbacks = {}) {
    const auto task = make_task_();
    Trainer trainer(options, comm::local::alone());
    for (const auto& callback : callbacks) trainer.add(callback);
    trainer.take_part(std::make_shared<QuorumRun>(
        options, QuorumPlace{.rank = rank,
                             .replicas = replicas,
                             .lighthouse = net::Address{"127.0.0.1", lighthouse_->port()},
                             .secret = secret_}));
    const Waves waves;
    FittedCourse course{.summary = trainer.fit(*task, waves, waves), .weights = {}};
    for (const auto& parameter : task->module().parameters()) {
      course.weights.push_back(parameter.detach().clone());
    }
    return course;
  }
  std::vector<FittedCourse> fit_replicas(const TrainOptions& options, int replicas) {
    lighthouse_.emplace(secret_, net::Address{"127.0.0.1", 0});
    std::vector<FittedCourse> courses(static_cast<size_t>(replicas));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < replicas; ++rank) {
      threads.emplace_back(
          [&, rank] { courses[static_cast<size_t>(rank)] = fit_replica(options, rank, replicas); });
    }
    threads.clear();
    return courses;
  }

  const std::function<std::shared_ptr<Task>()> make_task_;
  const net::Secret secret_ = net::Secret::random();
  std::optional<quorum::LighthouseServer> lighthouse_;
};

}  // namespace troika::train
