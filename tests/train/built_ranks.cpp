// built_ranks RANKS WHAT: tests, on the ranks that a launcher started, models that ranks build as
// shards and never hold whole.
//   values: zero3 on such a model has, to the bit, the values of one that was made whole on rank 0.
//   stages: a rank of a pipeline makes its own stages only, with the values, to the bit, of a model
//     that was made whole on rank 0, in the memory of its stages and one block.
//   shards: a rank of a tensor axis, alone or in a pipeline, makes only its own shards, with the
//     values, to the bit, of a model that was made whole on rank 0, in the memory of these and one
//     block.
//   large save FOLDER | load FOLDER: a GPT of 300 M parameters. `save` trains two steps, writes a
//     checkpoint, and checks that the start takes at most 1.1 times the memory of a step; `load`
//     reads it on this number of ranks, and checks that all bits are those that were saved.
//   small save FOLDER | load FOLDER: the same for a GPT of 0.6 M parameters.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <string>

#include "tests/train/noise.h"
#include "tests/train/ranks_main.h"
#include "tests/train/single_batch.h"
#include "troika/base/file.h"
#include "troika/base/memory.h"
#include "troika/base/text.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/parameter_store.h"
#include "troika/parallel/pipeline/left_out.h"
#include "troika/parallel/tensor/parameter_cuts.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/task/replicated_task.h"

namespace troika::train {
namespace {

TrainOptions options_for(bool is_large) {
  TrainOptions options;
  options.model.name = "gpt";
  options.model.vocab_size = is_large ? 50257 : 700;
  options.model.context = is_large ? 128 : 64;
  options.model.layers = is_large ? 20 : 8;
  options.model.heads = is_large ? 16 : 4;
  options.model.width = is_large ? 1024 : 128;
  options.data.batch_size = 1;
  options.data.workers = 0;
  options.optimizer.name = "adamw";
  options.optimizer.lr = 1e-3;
  options.trainer.strategy = "zero3";
  return options;
}

// A run's step, and all that it refers to.
struct Built {
  Built(const TrainOptions& given, const comm::Group& group, bool whole)
      : options(given),
        plan(resolve_plan(options, cluster_of(group))),
        task(whole ? make_task(options) : make_task_to_fit(options)),
        groups(group, plan.mesh),
        engine(make_engine({.options = options,
                            .plan = plan,
                            .task = *task,
                            .groups = groups,
                            .steps = 2,
                            .global_batch = group.size(),
                            .times = times})) {
    task->module().train();
  }

  void train(int64_t number) {
    const auto batch = Noise(options.model).load(std::vector<int64_t>(1), {});
    train_on(*engine, times, batch, number);
  }

  const TrainOptions options;
  const layout::Plan plan;
  const std::unique_ptr<Task> task;
  const comm::MeshGroups groups;
  observe::StepTimes times;
  const std::unique_ptr<Engine> engine;
};

void expect_values(const comm::Group& group) {
  for (const char* precision : {"32", "64", "bf16-true", "bf16-mixed"}) {
    for (const bool in_groups : {false, true}) {
      for (const char* model : {"gpt", "resnet18_cifar"}) {
        auto options = options_for(false);
        options.trainer.precision = precision;
        if (in_groups) options.zero.group_size = group.size() / 2;
        options.model.name = model;
        // Rank 0's seed alone counts.
        torch::manual_seed(static_cast<uint64_t>(1 + group.rank()));
        Built whole(options, group, true);
        torch::manual_seed(static_cast<uint64_t>(1 + group.rank()));
        Built parts(options, group, false);
        whole.engine->synchronize_replicas();
        parts.engine->synchronize_replicas();
        const auto expected = nn::named_state(whole.task->module());
        const auto found = nn::named_state(parts.task->module());
        ASSERT_EQ(expected.size(), found.size());
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(found[i].second.equal(expected[i].second))
              << model << " " << precision << (in_groups ? " in groups: " : ": ") << found[i].first;
        }
      }
    }
  }
}

int64_t bytes_of(const checkpoint::NamedTensors& tensors) {
  int64_t sum = 0;
  for (const auto& [name, tensor] : tensors) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

int64_t largest_block(const Task& task) {
  int64_t most = 0;
  for (const auto& block : task.blocks().blocks()) {
    most = std::max(most, bytes_of(task.blocks().owned_state(block)));
  }
  return most;
}

// Each rank has its own seed; rank 0's counts.
void expect_stages(const comm::Group& group) {
  for (const int zero : {0, 3}) {
    auto options = options_for(false);
    options.model.width = 256;
    options.optimizer.name = "sgd";  // has no states
    options.optimizer.momentum = 0;
    options.trainer.strategy = "1f1b";
    options.zero.stage = zero;
    options.mesh.pipeline = zero == 0 ? group.size() : std::max(2, group.size() / 2);
    options.comm.bucket_megabytes = options.comm.first_bucket_megabytes = 1;
    torch::manual_seed(static_cast<uint64_t>(1 + group.rank()));
    const int64_t before = memory::live();
    memory::restart_peak();
    Built parts(options, group, false);
    const int64_t peak = memory::peak() - before, live = memory::live() - before;
    torch::manual_seed(1);
    Built whole(options, group, true);
    whole.engine->make_whole();
    parts.engine->make_whole();  // of the stages alone
    const auto expected = nn::named_state(whole.task->module());
    checkpoint::NamedTensors own;
    int64_t all = 0;
    const auto found = nn::named_state(parts.task->module());
    for (size_t i = 0; i < found.size(); ++i) {
      const auto& [name, tensor] = found[i];
      all += static_cast<int64_t>(expected[i].second.nbytes());
      if (parallel::is_left_out(tensor)) continue;
      own.push_back(found[i]);
      EXPECT_TRUE(tensor.equal(expected[i].second)) << name << " with zero " << zero;
    }
    const int64_t stage = bytes_of(own), block = largest_block(*whole.task);
    std::printf(
        "rank %d of %d, zero %d: %s of %s; tensors take at most %s while they are made (a block "
        "%s), %s then\n",
        group.rank(), group.size(), zero, human_bytes(static_cast<double>(stage)).c_str(),
        human_bytes(static_cast<double>(all)).c_str(),
        human_bytes(static_cast<double>(peak)).c_str(),
        human_bytes(static_cast<double>(block)).c_str(),
        human_bytes(static_cast<double>(live)).c_str());
    EXPECT_LT(stage, all * 3 / 4);
    EXPECT_LE(peak, stage + block);
    const int64_t sharing = group.size() / options.mesh.pipeline;
    EXPECT_LE(live, stage / (zero == 3 ? sharing : 1) + all / 50);
  }
}

// A tensor axis of all ranks, and one of two ranks in a pipeline. Each rank has its own seed; rank
// 0's counts.
void expect_shards(const comm::Group& group) {
  for (const std::string strategy : {"tp", "3d"}) {
    auto options = options_for(false);
    options.model.width = 256;
    options.optimizer.name = "sgd";  // has no states
    options.optimizer.momentum = 0;
    options.trainer.strategy = strategy;
    options.mesh.tensor = strategy == "tp" ? group.size() : 2;
    options.mesh.data = 1;
    torch::manual_seed(static_cast<uint64_t>(1 + group.rank()));
    const int64_t before = memory::live();
    memory::restart_peak();
    Built built(options, group, false);
    const int64_t peak = memory::peak() - before, live = memory::live() - before;
    torch::manual_seed(1);
    const auto whole = make_task(options);
    const auto expected = nn::named_state(whole->module());
    const auto found = nn::named_state(built.task->module());
    int64_t own = 0, all = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const auto& [name, tensor] = found[i];
      const auto& values = expected[i].second;
      all += static_cast<int64_t>(values.nbytes());
      if (parallel::is_left_out(tensor)) continue;
      own += static_cast<int64_t>(tensor.nbytes());
      const auto* cut = built.engine->store().cut_of(name);
      EXPECT_TRUE(tensor.equal(cut ? cut->shard_of(values) : values)) << name << ", " << strategy;
    }
    const int64_t block = largest_block(*whole);
    std::printf(
        "rank %d of %d, %s: %s of %s; tensors take at most %s while they are made (a block %s), %s "
        "then\n",
        group.rank(), group.size(), strategy.c_str(), human_bytes(static_cast<double>(own)).c_str(),
        human_bytes(static_cast<double>(all)).c_str(),
        human_bytes(static_cast<double>(peak)).c_str(),
        human_bytes(static_cast<double>(block)).c_str(),
        human_bytes(static_cast<double>(live)).c_str());
    EXPECT_LT(own, all * 6 / 10);
    EXPECT_LE(peak, own + block);
    EXPECT_LE(live, own + all / 50);
  }
}

int64_t resident_peak() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

// A number of the whole tensors' bits that ranks make of their shards: the sum over elements of a
// hash of name, place and bits.
int64_t bits_of(const checkpoint::RankState& state, const comm::Group& group) {
  int64_t sum = 0;
  const auto add = [&](const std::string& name, const state::Entry& entry) {
    if (!entry.box || entry.box->count() == 0) return;
    const int64_t begin = entry.box->flat->begin;
    const auto flat = entry.second.detach().reshape({-1});
    const auto words = flat.view(flat.element_size() == 8 ? at::kLong : at::kInt);
    constexpr int64_t kAtOnce = 1 << 22;
    for (int64_t at = 0; at < words.numel(); at += kAtOnce) {
      const auto part = words.narrow(0, at, std::min(kAtOnce, words.numel() - at)).to(at::kLong);
      const auto places = at::arange(begin + at + 1, begin + at + 1 + part.numel(), at::kLong);
      auto hash = (part * 0x9e3779b97f4a7c1) + places * 0x2545f4914f6cdd1;
      hash = hash.bitwise_xor(hash.bitwise_right_shift(29)) * 0x1b873593cc9e2d5;
      hash = hash.bitwise_xor(hash.bitwise_right_shift(32));
      sum += hash.sum().item<int64_t>() * static_cast<int64_t>(std::hash<std::string>()(name) | 1);
    }
  };
  for (const auto& entry : state.model) add("model." + entry.first, entry);
  for (const auto& entry : state.rest) {
    if (!entry.first.ends_with(".step")) add(entry.first, entry);  // several ranks have these
  }
  const auto all = at::full({1}, sum, at::kLong);
  group.all_reduce(all);
  return all.item<int64_t>();
}

void expect_predicted(const TrainOptions& options, const comm::Group& group, double start) {
  const Noise noise(options.model);
  MemoryPredictor predictor(options, noise);
  const auto predicted = predictor.predict(predictor.configured(group.size())).start;
  std::printf("rank %d of %d: predicted for the start %s\n", group.rank(), group.size(),
              human_bytes(predicted).c_str());
  EXPECT_NEAR(predicted, start, 0.1 * start);
}

void save(const TrainOptions& options, const comm::Group& group, const std::string& folder) {
  torch::manual_seed(1);
  const int64_t before = memory::live(), resident_before = resident_peak();
  memory::restart_peak();
  Built built(options, group, false);
  const auto start = static_cast<double>(memory::peak() - before);
  const auto resident_start = static_cast<double>(resident_peak() - resident_before);
  memory::restart_peak();
  for (int64_t i = 0; i < 2; ++i) built.train(i);
  const auto step = static_cast<double>(memory::peak() - before);
  const auto resident = static_cast<double>(resident_peak() - resident_before);
  std::printf(
      "rank %d of %d: tensors take at most %s at the start, %s in steps (%.2f); the process "
      "%s, %s (%.2f) more than before\n",
      group.rank(), group.size(), human_bytes(start).c_str(), human_bytes(step).c_str(),
      start / step, human_bytes(resident_start).c_str(), human_bytes(resident).c_str(),
      resident_start / resident);
  EXPECT_LE(start, 1.1 * step);
  EXPECT_LE(resident_start, 1.1 * resident);
  const auto state = built.engine->state(/*in_step=*/false);
  checkpoint::save_checkpoint(group, folder, state, checkpoint_metadata(options),
                              {.step = 2, .plan = built.plan.text()});
  expect_predicted(options, group, start);
  const int64_t bits = bits_of(state, group);
  if (group.rank() == 0) write_file_atomically(folder + "/bits", std::to_string(bits));
}

void load(const TrainOptions& options, const comm::Group& group, const std::string& folder) {
  torch::manual_seed(2);
  const int64_t before = memory::live();
  memory::restart_peak();
  Built built(options, group, false);
  built.engine->load(
      checkpoint::CheckpointReader(checkpoint::find_checkpoint(folder, "last"), group.rank()),
      {})();
  std::printf("rank %d of %d: tensors take at most %s until it is loaded\n", group.rank(),
              group.size(), human_bytes(static_cast<double>(memory::peak() - before)).c_str());
  const auto bits = bits_of(built.engine->state(/*in_step=*/false), group);
  EXPECT_EQ(std::to_string(bits), read_file(folder + "/bits"));
}

}  // namespace
}  // namespace troika::train

int main(int argc, char** argv) {
  using namespace troika;
  compat::count_tensor_memory();
  return train::main_of_ranks(
      argc, argv, "built_ranks RANKS values|stages|shards|(large|small) (save|load) FOLDER",
      [](const comm::Group& group, const std::vector<std::string>& more) {
        if (more == std::vector<std::string>{"values"}) {
          train::expect_values(group);
          return true;
        }
        if (more == std::vector<std::string>{"stages"}) {
          train::expect_stages(group);
          return true;
        }
        if (more == std::vector<std::string>{"shards"}) {
          train::expect_shards(group);
          return true;
        }
        if (more.size() != 3 || (more[0] != "large" && more[0] != "small")) return false;
        const auto options = train::options_for(more[0] == "large");
        if (more[1] == "save") train::save(options, group, more[2]);
        if (more[1] == "load") train::load(options, group, more[2]);
        return more[1] == "save" || more[1] == "load";
      });
}
