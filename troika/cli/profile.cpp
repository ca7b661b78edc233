#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>
#include <system_error>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/cli/between.h"
#include "troika/cli/commands.h"
#include "troika/cli/configuration.h"
#include "troika/cli/refuse_argument.h"
#include "troika/cli/session.h"
#include "troika/compat/torch.h"
#include "troika/data/make_dataset.h"
#include "troika/train/profile/counted_blocks.h"
#include "troika/train/profile/measure_profile.h"
#include "troika/train/profile/plan_memory.h"
#include "troika/train/run/run_group.h"

namespace troika::cli {

namespace {

struct ProfileArguments : ConfigArguments {
  std::string output = "profile.json";
  train::ProfileOptions asked;
};

// Measuring takes long, so a file that cannot be written is refused before it.
void require_writable(const std::filesystem::path& output) {
  std::error_code none;
  if (!std::filesystem::is_directory(output, none)) return;
  refuse_argument("profile", "--output", output.string() + ", a folder", "a file");
}

void print_link(const char* name, const layout::MeasuredLink& link) {
  if (link.link.bandwidth == 0) return;
  fmt::print("{:<11} {:.3g} us, {}/s, spread {:.1f} %\n", name, link.link.latency * 1e6,
             human_bytes(link.link.bandwidth), link.spread * 100);
}

void print_profile(const layout::Profile& profile) {
  fmt::print("model       {}, precision {}, micro-batches of {:g}\n", profile.model.name,
             profile.precision, profile.micro_batch);
  fmt::print("device      {}, {:.4g} FLOPs a second\n", profile.device, profile.device_flops);
  print_link("in a node", profile.group);
  print_link("nodes", profile.network);
  fmt::print("optimizer   {}/s of parameters, states {:.3g} times as large\n\n",
             human_bytes(profile.optimizer_bytes_per_second), profile.optimizer_factor);
  size_t widest = 5;
  for (const auto& block : profile.blocks) widest = std::max(widest, block.name.size());
  fmt::print("{:<{}} {:>10} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10} {:>10}\n", "block", widest,
             "forward", "inputs", "weights", "spread", "output", "saved", "parameters",
             "workspace");
  const auto milliseconds = [](double seconds) { return fmt::format("{:.4g} ms", seconds * 1e3); };
  for (const auto& block : profile.blocks) {
    fmt::print("{:<{}} {:>10} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10} {:>10}\n", block.name,
               widest, milliseconds(block.forward), milliseconds(block.backward_input),
               milliseconds(block.backward_weight), fmt::format("{:.1f} %", block.spread * 100),
               human_bytes(block.output_bytes), human_bytes(block.saved_bytes),
               human_bytes(block.parameter_bytes), human_bytes(block.workspace_bytes));
  }
}

int profile_here(const ProfileArguments& arguments, train::TrainOptions options,
                 const cluster::Environment& environment) {
  check_memory(options);
  const auto group = join(options, environment);
  train::require_group_of(options, group);
  const auto dataset = data::make_dataset(options.data, data::Split::train);
  options.model = fit_model(options, *dataset);
  auto asked = arguments.asked;
  if (const auto room = train::memory_of_rank(options, group)) {
    const int64_t samples =
        asked.micro_batch > 0 ? asked.micro_batch : train::profiled_batch(options, group);
    if (!asked.block_by_block) {
      const double needed = train::bytes_of_profiles(options, *dataset, {samples}, group).front();
      asked.block_by_block = needed > *room;
      if (asked.block_by_block && group.rank() == 0) {
        log::info(
            "measured block by block: a step of the whole model needs {} on a rank, which has {}",
            human_bytes(needed), human_bytes(*room));
      }
    }
    if (asked.block_by_block) {
      const double least = train::bytes_of_profile_by_blocks(options, *dataset, samples, group);
      if (least > *room) {
        throw Error("profile", ErrorKind::usage,
                    {.what = "a block of the model does not fit in a rank's memory",
                     .got = human_bytes(least),
                     .expected = "at most " + human_bytes(*room),
                     .hint = "a smaller --micro-batch, or fewer ranks on each machine"});
      }
    }
  }
  const auto profile = train::measure_profile(options, *dataset, group, asked);
  if (group.rank() != 0) return 0;
  write_file_atomically(arguments.output, profile.text());
  print_profile(profile);
  fmt::print("\n{}\n", arguments.output);
  return 0;
}

}  // namespace

Entry add_profile(CLI::App& app) {
  auto* command = app.add_subcommand(
      "profile", "measure the times and bytes of a model's blocks, and the links between ranks");
  const auto arguments = std::make_shared<ProfileArguments>();
  add_config_arguments(*command, *arguments);
  command->add_option("--output", arguments->output,
                      "JSON file to write, for --profile; default: profile.json");
  command
      ->add_option("--micro-batch", arguments->asked.micro_batch,
                   "samples of a micro-batch on each rank; default: those of the run")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command
      ->add_option("--seconds", arguments->asked.seconds,
                   "for the passes of the blocks; default: 3")
      ->check(between(0, 3600));
  command->add_flag("--block-by-block", arguments->asked.block_by_block,
                    "measure one block at a time, with the memory of no other block; done in any "
                    "case if a step of the whole model does not fit in memory");
  command->add_option("--like", arguments->asked.like,
                      "scale the times to a device with published rates, such as A100");
  return {command, [command, arguments] {
            require_writable(arguments->output);
            const auto& asked = arguments->asked;
            std::vector<std::string> more{"--output",
                                          std::filesystem::absolute(arguments->output).string(),
                                          "--seconds", fmt::format("{}", asked.seconds)};
            if (asked.micro_batch > 0) {
              more.insert(more.end(), {"--micro-batch", std::to_string(asked.micro_batch)});
            }
            if (asked.block_by_block) more.emplace_back("--block-by-block");
            if (!asked.like.empty()) more.insert(more.end(), {"--like", asked.like});
            return run_configured(
                "profile", *arguments, command->remaining(),
                [&](train::TrainOptions options, const cluster::Environment& environment) {
                  return profile_here(*arguments, std::move(options), environment);
                },
                more);
          }};
}

}  // namespace troika::cli
