// Runs with strategy downpour.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <mutex>

#include "tests/support/errors.h"
#include "tests/train/fitted_course.h"
#include "tests/train/logged_rows.h"
#include "tests/train/pipelined_runs.h"
#include "tests/train/waves.h"
#include "troika/base/config.h"
#include "troika/base/file.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

class DownpourRun : public CourseTest {
 protected:
  DownpourRun() {
    options_.trainer.log_every_n_steps = 2;
    options_.optimizer.name = "sgd";
    options_.optimizer.momentum = 0;
    options_.schedule.name = "constant";
  }

  TrainOptions with(const TrainOptions& base, const std::vector<std::string>& changes) const {
    auto options = base;
    auto table = make_table(options);
    for (const auto& change : changes) table.set_argument("--" + change);
    return options;
  }
  TrainOptions downpour(std::vector<std::string> changes = {}) const {
    changes.insert(changes.begin(), "trainer.strategy=downpour");
    return with(options_, changes);
  }

  static FittedCourse fit(const TrainOptions& options, int ranks) {
    return fit_course(
        options, std::vector<int>(static_cast<size_t>(ranks), 0),
        [] { return make_waves_task(16, 0); }, Waves());
  }

  // Returns those of replica 0, by epoch.
  static std::vector<double> validation_losses(const observe::RunSummary& summary) {
    std::vector<double> losses;
    for (const auto& [step, row] : csv_rows(summary.run_folder)) {
      if (row.contains("validation/loss")) losses.push_back(std::stod(row.at("validation/loss")));
    }
    return losses;
  }
};

TEST_F(DownpourRun, OneReplicaInSynchronousOrderIsOneProcess) {
  options_.schedule.name = "cosine";
  for (const char* optimizer : {"sgd", "adagrad"}) {
    options_.optimizer.name = optimizer;
    const auto oracle = fit(options_, 1);
    const auto course = fit(downpour({"downpour.overlap=false", "server.servers=2"}), 1);
    EXPECT_EQ(course.summary.steps, 12);
    EXPECT_EQ(distance(course, oracle), 0) << optimizer;
    EXPECT_EQ(course.summary.validation_loss, oracle.summary.validation_loss);
    EXPECT_EQ(course.summary.train_loss, oracle.summary.train_loss);
    EXPECT_EQ(course.summary.metrics.at("staleness/max"), 0) << "no other replica";
  }
}

// fit_course() expects the same weights on all replicas after the run. The warm start ends within
// the first epoch.
TEST_F(DownpourRun, ReplicasLearnFromTheirSamples) {
  options_.trainer.max_epochs = 8;
  options_.optimizer.lr = 0.02;
  options_.data.global_batch_size = 8;
  for (const auto& changes : {std::vector<std::string>{},
                              {"downpour.n_push=2", "downpour.n_fetch=3",
                               "downpour.warm_start_steps=2", "optim.name=adagrad"}}) {
    const auto options = downpour(changes);
    const auto summary = fit(options, 4).summary;
    // 26 samples are 6 for each replica, which has batches of 2.
    EXPECT_EQ(summary.steps, 8 * 3);
    const auto losses = validation_losses(summary);
    ASSERT_EQ(losses.size(), 8u);
    EXPECT_LT(losses.back(), losses.front());
    EXPECT_LE(summary.metrics.at("staleness/p50"), summary.metrics.at("staleness/max"));
    for (int replica = 1; replica < 4; ++replica) {
      const auto folder =
          std::filesystem::path(summary.run_folder) / "replicas" / std::to_string(replica);
      EXPECT_TRUE(std::filesystem::exists(folder / "metrics.csv")) << replica;
      EXPECT_TRUE(std::filesystem::exists(folder / "checkpoints/last")) << replica;
    }
    const auto config = read_file(std::filesystem::path(summary.run_folder) / "config.toml");
    EXPECT_THAT(config, HasSubstr("global_batch_size = 8")) << "that of all replicas";
  }
}

// With the whole share of each replica in a batch, the minimum of logistic regression is the only
// point at which pushes cancel out, however stale their gradients are.
TEST_F(DownpourRun, EightReplicasConverge) {
  options_.trainer.max_epochs = 120;
  options_.trainer.enable_model_summary = false;
  options_.optimizer.weight_decay = 0.01;
  options_.checkpoint.every_n_epochs = 0;
  options_.data.global_batch_size = 24;
  const auto fit_linear = [](const TrainOptions& options, int ranks) {
    const auto make_task = [] {
      torch::nn::Sequential net(torch::nn::Linear(3, 2));
      fill_with_waves(*net);
      return std::make_shared<Task>(nn::from_sequential(net));
    };
    return fit_course(options, std::vector<int>(static_cast<size_t>(ranks), 0), make_task,
                      FewWaves(24));
  };
  options_.optimizer.lr = 0.8;
  const auto minimum = fit_linear(options_, 1);
  const auto course = fit_linear(downpour({"optim.lr=0.1"}), 8);
  EXPECT_EQ(course.summary.steps, 120);
  EXPECT_NEAR(course.summary.validation_loss, minimum.summary.validation_loss, 1e-3);
}

// Checkpoints of one replica are those of one process, with other strategies, too.
TEST_F(DownpourRun, ResumesExactly) {
  options_.optimizer.name = "adagrad";
  options_.checkpoint.every_n_train_steps = 4;
  options_.checkpoint.every_n_epochs = 0;
  options_.trainer.max_epochs = 3;
  const auto oracle = fit(options_, 1);
  for (const auto& [first, second] : {std::pair("downpour", "ddp"), {"ddp", "downpour"}}) {
    auto options = downpour({"downpour.overlap=false", "downpour.n_push=1",
                             fmt::format("run.name={}-{}", first, second)});
    options.trainer.strategy = first;
    options.trainer.max_steps = 8;
    fit(options, 1);
    options.trainer.strategy = second;
    options.trainer.max_steps = -1;
    options.trainer.ckpt_path = "last";
    const auto course = fit(options, 1);
    EXPECT_EQ(course.summary.steps, 18);
    EXPECT_EQ(distance(course, oracle), 0) << first << " " << second;
  }
}

// The second run changes next to nothing, so its losses show the parameters that it began with.
TEST_F(DownpourRun, ReplicasResumeFromTheCheckpointOfReplica0) {
  const auto fit_plainly = [](const TrainOptions& options) {
    const auto make_task = [] {
      auto net = torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::Tanh(),
                                       torch::nn::Linear(8, 2));
      fill_with_waves(*net);
      return std::make_shared<Task>(nn::from_sequential(net));
    };
    return fit_course(options, {0, 0}, make_task, Waves());
  };
  options_.trainer.max_epochs = 4;
  auto options = downpour({"downpour.warm_start_steps=2", "trainer.log_every_n_steps=1"});
  const auto first = fit_plainly(options);
  options.trainer.max_epochs = 5;
  options.trainer.ckpt_path = "last";
  options.optimizer.lr = 1e-14;
  const auto second = fit_plainly(options);
  EXPECT_EQ(first.summary.steps, 24);
  EXPECT_EQ(second.summary.steps, 30);
  for (const auto* folder : {"run", "run/replicas/1"}) {
    std::map<int64_t, double> losses;
    int64_t steps = 0;
    for (const auto& [step, row] : csv_rows(folder_.path() / folder)) {
      if (row.contains("validation/loss")) losses[step] = std::stod(row.at("validation/loss"));
      if (row.contains("train/lr")) ++steps;
    }
    EXPECT_EQ(steps, 30) << folder << " has the rows of both runs";
    EXPECT_NEAR(losses.at(30), losses.at(24), 1e-9) << folder;
    EXPECT_GT(std::abs(losses.at(24) - losses.at(6)), 1e-4) << folder;
  }
}

std::shared_ptr<Task> make_three_blocks() {
  torch::nn::Sequential net(torch::nn::Linear(3, 16), torch::nn::Tanh(), torch::nn::Linear(16, 8),
                            torch::nn::Tanh(), torch::nn::Linear(8, 2));
  fill_with_waves(*net);
  return std::make_shared<Task>(nn::from_sequential(net));
}

FittedCourse fit_blocks(const TrainOptions& options, int ranks) {
  return fit_course(options, std::vector<int>(static_cast<size_t>(ranks), 0), make_three_blocks,
                    Waves());
}

TEST_F(DownpourRun, AReplicaOfTwoStagesIsOneProcess) {
  for (const char* optimizer : {"sgd", "adagrad"}) {
    options_.optimizer.name = optimizer;
    const auto oracle = fit_blocks(options_, 1);
    const auto course = fit_blocks(
        downpour({"downpour.overlap=false", "mesh.pipeline=2", "pipeline.micro_batches=1"}), 2);
    EXPECT_EQ(course.summary.steps, 12);
    EXPECT_LT(distance(course, oracle), 1e-12) << optimizer;
    EXPECT_NEAR(course.summary.validation_loss, oracle.summary.validation_loss, 1e-12);
  }
}

// All four ranks have the weights of the servers at the end. The run goes on from the checkpoint of
// replica 0.
TEST_F(DownpourRun, ReplicasOfTwoStagesLearnFromTheirSamples) {
  options_.trainer.max_epochs = 6;
  options_.optimizer.lr = 0.05;
  options_.data.global_batch_size = 8;
  auto options = downpour({"mesh.pipeline=2", "pipeline.micro_batches=1", "optim.name=adagrad"});
  auto summary = fit_blocks(options, 4).summary;
  options.trainer.max_epochs = 8;
  options.trainer.ckpt_path = "last";
  summary = fit_blocks(options, 4).summary;
  // 13 samples of each replica, which has batches of 4.
  EXPECT_EQ(summary.steps, 8 * 3);
  const auto losses = validation_losses(summary);
  ASSERT_EQ(losses.size(), 8u);
  EXPECT_LT(losses.back(), losses.front());
  const auto other = std::filesystem::path(summary.run_folder) / "replicas/1";
  EXPECT_TRUE(std::filesystem::exists(other / "checkpoints/last"));
  EXPECT_FALSE(std::filesystem::exists(other.parent_path() / "2")) << "two replicas";
}

// Each of two replicas is a tensor mesh. All ranks have the weights of the servers at the end, and
// the run goes on from the checkpoint of replica 0.
TEST_F(DownpourRun, ReplicasOfTensorMeshesLearnFromTheirSamples) {
  options_.optimizer.lr = 0.05;
  options_.data.global_batch_size = 8;
  const SizedSamples samples(sizes_of("llama"));
  const auto fit_meshes = [&](const TrainOptions& options) {
    const auto make_task = [] { return std::make_shared<Task>(make_sized_model("llama")); };
    return fit_course(options, {0, 0, 0, 0}, make_task, samples).summary;
  };
  auto options = downpour({"mesh.tensor=2", "pipeline.micro_batches=2", "optim.name=adagrad"});
  options.trainer.max_epochs = 2;
  fit_meshes(options);
  options.trainer.max_epochs = 4;
  options.trainer.ckpt_path = "last";
  const auto summary = fit_meshes(options);
  // Each replica has 22 samples, in steps of 8.
  EXPECT_EQ(summary.steps, 4 * 3);
  EXPECT_LT(summary.validation_loss, std::log(13)) << "better than a guess of 13 words";
  const auto replicas = std::filesystem::path(summary.run_folder) / "replicas";
  EXPECT_TRUE(std::filesystem::exists(replicas / "1/checkpoints/last"));
  EXPECT_FALSE(std::filesystem::exists(replicas / "2")) << "two replicas";
}

// The last block has the parameters of the first one.
std::shared_ptr<Task> make_tied_blocks() {
  const auto model = std::make_shared<nn::Model>();
  const auto layer = model->place("first", torch::nn::Linear(3, 3));
  const auto middle = model->place("middle", torch::nn::Linear(3, 3));
  model->add_block(
      {"first", {"first"}, {}, [layer](const at::Tensor& x) { return layer->forward(x).tanh(); }});
  model->add_block(
      {"middle", {"middle"}, {}, [middle](const at::Tensor& x) { return middle->forward(x); }});
  model->add_block({"last", {}, {"first.weight", "first.bias"}, [layer](const at::Tensor& x) {
                      return layer->forward(x).slice(1, 0, 2);
                    }});
  fill_with_waves(*model);
  return std::make_shared<Task>(model);
}

// Before any communication, so on all ranks.
TEST_F(DownpourRun, RefusesSeveralPartsOnARank) {
  const auto refused = [&](const std::string& change, auto make_task, const std::string& got) {
    const auto options = downpour({"mesh.pipeline=2", "pipeline.micro_batches=2", change});
    comm::local::run_ranks(comm::local::make(2, {0, 0}), [&](const comm::Group& group) {
      const auto task = make_task();
      const Waves waves;
      EXPECT_ERROR(Trainer(options, group).fit(*task, waves, waves), ErrorKind::usage,
                   "[parallel] servers step one part of the model for each rank; got " + got +
                       ", expected one stage on each rank, and no parameter that several stages "
                       "use");
    });
  };
  refused("pipeline.schedule=interleaved", make_three_blocks, "2 stages on a rank");
  refused("pipeline.schedule=1f1b", make_tied_blocks, "first.bias in several stages");
}

TEST_F(DownpourRun, RefusesWhatContradicts) {
  const auto refused = [&](const std::vector<std::string>& changes, const std::string& message) {
    EXPECT_ERROR(fit(downpour(changes), 1), ErrorKind::usage, message);
  };
  const std::string servers = "[train] strategy downpour steps parameters on servers; got ";
  refused({"optim.name=adamw"}, servers + "optim.name adamw, expected optim.name sgd or adagrad");
  refused({"trainer.gradient_clip_val=0.5"},
          servers +
              "trainer.gradient_clip_val 0.500000, expected 0: no rank has the mean gradient "
              "that would be clipped");
  refused({"checkpoint.train_time_interval=00:00:00:01"},
          servers +
              "checkpoint.train_time_interval 00:00:00:01, expected none: checkpoints by "
              "steps or epochs, which all replicas make together");
  refused({"checkpoint.monitor=train/loss"},
          servers +
              "checkpoint.monitor train/loss, expected a metric of validations, which all "
              "replicas share");
  refused({"ddp.hook=fp16"},
          servers + "ddp.hook fp16, expected none; server.push_filters compress gradients");
  refused({"server.consistency=bounded", "server.delay=2"},
          "[train] strategy downpour does not bound how far replicas are apart; got "
          "server.consistency bounded and server.delay 2, expected server.consistency eventual and "
          "server.delay 0 (strategy parameter_server bounds it)");
  refused(
      {"zero.stage=1"},
      "[train] replicas that train by themselves; got zero.stage 1, expected no ZeRO, no context "
      "axis, and as many ranks of each stage");
  refused({"server.replicas=1"},
          "[layout] servers.replicas; got 1, expected fewer than the 1 server");
  EXPECT_ERROR(downpour({"downpour.n_fetch=0"}), ErrorKind::usage,
               "[config] downpour.n_fetch; got 0, expected an integer from 1 to 1000000000");
  EXPECT_ERROR(downpour({"downpour.n_pull=1"}), ErrorKind::usage,
               "[config] unknown key downpour.n_pull (did you mean downpour.n_push?)");
}

}  // namespace
}  // namespace troika::train
