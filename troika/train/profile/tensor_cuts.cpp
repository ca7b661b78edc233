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
#include "troika/compat/torch.h"
#include "troika/nn/linear.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/tensor/tensor_parallel.h"
#include "troika/train/profile/counted_work.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

using layout::TensorCut;
using parallel::Split;

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

class CutMaker {
 public:
  CutMaker(const TrainOptions& options, const data::Dataset& dataset,
           const nn::NumericPrecision& precision, int64_t samples) {
    const CountedBatches batches(dataset, samples);
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
    whole_ = work_of_rank(options, batches, precision, {});
    part_ = work_of_rank(options, batches, precision, {.tensor = ranks_});
    tokens_ = embeds ? whole_.front().tokens : 0;
    if (tokens_ > 0 && tokens_ % ranks_ == 0) {
      of_tokens_ = work_of_rank(options, batches, precision, {.tensor = ranks_, .sequence = true});
    }
  }

  // Nothing for a block that the axis does not cut.
  std::optional<TensorCut> cut_of(size_t block) const {
    if (part_.empty()) return std::nullopt;
    const auto &whole = whole_[block], &part = part_[block];
    const auto& rules = rules_[block];
    TensorCut cut{.units = static_cast<int>(rules.units),
                  .tokens = static_cast<int>(tokens_),
                  .time_share = divided_share(whole.cost(), part.cost(), ranks_),
                  .parameter_share = divided_share(rules.elements, rules.cut, ranks_),
                  .saved_share = saved_share(whole, part)};
    cut.cuts_output = part.output_bytes > 0 && part.output_bytes * ranks_ == whole.output_bytes;
    if (!of_tokens_.empty()) {
      const auto& tokens = of_tokens_[block];
      const auto more = [](double all, double less) { return std::max(0.0, all - less); };
      cut.token_time_share =
          more(divided_share(whole.cost(), tokens.cost(), ranks_), cut.time_share);
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
    return saves ? divided_share(whole.memory.saved, part.memory.saved, ranks_)
                 : divided_share(whole.memory.workspace, part.memory.workspace, ranks_);
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
