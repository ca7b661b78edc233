// `troika export` and `troika import`: convert weights to a single safetensors file for other
// programs, and back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/foreign_weights.h"
#include "troika/checkpoint/hugging_face.h"
#include "troika/checkpoint/model_sizes.h"
#include "troika/checkpoint/peft.h"
#include "troika/checkpoint/weight_files.h"
#include "troika/cli/commands.h"
#include "troika/compat/torch.h"
#include "troika/nn/lora.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/options.h"

namespace troika::cli {

namespace {

struct Files {
  std::string from;
  std::string to;
};

// Where `troika export` writes: one of them.
struct Outputs {
  std::string file;
  std::string hf;    // folder of a model for Hugging Face's transformers
  std::string peft;  // folder of adapters for Hugging Face's PEFT
};

void report(const Files& files, const checkpoint::NamedTensors& tensors) {
  int64_t numbers = 0;
  for (const auto& [name, tensor] : tensors) numbers += tensor.numel();
  fmt::print("{}: {} tensors, {} numbers\n", files.to, tensors.size(), numbers);
}

bool has_adapters(const checkpoint::NamedTensors& tensors) {
  return std::ranges::any_of(tensors,
                             [](const auto& item) { return nn::is_adapter_parameter(item.first); });
}

// Returns the model of a checkpoint with these weights, in their type.
std::shared_ptr<nn::Model> model_with(const checkpoint::NamedTensors& tensors,
                                      const std::string& from) {
  auto model = nn::make_model(train::read_checkpoint_options(from).model);
  model->to(tensors.front().second.scalar_type());
  checkpoint::load_into(checkpoint::model_state(*model), tensors, from);
  return model;
}

void require_one(const std::string& from, const Outputs& outputs) {
  std::vector<std::string> given;
  if (!outputs.file.empty()) given.emplace_back("OUT");
  if (!outputs.hf.empty()) given.emplace_back("--hf");
  if (!outputs.peft.empty()) given.emplace_back("--peft");
  if (given.size() == 1) return;
  throw Error("export", ErrorKind::usage,
              {.what = "the weights of " + from + " need one output",
               .got = given.empty() ? "none" : fmt::format("{}", fmt::join(given, " and ")),
               .expected = "OUT, a file, or --hf=DIR, or --peft=DIR"});
}

int export_weights(const std::string& from, const Outputs& outputs) {
  require_one(from, outputs);
  auto tensors = checkpoint::load_weights(from);
  if (!outputs.peft.empty()) {
    const auto options = train::read_checkpoint_options(from);
    const auto model = model_with(tensors, from);
    checkpoint::save_peft(outputs.peft, *model, options.model.lora, options.weights.path);
    std::erase_if(tensors, [](const auto& item) { return !nn::is_adapter_parameter(item.first); });
    report({from, outputs.peft}, tensors);
    return 0;
  }
  if (has_adapters(tensors)) {
    const auto model = model_with(tensors, from);
    nn::merge_adapters(*model, model->options()->lora.scaling());
    tensors = checkpoint::model_state(*model);
  }
  if (!outputs.hf.empty()) {
    const auto options = train::read_checkpoint_options(from);
    checkpoint::save_hugging_face(outputs.hf, tensors, options.model);
    report({from, (std::filesystem::path(outputs.hf) / "model.safetensors").string()}, tensors);
    return 0;
  }
  const Files files{from, outputs.file};
  checkpoint::require_replaceable(files.to);
  // Hugging Face's transformers reject a file without this key.
  checkpoint::save_safetensors(files.to, tensors, {{"format", "pt"}});
  report(files, tensors);
  return 0;
}

// `peft` is the folder of adapters for the model; may be empty.
int import_weights(const Files& files, const std::string& model_name, const std::string& peft,
                   const std::vector<std::string>& more) {
  train::TrainOptions options;
  auto table = train::make_table(options);
  auto& model_options = options.model;
  for (const auto size : checkpoint::kGivenSizes) model_options.*size = checkpoint::kFromFile;
  for (const auto& argument : more) table.set_argument(argument);
  model_options.name = model_name;
  const auto from = checkpoint::in_model_folder(files.from);
  const auto given = checkpoint::load_weight_files(from);
  checkpoint::take_sizes(model_options, given, from);
  options.data.context = options.model.context;
  checkpoint::require_replaceable(files.to);
  const auto model = nn::make_model(options.model);
  auto own = checkpoint::model_state(*model);
  checkpoint::load_into(own, checkpoint::adapt_foreign(given, own, files.from), files.from);
  if (!peft.empty()) {
    const auto adapter = checkpoint::load_peft(peft);
    options.model.lora = adapter.options;
    nn::add_adapters(*model, adapter.options);
    own = checkpoint::model_state(*model);
    auto adapters = own;
    std::erase_if(adapters, [](const auto& item) { return !nn::is_adapter_parameter(item.first); });
    checkpoint::load_into(adapters, adapter.tensors, peft);
  }
  checkpoint::save_weights(files.to, own, train::checkpoint_metadata(options), {});
  report(files, own);
  return 0;
}

}  // namespace

Entry add_export(CLI::App& app) {
  auto* command = app.add_subcommand("export", "write the weights of a checkpoint to one file");
  const auto from = std::make_shared<std::string>();
  const auto to = std::make_shared<Outputs>();
  command->add_option("CHECKPOINT", *from, kCheckpointHelp)->required();
  command->add_option("OUT", to->file,
                      "safetensors file with only the weights, under PyTorch's names; adapters "
                      "(lora.rank) are merged into them");
  command->add_option(
      "--hf", to->hf,
      "instead of OUT: folder for Hugging Face's from_pretrained(), with merged adapters; only for "
      "gpt and llama");
  command->add_option("--peft", to->peft,
                      "instead of OUT: folder for the adapters alone, as Hugging Face's PEFT reads "
                      "them");
  return {command, [from, to] { return export_weights(*from, *to); }};
}

Entry add_import(CLI::App& app) {
  auto* command = app.add_subcommand("import", "convert weights that another program has saved");
  const auto files = std::make_shared<Files>();
  const auto model = std::make_shared<std::string>();
  command
      ->add_option(
          "FILE", files->from,
          "safetensors file, index.json of several, or folder of a model of Hugging Face, with the "
          "names of torchvision or of Hugging Face's GPT-2 or Llama")
      ->required();
  command->add_option("OUT", files->to, "safetensors file for troika")->required();
  command->add_option("--model", *model, "model of the weights, one of the names of model.name")
      ->required();
  const auto peft = std::make_shared<std::string>();
  command->add_option("--peft", *peft,
                      "folder of LoRA adapters for the model, which Hugging Face's PEFT has saved");
  command->allow_extras();
  command->footer(
      "Sizes are read from the file, and the number of heads of a GPT-2 or Llama from config.json "
      "beside it. Options of the model may follow, for example --model.heads=12.");
  return {command, [command, files, model, peft] {
            return import_weights(*files, *model, *peft, command->remaining());
          }};
}

}  // namespace troika::cli
