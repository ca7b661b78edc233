#include "troika/train/profile/tensor_cuts.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/flop_counter.h"
#include "troika/compat/torch.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/linear.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/tensor/tensor_parallel.h"
#include "troika/train/engine/placement.h"
#include "troika/train/memory/cut_layers.h"
#include "troika/train/profile/block_memory.h"
#include "troika/train/profile/counted_blocks.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

using layout::TensorCut;
using parallel::Split;

// The work of a rank in the passes of a block.
struct BlockWork {
  BlockMemory memory = {};
  double flops = 0, output_bytes = 0;
  int64_t tokens = 0;                                         // of the output; 0: it has none
  std::vector<double> forward_sums = {}, backward_sums = {};  // bytes of collectives
  // About the FLOPs that take as long as the passes (as nn::estimate_blocks()).
  double cost() const {
    constexpr double kFlopsPerByte = 10, kPasses = 2;
    return flops + kPasses * kFlopsPerByte * memory.saved;
  }
};

// Counts the FLOPs and the collectives of each block, and its outputs.
class WorkCounter : public nn::BlockWrapper {
 public:
  explicit WorkCounter(size_t blocks) : works_(blocks) {}

  nn::WrapperKind kind() const override { return nn::WrapperKind::gather; }
  nn::Tensors run(const nn::BlockRun& run, nn::Tensors inputs,
                  const nn::InnerBlocks& next) override {
    enter(run.begin, false);
    auto outputs = next(run, std::move(inputs));
    auto& work = works_[run.begin];
    for (const auto& output : outputs) {
      work.output_bytes += static_cast<double>(output.nbytes());
      if (output.dim() > 2) work.tokens = output.size(1);
      if (!output.requires_grad()) continue;
      output.register_hook([this, block = run.begin](const at::Tensor&) { enter(block, true); });
    }
    return outputs;
  }
  void called(const comm::Call& call) {
    if (!is_counting_) return;
    const auto bytes = [](const at::Tensor& one) { return one.defined() ? one.nbytes() : 0; };
    auto& work = works_[block_];
    auto& sums = is_backward_ ? work.backward_sums : work.forward_sums;
    sums.push_back(static_cast<double>(std::max(bytes(call.input), bytes(call.output))));
  }
  // Runs a step and counts it.
  void count(const std::function<void()>& step) {
    const compat::FlopCounter counter;
    counter_ = &counter;
    step();
    leave();
    is_counting_ = false;
    counter_ = nullptr;
  }
  std::vector<BlockWork> works() const { return works_; }

 private:
  void leave() {
    if (is_counting_) works_[block_].flops += static_cast<double>(counter_->flops() - before_);
    before_ = counter_->flops();
  }
  void enter(size_t block, bool is_backward) {
    if (!counter_) return;
    leave();
    is_counting_ = true;
    block_ = block;
    is_backward_ = is_backward;
  }

  std::vector<BlockWork> works_;
  const compat::FlopCounter* counter_ = nullptr;
  int64_t before_ = 0;
  size_t block_ = 0;
  bool is_counting_ = false, is_backward_ = false;
};

// Batches with memory, made before tensors without memory.
struct Batches {
  Batches(const data::Dataset& dataset, int64_t samples)
      : larger(profiled_samples(dataset, std::min<int64_t>(4, samples))),
        smaller(profiled_samples(dataset, std::min<int64_t>(2, (larger.size() + 1) / 2))),
        whole(profiled_samples(dataset, samples)) {}
  data::Batch larger, smaller, whole;  // the first two as MemoryPredictor's
};

std::vector<BlockWork> work_of_rank(const TrainOptions& options, const Batches& batches,
                                    const nn::NumericPrecision& precision, int ranks,
                                    bool sequence) {
  const compat::FakeTensorGuard no_memory;
  Task task(nn::make_model(options.model));
  const Placement placement{.precision = precision};
  placement.place(task.module());
  auto& model = dynamic_cast<nn::Model&>(task.module());
  const size_t blocks = model.blocks().size();
  const auto counter = std::make_shared<WorkCounter>(blocks);
  std::optional<CutLayers> cut;
  if (ranks > 1) {
    cut.emplace(model, task.split_table(), ranks, sequence,
                [&](const comm::Call& call) { counter->called(call); });
  }
  const PassMemory pass(task, precision, batches.smaller, batches.larger);
  const auto memory = memory_of_blocks(pass.parts(batches.whole.size()), blocks);
  task.module().train();
  const nn::WrapperGuard counting(model, counter);
  counter->count([&] {
    const auto batch = placement.place(batches.whole);
    const nn::KeyedDraws draws(nn::some_samples(batch.size()));
    const at::Tensor loss = [&] {
      const nn::Autocast autocast(precision, at::kCPU);
      return task.training_step(batch);
    }();
    loss.backward();
  });
  auto works = counter->works();
  for (size_t i = 0; i < blocks; ++i) works[i].memory = memory[i];
  return works;
}

// The units and elements of a block by the table.
struct BlockRules {
  int64_t units = 0;  // that the ranks must divide; 0: none
  double elements = 0;
  double cut = 0;  // elements that one of the ranks has
};

void add_units(std::vector<BlockRules>& rules, const nn::Model& model,
               const std::vector<parallel::RuledModule>& modules) {
  for (const auto& of : modules) {
    const int64_t units = parallel::cut_units(of);
    for (size_t i = 0; i < rules.size(); ++i) {
      if (nn::owns(model.blocks()[i], of.name)) rules[i].units = std::gcd(rules[i].units, units);
    }
  }
}

void add_elements(std::vector<BlockRules>& rules, const nn::Model& model,
                  const std::vector<parallel::RuledModule>& modules, int ranks) {
  for (const auto& cut : parallel::parameter_cuts(model, modules, /*rank=*/0, ranks)) {
    const double all =
        std::accumulate(cut.shape.begin(), cut.shape.end(), 1.0, std::multiplies<>());
    const double length =
        cut.shape.empty() ? 1 : static_cast<double>(cut.shape[static_cast<size_t>(cut.dim)]);
    for (size_t i = 0; i < rules.size(); ++i) {
      if (!nn::owns(model.blocks()[i], cut.name)) continue;
      rules[i].elements += all;
      rules[i].cut += all / length * static_cast<double>(cut.size());
    }
  }
}

// The least number above 1 that divides `units`; 2 if they are 0.
int least_ranks(int64_t units) {
  int ranks = 2;
  while (units % ranks != 0) ++ranks;
  return ranks;
}

// The share of `whole` of which each of the ranks has one part, if one rank has `part`.
double share(double whole, double part, int ranks) {
  // The first run of an operator takes some bytes more than later ones.
  constexpr double kLeast = 1e-3;
  if (whole <= 0) return 0;
  const double cut = std::min((1 - part / whole) * ranks / (ranks - 1), 1.0);
  return cut < kLeast ? 0 : cut;
}

class CutMaker {
 public:
  CutMaker(const TrainOptions& options, const data::Dataset& dataset,
           const nn::NumericPrecision& precision, int64_t samples) {
    const Batches batches(dataset, samples);
    bool embeds = false;
    {
      const compat::FakeTensorGuard no_memory;
      Task task(nn::make_model(options.model));
      const auto table = task.split_table();
      if (table.empty()) return;
      const auto& model = task.blocks();
      const auto modules = parallel::ruled_modules(model, table);
      rules_.resize(model.blocks().size());
      add_units(rules_, model, modules);
      int64_t units = 0;
      for (const auto& rule : rules_) units = std::gcd(units, rule.units);
      if (units == 1) return;
      ranks_ = least_ranks(units);
      add_elements(rules_, model, modules, ranks_);
      embeds = std::ranges::any_of(modules, [](const parallel::RuledModule& of) {
        return of.rule.split == Split::vocabulary &&
               dynamic_cast<const nn::Embedding*>(of.module.get());
      });
    }
    whole_ = work_of_rank(options, batches, precision, 1, false);
    part_ = work_of_rank(options, batches, precision, ranks_, false);
    tokens_ = embeds ? whole_.front().tokens : 0;
    if (tokens_ > 0 && tokens_ % ranks_ == 0) {
      of_tokens_ = work_of_rank(options, batches, precision, ranks_, true);
    }
  }

  // Nothing for a block that the axis does not cut.
  std::optional<TensorCut> cut_of(size_t block) const {
    if (part_.empty()) return std::nullopt;
    const auto &whole = whole_[block], &part = part_[block];
    const auto& rules = rules_[block];
    TensorCut cut{.units = static_cast<int>(rules.units),
                  .tokens = static_cast<int>(tokens_),
                  .time_share = share(whole.cost(), part.cost(), ranks_),
                  .parameter_share = share(rules.elements, rules.cut, ranks_),
                  .saved_share = saved_share(whole, part)};
    cut.cuts_output = part.output_bytes > 0 && part.output_bytes * ranks_ == whole.output_bytes;
    if (!of_tokens_.empty()) {
      const auto& tokens = of_tokens_[block];
      const auto more = [](double all, double less) { return std::max(0.0, all - less); };
      cut.token_time_share = more(share(whole.cost(), tokens.cost(), ranks_), cut.time_share);
      cut.token_saved_share = more(saved_share(whole, tokens), cut.saved_share);
    }
    for (const auto* sums : {&part.forward_sums, &part.backward_sums}) {
      for (const double bytes : *sums) cut.sum_bytes = std::max(cut.sum_bytes, bytes);
    }
    const auto large = [&](const std::vector<double>& sums) {
      return static_cast<int>(
          std::ranges::count_if(sums, [&](double bytes) { return bytes >= cut.sum_bytes / 2; }));
    };
    cut.forward_sums = large(part.forward_sums);
    cut.backward_sums = large(part.backward_sums);
    if (!of_tokens_.empty()) {
      const int all = large(of_tokens_[block].backward_sums);
      cut.backward_gathers = std::max(0, all - 2 * cut.backward_sums);
    }
    const bool is_cut = cut.time_share > 0 || cut.parameter_share > 0 || cut.saved_share > 0 ||
                        cut.token_time_share > 0 || cut.token_saved_share > 0 || cut.sum_bytes > 0;
    return is_cut ? std::optional(cut) : std::nullopt;
  }

 private:
  double saved_share(const BlockWork& whole, const BlockWork& part) const {
    const bool saves = whole.memory.saved > 0;
    return saves ? share(whole.memory.saved, part.memory.saved, ranks_)
                 : share(whole.memory.workspace, part.memory.workspace, ranks_);
  }

  std::vector<BlockRules> rules_;
  int ranks_ = 1;
  int64_t tokens_ = 0;  // 0: sequence parallelism cannot divide them
  // One rank, a rank of a tensor axis, and one with sequence parallelism have these works.
  std::vector<BlockWork> whole_, part_, of_tokens_;
};

// The numbers of a cut, and whether there is one.
using Numbers = std::array<double, 13>;

Numbers numbers_of(const TensorCut& cut) {
  return {1,
          static_cast<double>(cut.units),
          static_cast<double>(cut.tokens),
          cut.time_share,
          cut.parameter_share,
          cut.saved_share,
          cut.token_time_share,
          cut.token_saved_share,
          cut.cuts_output ? 1.0 : 0.0,
          static_cast<double>(cut.forward_sums),
          static_cast<double>(cut.backward_sums),
          static_cast<double>(cut.backward_gathers),
          cut.sum_bytes};
}

TensorCut cut_from(const double* numbers) {
  return {.units = static_cast<int>(numbers[1]),
          .tokens = static_cast<int>(numbers[2]),
          .time_share = numbers[3],
          .parameter_share = numbers[4],
          .saved_share = numbers[5],
          .token_time_share = numbers[6],
          .token_saved_share = numbers[7],
          .cuts_output = numbers[8] != 0,
          .forward_sums = static_cast<int>(numbers[9]),
          .backward_sums = static_cast<int>(numbers[10]),
          .backward_gathers = static_cast<int>(numbers[11]),
          .sum_bytes = numbers[12]};
}

}  // namespace

void add_tensor_cuts(std::vector<layout::ProfiledBlock>& blocks, const TrainOptions& options,
                     const data::Dataset& dataset, const nn::NumericPrecision& precision,
                     int64_t samples, const comm::Group& group) {
  constexpr const char* kLabel = "cuts of blocks";
  const auto all = at::zeros(
      {static_cast<int64_t>(blocks.size()), static_cast<int64_t>(Numbers().size())}, at::kDouble);
  auto* const rows = all.data_ptr<double>();
  group.barrier({.label = kLabel});
  if (group.rank() == 0) {
    try {
      const CutMaker maker(options, dataset, precision, samples);
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (const auto cut = maker.cut_of(i)) {
          std::ranges::copy(numbers_of(*cut), rows + i * Numbers().size());
        }
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      // A profile without cuts is still one of the model on whole ranks.
      all.zero_();
      log::info("the profile has no cuts for a tensor axis: {}", error.what());
    }
  }
  group.broadcast(all, 0, {.label = kLabel}).wait();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const double* const own = rows + i * Numbers().size();
    if (own[0] != 0) blocks[i].tensor = cut_from(own);
  }
}

}  // namespace troika::train
