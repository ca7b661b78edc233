// `troika export` and `troika import`: convert weights to a single safetensors file for other
// programs, and back.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/foreign_weights.h"
#include "troika/checkpoint/hugging_face.h"
#include "troika/checkpoint/model_sizes.h"
#include "troika/checkpoint/weight_files.h"
#include "troika/cli/commands.h"
#include "troika/compat/torch.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/options.h"

namespace troika::cli {

namespace {

struct Files {
  std::string from;
  std::string to;
};

void report(const Files& files, const checkpoint::NamedTensors& tensors) {
  int64_t numbers = 0;
  for (const auto& [name, tensor] : tensors) numbers += tensor.numel();
  fmt::print("{}: {} tensors, {} numbers\n", files.to, tensors.size(), numbers);
}

// `hf` is the folder for a model in the format of Hugging Face's transformers; may be empty.
int export_weights(Files files, const std::string& hf) {
  if (files.to.empty() == hf.empty()) {
    throw Error("export", ErrorKind::usage,
                {.what = "there is more than one output, or none",
                 .got = hf.empty() ? "neither OUT nor --hf" : "OUT and --hf",
                 .expected = "OUT, a file, or --hf=DIR"});
  }
  const auto tensors = checkpoint::load_weights(files.from);
  if (!hf.empty()) {
    const auto options = train::read_checkpoint_options(files.from);
    checkpoint::save_hugging_face(hf, tensors, options.model);
    files.to = (std::filesystem::path(hf) / "model.safetensors").string();
    report(files, tensors);
    return 0;
  }
  checkpoint::require_replaceable(files.to);
  // Hugging Face's transformers reject a file without this key.
  checkpoint::save_safetensors(files.to, tensors, {{"format", "pt"}});
  report(files, tensors);
  return 0;
}

int import_weights(const Files& files, const std::string& model_name,
                   const std::vector<std::string>& more) {
  train::TrainOptions options;
  auto table = train::make_table(options);
  auto& model_options = options.model;
  for (const auto size : checkpoint::kGivenSizes) model_options.*size = checkpoint::kFromFile;
  for (const auto& argument : more) table.set_argument(argument);
  model_options.name = model_name;
  const auto given = checkpoint::load_weight_files(files.from);
  checkpoint::take_sizes(model_options, given, files.from);
  options.data.context = options.model.context;
  checkpoint::require_replaceable(files.to);
  const auto model = nn::make_model(options.model);
  const auto own = checkpoint::model_state(*model);
  checkpoint::load_into(own, checkpoint::adapt_foreign(given, own, files.from), files.from);
  checkpoint::save_weights(files.to, own, train::checkpoint_metadata(options), {});
  report(files, own);
  return 0;
}

}  // namespace

Entry add_export(CLI::App& app) {
  auto* command = app.add_subcommand("export", "write the weights of a checkpoint to one file");
  const auto files = std::make_shared<Files>();
  const auto hf = std::make_shared<std::string>();
  command->add_option("CHECKPOINT", files->from, kCheckpointHelp)->required();
  command->add_option("OUT", files->to,
                      "safetensors file with only the weights, under PyTorch's names");
  command->add_option(
      "--hf", *hf,
      "instead of OUT: folder for Hugging Face's from_pretrained(); only for gpt and llama");
  return {command, [files, hf] { return export_weights(*files, *hf); }};
}

Entry add_import(CLI::App& app) {
  auto* command = app.add_subcommand("import", "convert weights that another program has saved");
  const auto files = std::make_shared<Files>();
  const auto model = std::make_shared<std::string>();
  command
      ->add_option(
          "FILE", files->from,
          "safetensors file, or index.json of several, with the names of torchvision or of "
          "Hugging Face's GPT-2 or Llama")
      ->required();
  command->add_option("OUT", files->to, "safetensors file for troika")->required();
  command->add_option("--model", *model, "model of the weights, one of the names of model.name")
      ->required();
  command->allow_extras();
  command->footer(
      "Sizes are read from the file, and the number of heads of a GPT-2 or Llama from config.json "
      "beside it. Options of the model may follow, for example --model.heads=12.");
  return {command,
          [command, files, model] { return import_weights(*files, *model, command->remaining()); }};
}

}  // namespace troika::cli
