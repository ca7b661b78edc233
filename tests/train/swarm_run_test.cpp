// Runs with strategy swarm. Peers are threads of this process.
#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/errors.h"
#include "tests/train/fitted_course.h"
#include "tests/train/waves.h"
#include "troika/base/config.h"
#include "troika/cluster/discovery/port.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/swarm_run.h"

namespace troika::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

template <typename SomeTask = Task>
std::shared_ptr<Task> make_smooth_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  fill_with_waves(*net);
  return std::make_shared<SomeTask>(nn::from_sequential(net));
}

std::shared_ptr<Task> make_normed_task() {
  return std::make_shared<Task>(make_waves_model(8, 0.2));
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

// The time of a run is its own, whatever states it takes.
class ExpectsOwnTime : public Callback {
 public:
  explicit ExpectsOwnTime(const Stopwatch& wall) : wall_(wall) {}
  std::string name() const override { return "expects_own_time"; }
  void on_train_batch_end(FitContext& context, const data::Batch&, const at::Tensor&) override {
    EXPECT_LE(context.seconds, wall_.seconds());
    EXPECT_LE(context.at.train_seconds, wall_.seconds());
  }

 private:
  const Stopwatch& wall_;
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

  const net::Secret secret_ = net::Secret::random();
};

TEST_F(SwarmTraining, IsThatOfOneProcessOnTheSamplesOfAll) {
  options_.trainer.max_steps = 5;
  options_.optimizer.momentum = options_.optimizer.weight_decay = 0;
  options_.schedule.name = "constant";
  auto all = peers(3);
  all[2].swarm.mode = "client";
  TrainedSamples trained;
  std::vector<FittedCourse> courses(all.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        courses[i] = fit(all[i], make_smooth_task(), member(all[i]),
                         {std::make_shared<RecordsSamples>(trained)});
      });
    }
  }
  ASSERT_EQ(trained.of_step.size(), 5U);
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
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.steps, 5);
    EXPECT_EQ(course.summary.samples, 5 * 8);
    EXPECT_EQ(distance(course, courses.front()), 0);
    EXPECT_LE(distance(course, oracle), 1e-10);
    EXPECT_EQ(course.summary.metrics.at("swarm_lone_steps"), 0);
    EXPECT_EQ(course.summary.metrics.at("swarm_peers"), 3);
  }
}

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

TEST_F(SwarmTraining, LeavesOutGradientsThatAreNotFinite) {
  options_.trainer.terminate_on_nan = false;
  const auto all = peers(2);
  std::vector<FittedCourse> courses(all.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        const auto task = i == 0 ? make_smooth_task() : make_smooth_task<SickTask>();
        courses[i] = fit(all[i], task, member(all[i]), {});
      });
    }
  }
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.steps, 6);
    EXPECT_EQ(distance(course, courses.front()), 0);
    for (const auto& tensor : course.weights) EXPECT_TRUE(tensor.isfinite().all().item<bool>());
  }
}

// Two of three peers are lost in the third step and start anew: the third one goes on, and they
// continue with its bits.
TEST_F(SwarmTraining, LosesNoStepWhenAllButOneAreStartedAgain) {
  options_.optimizer.name = "adamw";
  options_.schedule.name = "cosine";
  options_.trainer.max_steps = 9;
  const auto all = peers(3);
  Arrivals arrivals;
  std::vector<FittedCourse> courses(all.size());
  {
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      const auto own = member(all[0]);
      courses[0] =
          fit(all[0], make_normed_task(), own, {std::make_shared<WaitsFor>(arrivals, 2, 6, *own)});
    });
    for (const size_t i : {1, 2}) {
      threads.emplace_back([&, i] {
        EXPECT_THAT(
            [&] {
              fit(all[i], make_normed_task(), member(all[i]), {std::make_shared<LeavesAt>(2)});
            },
            ThrowsMessage<Error>(HasSubstr("lost")));
        auto again = all[i];
        again.swarm.min_peers = 1;
        const Stopwatch wall;
        courses[i] = fit(
            again, make_normed_task(), member(again),
            {std::make_shared<TellsArrival>(arrivals, 6), std::make_shared<ExpectsOwnTime>(wall)});
      });
    }
  }
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.steps, 9);
    EXPECT_EQ(distance(course, courses.front()), 0);
  }
  const auto& first = courses[0].summary.metrics;
  EXPECT_EQ(first.at("swarm_loads"), 0);
  EXPECT_EQ(first.at("swarm_steps"), 9);
  EXPECT_EQ(first.at("swarm_peers"), 3);
  EXPECT_GE(courses[1].summary.metrics.at("swarm_loads"), 1);
}

TEST_F(SwarmTraining, SaysWhyAPeerCannotJoin) {
  options_.comm.join_timeout_seconds = 0.5;
  auto all = peers(2);
  all[0].swarm.min_peers = all[1].swarm.min_peers = 1;
  all[0].swarm.peers.clear();
  all[1].swarm.peers.resize(1);
  const auto stops = [] { return false; };
  const auto begin = [&](parallel::SwarmMember& one, const std::string& schema) {
    one.begin({.state = "state", .schema = schema, .model = "a model of " + schema, .save = {}},
              stops);
  };
  EXPECT_THAT([&] { begin(*member(all[1]), "schema"); },
              ThrowsMessage<Error>(testing::AllOf(
                  HasSubstr("the swarm is not there in time; got no peer that answers: [swarm] no "
                            "peer of the swarm at " +
                            all[1].swarm.peers[0]),
                  HasSubstr("comm.join_timeout_seconds"))));
  const auto first = member(all[0]);
  begin(*first, "schema");
  options_.comm.join_timeout_seconds = 20;
  EXPECT_THAT([&] { begin(*member(all[1]), "other"); },
              ThrowsMessage<Error>(HasSubstr(
                  "of the swarm trains something else; got a model of other, expected a model of "
                  "schema (all peers need the same model, optimizer and seed)")));
  auto other = all[1];
  other.swarm.run = "other";
  EXPECT_THAT([&] { begin(*member(other), "schema"); },
              ThrowsMessage<Error>(HasSubstr("a peer trains in another run; got swarm at " +
                                             all[1].swarm.peers[0] + ", expected other")));
  other = all[1];
  other.data.global_batch_size = 16;
  EXPECT_THAT([&] { begin(*member(other), "schema"); },
              ThrowsMessage<Error>(HasSubstr("of the swarm makes other steps; got "
                                             "data.global_batch_size 16, expected 8")));
  // One that trains the same is right, whoever else is there.
  all[1].swarm.min_peers = 2;
  EXPECT_NO_THROW(begin(*member(all[1]), "schema"));
}

TEST_F(SwarmTraining, RefusesWhatItDoesNotSupport) {
  for (const auto& [change, words] : std::vector<std::pair<std::string, std::string>>{
           {"trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches 2"},
           {"trainer.precision=16-mixed", "trainer.precision 16-mixed"},
           {"trainer.sync_batchnorm=true", "trainer.sync_batchnorm true"},
           {"trainer.accelerator=gpu", "trainer.accelerator gpu"},
           {"trainer.devices=2", "trainer.devices 2"},
           {"trainer.num_nodes=2", "trainer.num_nodes 2"},
           {"trainer.overfit_batches=1", "trainer.overfit_batches 1"},
           {"ddp.hook=fp16", "ddp.hook fp16"},
           {"ema.enabled=true", "ema.enabled true"},
           {"swa.swa_lrs=0.1", "swa.swa_lrs 0.1"},
           {"data.global_batch_size=0", "data.global_batch_size 0"},
           {"swarm.mode=client", "swarm.peers []"},
           {"swarm.listen=here", "swarm.listen is no address; got \"here\""},
           {"swarm.authority=key@127.0.0.1:1", "swarm.authority names no authority"}}) {
    auto options = options_;
    auto table = make_table(options);
    table.set_argument("--" + change);
    EXPECT_THAT([&] { member(options); }, ThrowsMessage<Error>(HasSubstr(words)));
  }
  cluster::Environment environment;
  environment.world_size = 2;
  EXPECT_ERROR(make_swarm_member(options_, environment), ErrorKind::usage,
               "[train] a peer of a swarm trains by itself; got 2 ranks, expected one process for "
               "each peer");
}

}  // namespace
}  // namespace troika::train
