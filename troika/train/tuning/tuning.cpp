#include "troika/train/tuning/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/layout/context_method.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/take_turns.h"
#include "troika/nn/timed_pass.h"
#include "troika/train/engine/placement.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/tuning/start.h"

namespace troika::train {

namespace {

const std::string kAutomatic = nn::attention_name(nn::Attention::automatic);

// Candidates that change bits or may surprise users must be clearly faster.
constexpr double kMargin = 0.03;

nn::AttentionShape shape_of(const RunStart& run, at::ScalarType type) {
  const auto model = nn::with_sizes(run.options.model);
  const auto input = run.dataset.input_shape();
  return {.batch = batch_of(run),
          .heads = model.heads,
          .length = input.empty() ? model.context : std::min(model.context, input.front()),
          .size = model.width / model.heads,
          .type = type};
}

// ZeRO shards weights by their dimensions.
bool keeps_weights_contiguous(const RunStart& run) {
  return resolve_plan(run.options, cluster_of(run.group)).exchange.method ==
         layout::ExchangeMethod::zero;
}

// A ring has one implementation of attention.
bool attends_in_a_ring(const RunStart& run) {
  const auto plan = resolve_plan(run.options, cluster_of(run.group));
  return plan.mesh.size(layout::Axis::context) > 1 &&
         layout::parse_context_method(plan.stages.context_method) == layout::ContextMethod::ring;
}

// Chooses the memory order of tensors: the checkpoint's, "auto" if nothing is timed, or the
// fastest.
std::string tuned_order(const RunStart& run, const StartChoice& choice,
                        std::string (*of)(const TrainOptions&)) {
  const auto saved = choice_of_checkpoint(run, of);
  if (!saved.empty()) {
    say(run, choice, saved == kAutomatic ? choice.names.front() : saved, "as in the checkpoint");
    return saved;
  }
  if (takes_rule(run, choice) || !is_worth_timing(run)) return kAutomatic;
  return timed(run, choice, kMargin);
}

// Times one block of a language model, because all its blocks are alike.
nn::ModelOptions model_to_time(const RunStart& run) {
  auto model = run.options.model;
  if (model.name.empty()) return model;
  model = nn::with_sizes(std::move(model));
  if (nn::sample_kind(model.name) != nn::SampleKind::text) return model;
  model.layers = 1;
  model.context = shape_of(run, at::kFloat).length;
  return model;
}

std::string describe(const nn::ModelOptions& model, int64_t batch, at::ScalarType type) {
  const auto kind = nn::sample_kind(model.name);
  auto sizes = fmt::format("{} x {} x {} x {}", batch, model.in_channels, model.image_size,
                           model.image_size);
  if (kind == nn::SampleKind::text) {
    sizes = fmt::format("{} x {}, width {}, {} classes", batch, model.context, model.width,
                        model.vocab_size);
  } else if (kind == nn::SampleKind::videos) {
    sizes = fmt::format("{} x {} x {}, width {}, {} x {} classes", batch, model.frames,
                        model.feature_width, model.hidden_width, model.context, model.vocab_size);
  }
  return fmt::format("{}, {}, {}", model.name, sizes, c10::toString(type));
}

// Returns medians of rounds that wait for the slowest rank. The minimum would mislead: a thread
// that the system moves is slow only in some passes. Ranks change candidates together.
std::vector<double> time_bindings(const comm::Group& group, const std::function<double()>& pass,
                                  const std::vector<Processors>& candidates) {
  constexpr double kSeconds = 1, kSecondsOfATurn = 0.05;
  const auto decided = [&](double own) {
    const auto number = at::scalar_tensor(own, at::kDouble);
    group.broadcast(number, 0, {.label = "timing of threads"});
    return number.item<double>();
  };
  pass();
  const double passes = decided(std::clamp(std::floor(kSecondsOfATurn / pass()), 1.0, 100.0));
  const auto rounds = nn::take_turns(
      candidates.size(), kSeconds,
      [&](size_t candidate) {
        const CpuBinding binding(candidates[candidate]);
        group.barrier({.label = "timing of threads"});
        const Stopwatch turn;
        for (int i = 0; i < static_cast<int>(passes); ++i) {
          pass();
          group.barrier({.label = "timing of threads"});
        }
        return turn.seconds() / passes;
      },
      [&](bool goes_on) { return decided(goes_on ? 1 : 0) > 0; });
  std::vector<double> medians;
  for (const auto& one : rounds) medians.push_back(spread_of(one).median);
  return medians;
}

}  // namespace

TuningEntry fastest(const comm::Group& group, const TuningFile& file,
                    const TuningQuestion& question, const std::vector<std::string>& names,
                    const std::function<std::vector<double>()>& time, double margin) {
  const bool is_main = group.rank() == 0;
  std::string known = is_main ? file.choice(question) : "";
  if (std::ranges::count(names, known) == 0) known.clear();
  known = group.broadcast_text(known, 0, "tuning");
  if (!known.empty()) return {.question = question, .choice = known, .candidates = {}};

  const auto seconds = at::tensor(time(), at::kDouble);
  group.all_reduce(seconds, comm::ReduceOp::sum, {.label = "tuning"});
  TuningEntry entry{.question = question, .choice = {}, .candidates = {}};
  for (size_t i = 0; i < names.size(); ++i) {
    entry.candidates.push_back({names[i], seconds.data_ptr<double>()[i]});
  }
  const auto least =
      std::ranges::min_element(entry.candidates, {}, &TuningEntry::Candidate::seconds);
  const auto& first = entry.candidates.front();
  entry.choice = least->seconds < (1 - margin) * first.seconds ? least->name : first.name;
  if (is_main) file.add(entry);
  return entry;
}

nn::ModelOptions tuned_model(const TrainOptions& options, const data::Dataset& dataset,
                             const comm::Group& group, const std::filesystem::path& folder) {
  auto model = options.model;
  const auto candidates = nn::available_attention();
  const bool attends = !model.name.empty() && nn::sample_kind(model.name) == nn::SampleKind::text;
  if (!attends || model.attn_implementation != kAutomatic || candidates.size() == 1) return model;
  const auto placement = Placement::of(options, group);
  if (!placement.device.is_cpu()) return model;
  const RunStart run{options, dataset, group, folder};
  if (attends_in_a_ring(run)) return model;
  const auto shape = shape_of(run, placement.precision.compute);
  const auto rule = nn::resolve(nn::Attention::automatic, at::kCPU, shape.type, /*dropout=*/0);
  StartChoice choice{
      .subject = "attention",
      .option = "model.attn_implementation",
      .what = fmt::format("attention of {} heads, {} x {}, {}", shape.batch * shape.heads,
                          shape.length, shape.size, c10::toString(shape.type)),
      .names = {nn::attention_name(rule)},
      .time = [&] { return nn::time_attention(shape, candidates); }};
  const auto saved = choice_of_checkpoint(
      run, [](const TrainOptions& of) { return of.model.attn_implementation; });
  if (!saved.empty() && saved != kAutomatic) {
    model.attn_implementation = saved;
    say(run, choice, saved, "as in the checkpoint");
    return model;
  }
  if (model.dropout > 0) {
    say(run, choice, nn::attention_name(nn::Attention::eager),
        "whose dropout is the same on any number of ranks");
    return model;
  }
  if (takes_rule(run, choice)) return model;
  choice.names.clear();
  for (const auto candidate : candidates) choice.names.push_back(nn::attention_name(candidate));
  model.attn_implementation = timed(run, choice, /*margin=*/0);
  return model;
}

std::string tuned_memory_format(const TrainOptions& options, const data::Dataset& dataset,
                                const comm::Group& group, const std::filesystem::path& folder) {
  const auto& asked = options.trainer.memory_format;
  const auto& model = options.model;
  if (asked != kAutomatic || model.name.empty() || !nn::has_convolutions(model.name)) return asked;
  const RunStart run{options, dataset, group, folder};
  if (keeps_weights_contiguous(run)) return asked;
  const auto placement = Placement::of(options, group);
  if (!placement.device.is_cpu()) return asked;
  const auto rule = placement.memory_format;
  const std::vector formats{rule, rule == at::MemoryFormat::ChannelsLast
                                      ? at::MemoryFormat::Contiguous
                                      : at::MemoryFormat::ChannelsLast};
  const int64_t batch = batch_of(run);
  StartChoice choice{
      .subject = "memory format",
      .option = "trainer.memory_format",
      .what = "memory format of " + describe(model, batch, placement.precision.compute),
      .names = {},
      .time = [&] { return nn::time_memory_formats(model, batch, placement.precision, formats); }};
  for (const auto format : formats) choice.names.push_back(nn::memory_format_name(format));
  return tuned_order(run, choice, [](const TrainOptions& of) { return of.trainer.memory_format; });
}

std::string tuned_weight_layout(const TrainOptions& options, const data::Dataset& dataset,
                                const comm::Group& group, const std::filesystem::path& folder) {
  const auto& asked = options.trainer.weight_layout;
  const auto& name = options.model.name;
  if (asked != kAutomatic || name.empty() || nn::model_family(name) != "gpt") return asked;
  const RunStart run{options, dataset, group, folder};
  if (keeps_weights_contiguous(run)) return asked;
  const auto placement = Placement::of(options, group);
  if (!placement.device.is_cpu()) return asked;
  const std::vector layouts{nn::WeightLayout::in_out, nn::WeightLayout::out_in};
  const auto shape = shape_of(run, placement.precision.compute);
  const int64_t rows = shape.batch * shape.length, width = shape.heads * shape.size;
  StartChoice choice{
      .subject = "weight layout",
      .option = "trainer.weight_layout",
      .what = fmt::format("weight layout of linear layers of width {}, {} rows, {}", width, rows,
                          c10::toString(shape.type)),
      .names = {},
      .time = [&] { return nn::time_weight_layouts(rows, width, placement.precision, layouts); }};
  for (const auto layout : layouts) choice.names.push_back(nn::weight_layout_name(layout));
  return tuned_order(run, choice, [](const TrainOptions& of) { return of.trainer.weight_layout; });
}

Processors tuned_cpu_bind(const TrainOptions& options, const data::Dataset& dataset,
                          const comm::Group& group) {
  const auto& asked = options.trainer.cpu_bind;
  if (asked != kAutomatic) return asked_cpu_bind(options, group);
  if (options.model.name.empty()) return {};
  const auto placement = Placement::of(options, group);
  const auto share = share_of(group);
  if (!placement.device.is_cpu() || !share.divides) return {};
  const RunStart run{options, dataset, group, {}};
  const int64_t batch = batch_of(run);
  const auto model = model_to_time(run);
  const std::vector<Processors> candidates{{}, share.processors};
  const StartChoice choice{.subject = "thread placement",
                           .option = "trainer.cpu_bind",
                           .what = fmt::format("threads of {} processes on {} processors, {}",
                                               share.processes, allowed_processors().size(),
                                               describe(model, batch, placement.precision.compute)),
                           .names = {"none", "cores"},
                           .time = [&] {
                             nn::TimedPass pass(model, batch, placement.precision);
                             return time_bindings(
                                 group, [&] { return pass.seconds(placement.memory_format); },
                                 candidates);
                           }};
  if (takes_rule(run, choice) || !is_worth_timing(run)) return {};
  return timed(run, choice, kMargin) == choice.names.front() ? Processors() : share.processors;
}

Processors asked_cpu_bind(const TrainOptions& options, const comm::Group& group) {
  if (options.trainer.cpu_bind != "cores") return {};
  const auto share = share_of(group);
  if (!share.problem.empty()) {
    throw Error("train", ErrorKind::usage,
                {.what = "ranks cannot have cores of their own",
                 .got = share.problem,
                 .expected = "ranks with the same processors, one at least for each thread",
                 .hint = "trainer.cpu_bind=none leaves threads to the system"});
  }
  return share.processors;
}

}  // namespace troika::train
