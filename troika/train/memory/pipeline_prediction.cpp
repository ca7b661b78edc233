// The memory of the ranks of a pipeline.
#include <algorithm>
#include <memory>
#include <set>

#include "troika/base/error.h"
#include "troika/comm/mailboxes.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/state.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/parallel/replicas.h"
#include "troika/plan/memory/batch_memory.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/engine/placement.h"
#include "troika/train/memory/batches.h"
#include "troika/train/memory/module_exchange.h"
#include "troika/train/memory/pipeline_memory.h"
#include "troika/train/memory/prediction.h"

namespace troika::train {

namespace {

plan::ExchangeShape shape_of(const layout::Plan& plan, int pipeline_rank,
                             const optim::OptimizerOptions& optimizer) {
  const bool is_zero = plan.exchange.zero_stage > 0;
  return {.stage = static_cast<int>(plan.exchange.zero_stage),
          .ranks = is_zero
                       ? static_cast<int>(plan.sharing_ranks(pipeline_rank))
                       : plan.mesh.replicas(pipeline_rank) * plan.mesh.size(layout::Axis::context),
          .bucket_bytes = plan.exchange.bucket_bytes,
          .first_bucket_bytes = plan.exchange.first_bucket_bytes,
          .reorders_buckets = !plan.exchange.find_unused_parameters,
          .gathers_at_once = plan.exchange.zero_stage == 3,
          .shard_multiple = is_zero ? optim::shard_multiple(optimizer.name) : 1};
}

// The trained parameters of a stage, by index, in the order in which its backward pass makes their
// gradients.
std::vector<size_t> order_of_gradients(const StageMemory& stage) {
  std::vector<size_t> order;
  for (const auto* parts : {&stage.backward, &stage.backward_weight}) {
    for (const auto& part : *parts) {
      if (part.until.kind == PassEvent::Kind::gradient) order.push_back(part.until.index);
    }
  }
  return order;
}

// The exchanges of one rank. Follows parallel::OwnStages.
RankExchanges exchanges_of(const nn::Model& model, const PipelineShapes& shapes, int rank,
                           const std::vector<StageMemory>& stages,
                           const plan::ExchangeShape& shape) {
  const auto tied = shapes.tied_sets();
  RankExchanges result;
  std::map<std::string, std::pair<size_t, size_t>> places;  // of trained parameters
  std::set<std::string> seen;
  for (const int s : shapes.stages_of(rank)) {
    const auto& of_model = shapes.stages()[s];
    const auto all = parallel::tensors_of_blocks(model, of_model.begin, of_model.end);
    auto names = all;
    for (const auto& name : seen) names.erase(name);
    seen.insert(names.begin(), names.end());
    std::vector<std::set<std::string>> parts(1);
    for (const auto& set : tied) {
      if (!names.contains(*set.names.begin())) continue;
      parts.push_back(set.names);
      for (const auto& name : set.names) names.erase(name);
    }
    parts.front() = names;
    const size_t first = result.parts.size();
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    for (const auto& part : parts) {
      modules.push_back(parallel::module_of(model, part));
      const auto own = nn::trained_parameters(*modules.back());
      for (size_t i = 0; i < own.size(); ++i) {
        places[own[i].first] = {first + modules.size() - 1, i};
      }
    }
    auto& parameters = result.parameters[s];
    const auto whole = parallel::module_of(model, all);
    for (const auto& [name, tensor] : nn::trained_parameters(*whole)) {
      parameters.push_back(places.at(name));
    }
    const auto order = order_of_gradients(stages[static_cast<size_t>(s)]);
    for (size_t m = 0; m < modules.size(); ++m) {
      std::vector<size_t> of_part;
      for (const size_t index : order) {
        if (parameters[index].first == first + m) of_part.push_back(parameters[index].second);
      }
      result.parts.push_back({s, exchange_of(*modules[m], shape, of_part)});
    }
  }
  return result;
}

// The bytes of the parameters and buffers of a rank's stages.
double state_bytes(const nn::Model& model, const PipelineShapes& shapes, int rank) {
  std::set<std::string> own;
  for (const int s : shapes.stages_of(rank)) {
    const auto& stage = shapes.stages()[s];
    own.merge(parallel::tensors_of_blocks(model, stage.begin, stage.end));
  }
  double bytes = 0;
  for (const auto& [name, tensor] : nn::named_state(model)) {
    if (own.contains(name)) bytes += static_cast<double>(tensor.nbytes());
  }
  return bytes;
}

double trained_bytes(const nn::Model& model, const PipelineShapes& shapes, int rank) {
  double bytes = 0;
  for (const int s : shapes.stages_of(rank)) {
    const auto& stage = shapes.stages()[s];
    const auto tensors = parallel::tensors_of_blocks(model, stage.begin, stage.end);
    for (const auto& [name, tensor] :
         nn::trained_parameters(*parallel::module_of(model, tensors))) {
      bytes += static_cast<double>(tensor.nbytes());
    }
  }
  return bytes;
}

}  // namespace

const std::vector<StageMemory>& MemoryPredictor::stages_of(const MemoryChoice& choice,
                                                           const PipelineShapes& shapes) {
  const auto [smaller, larger] = sample_batches(choice);
  auto& [key, known] = stages_;
  const std::tuple wanted(choice.strategy, choice.precision, choice.recompute, choice.ranks,
                          batch_of(choice));
  if (key == wanted) return known;
  const auto precision = nn::parse_precision(choice.precision);
  nn::require_supported(precision, at::kCPU);
  task_->recompute(layout::recompute_plan(choice.recompute, shapes.ends()));
  const auto small = some_batch(smaller), large = some_batch(larger);
  const compat::FakeTensorGuard no_memory;
  const auto splits = shapes.splits();
  known = measure_stages(*task_, precision, shapes.stages(), splits, large);
  if (larger != smaller) {
    const auto of_small = measure_stages(*task_, precision, shapes.stages(), splits, small);
    const double share =
        static_cast<double>(batch_of(choice) - smaller) / static_cast<double>(larger - smaller);
    for (size_t s = 0; s < known.size(); ++s) known[s] = interpolate(of_small[s], known[s], share);
  }
  key = wanted;
  return known;
}

std::vector<MemoryPrediction> MemoryPredictor::predict_pipeline(const MemoryChoice& choice) {
  if (layout::recompute_budget(choice.recompute)) {
    auto planned = choice;
    planned.recompute = recompute_of_stages(choice);
    auto result = predict_pipeline(planned);
    for (auto& prediction : result) prediction.choice = choice;
    return result;
  }
  const auto precision = nn::parse_precision(choice.precision);
  const auto plan = this->plan(choice);
  {
    const compat::FakeTensorGuard no_memory;
    module_.to(precision.parameters);
  }
  const PipelineShapes shapes(*model_, plan);
  const auto whole = whole_bytes();
  const auto cut = cut_layers(plan);
  const auto samples = cut_samples(plan);
  const auto& stages = stages_of(choice, shapes);
  const Placement placement{
      .precision = precision,
      .memory_format = nn::parse_memory_format(options_.trainer.memory_format, precision)};
  const auto micro_batch = batches_of(options_, some_batch(1), placement, batch_of(choice));
  std::vector<MemoryPrediction> result;
  for (int rank = 0; rank < shapes.pipeline_ranks(); ++rank) {
    const auto order = layout::asynchronous_stage(plan.asynchronous(), rank);
    const double ahead =
        plan.is_asynchronous()
            ? static_cast<double>(order.warm_up +
                                  (order.steps_after_forward() ? order.replicas : 0))
            : 0;
    const double batches =
        plan::batch_bytes({.is_pipeline = true,
                           .micro_batches = static_cast<double>(plan.micro_batches),
                           .ahead = ahead},
                          micro_batch);
    auto own =
        exchanges_of(*model_, shapes, rank, stages, shape_of(plan, rank, options_.optimizer));
    const auto states = state_bytes(*model_, shapes, rank);
    int64_t stepped = 0;
    double parameters = 0, between = 0;
    // The exchanges are made one after another, from the parameters of all stages.
    double made_by_exchanges = 0, left = states;
    for (const auto& part : own.parts) {
      stepped += part.memory.stepped();
      const auto held = part.memory.between_passes();
      parameters += static_cast<double>(held.parameters);
      between += static_cast<double>(held.gradients + held.buckets);
      const auto start = start_of(part.memory);
      const auto whole = static_cast<double>(part.memory.whole());
      made_by_exchanges =
          std::max(made_by_exchanges, left - whole + static_cast<double>(start.peak));
      left += static_cast<double>(start.left) - whole;
    }
    MemoryParts steady{.parameters = parameters, .batches = batches};
    steady.optimizer = optimizer_bytes(precision, stepped) + average_bytes(precision, stepped);
    MemoryPrediction prediction{.choice = choice};
    // Older versions of the weights that micro-batches in flight use.
    const double older =
        static_cast<double>(order.most_versions() - 1) * trained_bytes(*model_, shapes, rank);
    const bool copies = comm::copies_messages(options_.comm.backend, choice.nodes);
    PipelineMemory memory(shapes, rank, stages, own, /*keeps_sent=*/!copies);
    double validation = 0;
    for (const int stage : shapes.stages_of(rank)) {
      validation = std::max(validation, stages[static_cast<size_t>(stage)].validation);
    }
    for (int step = 0; step < 2; ++step) {
      memory.step(/*after_validation=*/step == 0, [&](const PipelineMemory::Moment& moment) {
        MemoryParts now = steady;
        now.parameters += older;
        now.gradients = moment.gradients;
        now.buckets = moment.buckets + moment.messages;
        now.activations = moment.activations + moment.kept;
        now.workspace = moment.pass - moment.kept;
        if (now.sum() > prediction.step.sum()) prediction.step = now;
        prediction.activation_peak = std::max(prediction.activation_peak,
                                              moment.activations + moment.pass + moment.messages);
      });
    }
    if (plan.mesh.has_uneven_stages()) prediction.of_first_replica = memory.evaluation_buffers();
    prediction.between_steps = steady.sum() + between + memory.idle_buffers();
    prediction.validation = prediction.between_steps + validation + batch_bytes(batch_of(choice));
    prediction.overhead = overhead(prediction.step);
    prediction.mailboxes = static_cast<double>(
        comm::most_mailbox_bytes(options_.comm.backend, choice.ranks, choice.nodes));
    // Values are made tensor by tensor; a module that has them already is whole at first.
    const bool comes_in_parts = !is_made_whole_ && options_.weights.path.empty();
    const double made = comes_in_parts ? states + whole.largest : whole.made;
    const double pack = std::min(states, static_cast<double>(parallel::kPackBytes));
    prediction.start = std::max(
        {made, states + pack, made_by_exchanges, left + optimizer_bytes(precision, stepped)});
    result.push_back(prediction);
  }
  return result;
}

}  // namespace troika::train
