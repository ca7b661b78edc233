// Callbacks that watch a run: statistics, throughput, and the checkpoint of a failed run.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/support/errors.h"
#include "tests/train/waves.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/callbacks/statistics.h"
#include "troika/train/callbacks/throughput.h"
#include "troika/train/engine/engine_state.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/rank_zero.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

using Row = std::map<std::string, double>;

class Observed : public testing::Test {
 protected:
  Observed() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.precision = "64";
    options_.trainer.sync_batchnorm = true;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.max_epochs = 1;
    options_.trainer.loggers = {"csv"};
    options_.trainer.log_every_n_steps = 2;
    options_.data.global_batch_size = 6;  // 4 steps an epoch
    options_.comm.bucket_megabytes = 1e-2;
  }

  using Make = std::function<std::shared_ptr<Task>(int rank)>;

  void fit(
      int ranks, const std::shared_ptr<Callback>& of_rank_0 = nullptr,
      const Make& make = [](int) { return make_waves_task(8, 0); }) const {
    comm::local::run(ranks, [&](comm::Group group) {
      const auto task = make(group.rank());
      Trainer trainer(options_, group);
      if (of_rank_0 && group.rank() == 0) trainer.add(of_rank_0);
      trainer.fit(*task, Waves(), Waves());
    });
  }

  // metrics.csv of the run, without empty cells.
  std::vector<Row> rows() const {
    std::vector<Row> result;
    const auto lines = split(read_file(folder_ / "run/metrics.csv"), '\n');
    const auto header = split(lines.at(0), ',');
    for (size_t i = 1; i < lines.size(); ++i) {
      const auto cells = split(lines[i], ',');
      Row row;
      for (size_t c = 0; c < cells.size(); ++c) {
        if (const auto number = parse_double(cells[c])) row[header.at(c)] = *number;
      }
      if (!row.empty()) result.push_back(row);
    }
    return result;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

// Statistics computed by hand, on one rank.
class HandStatistics : public Callback {
 public:
  std::string name() const override { return "hand"; }
  void on_before_optimizer_step(FitContext& c) override {
    Row row;
    std::vector<at::Tensor> gradients, weights;
    const auto note = [&](const std::string& what, const std::string& of, at::Tensor all) {
      const auto name = [&](const char* kind) { return what + "_" + kind + of; };
      row[name("norm")] = all.norm().item<double>();
      row[name("min")] = all.min().item<double>();
      row[name("max")] = all.max().item<double>();
      row[name("mean")] = all.mean().item<double>();
    };
    for (const auto& parameter : nn::trained_parameters(c.task.module())) {
      gradients.push_back(parameter.second.grad().flatten());
      weights.push_back(parameter.second.detach().flatten());
      note("gradient", "/" + parameter.first, gradients.back());
      note("weight", "/" + parameter.first, weights.back());
    }
    note("gradient", "", at::cat(gradients));
    note("weight", "", at::cat(weights));
    note("gradient", "/0", at::cat({gradients[0], gradients[1]}));
    steps.push_back(row);
  }
  std::vector<Row> steps;
};

TEST_F(Observed, StatisticsAreThoseOfAllRanksUnderEveryStrategy) {
  options_.statistics.every_n_steps = 2;
  options_.trainer.gradient_clip_val = 1e-3;
  const auto hand = std::make_shared<HandStatistics>();
  fit(1, hand);
  ASSERT_EQ(hand->steps.size(), 4u);
  for (const auto& [strategy, ranks] : {std::pair{"ddp", 1},
                                        {"ddp", 2},
                                        {"zero1", 3},
                                        {"zero2", 2},
                                        {"zero3", 3},
                                        {"zero1", 6},
                                        {"hybrid_shard", 6}}) {
    SCOPED_TRACE(fmt::format("{} on {}", strategy, ranks));
    options_.trainer.strategy = strategy;
    options_.zero.group_size = ranks == 6 ? 3 : 0;
    for (const std::string per : {"parameter", "block", "total"}) {
      options_.statistics.per = per;
      fit(ranks);
      const auto logged = rows();
      size_t compared = 0;
      for (const auto& [name, value] : hand->steps[1]) {
        const bool is_total = name.find('/') == std::string::npos;
        const bool is_block = name.ends_with("/0");
        const auto found = logged.at(0).find(name);
        EXPECT_EQ(found != logged.at(0).end(),
                  is_total || (is_block ? per == "block" : per == "parameter"))
            << name << " per " << per;
        if (found == logged.at(0).end()) continue;
        EXPECT_NEAR(found->second, value, 1e-9 * std::abs(value) + 1e-12) << name;
        ++compared;
      }
      EXPECT_GE(compared, 8u);
    }
  }
}

TEST_F(Observed, ACallbackStartsAnewWithEachRun) {
  options_.statistics.every_n_steps = 2;
  options_.throughput.available_flops = 1e6;
  using Added = std::vector<std::shared_ptr<Callback>>;
  const auto make = [statistics = options_.statistics, throughput = options_.throughput] {
    return Added{std::make_shared<StatisticsMonitor>(statistics),
                 std::make_shared<Throughput>(throughput)};
  };
  options_.statistics.every_n_steps = 0;
  const auto last_row = [&](const Added& added, const std::shared_ptr<Task>& task) {
    comm::local::run(1, [&](comm::Group group) {
      Trainer trainer(options_, group);
      for (const auto& callback : added) trainer.add(callback);
      trainer.fit(*task, Waves(), Waves());
    });
    const auto row = rows().at(1);
    Row result{{"flops", std::round(row.at("throughput/flops_per_second") /
                                    row.at("throughput/batches_per_second"))}};
    for (const auto& [name, value] : row) {
      if (name.starts_with("gradient_") || name.starts_with("weight_")) result[name] = value;
    }
    return result;
  };
  const auto used = make();
  const auto linear = torch::nn::Sequential(torch::nn::Linear(3, 2));
  last_row(used, std::make_shared<Task>(nn::from_sequential(linear)));
  EXPECT_EQ(last_row(used, make_waves_task(8, 0)), last_row(make(), make_waves_task(8, 0)));
}

TEST_F(Observed, StatisticsMayBeOfGradientsAlone) {
  options_.statistics = {.every_n_steps = 4, .of = {"gradients"}, .per = "total"};
  fit(2);
  EXPECT_FALSE(rows().at(0).contains("gradient_norm"));
  EXPECT_TRUE(rows().at(1).contains("gradient_norm"));
  EXPECT_FALSE(rows().at(1).contains("weight_norm"));
}

TEST_F(Observed, ThroughputIsOfAllRanksAndAShareOfTheirPeaks) {
  options_.throughput = {.enabled = true, .available_flops = 1e6};
  options_.trainer.max_epochs = 2;
  for (const auto& [ranks, recompute] :
       {std::pair{1, "none"}, {2, "none"}, {3, "none"}, {2, "budget:1MiB"}}) {
    options_.trainer.recompute = recompute;
    fit(ranks);
    const auto last = rows().at(3);
    const double flops = last.at("throughput/flops_per_second");
    EXPECT_NEAR(flops / last.at("throughput/batches_per_second"), 2.0 * 6 * (2 * 3 * 8 + 3 * 8 * 2),
                1e-6);
    EXPECT_NEAR(last.at("throughput/mfu"), flops / (ranks * 1e6), 1e-9 * flops);
    EXPECT_FALSE(last.contains("throughput/tokens_per_second"));
  }
}

TEST_F(Observed, ThroughputGivesTheSummaryARooflineOfAllRanks) {
  options_.throughput = {.enabled = true, .available_flops = 1e6};
  // Linear layers of 3 to 8 and 8 to 2; the gradient of the input is not needed.
  const double first = 2 * 3 * 8, second = 2 * 8 * 2, batch = 6;
  for (const int ranks : {1, 3}) {
    fit(ranks);
    const auto roofline = observe::read_summary(folder_ / "run/summary.json").roofline;
    ASSERT_TRUE(roofline);
    EXPECT_EQ(roofline->flops_per_second, ranks * 1e6);
    EXPECT_GT(roofline->bytes_per_second, 1e6);
    ASSERT_EQ(roofline->work.size(), 3u);  // forward, backward, optimizer
    EXPECT_EQ(roofline->work[0].flops, batch * (first + second));
    EXPECT_EQ(roofline->work[1].flops, batch * (first + 2 * second));
    EXPECT_EQ(roofline->work[2].flops, 0);
    for (const auto& work : roofline->work) {
      EXPECT_GT(work.bytes, 0) << work.phase;
      // A rank has its share of the batch, and 1e6 FLOPs a second.
      EXPECT_GE(work.bound_milliseconds, 1e3 * work.flops / ranks / 1e6 * (1 - 1e-9)) << work.phase;
    }
    // Parameters are read and written, and their gradients read, on each rank.
    EXPECT_GE(roofline->work[2].bytes, ranks * 3 * 8 * (3 * 8 + 8 + 8 * 2 + 2));
  }
  options_.throughput.enabled = false;
  fit(1);
  EXPECT_FALSE(observe::read_summary(folder_ / "run/summary.json").roofline);
}

// Three tokens a sample.
class Sentences : public Waves {
 public:
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t> seed) const override {
    auto batch = Waves::load(indices, seed);
    batch.targets = batch.targets.unsqueeze(1).repeat({1, 3});
    return batch;
  }
};

TEST_F(Observed, ThroughputCountsTokensAndMayMeasureThePeak) {
  options_.throughput.enabled = true;
  comm::local::run(2, [&](comm::Group group) {
    const auto linear = std::make_shared<torch::nn::LinearImpl>(3, 6);
    Task task(linear, [linear](const at::Tensor& x) {
      return linear->forward(x).view({-1, 3, 2});
    });
    Trainer(options_, group).fit(task, Sentences(), Sentences());
  });
  const auto last = rows().at(1);
  EXPECT_NEAR(last.at("throughput/tokens_per_second") / last.at("throughput/batches_per_second"),
              6 * 3, 1e-9);
  EXPECT_GT(last.at("throughput/mfu"), 0);
  EXPECT_LT(last.at("throughput/mfu"), 1);
}

// Throws in its n-th pass.
class FailingTask : public LoggingTask {
 public:
  FailingTask(const std::shared_ptr<Task>& task, int64_t micro_batches)
      : LoggingTask(dynamic_cast<const LoggingTask&>(*task)), micro_batches_(micro_batches) {}
  at::Tensor training_step(const data::Batch& batch) override {
    if (--micro_batches_ < 0) throw std::runtime_error("out of luck");
    return LoggingTask::training_step(batch);
  }

 private:
  int64_t micro_batches_;
};

checkpoint::NamedTensors weights_in(const std::filesystem::path& checkpoint) {
  return checkpoint::load_safetensors(checkpoint / "model.safetensors");
}

TEST_F(Observed, WhatAFailedRunHadReachedIsWrittenAndGoesOn) {
  options_.trainer.accumulate_grad_batches = 2;
  options_.trainer.max_epochs = 2;
  options_.run.name = "whole";
  fit(2);
  const auto whole = weights_in(folder_ / "whole/checkpoints/last");
  options_.checkpoint.on_exception = true;
  const auto failing = [](int rank) -> std::shared_ptr<Task> {
    // Rank 1 in the second pass of the fourth step.
    return rank == 0 ? make_waves_task(8, 0)
                     : std::make_shared<FailingTask>(make_waves_task(8, 0), 7);
  };
  for (const std::string rank : {"rank-0", "rank-1"}) {
    options_.run.name = "run";
    options_.trainer.ckpt_path = "";
    EXPECT_THROW(fit(2, nullptr, failing), std::runtime_error);
    const auto checkpoints = folder_ / "run/checkpoints";
    EXPECT_EQ(std::filesystem::read_symlink(checkpoints / "last").string().substr(0, 14),
              "epoch=1-step=2")
        << "the latest that all wrote";
    const auto last = checkpoints / "on_exception" / rank / "last";
    EXPECT_EQ(std::filesystem::read_symlink(last).string().substr(0, 14), "epoch=1-step=3");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(last.parent_path()), {}), 1 + 2)
        << "the former one is gone";
    options_.trainer.ckpt_path = last;
    fit(2);
    EXPECT_EQ(rows().at(0).at("step"), 2) << "of before";
    const auto resumed = weights_in(checkpoints / "last");
    for (size_t i = 0; i < whole.size(); ++i) {
      // The first pass of the failed step was run twice.
      if (whole[i].first.starts_with("1.running") || whole[i].first.starts_with("1.num")) continue;
      EXPECT_TRUE(resumed[i].second.allclose(whole[i].second, 1e-9, 1e-12)) << whole[i].first;
    }
  }
}

TEST_F(Observed, AFailureLeavesNothingWhereRanksShareStates) {
  options_.checkpoint.on_exception = true;
  options_.trainer.strategy = "zero2";
  EXPECT_THROW(fit(2, nullptr,
                   [](int) -> std::shared_ptr<Task> {
                     return std::make_shared<FailingTask>(make_waves_task(8, 0), 2);
                   }),
               std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/checkpoints/on_exception"));
}

// Fails while averaged weights replace the trained ones.
class FailingValidation : public Callback {
 public:
  std::string name() const override { return "failing_validation"; }
  void on_validation_batch_end(FitContext&, const data::Batch&) override {
    throw std::runtime_error("out of luck");
  }
};

TEST_F(Observed, AFailedValidationLeavesTheWeightsThatAreTrained) {
  fit(1);
  const auto plain = weights_in(folder_ / "run/checkpoints/last");
  options_.run.name = "failed";
  options_.ema.enabled = true;
  options_.checkpoint.on_exception = true;
  EXPECT_THROW(fit(1, std::make_shared<FailingValidation>()), std::runtime_error);
  const checkpoint::CheckpointReader left(
      checkpoint::find_checkpoint(folder_ / "failed/checkpoints/on_exception/rank-0", "last"), 0);
  for (const auto& [name, weight] : plain) {
    EXPECT_TRUE(left.read(kRawPrefix + name).equal(weight)) << name;
  }
}

// A callback whose author forgot that the other ranks do not take part.
class OnRankZeroOnly : public Callback {
 public:
  std::string name() const override { return "on_rank_zero_only"; }
  void on_train_batch_end(FitContext& c, const data::Batch&, const at::Tensor& loss) override {
    c.group.all_reduce(loss.detach().view(1), comm::ReduceOp::sum, {.label = "mean of my loss"});
  }
};

TEST_F(Observed, ACollectiveOnOneRankOnlyIsReported) {
  options_.trainer.sync_batchnorm = false;
  try {
    comm::local::run(2,
                     [&](comm::Group group) {
                       const auto task = make_waves_task(8, 0);
                       Trainer trainer(options_, group);
                       if (group.rank() == 0) trainer.add(std::make_shared<OnRankZeroOnly>());
                       trainer.fit(*task, Waves(), Waves());
                     },
                     {.timeout = std::chrono::seconds(20)});
    FAIL();
  } catch (const Error& problem) {
    EXPECT_EQ(problem.kind(), ErrorKind::usage);
    EXPECT_THAT(problem.what(), HasSubstr("mean of my loss"));
  }
}

TEST(RankZero, OnlyAndFirst) {
  std::atomic<int> calls = 0, first = 0;
  comm::local::run(3, [&](comm::Group group) {
    rank_zero_only(group, [&] { ++calls; });
    rank_zero_first(group, [&] {
      if (group.rank() == 0) first = 1;
      EXPECT_EQ(first, 1) << "rank " << group.rank();
      ++calls;
    });
  });
  EXPECT_EQ(calls, 4);
}

TEST(RankZero, WhatItThrowsFirstEndsAll) {
  std::atomic<int> told = 0;
  EXPECT_THROW(comm::local::run(3,
                                [&](comm::Group group) {
                                  try {
                                    rank_zero_first(group,
                                                    [&] { throw std::runtime_error("no disk"); });
                                  } catch (const Error& problem) {
                                    EXPECT_EQ(problem.kind(), ErrorKind::peer);
                                    EXPECT_STREQ(problem.what(),
                                                 "[train] rank 0, which runs first, failed; got "
                                                 "no disk");
                                    ++told;
                                  }
                                }),
               std::runtime_error);
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace troika::train
