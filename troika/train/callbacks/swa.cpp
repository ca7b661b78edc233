#include "troika/train/callbacks/swa.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/reader.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"
#include "troika/parallel/pipeline/left_out.h"
#include "troika/train/engine/engine_state.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

namespace {

constexpr const char* kBaseRate = "base_rate";

int64_t epoch_of(const std::string& text, int64_t max_epochs) {
  if (const auto epoch = parse_int(text); epoch && *epoch >= 0) return *epoch;
  const auto share = parse_double(text);
  if (share && *share >= 0 && *share <= 1) {
    return static_cast<int64_t>(*share * static_cast<double>(max_epochs));
  }
  throw Error(
      "train", ErrorKind::usage,
      {.what = "swa.swa_epoch_start makes no sense",
       .got = text,
       .expected =
           "an epoch, for example 8, or a fraction of trainer.max_epochs, for example 0.8"});
}

// LibTorch's own optional type, which differs between versions.
using Momentum = std::decay_t<decltype(std::declval<torch::nn::BatchNormOptions&>().momentum())>;

// A layer with running statistics, of any class.
struct RunningStatistics {
  at::Tensor mean, variance, batches;
  Momentum* momentum;
};

template <typename Layer>
bool add_if(torch::nn::Module& module, std::vector<RunningStatistics>& list) {
  auto* layer = module.as<Layer>();
  if (!layer || !layer->running_mean.defined()) return false;
  list.push_back({layer->running_mean, layer->running_var, layer->num_batches_tracked,
                  &layer->options.momentum()});
  return true;
}

std::vector<RunningStatistics> statistics_of(torch::nn::Module& module) {
  std::vector<RunningStatistics> result;
  for (const auto& child : module.modules()) {
    add_if<nn::BatchNormImpl>(*child, result) ||
        add_if<torch::nn::BatchNorm1dImpl>(*child, result) ||
        add_if<torch::nn::BatchNorm2dImpl>(*child, result) ||
        add_if<torch::nn::BatchNorm3dImpl>(*child, result);
  }
  return result;
}

// Without the layers of other ranks' stages.
std::vector<RunningStatistics> own_statistics_of(torch::nn::Module& module) {
  auto result = statistics_of(module);
  std::erase_if(result, [](const auto& layer) { return parallel::is_left_out(layer.mean); });
  return result;
}

std::vector<at::Tensor> tensors_of(const std::vector<RunningStatistics>& layers) {
  std::vector<at::Tensor> result;
  for (const auto& layer : layers) {
    for (const auto& tensor : {layer.mean, layer.variance, layer.batches}) result.push_back(tensor);
  }
  return result;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

void put(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& into) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < values.size(); ++i) into[i].copy_(values[i]);
}

}  // namespace

void renew_batch_norm(torch::nn::Module& module, const comm::Group& replicas,
                      const std::function<void()>& run) {
  if (statistics_of(module).empty()) return;  // in no stage
  const auto layers = own_statistics_of(module);
  std::vector<Momentum> momenta;
  for (const auto& layer : layers) {
    layer.mean.zero_();
    layer.variance.fill_(1);
    layer.batches.zero_();
    // Without a momentum, LibTorch takes the mean over all batches.
    momenta.push_back(std::exchange(*layer.momentum, Momentum()));
  }
  run();
  for (size_t i = 0; i < layers.size(); ++i) {
    *layers[i].momentum = momenta[i];
    // All ranks have run the same number of batches, so the mean over ranks is the overall mean.
    for (const auto& tensor : {layers[i].mean, layers[i].variance}) {
      replicas.all_reduce(tensor, comm::ReduceOp::sum, {.label = "batch norm of averaged weights"});
      tensor.div_(replicas.size());
    }
  }
}

Swa::Swa(const SwaOptions& options, int64_t max_epochs)
    : options_(options),
      first_epoch_(epoch_of(options.swa_epoch_start, max_epochs)),
      epochs_(max_epochs) {
  if (first_epoch_ < max_epochs) return;
  throw Error("train", ErrorKind::usage,
              {.what = "swa.swa_epoch_start leaves no epoch to average",
               .got = options.swa_epoch_start,
               .expected = fmt::format("less than trainer.max_epochs, {}", max_epochs)});
}

void Swa::on_fit_start(FitContext& context) {
  if (context.task.replicas() > 1 && !statistics_of(context.task.module()).empty()) {
    throw Error("train", ErrorKind::usage,
                {.what = "swa recomputes the statistics of batch norms",
                 .got = "strategy dp, whose threads each see a part of a batch",
                 .expected = "a strategy of processes"});
  }
  if (context.groups.mesh().has_uneven_stages() && !statistics_of(context.task.module()).empty()) {
    throw Error("train", ErrorKind::usage,
                {.what = "swa recomputes the statistics of batch norms",
                 .got = "stages with different numbers of replicas",
                 .expected = "as many replicas of each stage, or a model without batch norms"});
  }
  average_.attach(context);
  mean_.reset();
}

double Swa::rate(int64_t epoch) const {
  const auto over = static_cast<double>(options_.annealing_epochs);
  const auto done = static_cast<double>(epoch - first_epoch_);
  const double t = over > 0 ? std::min(1.0, done / over) : 1.0;
  const double share =
      options_.annealing_strategy == "cos" ? (1 - std::cos(std::numbers::pi * t)) / 2 : t;
  return options_.swa_lrs * share + base_rate_ * (1 - share);
}

void Swa::on_before_optimizer_step(FitContext& context) {
  if (context.at.epoch < first_epoch_) return;
  if (base_rate_ == 0) base_rate_ = context.training.learning_rate;
  context.training.learning_rate = rate(context.at.epoch);
  context.training.optimization->set_learning_rate(context.training.learning_rate);
}

// Not at the end of the previous epoch: if max_steps cuts an epoch short, a run with more steps
// resumes in the same epoch.
void Swa::on_train_epoch_start(FitContext& context) {
  if (context.at.epoch > first_epoch_) average_.update();
}

void Swa::on_train_end(FitContext& context) {
  if (context.at.epoch < epochs_ && context.requests.stop_reason.empty()) return;
  // On a copy: a resumed run adds this epoch's weights when the next epoch starts.
  mean_.emplace(Mean{average_.copy()});
  auto& mean = mean_->weights;
  if (context.at.epoch > first_epoch_ && context.at.position == 0) mean.update();
  if (mean.updates() == 0) {
    mean_.reset();
    return;
  }
  auto& module = context.task.module();
  mean.put_into_module();
  mean_->statistics = tensors_of(own_statistics_of(module));
  mean_->trained = copies_of(mean_->statistics);
  renew_batch_norm(module, context.groups.data(), context.actions.run_training_data);
  if (context.options.checkpoint.enabled) {
    const auto file = context.folder / "checkpoints" / "swa.safetensors";
    context.actions.save_weights(file);
    if (context.group.rank() == 0) {
      log::info("mean of the weights of {} epochs: {}", mean.updates(), file.string());
    }
  }
  // Other callbacks may still need the trained weights.
  mean_->renewed = copies_of(mean_->statistics);
  put(mean_->trained, mean_->statistics);
  mean.take_back();
}

void Swa::on_fit_end(FitContext&) {
  if (!mean_) return;
  // Before the weights, because the ranks of a pipeline then get each other's tensors.
  put(mean_->renewed, mean_->statistics);
  mean_->weights.put_into_module();
}

void Swa::replace_model(checkpoint::RankState& state) const {
  if (!mean_ || !mean_->weights.is_in_module()) return;
  // If Ema has replaced the model, the model's statistics are the trained ones, too.
  const bool is_replaced = std::any_of(state.rest.begin(), state.rest.end(), [](const auto& item) {
    return item.first.starts_with(kRawPrefix);
  });
  for (size_t i = 0; i < mean_->statistics.size(); ++i) {
    const auto& trained = mean_->trained[i];
    for (auto& entry : state.model) {
      if (entry.second.data_ptr() != mean_->statistics[i].data_ptr()) continue;
      if (is_replaced) {
        entry.second = trained;
      } else {
        state.rest.emplace_back(kRawPrefix + entry.first, trained, entry.box);
      }
    }
  }
  if (!is_replaced) mean_->weights.put_into(state);
}

checkpoint::NamedTensors Swa::state() const {
  auto result = average_.state();
  result.emplace_back(kBaseRate, at::scalar_tensor(base_rate_, at::kDouble));
  return result;
}

void Swa::load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) {
  base_rate_ = saved.read(prefix + kBaseRate).item<double>();
  average_.load_state(saved, prefix);
}

}  // namespace troika::train
