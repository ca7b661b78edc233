// Runs with another memory order of weights, compared with runs with the usual order.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/nn/state.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"

namespace troika::train {

class LayoutRun : public testing::Test {
 protected:
  using MakeTask = std::function<std::shared_ptr<Task>()>;
  // An option that chooses the order, by one of two values.
  struct Order {
    std::string name;  // of the option, without its section
    std::string TrainOptions::Trainer::*value;
    std::string usual, other;
    // Whether weights have the other order.
    bool (*is_other)(const state::StateDict& weights);
  };

  LayoutRun(Order order, MakeTask make_task, std::shared_ptr<const data::Dataset> data)
      : order_(std::move(order)), make_task_(std::move(make_task)), data_(std::move(data)) {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.precision = "64";
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.data.global_batch_size = 4;
    options_.optimizer = {.name = "adamw", .lr = 1e-3};
    options_.schedule.name = "constant";  // others depend on the length of the run
    options_.comm.bucket_megabytes = 1e-2;
    options_.comm.first_bucket_megabytes = 1e-3;
  }

  // Trains with this order, and returns rank 0's weights.
  state::StateDict fit(const std::string& order, int ranks) const {
    auto options = options_;
    options.trainer.*order_.value = order;
    return fit(options, ranks);
  }
  // Trains from the run's last checkpoint to its end.
  state::StateDict resume(const std::string& order, int ranks = 1) const {
    auto options = options_;
    options.trainer.*order_.value = order;
    options.trainer.ckpt_path = "last";
    return fit(options, ranks);
  }

  static void expect_equal(const state::StateDict& a, const state::StateDict& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i].second.allclose(b[i].second, tolerance, tolerance)) << a[i].first;
    }
  }

  void expect_that_every_strategy_gets_the_same_weights() {
    for (const std::string strategy :
         {"ddp", "dp", "local_sgd", "diloco", "zero1", "zero2", "zero3"}) {
      SCOPED_TRACE(strategy);
      options_.trainer.strategy = strategy;
      options_.trainer.devices = 2;
      options_.diloco.inner_steps = 2;
      options_.trainer.accumulate_grad_batches = strategy == "ddp" ? 2 : 1;
      const auto usual = fit(order_.usual, 2);
      const auto other = fit(order_.other, 2);
      expect_equal(other, usual, 1e-9);
      EXPECT_FALSE(order_.is_other(usual));
      EXPECT_EQ(order_.is_other(other), !strategy.starts_with("zero"));
    }
  }

  void expect_that_checkpoints_can_be_loaded_into_either() {
    for (const std::string strategy : {"ddp", "zero2"}) {
      options_.trainer.strategy = strategy;
      for (const auto& from : {order_.usual, order_.other}) {
        options_.run.name = strategy + from;
        options_.trainer.max_epochs = 2;
        const auto whole = fit(from, 2);
        options_.run.name += "-resumed";
        options_.trainer.max_epochs = 1;
        const auto half = fit(from, 2);
        options_.trainer.max_epochs = 2;
        // Without checkpoints of their own, both resume from that one.
        options_.checkpoint.enabled = false;
        for (const auto& to : {order_.usual, order_.other}) {
          SCOPED_TRACE(options_.run.name + " from " + from + " to " + to);
          expect_equal(resume(to, 2), whole, from == to ? 0 : 1e-9);
        }
        options_.checkpoint.enabled = true;
        EXPECT_FALSE(half[0].second.allclose(whole[0].second, 1e-6, 1e-6));
      }
    }
  }

  void expect_that_states_stay_in_their_order() {
    const auto expect_refused = [&] {
      fit(order_.other, 1);
      EXPECT_NO_THROW(resume(order_.other));
      EXPECT_ERROR(resume(order_.usual), ErrorKind::usage,
                   "[train] states of adamw_8bit and of ddp.hook follow the order of weights in "
                   "memory; got a checkpoint of " +
                       order_.other + " for " + order_.usual +
                       ", expected the same order (set trainer." + order_.name + " to " +
                       order_.other + ")");
    };
    options_.trainer.max_epochs = 1;
    options_.optimizer.name = "adamw_8bit";
    expect_refused();
    options_.run.name = "hook";
    options_.optimizer.name = "adamw";
    options_.ddp.codec.name = "topk";
    expect_refused();
  }

  const Order order_;
  const MakeTask make_task_;
  const std::shared_ptr<const data::Dataset> data_;
  const TemporaryFolder folder_;
  TrainOptions options_;

 private:
  state::StateDict fit(const TrainOptions& options, int ranks) const {
    state::StateDict weights;
    comm::local::run(ranks, [&](const comm::Group& group) {
      std::shared_ptr<Task> task;
      if (options.trainer.strategy == "dp") {
        task = std::make_shared<ReplicatedTask>(
            std::vector<std::shared_ptr<Task>>{make_task_(), make_task_()});
      } else {
        task = make_task_();
      }
      Trainer(options, group).fit(*task, *data_, *data_);
      if (group.rank() == 0) weights = nn::named_state(task->module());
    });
    return weights;
  }
};

}  // namespace troika::train
