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
#include "troika/nn/dense.h"
#include "troika/nn/linear.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/tensor/tensor_parallel.h"
#include "troika/train/profile/counted_work.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

using layout::RankBytes;
using layout::TensorCut;
using parallel::Split;

// The units and elements of a block by the table.
struct BlockRules {
  int64_t units = 0;  // that the ranks must divide; 0: none
  double elements = 0;
  double cut = 0;  // elements that one of the ranks has
  // Elements of the factors of products that are trained, and of those whose gradients are computed
  // beside the sum of their input's gradient.
  double factors = 0, beside_sums = 0;
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

void add_factors(std::vector<BlockRules>& rules, const nn::Model& model,
                 const std::vector<parallel::RuledModule>& modules) {
  for (const auto& of : modules) {
    const auto* module = of.module.get();
    if (dynamic_cast<const nn::Embedding*>(module)) continue;
    const bool is_linear =
        dynamic_cast<const nn::Linear*>(module) || dynamic_cast<const nn::Conv1D*>(module);
    const bool is_beside = is_linear && of.rule.split == Split::column;
    for (const auto& parameter : of.module->parameters(/*recurse=*/false)) {
      if (parameter.dim() < 2 || !parameter.requires_grad()) continue;
      const auto elements = static_cast<double>(parameter.numel());
      for (size_t i = 0; i < rules.size(); ++i) {
        if (!nn::owns(model.blocks()[i], of.name)) continue;
        rules[i].factors += elements;
        if (is_beside) rules[i].beside_sums += elements;
      }
    }
  }
}

RankBytes bytes_of_rank(const BlockWork& work) {
  const auto& own = work.in_stage;
  return {.saved_bytes = work.memory.saved,
          .workspace_bytes = work.memory.workspace,
          .sent_workspace_bytes = own.sent_workspace_bytes,
          .weight_saved_share = own.weight_saved_share,
          .weight_workspace_bytes = own.weight_workspace_bytes,
          .weight_input_bytes = own.weight_input_bytes,
          .weight_output_bytes = own.weight_output_bytes,
          .weight_gradient_bytes = own.weight_gradient_bytes,
          .input_workspace_bytes = own.input_workspace_bytes};
}

// Returns the part of the backward pass towards a block's input that products with factors take.
double product_share(const BlockWork& whole) {
  constexpr double kPasses = 3;  // forward, towards the input and towards the factors
  const double attention = whole.attention.flops;
  const double products = std::max(0.0, whole.flops / kPasses - attention);
  const double others = 2 * attention + whole.other_cost() / 2;
  return products > 0 ? products / (products + others) : 0;
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
      add_factors(rules_, model, modules);
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
    if (cut.backward_sums > 0 && rules.factors > 0) {
      cut.weight_share_beside_sums = rules.beside_sums / rules.factors;
      cut.input_share_beside_gathers = cut.weight_share_beside_sums * product_share(whole);
    }
    cut.counted_ranks = ranks_;
    cut.of_rank = bytes_of_rank(part);
    cut.of_rank_with_tokens = of_tokens_.empty() ? cut.of_rank : bytes_of_rank(of_tokens_[block]);
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

constexpr std::array kCounts{
    &TensorCut::units,         &TensorCut::tokens,           &TensorCut::forward_sums,
    &TensorCut::backward_sums, &TensorCut::backward_gathers, &TensorCut::counted_ranks};
constexpr std::array kShares{&TensorCut::time_share,
                             &TensorCut::parameter_share,
                             &TensorCut::saved_share,
                             &TensorCut::token_time_share,
                             &TensorCut::token_saved_share,
                             &TensorCut::sum_bytes,
                             &TensorCut::weight_share_beside_sums,
                             &TensorCut::input_share_beside_gathers};
constexpr std::array kBytes{&RankBytes::saved_bytes,
                            &RankBytes::workspace_bytes,
                            &RankBytes::sent_workspace_bytes,
                            &RankBytes::weight_saved_share,
                            &RankBytes::weight_workspace_bytes,
                            &RankBytes::weight_input_bytes,
                            &RankBytes::weight_output_bytes,
                            &RankBytes::weight_gradient_bytes,
                            &RankBytes::input_workspace_bytes};

// The numbers of a cut, and whether there is one.
using Numbers = std::array<double, 2 + kCounts.size() + kShares.size() + 2 * kBytes.size()>;

Numbers numbers_of(const TensorCut& cut) {
  Numbers numbers{1, cut.cuts_output ? 1.0 : 0.0};
  double* next = numbers.data() + 2;
  for (const auto count : kCounts) *next++ = cut.*count;
  for (const auto share : kShares) *next++ = cut.*share;
  for (const auto* bytes : {&cut.of_rank, &cut.of_rank_with_tokens}) {
    for (const auto number : kBytes) *next++ = bytes->*number;
  }
  return numbers;
}

TensorCut cut_from(const double* numbers) {
  TensorCut cut{.cuts_output = numbers[1] != 0};
  const double* next = numbers + 2;
  for (const auto count : kCounts) cut.*count = static_cast<int>(*next++);
  for (const auto share : kShares) cut.*share = *next++;
  for (auto* bytes : {&cut.of_rank, &cut.of_rank_with_tokens}) {
    for (const auto number : kBytes) bytes->*number = *next++;
  }
  return cut;
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
