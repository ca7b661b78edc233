#include "troika/train/options/weight_sizes.h"

#include <fmt/format.h>

#include <optional>

#include "troika/base/error.h"
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
  return model;
}

void require_same_scaling(const nn::ModelOptions& model, const std::filesystem::path& path) {
  if (model.lora.rank == 0) return;
  const auto described = described_model(checkpoint::in_model_folder(path));
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
