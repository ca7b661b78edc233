#include "troika/train/tuning/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/train/checkpoint/checkpoint.h"
#include "troika/train/checkpoint/resume.h"
#include "troika/train/placement.h"
#include "troika/train/trainer.h"

namespace troika::train {

namespace {

const std::string kAutomatic = nn::attention_name(nn::Attention::automatic);

// That of the checkpoint that the run will go on from, on rank 0; empty where there is none.
std::string attention_of_checkpoint(const TrainOptions& options,
                                    const std::filesystem::path& folder) {
  try {
    const auto found = find_checkpoint(folder / "checkpoints", options.trainer.ckpt_path);
    if (found.empty()) return {};
    return read_checkpoint_options(found).model.attn_implementation;
  } catch (const Error&) {
    return {};  // fit() tells what is wrong with it
  }
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

TuningQuestion question_of(const nn::AttentionShape& shape) {
  return {.what = fmt::format("attention of {} heads, {} x {}, {}", shape.batch * shape.heads,
                              shape.length, shape.size, c10::toString(shape.type)),
          .cpu = cpu_model(),
          .libtorch = compat::torch_version(),
          .threads = at::get_num_threads()};
}

std::string times_text(const TuningEntry& entry) {
  std::vector<std::string> texts;
  for (const auto& way : entry.ways) {
    texts.push_back(fmt::format("{} {:.3g} ms", way.name, way.seconds * 1e3));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

TuningEntry fastest(const comm::Group& group, const TuningFile& file,
                    const TuningQuestion& question, const std::vector<std::string>& names,
                    const std::function<std::vector<double>()>& time) {
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
  entry.choice = std::ranges::min_element(entry.ways, {}, &TuningEntry::Way::seconds)->name;
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
  if (!options.trainer.ckpt_path.empty()) {
    const auto saved = group.broadcast_text(is_main ? attention_of_checkpoint(options, folder) : "",
                                            0, "attention");
    if (!saved.empty() && saved != kAutomatic) {
      model.attn_implementation = saved;
      say(saved, "as in the checkpoint");
      return model;
    }
  }
  if (model.dropout > 0) {
    say(nn::attention_name(nn::Attention::eager),
        "whose dropout is the same on any number of ranks");
    return model;
  }
  if (options.trainer.deterministic || !options.trainer.benchmark) {
    const auto type = placement.precision.compute;
    say(nn::attention_name(nn::resolve(nn::Attention::automatic, at::kCPU, type, /*dropout=*/0)),
        options.trainer.deterministic ? "by its default, as trainer.deterministic times nothing"
                                      : "by its default, without trainer.benchmark");
    return model;
  }
  std::vector<std::string> names;
  for (const auto way : ways) names.push_back(nn::attention_name(way));
  const auto shape = shape_of(options, dataset, group.size(), placement.precision.compute);
  const Stopwatch watch;
  const auto entry = fastest(group, TuningFile::of_user(), question_of(shape), names,
                             [&] { return nn::time_attention(shape, ways); });
  model.attn_implementation = entry.choice;
  say(entry.choice, entry.ways.empty() ? std::string("as timed before (troika doctor --tuning)")
                                       : fmt::format("the fastest, timed in {:.2f} s: {}",
                                                     watch.seconds(), times_text(entry)));
  return model;
}

}  // namespace troika::train
