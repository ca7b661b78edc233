#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

#include "troika/base/error.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/cli/commands.h"
#include "troika/compat/torch.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/options.h"

namespace troika::cli {

namespace {

struct SampleArguments {
  std::string checkpoint;
  std::string prompt = "\n";
  int64_t length = 500;
  double temperature = 0.8;
  int64_t seed = 0;
};

// Returns the most likely byte at temperature 0, otherwise one drawn from softmax(logits /
// temperature).
int64_t choose(const at::Tensor& logits, double temperature) {
  if (temperature == 0) return logits.argmax().item<int64_t>();
  return at::multinomial((logits / temperature).softmax(-1), 1).item<int64_t>();
}

int print_sample(const SampleArguments& arguments) {
  const auto options = train::read_checkpoint_options(arguments.checkpoint);
  if (options.model.name != "gpt") {
    throw Error("sample", ErrorKind::usage,
                {.what = arguments.checkpoint + " is not of a language model",
                 .got = options.model.name.empty() ? "a module of a program" : options.model.name,
                 .expected = "gpt"});
  }
  // Text is bytes, and the context length is that of training.
  nn::ModelOptions shape = options.model;
  shape.context = options.data.context;
  const auto model = nn::make_model(shape);
  checkpoint::load_checkpoint(arguments.checkpoint, *model);
  model->eval();
  torch::manual_seed(static_cast<uint64_t>(arguments.seed));

  const at::NoGradGuard no_grad;
  std::vector<int64_t> text;
  for (const char c : arguments.prompt) text.push_back(static_cast<unsigned char>(c));
  std::cout << arguments.prompt;
  for (int64_t i = 0; i < arguments.length; ++i) {
    const auto seen = std::min<int64_t>(static_cast<int64_t>(text.size()), shape.context);
    const auto input = torch::tensor(std::vector<int64_t>(text.end() - seen, text.end()));
    const auto logits = model->forward(input.unsqueeze(0))[0][-1];
    text.push_back(choose(logits, arguments.temperature));
    std::cout << static_cast<char>(text.back()) << std::flush;
  }
  std::cout << '\n';
  return 0;
}

}  // namespace

Entry add_sample(CLI::App& app) {
  auto* command = app.add_subcommand("sample", "print text that a trained gpt continues");
  const auto arguments = std::make_shared<SampleArguments>();
  command->add_option("CHECKPOINT", arguments->checkpoint, kCheckpointHelp)->required();
  command->add_option("--prompt", arguments->prompt, "text to continue")
      ->check([](const std::string& text) {
        return text.empty() ? std::string("the prompt must not be empty") : std::string();
      });
  command->add_option("--length", arguments->length, "bytes to print")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--temperature", arguments->temperature,
                   "randomness of the text; 0: always the most likely byte")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", arguments->seed, "seed of the random numbers")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  return {command, [arguments] { return print_sample(*arguments); }};
}

}  // namespace troika::cli
