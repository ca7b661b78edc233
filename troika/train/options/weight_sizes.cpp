#include "troika/train/options/weight_sizes.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/model_sizes.h"
#include "troika/checkpoint/weight_files.h"
#include "troika/train/options/checkpoint_options.h"

namespace troika::train {

namespace {

// Returns the model that the options in the weights' metadata describe, if there are any.
std::optional<nn::ModelOptions> described_model(const std::filesystem::path& path) {
  if (path.string().ends_with(".index.json")) return std::nullopt;
  const auto metadata = checkpoint::read_checkpoint_metadata(path);
  if (!metadata.contains(kOptionsKey)) return std::nullopt;
  return read_checkpoint_options(path).model;
}

// Throws Error(usage) if the options say another size than the weights, `model`. A size at its
// default is not compared.
void require_no_other_sizes(const TrainOptions& options, const nn::ModelOptions& model) {
  // A table's defaults are the values of its variables at the time when the table is made.
  TrainOptions given, from_weights = options;
  given.model.name = options.model.name;
  from_weights.model = model;
  from_weights.model.name = options.model.name;
  const auto of_given = make_table(given), of_weights = make_table(from_weights);
  given = options;
  from_weights = options;
  std::set<std::string> set;
  for (const auto& entry : of_given.changed()) set.insert(entry.key);
  for (const auto& [key, value, size, help] : of_weights.changed()) {
    if (!key.starts_with("model.") || !set.contains(key)) continue;
    throw Error(
        "train", ErrorKind::usage,
        {.what = "model.weights_sizes takes the sizes of model.weights, which has another " + key,
         .got = value,
         .expected = size,
         .hint = "leave " + key + " out"});
  }
}

bool is_language(const std::string& name) {
  return !name.empty() && nn::sample_kind(name) == nn::SampleKind::text;
}

}  // namespace

nn::ModelOptions with_sizes_of_weights(const TrainOptions& options) {
  if (options.weights.path.empty() || !is_language(options.model.name)) {
    throw Error("train", ErrorKind::usage,
                {.what = "model.weights_sizes needs weights of a language model",
                 .got = fmt::format("model.name {}, model.weights \"{}\"", options.model.name,
                                    options.weights.path),
                 .expected = "gpt or llama, and the path of its weights"});
  }
  const auto file = checkpoint::in_model_folder(options.weights.path);
  auto model = options.model;
  if (const auto described = described_model(file)) {
    if (!is_language(described->name) ||
        nn::model_family(described->name) != nn::model_family(model.name)) {
      throw Error("train", ErrorKind::usage,
                  {.what = "model.weights are those of another model",
                   .got = described->name,
                   .expected = model.name});
    }
    model = *described;
    model.attn_implementation = options.model.attn_implementation;
    model.dropout = options.model.dropout;
  } else {
    for (const auto size : checkpoint::kGivenSizes) model.*size = checkpoint::kFromFile;
    checkpoint::take_sizes(model, checkpoint::weight_shapes(file), file);
  }
  model.lora = options.model.lora;
  require_no_other_sizes(options, model);
  return model;
}

void require_same_scaling(const nn::ModelOptions& model, const std::filesystem::path& path) {
  if (model.lora.rank == 0) return;
  std::optional<nn::ModelOptions> described;
  try {
    described = described_model(checkpoint::in_model_folder(path));
  } catch (const Error& problem) {
    if (problem.kind() != ErrorKind::usage) throw;
    // Another version of Troika may have written options that no longer exist.
    log::warn("the scaling of the adapters of {} cannot be compared: {}", path.string(),
              problem.what());
    return;
  }
  if (!described || described->lora.rank == 0) return;
  const auto& own = model.lora;
  const auto& theirs = described->lora;
  if (own.alpha == theirs.alpha && own.use_rslora == theirs.use_rslora) return;
  const auto text = [](const nn::LoraOptions& lora) {
    return fmt::format("lora.alpha {}, lora.use_rslora {}", lora.alpha, lora.use_rslora);
  };
  throw Error("train", ErrorKind::usage,
              {.what = fmt::format("the adapters of {} are scaled in another way", path.string()),
               .got = text(own),
               .expected = text(theirs)});
}

}  // namespace troika::train
