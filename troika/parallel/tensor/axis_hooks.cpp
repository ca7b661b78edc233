#include "troika/parallel/tensor/axis_hooks.h"

#include <algorithm>
#include <utility>

#include "troika/compat/torch.h"
#include "troika/nn/attention.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/convolution.h"
#include "troika/nn/dropout.h"
#include "troika/nn/linear.h"
#include "troika/nn/lora.h"
#include "troika/parallel/tensor/axis_functions.h"
#include "troika/parallel/tensor/vocabulary.h"

namespace troika::parallel {

namespace {

// Whether a module of kind `input` contains this module.
bool has_common_input(const std::vector<RuledModule>& modules, const std::string& name) {
  return std::ranges::any_of(modules, [&](const RuledModule& of) {
    return of.rule.split == Split::input && nn::is_within(of.name, name);
  });
}

void hook_lookup(nn::Embedding& embedding, const comm::Group& axis, Trace* trace) {
  const int64_t words = embedding.options.num_embeddings();
  const auto rows = vocabulary_rows(words, axis.rank(), axis.size());
  const VocabularyShard shard{axis, words, rows, trace};
  embedding.hook_lookup([shard](const at::Tensor& indices, const at::Tensor& matrix) {
    return vocabulary_lookup(indices, matrix, shard);
  });
}

}  // namespace

AxisHooks::AxisHooks(nn::Model& model, comm::Group axis, const std::vector<RuledModule>& modules,
                     bool sequence, Trace* trace)
    : model_(model), axis_(std::move(axis)), sequence_(sequence), trace_(trace) {
  for (const auto& of : modules) {
    const bool is_hooked = dynamic_cast<nn::Hooked*>(of.module.get()) != nullptr;
    // The functions of an adapted layer are those of its adapter, too.
    if (!is_hooked || !nn::adapter_part(of.name)) add(of, !has_common_input(modules, of.name));
  }
  const nn::EqualPart part{0, axis_.rank(), axis_.size()};
  for (auto* const attention : nn::attention_modules(model_)) attention->use_part(part);
}

void AxisHooks::add(const RuledModule& of, bool has_own_input) {
  auto* const module = of.module.get();
  auto* const hooked = dynamic_cast<nn::Hooked*>(module);
  auto* const dropout = dynamic_cast<nn::Dropout*>(module);
  const auto enter = [axis = axis_, sequence = sequence_, trace = trace_](const at::Tensor& x) {
    return sequence ? gather_tokens(x, axis, trace) : copy_to_axis(x, axis, trace);
  };
  const auto leave = [axis = axis_, sequence = sequence_, trace = trace_](const at::Tensor& x) {
    return sequence ? sum_own_tokens(x, axis, trace) : sum_over_axis(x, axis, trace);
  };
  const auto part_along = [&](int64_t dim) {
    return nn::EqualPart{dim, axis_.rank(), axis_.size()};
  };
  hooked_.push_back(of);
  switch (of.rule.split) {
    case Split::input:
      hooked->hook_input(enter);
      break;
    case Split::column:
      if (has_own_input) hooked->hook_input(enter);
      hooked->hook_weights(weights_beside_sum);
      break;
    case Split::row:
      hooked->hook_product(leave);
      break;
    case Split::groups: {
      auto& convolution = dynamic_cast<nn::Conv2dImpl&>(*module);
      convolution.use_groups(convolution.options.groups() / axis_.size());
      break;
    }
    case Split::vocabulary:
      if (auto* const embedding = dynamic_cast<nn::Embedding*>(module)) {
        hook_lookup(*embedding, axis_, trace_);
      }
      break;
    case Split::norm_of_column:
      dynamic_cast<nn::BatchNormImpl&>(*module).use_part(part_along(1));
      break;
    case Split::dropout_of_column:
      dropout->use_part(part_along(-1));
      break;
    case Split::tokens:
      if (dropout && sequence_) dropout->use_part(part_along(kTokens));
      break;
    case Split::whole:
    case Split::summed:
      break;
  }
}

void AxisHooks::remove() {
  if (std::exchange(is_removed_, true)) return;
  for (const auto& [name, of, rule] : hooked_) {
    auto* const module = of.get();
    if (auto* const hooked = dynamic_cast<nn::Hooked*>(module)) hooked->unhook();
    if (auto* const dropout = dynamic_cast<nn::Dropout*>(module)) dropout->use_part({});
    if (auto* const norm = dynamic_cast<nn::BatchNormImpl*>(module)) norm->use_part({});
    if (auto* const lookup = dynamic_cast<nn::Embedding*>(module)) lookup->hook_lookup({});
    if (rule.split == Split::groups) {
      auto& convolution = dynamic_cast<nn::Conv2dImpl&>(*module);
      convolution.use_groups(convolution.options.groups() * axis_.size());
    }
  }
  for (auto* const attention : nn::attention_modules(model_)) attention->use_part({});
}

void AxisHooks::complete_statistics(
    const std::function<bool(const std::string& buffer)>& is_held) const {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  // whole, and this rank's channels
  for (const auto& [name, module, rule] : hooked_) {
    const auto* const norm = dynamic_cast<const nn::BatchNormImpl*>(module.get());
    if (rule.split != Split::norm_of_column || !norm->options.track_running_stats()) continue;
    if (!is_held(name + ".running_mean")) continue;
    buffers.emplace_back(norm->running_mean, norm->own_mean());
    buffers.emplace_back(norm->running_var, norm->own_var());
  }
  if (buffers.empty()) return;
  std::vector<at::Tensor> parts;
  for (const auto& [whole, part] : buffers) parts.push_back(part.to(at::kDouble));  // keeps values
  const at::Tensor own = at::cat(parts);
  const at::Tensor all = at::empty({axis_.size(), own.numel()}, own.options());
  axis_.all_gather(all, own, {}, {.label = "tensor axis: statistics of channels"});
  int64_t begin = 0;
  for (const auto& [whole, part] : buffers) {
    whole.copy_(all.narrow(1, begin, part.numel()).reshape({-1}));
    begin += part.numel();
  }
}

}  // namespace troika::parallel
