// Runs with ZeRO, against runs with data parallelism.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/checkpoint/damaged_checkpoint.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/errors.h"
#include "tests/train/single_batch.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/parallel/sharded.h"
#include "troika/train/engine/make_exchange.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

constexpr int64_t kShardedBatch = 12;
constexpr int64_t kWidth = 120;  // a block of more than 10000 parameters, which zero3 shards
constexpr int64_t kSteps = 4;

std::shared_ptr<Task> make_wide_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, kWidth), torch::nn::Tanh(),
                            torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
                            torch::nn::Linear(kWidth, 2));
  fill_with_waves(*net, 0.1);
  return std::make_shared<Task>(nn::from_sequential(net));
}

// A checkpoint, and the parts of it that all strategies have.
struct Saved {
  std::shared_ptr<TemporaryFolder> folder = std::make_shared<TemporaryFolder>();
  std::filesystem::path checkpoint = {};
  checkpoint::NamedTensors model = {};
  checkpoint::NamedTensors state = {};

  void read() {
    auto whole = checkpoint::load_rank_state(checkpoint, 0);
    model = std::move(whole.model);
    for (auto& item : whole.rest) {
      if (!item.first.starts_with("exchange.")) state.push_back(std::move(item));
    }
  }
};

// Returns a checkpoint after some steps on batches that depend only on their numbers.
Saved learn(const TrainOptions& options, int ranks, const Saved* from = nullptr,
            int64_t steps = kSteps) {
  Saved result;
  comm::local::run(ranks, [&](const comm::Group& group) {
    const auto task = make_wide_task();
    const auto plan = resolve_plan(options, cluster_of(group));
    const comm::MeshGroups groups(group, plan.mesh);
    observe::StepTimes times;
    const auto engine = make_engine({.options = options,
                                     .plan = plan,
                                     .task = *task,
                                     .groups = groups,
                                     .steps = kSteps,
                                     .global_batch = kShardedBatch,
                                     .times = times});
    if (from) engine->load(checkpoint::CheckpointReader(from->checkpoint, group.rank()), {})();
    const int64_t share = kShardedBatch / group.size();
    for (int64_t i = 0; i < steps; ++i) {
      std::vector<int64_t> samples;
      for (int64_t s = 0; s < share; ++s) samples.push_back(7 * i + group.rank() * share + s);
      train_on(*engine, times, Waves().load(samples, {}), i);
    }
    const auto checkpoint =
        checkpoint::save_checkpoint(group, result.folder->path(), engine->state(/*in_step=*/false),
                                    checkpoint_metadata(options), {});
    if (group.rank() == 0) result.checkpoint = checkpoint;
  });
  result.read();
  return result;
}

// The largest difference of any state, relative to its largest value.
double distance(const optim::NamedTensors& one, const optim::NamedTensors& other) {
  EXPECT_EQ(one.size(), other.size());
  const std::map<std::string, at::Tensor> others(other.begin(), other.end());
  double largest = 0;
  for (const auto& [name, tensor] : one) {
    const auto a = tensor.to(at::kDouble);
    const auto b = others.at(name).to(at::kDouble);
    EXPECT_EQ(tensor.scalar_type(), others.at(name).scalar_type()) << name;
    if (a.numel() == 0 || a.equal(b)) continue;
    largest = std::max(largest, ((a - b).abs().max() / b.abs().max()).item<double>());
  }
  return largest;
}

double distance(const Saved& one, const Saved& other) {
  return std::max(distance(one.model, other.model), distance(one.state, other.state));
}

class ShardedRun : public testing::Test {
 protected:
  ShardedRun() {
    options_.optimizer = {.name = "adamw", .lr = 0.01, .weight_decay = 0.1};
    options_.comm.bucket_megabytes = 1e-2;
    options_.trainer.memory_format = "contiguous";
  }
  TrainOptions with(const std::string& strategy) const {
    auto options = options_;
    options.trainer.strategy = strategy;
    return options;
  }
  TrainOptions one_epoch_in(const std::filesystem::path& folder) const {
    auto options = with("zero3");
    options.run.folder = folder.string();
    options.data.global_batch_size = kShardedBatch;
    options.trainer.max_epochs = 1;
    options.trainer.enable_progress_bar = false;
    return options;
  }

  TrainOptions options_;
};

TEST_F(ShardedRun, ADoneRunThatIsStartedAgainLeavesTheModuleWhole) {
  const TemporaryFolder folder;
  auto options = one_epoch_in(folder.path());
  options.trainer.ckpt_path = "last";
  for (int start = 0; start < 2; ++start) {
    comm::local::run(4, [&](const comm::Group& group) {
      const auto task = make_wide_task();
      Trainer trainer(options, group);
      trainer.fit(*task, Waves(), Waves());
      const auto trained = trainer.test(*task, Waves());
      EXPECT_EQ(trained, trainer.test(*task, Waves(), "last")) << start;
    });
  }
}

// Whatever the reason, on all ranks or on one of them, before or after loading.
TEST_F(ShardedRun, AFitThatCannotStartLeavesTheModuleWhole) {
  const TemporaryFolder folder;
  auto options = one_epoch_in(folder.path());
  // `victim`: the rank that fails alone; -1: all do.
  const auto expect_refused = [](const TrainOptions& with, const std::string& error, int victim) {
    SCOPED_TRACE(error);
    const auto batch = Waves().load(std::vector<int64_t>{0, 1, 2}, {});
    std::vector<at::Tensor> outputs(4);
    comm::local::run(4, [&](const comm::Group& group) {
      const auto task = make_wide_task();
      std::string message;
      try {
        Trainer(with, group).fit(*task, Waves(), Waves());
      } catch (const std::exception& problem) {
        message = problem.what();
      }
      EXPECT_THAT(message, testing::HasSubstr(error));
      const auto of_peer = fmt::format("[train] rank {} cannot start the run; got `", victim);
      EXPECT_EQ(message.find(of_peer) != std::string::npos, victim >= 0 && group.rank() != victim)
          << message;
      outputs[static_cast<size_t>(group.rank())] = task->predict_step(batch);
    });
    for (const auto& one : outputs) EXPECT_TRUE(one.equal(outputs[0]));
    const bool is_untouched = error == "run.seed";
    EXPECT_EQ(outputs[0].equal(make_wide_task()->predict_step(batch)), is_untouched);
  };
  comm::local::run(4, [&](const comm::Group& group) {
    Trainer(options, group).fit(*make_wide_task(), Waves(), Waves());
  });
  const auto last = checkpoint::find_checkpoint(folder / "run/checkpoints", "last");
  options.trainer.max_epochs = 2;
  options.trainer.ckpt_path = last.string();
  auto changed = options;
  changed.run.seed = 7;
  expect_refused(changed, "run.seed", -1);
  changed = options;
  changed.optimizer.name = "sgd";
  expect_refused(changed, "with another optimizer", -1);
  changed = options;
  changed.ema.enabled = true;
  changed.ddp.broadcast_buffers = false;
  expect_refused(changed, "ema averages buffers", -1);
  // Rank 0 alone writes logs.
  changed = options;
  changed.run.name = "blocked";
  changed.run.overwrite = true;  // else what is in the way would be another run's results
  std::filesystem::create_directories(folder / "blocked/metrics.csv/in the way");
  expect_refused(changed, "metrics.csv", 0);
  // Rank 2 alone reads its shard of the optimizer's states.
  checkpoint::change_index(last, [](auto& index) {
    for (auto& [name, tensor] : index["tensors"].items()) {
      for (auto& box : tensor["boxes"]) {
        const bool is_state = name.starts_with("optimizer.state.") && tensor["boxes"].size() > 1;
        if (is_state && box["file"] == checkpoint::rank_file(2)) box["crc32c"][0] = 0;
      }
    }
  });
  expect_refused(options, "with checksum", 2);
}

TEST_F(ShardedRun, RecomputedAndOffloadedActivationsChangeNoBit) {
  const TemporaryFolder folder;
  const auto plain = learn(with("zero3"), 2);
  for (const char* policy : {"none", "full", "selective", "sqrt", "budget:1MiB", "budget:12KiB"}) {
    for (const auto& offload : {std::string(), folder.path().string()}) {
      auto options = with("zero3");
      options.trainer.recompute = policy;
      options.offload.activations = offload;
      EXPECT_EQ(distance(learn(options, 2), plain), 0) << policy << " " << offload;
    }
  }
}

// Gradients are rounded to 8 bits after the average, on different ranks.
TEST_F(ShardedRun, MastersOfHalfPrecisionAreSharedOut) {
  options_.trainer.precision = "bf16-true";
  for (const int ranks : {1, 2, 3, 4}) {
    const auto oracle = learn(with("ddp"), ranks);
    for (const auto& [name, tensor] : oracle.model) EXPECT_EQ(tensor.scalar_type(), at::kFloat);
    EXPECT_GT(distance(oracle, learn(with("ddp"), ranks, nullptr, kSteps - 1)), 1e-3);
    for (const char* strategy : {"zero1", "zero2", "zero3"}) {
      EXPECT_EQ(distance(learn(with(strategy), ranks), oracle), 0) << strategy << " " << ranks;
    }
  }
}

TEST_F(ShardedRun, MastersGoIntoAnyOtherStrategy) {
  options_.trainer.precision = "bf16-true";
  for (const auto& [before, after] :
       {std::pair("zero1", "ddp"), {"ddp", "zero2"}, {"zero2", "zero3"}, {"zero3", "ddp"}}) {
    const auto saved = learn(with(before), 3);
    EXPECT_EQ(distance(learn(with(after), 2, &saved, 0), saved), 0) << before << " " << after;
    EXPECT_LT(distance(learn(with(after), 3, &saved), learn(with(before), 3, &saved)), 1e-6)
        << before << " " << after;
  }
}

TEST_F(ShardedRun, NormsAndBlocksAreOfWholeParameters) {
  options_.trainer.precision = "64";
  for (const char* optimizer : {"lars", "lamb", "adamw_8bit"}) {
    options_.optimizer.name = optimizer;
    const auto oracle = learn(with("ddp"), 1);
    EXPECT_GT(distance(oracle, learn(with("ddp"), 1, nullptr, kSteps - 1)), 1e-6);
    for (const char* strategy : {"zero1", "zero2", "zero3"}) {
      for (const int ranks : {1, 2, 3, 4}) {
        EXPECT_LT(distance(learn(with(strategy), ranks), oracle), 1e-10)
            << optimizer << " " << strategy << " " << ranks;
      }
    }
  }
}

TEST_F(ShardedRun, StatesInEightBitsGoIntoAnyOtherStrategy) {
  options_.optimizer.name = "adamw_8bit";
  for (const auto& [before, after] :
       {std::pair("zero1", "ddp"), {"ddp", "zero2"}, {"zero2", "zero3"}, {"zero3", "ddp"}}) {
    const auto saved = learn(with(before), 3);
    EXPECT_EQ(distance(learn(with(after), 4, &saved, 0), saved), 0) << before << " " << after;
    EXPECT_LT(distance(learn(with(after), 3, &saved).model, learn(with(before), 3, &saved).model),
              1e-5)
        << before << " " << after;
  }
}

// Blocks of 8-bit states follow the weights' order in memory.
TEST_F(ShardedRun, ShardsOfStatesAreContiguous) {
  options_.optimizer.name = "adamw_8bit";
  const auto saved = learn(with("zero2"), 3);
  options_.trainer.memory_format = "channels_last";
  EXPECT_EQ(distance(learn(with("zero2"), 2, &saved, 0), saved), 0);
  EXPECT_EQ(distance(learn(with("zero2"), 3), saved), 0);
  const auto other = learn(with("ddp"), 1);
  EXPECT_ERROR(learn(with("zero2"), 1, &other), ErrorKind::usage,
               "[train] states of adamw_8bit and of ddp.hook follow the order of weights in "
               "memory; got a checkpoint of channels_last for contiguous, expected the same "
               "order (ZeRO keeps weights contiguous: resume with ddp)");
}

TEST_F(ShardedRun, GroupsOfRanksShareOutAmongThem) {
  options_.trainer.precision = "64";
  const auto oracle = learn(with("ddp"), 1);
  for (const auto& [ranks, size] : {std::pair(4, 2), {4, 1}, {6, 3}, {6, 2}}) {
    options_.zero.group_size = size;
    for (const char* strategy : {"zero1", "zero2", "zero3", "hybrid_shard"}) {
      const auto found = learn(with(strategy), ranks);
      EXPECT_LT(distance(found, oracle), 1e-10) << strategy << " " << ranks << " " << size;
      EXPECT_EQ(distance(learn(with("ddp"), 3, &found, 0), found), 0) << strategy;
      EXPECT_EQ(distance(learn(with(strategy), ranks, &oracle, 0), oracle), 0) << strategy;
    }
  }
}

TEST_F(ShardedRun, HybridShardIsWithinNodes) {
  comm::local::run_ranks(comm::local::make(4, {0, 0, 1, 1}), [&](const comm::Group& group) {
    const auto task = make_wide_task();
    const auto plan = resolve_plan(with("hybrid_shard"), cluster_of(group));
    const comm::MeshGroups groups(group, plan.mesh);
    const auto exchange = make_exchange(plan, options_, {}, *task, groups, nullptr);
    EXPECT_EQ(dynamic_cast<parallel::Sharded&>(*exchange).sharing_group().size(), 2);
  });
}

}  // namespace
}  // namespace troika::train
