#include "troika/parallel/sync_batch_norm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"

namespace troika::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns all dimensions except the channels.
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

// Statistics over all ranks. `mean` and `variance` (biased) are float64 [channels].
struct Statistics {
  double count = 0;
  at::Tensor mean;
  at::Tensor variance;
};

// Computes (input - mean) / sqrt(variance + eps) * weight + bias, where mean and variance depend on
// the inputs of all ranks (Ioffe and Szegedy, ICML 2015, section 3). Saves the input for backward;
// the output may be modified in place.
struct Normalise : torch::autograd::Function<Normalise> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const Statistics& statistics, double eps, const comm::Group& group) {
    const auto scale = (statistics.variance + eps).rsqrt();
    context->save_for_backward({input, weight, statistics.mean, scale});
    context->saved_data["count"] = statistics.count;
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    auto output = normalised(input, statistics.mean, scale);
    output.mul_(per_channel(weight, output)).add_(per_channel(bias, output));
    return output.to(input.scalar_type());
  }

  // With x the normalised input: dx = (dy - sum(dy) / N - x sum(dy x) / N) weight / sqrt(variance +
  // eps), with sums over all ranks. The gradients of bias and weight are this rank's sums.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &mean = saved[2], &scale = saved[3];
    const double count = context->saved_data["count"].toDouble();
    const auto holder = context->saved_data["group"].toCapsule();
    const auto& group = static_cast<const GroupHolder&>(*holder).group;
    const auto x = normalised(input, mean, scale);
    const auto dy = widened(gradients[0]);
    const auto dims = reduced_dims(dy);
    const auto sums = at::stack({dy.sum(dims), (dy * x).sum(dims)}).to(at::kDouble);
    const auto means = sums.clone();
    group.all_reduce(means, comm::ReduceOp::sum, {.label = "batch norm gradients"});
    means.div_(count);
    auto input_gradient = dy - per_channel(means[0], dy);
    input_gradient.addcmul_(x, per_channel(means[1], dy), -1).mul_(per_channel(scale * weight, dy));
    const auto own = sums.to(weight.scalar_type());
    return {input_gradient.to(input.scalar_type()), own[1], own[0], {}, {}, {}};
  }

 private:
  static at::Tensor normalised(const at::Tensor& input, const at::Tensor& mean,
                               const at::Tensor& scale) {
    const auto wide = widened(input);
    return (wide - per_channel(mean, wide)).mul_(per_channel(scale, wide));
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
    // `variance` holds sums of squared differences until all ranks are merged.
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

// The forward pass in training.
at::Tensor forward_over_ranks(nn::BatchNormImpl& layer, const at::Tensor& input,
                              const comm::Group& group) {
  const auto statistics = statistics_of_all(input, group);
  if (layer.options.track_running_stats()) {
    const at::NoGradGuard no_grad;
    layer.num_batches_tracked += 1;
    const auto momentum = layer.options.momentum();
    // Without momentum, the running value is the mean over all batches so far.
    const double factor = momentum ? *momentum : 1.0 / layer.num_batches_tracked.item<double>();
    const auto update = [&](at::Tensor running, const at::Tensor& value) {
      running.mul_(1 - factor).add_(value.to(running.scalar_type()), factor);
    };
    update(layer.own_mean(), statistics.mean);
    update(layer.own_var(), statistics.variance * (statistics.count / (statistics.count - 1)));
  }
  const bool affine = layer.options.affine();
  const auto weight = affine ? layer.weight : at::ones_like(statistics.mean);
  const auto bias = affine ? layer.bias : at::zeros_like(statistics.mean);
  return Normalise::apply(input, weight, bias, statistics, layer.options.eps(), group);
}

// Replaces a layer in its parent.
using ReplaceInParent = std::function<void(const torch::nn::AnyModule&)>;

// A layer to convert. Its group is made only after all layers were found to be convertible.
struct Conversion {
  std::string name;
  std::function<nn::BatchNormImpl&()> place;  // installs the new layer
  std::function<void()> undo;
};

template <typename Layer>
bool plan_as(torch::nn::Module& module, const std::string& name, const ReplaceInParent& replace,
             std::vector<Conversion>& plan) {
  if (!dynamic_cast<Layer*>(&module)) return false;
  if (!replace) {
    throw Error("parallel", ErrorKind::usage,
                {.what = fmt::format("batch norm {} cannot be made to span ranks", name),
                 .got = "a layer of LibTorch held by a module's own member",
                 .expected = "nn::BatchNorm, or a child of a Sequential"});
  }
  const auto layer = std::dynamic_pointer_cast<Layer>(module.shared_from_this());
  const auto made = std::make_shared<nn::BatchNormImpl>(*layer);
  plan.push_back({name,
                  [made, replace]() -> nn::BatchNormImpl& {
                    replace(torch::nn::AnyModule(made));
                    return *made;
                  },
                  [made, layer, replace] {
                    layer->train(made->is_training());
                    // Casting or moving a module gives buffers other memory.
                    if (made->options.track_running_stats()) {
                      layer->running_mean.set_data(made->running_mean);
                      layer->running_var.set_data(made->running_var);
                      layer->num_batches_tracked.set_data(made->num_batches_tracked);
                    }
                    replace(torch::nn::AnyModule(layer));
                  }});
  return true;
}

void make_plan(torch::nn::Module& module, const std::string& name, const ReplaceInParent& replace,
               std::vector<Conversion>& plan) {
  if (auto* layer = dynamic_cast<nn::BatchNormImpl*>(&module)) {
    plan.push_back({name, [layer]() -> nn::BatchNormImpl& { return *layer; },
                    [layer, before = layer->training()] { layer->set_training(before); }});
    return;
  }
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
      replace_child = [sequential, index, key = child.key()](const torch::nn::AnyModule& layer) {
        // A Sequential calls the layers in its own list, not the registered children.
        *(sequential->begin() + static_cast<std::ptrdiff_t>(index)) = layer;
        sequential->replace_module(key, layer.ptr());
      };
    }
    make_plan(*child.value(), name.empty() ? child.key() : name + "." + child.key(), replace_child,
              plan);
    ++index;
  }
}

// Returns the conversions that were made.
std::vector<Conversion> convert(torch::nn::Module& module, const comm::Group& group) {
  std::vector<Conversion> plan;
  make_plan(module, "", {}, plan);
  if (plan.empty()) return plan;
  const auto own = *group.split(0);
  for (const auto& conversion : plan) {
    conversion.place().set_training([own](nn::BatchNormImpl& layer, const at::Tensor& input) {
      return forward_over_ranks(layer, input, own);
    });
  }
  return plan;
}

}  // namespace

std::vector<std::string> convert_batch_norm(torch::nn::Module& module, const comm::Group& group) {
  std::vector<std::string> names;
  for (const auto& conversion : convert(module, group)) names.push_back(conversion.name);
  return names;
}

ScopedSyncBatchNorm::ScopedSyncBatchNorm(torch::nn::Module& module, const comm::Group& group) {
  for (const auto& conversion : convert(module, group)) undo_.push_back(conversion.undo);
}

ScopedSyncBatchNorm::~ScopedSyncBatchNorm() {
  for (const auto& undo : undo_) undo();
}

}  // namespace troika::parallel
