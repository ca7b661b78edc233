#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

#include "troika/base/error.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/cli/commands.h"
#include "troika/compat/torch.h"
#include "troika/nn/sampling.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/options/options.h"

namespace troika::cli {

namespace {

struct SampleArguments {
  std::string checkpoint;
  std::string prompt = "\n";
  int64_t length = 500;
  nn::SamplingOptions choice = {.temperature = 0.8};
  int64_t seed = 0;
};

int print_sample(const SampleArguments& arguments) {
  const auto options = train::read_checkpoint_options(arguments.checkpoint);
  const auto& name = options.model.name;
  if (name.empty() || nn::sample_kind(name) != nn::SampleKind::text) {
    throw Error("sample", ErrorKind::usage,
                {.what = arguments.checkpoint + " is not of a language model",
                 .got = name.empty() ? "a module of a program" : name,
                 .expected = "gpt or llama"});
  }
  const auto model = nn::make_model(options.model);
  checkpoint::load_checkpoint(arguments.checkpoint, *model);
  model->eval();
  torch::manual_seed(static_cast<uint64_t>(arguments.seed));

  std::vector<int64_t> text;
  for (const char c : arguments.prompt) text.push_back(static_cast<unsigned char>(c));
  std::cout << arguments.prompt;
  // Text is bytes, and the context length is that of training.
  nn::continue_text(*model, options.data.context, text, arguments.length, arguments.choice,
                    [](int64_t byte) { std::cout << static_cast<char>(byte) << std::flush; });
  std::cout << '\n';
  return 0;
}

}  // namespace

Entry add_sample(CLI::App& app) {
  auto* command = app.add_subcommand("sample", "print text that a trained gpt or llama continues");
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
      ->add_option("--temperature", arguments->choice.temperature,
                   "randomness of the text; 0: always the most likely byte")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--top-k", arguments->choice.top_k, "only the K most likely bytes; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--top-p", arguments->choice.top_p,
                   "only the most likely bytes whose probabilities sum to at least P; 1: all")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "seed of the random numbers")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  return {command, [arguments] { return print_sample(*arguments); }};
}

}  // namespace troika::cli
