#include "troika/train/tuning/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/train/checkpoint/checkpoint.h"
#include "troika/train/checkpoint/resume.h"
#include "troika/train/placement.h"
#include "troika/train/resolve_plan.h"
#include "troika/train/trainer.h"

namespace troika::train {

namespace {

const std::string kAutomatic = nn::attention_name(nn::Attention::automatic);

// `choice` of the checkpoint that the run goes on from; empty where there is none. Called by all
// ranks, which get the same.
std::string choice_of_checkpoint(const TrainOptions& options, const comm::Group& group,
                                 const std::filesystem::path& folder,
                                 std::string (*choice)(const TrainOptions&)) {
  if (options.trainer.ckpt_path.empty()) return {};
  std::string saved;
  if (group.rank() == 0) {
    try {
      const auto found = find_checkpoint(folder / "checkpoints", options.trainer.ckpt_path);
      if (!found.empty()) saved = choice(read_checkpoint_options(found));
    } catch (const Error&) {
      // fit() tells what is wrong with it
    }
  }
  return group.broadcast_text(saved, 0, "choice of the checkpoint");
}

// The reason that a run gives which times nothing.
std::string why_by_default(const TrainOptions& options) {
  return options.trainer.deterministic ? "by its default, as trainer.deterministic times nothing"
                                       : "by its default, without trainer.benchmark";
}

bool may_time(const TrainOptions& options) {
  return options.trainer.benchmark && !options.trainer.deterministic;
}

int replicas_of(const TrainOptions& options, const comm::Group& group) {
  return resolve_plan(options, cluster_of(group)).mesh.replicas(0);
}

nn::AttentionShape shape_of(const TrainOptions& options, const data::Dataset& dataset, int ranks,
                            at::ScalarType type) {
  const auto& model = options.model;
  const auto input = dataset.input_shape();
  return {.batch = (global_batch(options, ranks) + ranks - 1) / ranks,
          .heads = model.heads,
          .length = input.empty() ? model.context : std::min(model.context, input.front()),
          .size = model.width / model.heads,
          .type = type};
}

TuningQuestion question_of(std::string what) {
  return {.what = std::move(what),
          .cpu = cpu_model(),
          .libtorch = compat::torch_version(),
          .threads = at::get_num_threads()};
}

TuningQuestion question_of(const nn::AttentionShape& shape) {
  return question_of(fmt::format("attention of {} heads, {} x {}, {}", shape.batch * shape.heads,
                                 shape.length, shape.size, c10::toString(shape.type)));
}

std::string times_text(const TuningEntry& entry) {
  std::vector<std::string> texts;
  for (const auto& way : entry.ways) {
    texts.push_back(fmt::format("{} {:.3g} ms", way.name, way.seconds * 1e3));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string why_chosen(const TuningEntry& entry, const Stopwatch& watch) {
  return entry.ways.empty() ? std::string("as timed before (troika doctor --tuning)")
                            : fmt::format("the fastest, timed in {:.2f} s: {}", watch.seconds(),
                                          times_text(entry));
}

// Of the whole run, at most; a run that the clock ends counts as long.
int64_t passes_of(const TrainOptions& options, const data::Dataset& dataset, int ranks) {
  const auto& trainer = options.trainer;
  constexpr auto kMany = std::numeric_limits<int64_t>::max();
  const int64_t of_an_epoch = dataset.size() / global_batch(options, ranks);
  const int64_t of_epochs = trainer.max_epochs < 0 ? kMany : trainer.max_epochs * of_an_epoch;
  return trainer.max_steps < 0 ? of_epochs : std::min(of_epochs, trainer.max_steps);
}

}  // namespace

TuningEntry fastest(const comm::Group& group, const TuningFile& file,
                    const TuningQuestion& question, const std::vector<std::string>& names,
                    const std::function<std::vector<double>()>& time, double margin) {
  const bool is_main = group.rank() == 0;
  std::string known = is_main ? file.choice(question) : "";
  if (std::ranges::count(names, known) == 0) known.clear();
  known = group.broadcast_text(known, 0, "tuning");
  if (!known.empty()) return {.question = question, .choice = known, .ways = {}};

  const auto seconds = at::tensor(time(), at::kDouble);
  group.all_reduce(seconds, comm::ReduceOp::sum, {.label = "tuning"});
  TuningEntry entry{.question = question, .choice = {}, .ways = {}};
  for (size_t i = 0; i < names.size(); ++i) {
    entry.ways.push_back({names[i], seconds.data_ptr<double>()[i]});
  }
  const auto least = std::ranges::min_element(entry.ways, {}, &TuningEntry::Way::seconds);
  const auto& first = entry.ways.front();
  entry.choice = least->seconds < (1 - margin) * first.seconds ? least->name : first.name;
  if (is_main) file.add(entry);
  return entry;
}

nn::ModelOptions tuned_model(const TrainOptions& options, const data::Dataset& dataset,
                             const comm::Group& group, const std::filesystem::path& folder) {
  auto model = options.model;
  const auto ways = nn::available_attention();
  if (model.name != "gpt" || model.attn_implementation != kAutomatic || ways.size() == 1) {
    return model;
  }
  const bool is_main = group.rank() == 0;
  const auto say = [&](const std::string& choice, const std::string& why) {
    if (!is_main || !options.trainer.enable_model_summary) return;
    log::info("attention: {}, {} (model.attn_implementation)", choice, why);
  };
  const auto placement = Placement::of(options, group);
  if (!placement.device.is_cpu()) return model;
  const auto saved = choice_of_checkpoint(
      options, group, folder, [](const TrainOptions& of) { return of.model.attn_implementation; });
  if (!saved.empty() && saved != kAutomatic) {
    model.attn_implementation = saved;
    say(saved, "as in the checkpoint");
    return model;
  }
  if (model.dropout > 0) {
    say(nn::attention_name(nn::Attention::eager),
        "whose dropout is the same on any number of ranks");
    return model;
  }
  if (!may_time(options)) {
    const auto type = placement.precision.compute;
    say(nn::attention_name(nn::resolve(nn::Attention::automatic, at::kCPU, type, /*dropout=*/0)),
        why_by_default(options));
    return model;
  }
  std::vector<std::string> names;
  for (const auto way : ways) names.push_back(nn::attention_name(way));
  const auto shape =
      shape_of(options, dataset, replicas_of(options, group), placement.precision.compute);
  const Stopwatch watch;
  const auto entry = fastest(group, TuningFile::of_user(), question_of(shape), names,
                             [&] { return nn::time_attention(shape, ways); });
  model.attn_implementation = entry.choice;
  say(entry.choice, why_chosen(entry, watch));
  return model;
}

std::string tuned_memory_format(const TrainOptions& options, const data::Dataset& dataset,
                                const comm::Group& group, const std::filesystem::path& folder) {
  const auto& asked = options.trainer.memory_format;
  const auto& model = options.model;
  if (asked != kAutomatic || model.name.empty() || model.name == "gpt" || model.name == "mlp") {
    return asked;
  }
  // ZeRO cuts weights by their dimensions.
  const auto plan = resolve_plan(options, cluster_of(group));
  if (plan.exchange.method == layout::ExchangeMethod::zero) return asked;
  const auto say = [&](const std::string& choice, const std::string& why) {
    if (group.rank() != 0 || !options.trainer.enable_model_summary) return;
    log::info("memory format: {}, {} (trainer.memory_format)", choice, why);
  };
  const auto placement = Placement::of(options, group);
  if (!placement.device.is_cpu()) return asked;
  const auto saved = choice_of_checkpoint(
      options, group, folder, [](const TrainOptions& of) { return of.trainer.memory_format; });
  if (!saved.empty()) {
    say(nn::memory_format_name(nn::parse_memory_format(saved, placement.precision)),
        "as in the checkpoint");
    return saved;
  }
  const auto rule = placement.memory_format;
  if (!may_time(options)) {
    say(nn::memory_format_name(rule), why_by_default(options));
    return asked;
  }
  const int replicas = plan.mesh.replicas(0);
  if (passes_of(options, dataset, replicas) < kPassesWorthTiming) return asked;
  const std::vector formats{rule, rule == at::MemoryFormat::ChannelsLast
                                      ? at::MemoryFormat::Contiguous
                                      : at::MemoryFormat::ChannelsLast};
  std::vector<std::string> names;
  for (const auto format : formats) names.push_back(nn::memory_format_name(format));
  const int64_t batch = (global_batch(options, replicas) + replicas - 1) / replicas;
  constexpr double kMargin = 0.03;
  const Stopwatch watch;
  const auto entry = fastest(
      group, TuningFile::of_user(),
      question_of(fmt::format("memory format of {}, {} x {} x {} x {}, {}", model.name, batch,
                              model.in_channels, model.image_size, model.image_size,
                              c10::toString(placement.precision.compute))),
      names, [&] { return nn::time_memory_formats(model, batch, placement.precision, formats); },
      kMargin);
  say(entry.choice, why_chosen(entry, watch));
  return entry.choice;
}

}  // namespace troika::train
