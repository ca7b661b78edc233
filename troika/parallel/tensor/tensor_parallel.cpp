#include "troika/parallel/tensor/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/convolution.h"
#include "troika/parallel/norm.h"
#include "troika/parallel/replicas.h"
#include "troika/parallel/tensor/axis_functions.h"
#include "troika/parallel/tensor/token_blocks.h"
#include "troika/parallel/tensor/vocabulary.h"

namespace troika::parallel {

namespace {

// Runs the blocks of a language model on vocabulary shards and, with sequence parallelism, on
// tokens.
class AxisWrapper : public nn::BlockWrapper {
 public:
  // `output` is null for a model without an output layer. `embedding` is the block after which each
  // rank has its own tokens, if any.
  AxisWrapper(comm::Group axis, std::shared_ptr<const nn::SplitOutput> output,
              std::optional<size_t> embedding)
      : axis_(std::move(axis)), output_(std::move(output)), embedding_(embedding) {}

  nn::WrapperKind kind() const override { return nn::WrapperKind::tensor; }

  nn::Tensors run(const nn::BlockRun& given, nn::Tensors inputs,
                  const nn::InnerBlocks& next) override {
    nn::BlockRun run = given;
    run.output = output_;
    const bool embeds = run.begin == embedding_;
    if (embeds) require_divisible_tokens(inputs.front(), axis_.size());
    nn::Tensors outputs = next(run, std::move(inputs));
    if (embeds) outputs.front() = own_tokens(outputs.front(), axis_);
    return outputs;
  }

 private:
  const comm::Group axis_;
  const std::shared_ptr<const nn::SplitOutput> output_;
  const std::optional<size_t> embedding_;
};

std::vector<RuledModule> checked_modules(const nn::Model& model, const SplitTable& table,
                                         const TensorOptions& options) {
  auto modules = ruled_modules(model, table);
  if (!options.sequence) return modules;
  for (const auto& of : modules) {
    const bool is_cut = of.rule.split == Split::column || of.rule.split == Split::row;
    if (!is_cut || !dynamic_cast<const nn::Conv2dImpl*>(of.module.get())) continue;
    throw Error("parallel", ErrorKind::usage,
                {.what = "sequence parallelism cuts tokens, not images",
                 .got = fmt::format("a convolution, {}", of.name)});
  }
  if (embedding_block(model, modules)) return modules;
  throw Error("parallel", ErrorKind::usage,
              {.what = "sequence parallelism needs a model that embeds tokens",
               .got = "no nn::Embedding with a rule of kind Split::vocabulary"});
}

// Integers of the same size, whose sums with zeros keep all bits.
at::Tensor as_integers(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 2:
      return tensor.view(at::kShort);
    case 4:
      return tensor.view(at::kInt);
    default:
      return tensor.view(at::kLong);
  }
}

// Sums tensors over a group as one.
void sum_together(const std::vector<at::Tensor>& tensors, const comm::Group& group) {
  if (tensors.empty()) return;
  std::vector<at::Tensor> flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  const at::Tensor sum = at::cat(flat);
  group.all_reduce(sum, comm::ReduceOp::sum, {.label = "tensor axis: gradients"});
  int64_t begin = 0;
  for (const auto& tensor : tensors) {
    tensor.copy_(sum.slice(0, begin, begin + tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace

void require_splittable(const nn::Model& model, const SplitTable& table, int ranks,
                        const TensorOptions& options) {
  parameter_cuts(model, checked_modules(model, table, options), /*rank=*/0, ranks);
}

void require_divisible_tokens(const at::Tensor& inputs, int ranks) {
  const int64_t count = inputs.size(kTokens);
  if (count % ranks == 0) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = "the tokens cannot be cut over the tensor axis",
               .got = fmt::format("{} tokens, {} ranks", count, ranks),
               .expected = fmt::format("a multiple of {} tokens", ranks),
               .hint = "change data.context or the size of the axis, or turn "
                       "mesh.sequence_parallel off"});
}

TensorParallel::TensorParallel(nn::Model& model, comm::Group group, const SplitTable& table,
                               const TensorOptions& options)
    : model_(model), group_(std::move(group)), options_(options) {
  const auto modules = checked_modules(model, table, options);
  auto cuts = parameter_cuts(model, modules, group_.rank(), group_.size());
  const at::NoGradGuard no_grad;
  const auto own = nn::named_parameters(model);
  auto shards = options_.values ? make_shards(cuts) : std::map<std::string, at::Tensor>();
  for (size_t i = 0; i < cuts.size(); ++i) {
    const at::Tensor parameter = own[i].second;
    cut_parameter(parameter, cuts[i], shards[cuts[i].name]);
    indices_.emplace(cuts[i].name, i);
    parameters_.emplace_back(std::move(cuts[i]), parameter);
  }
  if (!options_.values) {
    std::vector<at::Tensor> buffers;
    for (const auto& [name, buffer] : nn::named_buffers(model)) {
      if (is_held(name)) buffers.push_back(buffer);
    }
    broadcast_packed(group_, buffers, 0, "tensor axis: buffers");
  }
  options_.values = nullptr;
  for (const auto& [cut, parameter] : parameters_) {
    if (cut.copies == 1 || cut.copies == group_.size() || copies_.contains(cut.copies)) continue;
    copies_.emplace(cut.copies, *group_.split(group_.rank() / cut.copies));
  }
  hooks_.emplace(model, group_, modules, options_.sequence, options_.trace);
  add_wrapper(modules);
}

bool TensorParallel::is_held(const std::string& name) const {
  return !options_.held || options_.held->contains(name);
}

void TensorParallel::cut_parameter(at::Tensor parameter, const ParameterCut& cut,
                                   const at::Tensor& shard) {
  if (shard.defined()) {
    parameter.set_data(shard);
    return;
  }
  const bool has_values = is_held(cut.name);
  if (has_values) group_.broadcast(parameter, 0, {.label = "tensor axis: parameters"});
  if (cut.is_whole()) return;
  if (has_values) {
    parameter.set_data(cut.shard_of(parameter));
    return;
  }
  auto sizes = cut.shape;
  sizes[static_cast<size_t>(cut.dim)] = cut.size();
  parameter.set_data(at::empty({}, parameter.options().requires_grad(false)).expand(sizes));
}

std::map<std::string, at::Tensor> TensorParallel::make_shards(
    const std::vector<ParameterCut>& cuts) const {
  using Key = compat::DeferredInit::Key;
  std::set<Key> kept;
  for (const auto& [name, tensor] : nn::named_state(model_)) {
    if (is_held(name)) kept.insert(compat::DeferredInit::key(tensor));
  }
  const auto own = nn::named_parameters(model_);
  std::map<Key, size_t> cut_ones;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const auto& parameter = own[i].second;
    if (cuts[i].is_whole() || !is_held(cuts[i].name) || !options_.values->has(parameter)) continue;
    cut_ones.emplace(compat::DeferredInit::key(parameter), i);
  }
  std::map<std::string, at::Tensor> shards;
  options_.values->materialize([&](Key key, const at::Tensor& made) {
    const auto found = cut_ones.find(key);
    if (found == cut_ones.end()) return !kept.contains(key);
    const auto& parameter = own[found->second].second;
    const auto whole = made.as_strided(parameter.sizes(), parameter.strides(), 0);
    const auto& cut = cuts[found->second];
    shards[cut.name] = cut.shard_of(whole).to(parameter.device());
    return true;
  });
  return shards;
}

void TensorParallel::add_wrapper(const std::vector<RuledModule>& modules) {
  std::shared_ptr<const nn::SplitOutput> output;
  const auto matrix = std::ranges::find(modules, Split::vocabulary,
                                        [](const RuledModule& of) { return of.rule.split; });
  if (model_.has_output_layer() && matrix != modules.end()) {
    const int64_t words = find_cut(matrix->name + ".weight").shape[0];
    output = std::make_shared<VocabularyOutput>(
        VocabularyShard{group_, words, vocabulary_rows(words, group_.rank(), group_.size()),
                        options_.trace},
        [axis = group_, sequence = options_.sequence, trace = options_.trace](const at::Tensor& x) {
          return sequence ? gather_tokens(x, axis, trace) : copy_to_axis(x, axis, trace);
        });
  }
  if (!output) return;
  std::optional<size_t> first;
  if (options_.sequence) first = embedding_block(model_, modules);
  wrapper_ =
      nn::WrapperGuard(model_, std::make_shared<AxisWrapper>(group_, std::move(output), first));
}

const comm::Group& TensorParallel::group_of_copies(int copies) const {
  const auto found = copies_.find(copies);
  return found == copies_.end() ? group_ : found->second;
}

bool TensorParallel::has_uneven_shards(const std::string& name) const {
  const auto& cut = find_cut(name);
  return cut.split == Split::vocabulary && cut.shape[0] % group_.size() != 0;
}

void TensorParallel::finish_backward() {
  std::vector<optim::Parameter> all;
  for (const auto& [cut, parameter] : parameters_) all.push_back({cut.name, parameter});
  finish_backward(all);
}

void TensorParallel::finish_backward(const std::vector<optim::Parameter>& parameters) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<int, at::ScalarType>, std::vector<at::Tensor>> summands;
  for (const auto& parameter : parameters) {
    const auto& cut = find_cut(parameter.name);
    const auto& gradient = parameter.tensor.grad();
    if (!gradient.defined() || cut.copies == 1) continue;
    const bool is_summand = cut.split == Split::column || cut.split == Split::summed;
    const bool is_bias_of_row = cut.split == Split::row;
    const bool saw_own_tokens = options_.sequence && (cut.split == Split::tokens || is_bias_of_row);
    if (!is_summand && !saw_own_tokens) continue;
    summands[{cut.copies, gradient.scalar_type()}].push_back(gradient);
  }
  for (const auto& [of, gradients] : summands) {
    sum_together(gradients, group_of_copies(of.first));
  }
  // Replicas of each shard choose how to sum by their own links and nodes, so the same gradient may
  // be rounded differently on another rank of the axis. GPUs add in no fixed order.
  std::vector<at::Tensor> of_all;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.tensor.grad();
    const bool all_hold_it = find_cut(parameter.name).copies == group_.size();
    if (all_hold_it && gradient.defined()) of_all.push_back(gradient);
  }
  broadcast_packed(group_, of_all, 0, "tensor axis: gradients of whole parameters");
  complete_statistics();
}

const ParameterCut& TensorParallel::find_cut(const std::string& name) const {
  const auto found = indices_.find(name);
  TROIKA_CHECK(found != indices_.end(), name + " is a parameter of the model");
  return parameters_[found->second].first;
}

bool TensorParallel::counts(const std::string& name) const {
  return group_.rank() % find_cut(name).copies == 0;
}

const ParameterCut* TensorParallel::cut_of(const std::string& name) const {
  const auto found = indices_.find(name);
  if (found == indices_.end()) return nullptr;
  const auto& cut = parameters_[found->second].first;
  return cut.is_whole() ? nullptr : &cut;
}

void TensorParallel::complete_sums(const std::vector<optim::Parameter>& parameters,
                                   const at::Tensor& sums) const {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!counts(parameters[i].name)) sums.select(0, static_cast<int64_t>(i)).zero_();
  }
  group_.all_reduce(sums, comm::ReduceOp::sum, {.label = "tensor axis: norms of parameters"});
}

double TensorParallel::gradient_squares() const {
  std::vector<at::Tensor> own;
  for (const auto& [cut, parameter] : parameters_) {
    if (parameter.grad().defined() && counts(cut.name)) own.push_back(parameter.grad());
  }
  const at::Tensor sum = at::scalar_tensor(sum_of_squares(own), at::kDouble);
  group_.all_reduce(sum, comm::ReduceOp::sum, {.label = "tensor axis: norm of gradients"});
  return sum.item<double>();
}

state::StateDict TensorParallel::shards() const {
  state::StateDict entries;
  for (const auto& [cut, parameter] : parameters_) {
    append_shard(entries, {cut.name, parameter.detach()}, cut);
  }
  return entries;
}

at::Tensor TensorParallel::gather(const std::string& name, const at::Tensor& shard) const {
  const at::NoGradGuard no_grad;
  const auto& cut = find_cut(name);
  if (cut.is_whole()) return shard.detach().clone();
  at::Tensor whole =
      at::empty(cut.shape, shard.options().requires_grad(false), shard.suggest_memory_format())
          .zero_();
  if (group_.rank() % cut.copies == 0) {
    int64_t begin = 0;
    for (const auto& part : cut.parts_of(whole)) {
      part.copy_(shard.detach().slice(cut.dim, begin, begin + part.size(cut.dim)));
      begin += part.size(cut.dim);
    }
  }
  group_.all_reduce(as_integers(in_memory_order(whole)), comm::ReduceOp::sum,
                    {.label = "tensor axis: gather"});
  return whole;
}

void TensorParallel::complete_statistics() const {
  hooks_->complete_statistics([this](const std::string& name) { return is_held(name); });
}

void TensorParallel::make_whole() {
  complete_statistics();
  for (auto& [cut, parameter] : parameters_) {
    if (!cut.is_whole()) parameter.set_data(gather(cut.name, parameter));
  }
  hooks_->remove();
  wrapper_.reset();
}

}  // namespace troika::parallel
