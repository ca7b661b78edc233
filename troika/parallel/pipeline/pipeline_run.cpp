#include "troika/parallel/pipeline/pipeline_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"

namespace troika::parallel {

namespace {

using layout::Action;
using layout::ActionKind;

// While this object lives, random numbers are those of the micro-batch's keys.
class DrawsOfMicroBatch {
 public:
  DrawsOfMicroBatch(MicroBatchSource& source, int micro_batch) {
    if (auto keys = source.keys(micro_batch)) draws_.emplace(std::move(keys));
  }

 private:
  std::optional<nn::KeyedDraws> draws_;
};

size_t index_in(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<size_t>(std::ranges::find(names, name) - names.begin());
}

}  // namespace

nn::Tensors PipelineRun::take(Waiting& waiting, const Action& receive, size_t count) {
  const int from = layout::peer_stage(receive);
  if (!parts_.place.is_mine(from)) {
    const ActionTimes::ActionSpan span(parts_.times, receive);
    return parts_.messages.receive(receive, parts_.place.rank(from, receive.micro_batch), count);
  }
  auto found = waiting.extract({from, receive.stage, receive.micro_batch});
  TROIKA_CHECK(!found.empty(), "no tensors for " + layout::describe(receive));
  return std::move(found.mapped());
}

nn::Tensors PipelineRun::inputs(int stage, int micro_batch) {
  const auto& takes = parts_.stages[stage].takes;
  std::map<int, nn::Tensors> given;  // by stage
  for (const auto& input : takes) {
    if (given.contains(input.from)) continue;
    if (input.from == StageInput::kBatch) {
      given[input.from] = parts_.source.inputs(micro_batch);
      continue;
    }
    const Action receive{ActionKind::receive_activation, stage, micro_batch,
                         input.from + 1 == stage ? -1 : input.from};
    given[input.from] =
        take(activations_, receive, parts_.stages.message(input.from, stage).size());
  }
  nn::Tensors result;
  std::map<int, size_t> next;
  const auto& wiring = parts_.model.wiring();
  for (const auto& input : takes) {
    const size_t index = input.from == StageInput::kBatch
                             ? index_in(wiring.input_names(), wiring.names({input.slot}).front())
                             : next[input.from]++;
    result.push_back(given[input.from].at(index));
  }
  return result;
}

void PipelineRun::start_autocast(std::optional<nn::Autocast>& autocast) const {
  if (parts_.precision) autocast.emplace(*parts_.precision, parts_.device);
}

nn::Tensors PipelineRun::forward(int stage, int micro_batch) {
  auto inputs = this->inputs(stage, micro_batch);
  const Action action{ActionKind::forward, stage, micro_batch};
  const ActionTimes::ActionSpan span(parts_.times, action);
  return run_blocks(stage, micro_batch, std::move(inputs));
}

nn::Tensors PipelineRun::run_blocks(int stage, int micro_batch, nn::Tensors inputs) {
  auto& passes = parts_.passes(stage);
  const DrawsOfMicroBatch draws(parts_.source, micro_batch);
  std::optional<nn::Autocast> autocast;
  start_autocast(autocast);
  std::shared_ptr<const nn::OutputLoss> loss;
  if (is_last(stage) && passes.stage().has_blocks() && parts_.model.has_output_layer()) {
    loss = parts_.source.output_loss(micro_batch);
  }
  auto outputs = passes.forward(micro_batch, std::move(inputs), std::move(loss), is_last(stage));
  if (is_last(stage)) return outputs;
  const auto& gives = parts_.stages[stage].gives;
  for (int to = stage + 1; to < static_cast<int>(parts_.stages.size()); ++to) {
    const auto message = parts_.stages.message(stage, to);
    if (message.empty()) continue;
    auto& tensors = activations_[{stage, to, micro_batch}];
    for (const auto& input : message) {
      tensors.push_back(
          outputs[static_cast<size_t>(std::ranges::find(gives, input.slot) - gives.begin())]);
    }
  }
  return {};
}

at::Tensor PipelineRun::train_forward(const Action& pass) {
  auto inputs = this->inputs(pass.stage, pass.micro_batch);
  const ActionTimes::ActionSpan span(parts_.times, pass);
  return forward_with_loss(pass, std::move(inputs));
}

std::array<at::Tensor, 2> PipelineRun::train_forward(const Action& first, const Action& second,
                                                     Lanes& lanes) {
  auto of_first = inputs(first.stage, first.micro_batch);
  auto of_second = inputs(second.stage, second.micro_batch);
  // Passes that start together end together.
  const ActionTimes::ActionSpan span(parts_.times, first), span_beside(parts_.times, second);
  std::array<at::Tensor, 2> losses;
  lanes.run([&] { losses[0] = forward_with_loss(first, std::move(of_first)); },
            [&] { losses[1] = forward_with_loss(second, std::move(of_second)); });
  return losses;
}

at::Tensor PipelineRun::forward_with_loss(const Action& pass, nn::Tensors inputs) {
  const int micro_batch = pass.micro_batch;
  // Autocast also covers the loss, so that weights are cast only once.
  std::optional<nn::Autocast> autocast;
  start_autocast(autocast);
  auto outputs = run_blocks(pass.stage, micro_batch, std::move(inputs));
  if (!is_last(pass.stage)) return {};
  const auto loss = parts_.source.loss(micro_batch, std::move(outputs));
  parts_.passes(pass.stage).start_from(micro_batch, parts_.source.root(micro_batch, loss));
  return loss.variable_data();
}

nn::Tensors PipelineRun::output_gradients(int stage, int micro_batch) {
  const auto& gives = parts_.stages[stage].gives;
  const auto differentiable = parts_.passes(stage).differentiable_outputs(micro_batch);
  nn::Tensors sums(gives.size());
  // Autograd adds up the gradients of a tensor from its last use to its first.
  for (int from = static_cast<int>(parts_.stages.size()) - 1; from > stage; --from) {
    std::vector<size_t> outputs;
    for (const auto& input : parts_.stages.message(stage, from)) {
      const auto output = static_cast<size_t>(std::ranges::find(gives, input.slot) - gives.begin());
      if (input.is_trained && differentiable[output]) outputs.push_back(output);
    }
    if (outputs.empty()) continue;
    const Action receive{ActionKind::receive_gradient, stage, micro_batch,
                         from == stage + 1 ? -1 : from};
    const auto gradients = take(gradients_, receive, outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      auto& sum = sums[outputs[i]];
      sum = sum.defined() ? sum + gradients[i] : gradients[i];
    }
  }
  return sums;
}

void PipelineRun::backward(const Action& action, bool splits) {
  const int stage = action.stage, micro_batch = action.micro_batch;
  auto& passes = parts_.passes(stage);
  const auto gradients = is_last(stage) ? nn::Tensors{} : output_gradients(stage, micro_batch);
  const ActionTimes::ActionSpan span(parts_.times, action);
  const DrawsOfMicroBatch draws(parts_.source, micro_batch);
  const auto of_inputs = splits ? passes.backward_input(micro_batch, gradients)
                                : passes.backward(micro_batch, gradients);
  const auto& takes = parts_.stages[stage].takes;
  for (size_t i = 0; i < takes.size(); ++i) {
    if (of_inputs[i].defined()) {
      gradients_[{stage, takes[i].from, micro_batch}].push_back(of_inputs[i]);
    }
  }
}

void PipelineRun::backward_weight(const Action& action) {
  const ActionTimes::ActionSpan span(parts_.times, action);
  const DrawsOfMicroBatch draws(parts_.source, action.micro_batch);
  parts_.passes(action.stage).backward_weight(action.micro_batch);
}

void PipelineRun::send(const Action& action) {
  const int to = layout::peer_stage(action);
  auto& waiting = action.kind == ActionKind::send_activation ? activations_ : gradients_;
  const auto found = waiting.extract({action.stage, to, action.micro_batch});
  if (found.empty()) return;  // no tensor goes between these stages
  const ActionTimes::ActionSpan span(parts_.times, action);
  parts_.messages.send(action, parts_.place.rank(to, action.micro_batch), found.mapped());
}

}  // namespace troika::parallel
