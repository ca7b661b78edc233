#include "troika/parallel/sync_batch_norm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// All dimensions but the channels'.
std::vector<int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.to(like.scalar_type()).view(shape);
}

// Half types have too few digits for sums.
at::Tensor widened(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? input : input.to(at::kFloat);
}

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(comm::Group g) : group(std::move(g)) {}
  comm::Group group;
};

// Over all ranks; mean and variance (biased) float64 [channels].
struct Statistics {
  double count = 0;
  at::Tensor mean;
  at::Tensor variance;
};

// (input - mean) / sqrt(variance + eps), where mean and variance depend on the inputs of all ranks
// (Ioffe and Szegedy, ICML 2015, section 3).
struct Normalise : torch::autograd::Function<Normalise> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const Statistics& statistics, double eps, const comm::Group& group) {
    const auto wide = widened(input);
    const auto scale = (statistics.variance + eps).rsqrt();
    const auto output = (wide - per_channel(statistics.mean, wide)) * per_channel(scale, wide);
    context->save_for_backward({output, scale});
    context->saved_data["count"] = statistics.count;
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    return output.to(input.scalar_type());
  }

  // dx = (dy - sum(dy) / N - y sum(dy y) / N) / sqrt(variance + eps), sums over all ranks.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& output = saved[0];
    const double count = context->saved_data["count"].toDouble();
    const auto holder = context->saved_data["group"].toCapsule();
    const auto& group = static_cast<const GroupHolder&>(*holder).group;
    const auto wide = widened(gradients[0]);
    const auto dims = reduced_dims(wide);
    const auto sums = at::stack({wide.sum(dims), (wide * output).sum(dims)}).to(at::kDouble);
    group.all_reduce(sums, comm::ReduceOp::sum, {.label = "batch norm gradients"});
    const auto means = sums / count;
    const auto input_gradient =
        (wide - per_channel(means[0], wide) - output * per_channel(means[1], wide)) *
        per_channel(saved[1], wide);
    return {input_gradient.to(gradients[0].scalar_type()), {}, {}, {}};
  }
};

Statistics statistics_of_all(const at::Tensor& input, const comm::Group& group) {
  const at::NoGradGuard no_grad;
  const int64_t channels = input.size(1);
  const auto count = static_cast<double>(channels ? input.numel() / channels : 0);
  auto mine = at::zeros({1 + 2 * channels}, input.options().dtype(at::kDouble));
  if (count > 0) {
    const auto [variance, mean] =
        at::var_mean(widened(input), at::IntArrayRef(reduced_dims(input)), /*unbiased=*/false);
    mine = at::cat({at::full({1}, count, mine.options()), mean.to(at::kDouble),
                    variance.to(at::kDouble) * count});
  }
  const auto all = at::empty({group.size(), mine.numel()}, mine.options());
  group.all_gather(all, mine, {}, {.label = "batch norm statistics"});
  const auto counts = all.select(1, 0).contiguous().cpu();
  Statistics merged{0, at::zeros({channels}, mine.options()),
                    at::zeros({channels}, mine.options())};
  for (int r = 0; r < group.size(); ++r) {
    const double theirs = counts.data_ptr<double>()[r];
    if (theirs == 0) continue;
    const double joined = merged.count + theirs;
    const auto delta = all[r].narrow(0, 1, channels) - merged.mean;
    merged.mean += delta * (theirs / joined);
    // Sums of squared differences, until all are merged.
    merged.variance +=
        all[r].narrow(0, 1 + channels, channels) + delta * delta * (merged.count * theirs / joined);
    merged.count = joined;
  }
  if (merged.count < 2) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "batch norm in training over all ranks",
                 .got = fmt::format("{} values a channel, input [{}] on rank {}", merged.count,
                                    fmt::join(input.sizes(), ", "), group.rank()),
                 .expected = "at least 2"});
  }
  merged.variance /= merged.count;
  return merged;
}

void require_channels(const at::Tensor& input, int64_t channels) {
  if (input.dim() >= 2 && input.size(1) == channels) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = "batch norm cannot read this input",
               .got = fmt::format("shape [{}]", fmt::join(input.sizes(), ", ")),
               .expected = fmt::format("[batch, {}, ...]", channels)});
}

// The forward pass in training of a layer with LibTorch's members.
template <typename Layer>
at::Tensor forward_over_ranks(Layer& layer, const at::Tensor& input, const comm::Group& group) {
  require_channels(input, layer.options.num_features());
  const auto statistics = statistics_of_all(input, group);
  if (layer.options.track_running_stats()) {
    const at::NoGradGuard no_grad;
    layer.num_batches_tracked += 1;
    const auto momentum = layer.options.momentum();
    // Without momentum, the mean over all batches so far.
    const double factor =
        momentum ? *momentum
                 : 1.0 / static_cast<double>(layer.num_batches_tracked.template item<int64_t>());
    const auto update = [&](at::Tensor& running, const at::Tensor& value) {
      running.mul_(1 - factor).add_(value.to(running.scalar_type()), factor);
    };
    update(layer.running_mean, statistics.mean);
    update(layer.running_var, statistics.variance * (statistics.count / (statistics.count - 1)));
  }
  auto output = Normalise::apply(input, statistics, layer.options.eps(), group);
  if (!layer.options.affine()) return output;
  return output * per_channel(layer.weight, output) + per_channel(layer.bias, output);
}

// What converts one layer, once all were found to be convertible.
struct Conversion {
  std::string name;
  std::function<void(const comm::Group&)> convert;
};

using ReplaceInParent = std::function<void(const std::shared_ptr<SyncBatchNormImpl>&)>;

template <typename Layer>
bool plan_as(torch::nn::Module& module, const std::string& name, const ReplaceInParent& replace,
             std::vector<Conversion>& plan) {
  auto* layer = dynamic_cast<Layer*>(&module);
  if (!layer) return false;
  if (!replace) {
    throw Error("parallel", ErrorKind::usage,
                {.what = fmt::format("batch norm {} cannot be made to span ranks", name),
                 .got = "a layer of LibTorch held by a module's own member",
                 .expected = "parallel::SyncBatchNorm, or a child of a Sequential"});
  }
  plan.push_back({name, [layer, replace](const comm::Group& group) {
                    replace(std::make_shared<SyncBatchNormImpl>(*layer, group));
                  }});
  return true;
}

void make_plan(torch::nn::Module& module, const std::string& name, const ReplaceInParent& replace,
               std::vector<Conversion>& plan) {
  if (plan_as<torch::nn::BatchNorm1dImpl>(module, name, replace, plan) ||
      plan_as<torch::nn::BatchNorm2dImpl>(module, name, replace, plan) ||
      plan_as<torch::nn::BatchNorm3dImpl>(module, name, replace, plan)) {
    return;
  }
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  size_t index = 0;
  for (const auto& child : module.named_children()) {
    ReplaceInParent replace_child;
    if (sequential) {
      replace_child = [sequential, index, key = child.key()](const auto& layer) {
        // A Sequential calls its own list, which is not the registered children.
        *(sequential->begin() + static_cast<std::ptrdiff_t>(index)) = torch::nn::AnyModule(layer);
        sequential->replace_module(key, layer);
      };
    }
    make_plan(*child.value(), name.empty() ? child.key() : name + "." + child.key(), replace_child,
              plan);
    ++index;
  }
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, comm::Group group)
    : Base(options), group_(std::move(group)) {}

void SyncBatchNormImpl::take_over(const at::Tensor& new_weight, const at::Tensor& new_bias,
                                  const at::Tensor& new_mean, const at::Tensor& new_var,
                                  const at::Tensor& count) {
  parameters_["weight"] = weight = new_weight;
  parameters_["bias"] = bias = new_bias;
  if (!options.track_running_stats()) return;
  // LibTorch keeps buffers private: these stay other tensors, in the same memory.
  running_mean.set_data(new_mean);
  running_var.set_data(new_var);
  num_batches_tracked.set_data(count);
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  if (is_training()) return forward_over_ranks(*this, input, group_);
  return at::batch_norm(input, weight, bias, running_mean, running_var,
                        /*training=*/!options.track_running_stats(), 0.0, options.eps(),
                        /*cudnn_enabled=*/true);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "troika::parallel::SyncBatchNorm(" << options.num_features() << ")";
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  require_channels(input, options.num_features());
}

std::vector<std::string> convert_batch_norm(torch::nn::Module& module, const comm::Group& group) {
  std::vector<Conversion> plan;
  make_plan(module, "", {}, plan);
  std::vector<std::string> names;
  if (plan.empty()) return names;
  const auto own = *group.split(0);
  for (const auto& step : plan) {
    step.convert(own);
    names.push_back(step.name);
  }
  return names;
}

}  // namespace troika::parallel
