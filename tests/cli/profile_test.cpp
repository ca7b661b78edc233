// `troika profile`, and plans that `troika plan` and `troika train` find by it.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing_support::run_program;

const std::string kProfiledRun =
    " --model.name=mlp --model.hidden_width=64 --data.train_samples=64 --data.validation_samples=8"
    " --data.global_batch_size=16 --trainer.max_epochs=1 --trainer.enable_progress_bar=false"
    " --trainer.threads=1 --trainer.benchmark=false";

class ProfileCommand : public testing::Test {
 protected:
  testing_support::Outcome troika(const std::string& arguments) {
    return run_program("cd " + folder_.path().string() + " && exec " + TROIKA_PROGRAM + " " +
                       arguments);
  }
  const TemporaryFolder folder_;
};

TEST_F(ProfileCommand, MeasuresOnTheRanksOfTheRun) {
  const auto outcome = troika("profile --trainer.devices=2 --seconds=0" + kProfiledRun);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("model       mlp, precision 32, micro-batches of 8\n"),
                                 ContainsRegex("in a node   .* us, .*/s, spread"),
                                 HasSubstr("/profile.json\n")));
  const auto profile = nlohmann::json::parse(read_file(folder_ / "profile.json"));
  EXPECT_EQ(profile["micro_batch"], 8);
  EXPECT_GT(profile["blocks"].size(), 2);
  EXPECT_GT(profile["links"]["group"]["bandwidth"], 0);
  // The search reads it.
  const auto found = troika(
      "plan --profile profile.json --machines 2 --bandwidth 1e9 --global-batch 16 --json "
      "found.json");
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_TRUE(nlohmann::json::parse(read_file(folder_ / "found.json"))["feasible"]);
}

TEST_F(ProfileCommand, RefusesAFolderBeforeItMeasures) {
  const auto outcome = troika("profile --output ." + kProfiledRun);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("[profile] --output; got ., a folder, expected a file"));
}

// Layers of 2 heads and of width 32, for 64 tokens of 256 words.
TEST_F(ProfileCommand, WritesWhatATensorAxisCuts) {
  write_file_atomically(folder_ / "text", std::string(2000, 'a'));
  const auto profiled = [&](const std::string& model) {
    const auto outcome = troika(
        "profile --seconds=0 --data.name=text --data.files=text --data.global_batch_size=2 "
        "--trainer.threads=1 --trainer.benchmark=false --data.context=64 " +
        model);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(read_file(folder_ / "profile.json"))["blocks"];
  };
  const auto simulated = [&](bool cuts_tokens) {
    write_file_atomically(
        folder_ / "plan.toml",
        fmt::format("[mesh]\naxes = \"tensor=2\"\nsequence_parallel = {}\n", cuts_tokens));
    write_file_atomically(
        folder_ / "cluster.toml",
        "[links.network]\nbandwidth = 1e9\n[[devices]]\nhost = \"a\"\ncount = 2\n");
    return troika("simulate --profile profile.json --plan plan.toml --cluster cluster.toml");
  };
  const std::string sizes = "--model.layers=2 --model.heads=2 --model.width=32";
  const auto gpt = profiled("--model.name=gpt " + sizes);
  const auto& layer = gpt[1]["tensor"];
  EXPECT_EQ(layer["units"], 2);
  EXPECT_EQ(layer["tokens"], 64);
  // All but two norms of 2 * 32 and two biases of 32, of 12 * 32 * 32 + 13 * 32 numbers.
  EXPECT_NEAR(layer["parameter_share"].get<double>(), 1 - 6 * 32.0 / (12 * 32 * 32 + 13 * 32),
              1e-9);
  EXPECT_EQ(layer["forward_sums"], 2);
  EXPECT_EQ(layer["backward_sums"], 2);
  EXPECT_EQ(layer["backward_gathers"], 2) << "the inputs of attention and MLP";
  EXPECT_EQ(layer["sum_bytes"], 2 * 64 * 32 * 4);
  EXPECT_EQ(layer["cuts_output"], false);
  EXPECT_GT(layer["time_share"], 0.5);
  EXPECT_GT(layer["saved_share"], 0.4);
  EXPECT_GT(layer["token_saved_share"], 0.1);
  // With sequence parallelism, nothing that a layer keeps is whole.
  EXPECT_NEAR(layer["saved_share"].get<double>() + layer["token_saved_share"].get<double>(), 1,
              0.01);
  // Queries, keys, values and the first product of the MLP are 7 of 12 squares.
  EXPECT_NEAR(layer["weight_share_beside_sums"].get<double>(), 7 / 12.0, 1e-9);
  EXPECT_GT(layer["input_share_beside_gathers"], 0.05);
  EXPECT_LT(layer["input_share_beside_gathers"], layer["weight_share_beside_sums"]);
  EXPECT_EQ(gpt.back()["tensor"]["weight_share_beside_sums"], 0) << "the logits' weight";
  EXPECT_EQ(layer["counted_ranks"], 2);
  EXPECT_LT(layer["of_rank"]["saved_bytes"], gpt[1]["saved_bytes"]);
  EXPECT_NEAR(layer["of_rank_with_tokens"]["saved_bytes"].get<double>(),
              gpt[1]["saved_bytes"].get<double>() / 2, 0.01 * gpt[1]["saved_bytes"].get<double>());
  EXPECT_EQ(gpt.front()["tensor"]["backward_gathers"], 1) << "the gradient of the output";
  EXPECT_EQ(gpt.back()["tensor"]["backward_sums"], 1);
  EXPECT_EQ(gpt.back()["tensor"]["backward_gathers"], 0)
      << "the head gathers its input and scatters its gradient, as a sum does";
  EXPECT_EQ(simulated(true).exit_code, 0);
  const auto llama = profiled("--model.name=llama --model.kv_heads=1 " + sizes);
  for (const auto& block : llama) EXPECT_FALSE(block.contains("tensor")) << "one head of keys";
  const auto refused = simulated(false);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("[layout] block "));
  EXPECT_EQ(profiled("--model.name=llama " + sizes)[1]["tensor"]["forward_sums"], 2);
  EXPECT_EQ(simulated(false).exit_code, 0);
}

// A step is one micro-batch whose backward pass is whole, so that only an axis whose ranks compute
// blocks together takes less time than one rank.
TEST_F(ProfileCommand, TrainsPlansWithATensorOrAContextAxis) {
  write_file_atomically(folder_ / "text", std::string(2000, 'a'));
  const std::string run =
      " --data.name=text --data.files=text --data.global_batch_size=2 --trainer.threads=1 "
      "--trainer.benchmark=false --trainer.max_steps=2 --trainer.enable_progress_bar=false "
      "--model.name=llama --model.layers=2 --model.heads=4 --model.kv_heads=4 --model.width=32";
  const auto measured = troika("profile --seconds=0 --data.context=64" + run);
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  const auto measured_profile = nlohmann::json::parse(read_file(folder_ / "profile.json"));
  const auto write_profile_without = [&](const char* axis) {
    auto profile = measured_profile;
    for (auto& block : profile["blocks"]) {
      for (const char* pass : {"forward", "backward_input", "backward_weight"}) {
        block[std::string(pass) + "_seconds"] = 1;
      }
      block["spread"] = 0;
      block.erase(axis);
    }
    profile["splits_backward"] = false;
    profile.erase("optimizer_bytes_per_second");  // so that ZeRO saves no time
    write_file_atomically(folder_ / "profile.json", profile.dump());
  };
  write_file_atomically(folder_ / "cluster.toml",
                        "[links.group]\nbandwidth = 1e12\n[[devices]]\nhost = \"a\"\ncount = 4\n");
  const std::string files = " --profile profile.json --cluster cluster.toml";
  const auto find = [&] {
    const auto found = troika("plan --global-batch 2 --json found.json" + files);
    EXPECT_EQ(found.exit_code, 0) << found.err;
    write_file_atomically(folder_ / "plan.toml", found.out);
    const auto simulated = troika("simulate --plan plan.toml --json simulated.json" + files);
    EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
    const double predicted =
        nlohmann::json::parse(read_file(folder_ / "found.json"))["plan"]["seconds_per_step"];
    EXPECT_NEAR(
        nlohmann::json::parse(read_file(folder_ / "simulated.json"))["step_seconds"].get<double>(),
        predicted, 0.01 * predicted);
    return found.out;
  };
  write_profile_without("context");
  EXPECT_THAT(find(), AllOf(HasSubstr("axes = \"data=1 tensor=4\""),
                            HasSubstr("sequence_parallel = true")));
  const std::string planned = "train --plan plan.toml --trainer.devices=4" + run;
  const auto trained = troika(planned + " --data.context=64");
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  // The run has the plan's sequence parallelism.
  const auto refused = troika(planned + " --run.name=other --data.context=62");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("got 62 tokens, 4 ranks, expected a multiple of 4 tokens"));
  write_profile_without("tensor");
  EXPECT_THAT(find(), HasSubstr("axes = \"data=1 context=4\""));
  const auto by_tokens = troika(planned + " --run.name=tokens --data.context=64");
  EXPECT_EQ(by_tokens.exit_code, 0) << by_tokens.err;
  const auto odd = troika(planned + " --run.name=odd --data.context=60");
  EXPECT_NE(odd.exit_code, 0);
  EXPECT_THAT(odd.err, HasSubstr("got 60 tokens, 4 ranks, expected a multiple of 8 tokens"));
}

// Layers of 4 heads, 2 of keys and values, and of width 32, for 2 samples of 64 tokens.
TEST_F(ProfileCommand, WritesWhatAContextAxisCuts) {
  write_file_atomically(folder_ / "text", std::string(2000, 'a'));
  const auto outcome = troika(
      "profile --seconds=0 --data.name=text --data.files=text --data.global_batch_size=2 "
      "--trainer.threads=1 --trainer.benchmark=false --data.context=64 --model.name=llama "
      "--model.layers=2 --model.heads=4 --model.kv_heads=2 --model.width=32");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto blocks = nlohmann::json::parse(read_file(folder_ / "profile.json"))["blocks"];
  for (const auto& block : blocks) {
    EXPECT_EQ(block["context"]["tokens"], 64);
    EXPECT_GT(block["context"]["time_share"], 0.9) << block["name"];
  }
  const auto& layer = blocks[1]["context"];
  const double pairs = 2 * 2.0 * 64 * 16 * 4;  // in float32
  EXPECT_EQ(layer["heads"], 4);
  EXPECT_EQ(layer["pair_bytes"], pairs);
  EXPECT_EQ(layer["pair_gradient_bytes"], pairs);
  EXPECT_EQ(layer["exchanges"], 4);
  EXPECT_EQ(layer["exchanged_bytes"], 3 * pairs);
  EXPECT_GT(layer["attention_share"], 0.01);
  EXPECT_LT(layer["attention_share"], 0.6);
  EXPECT_EQ(blocks.front()["context"]["pair_bytes"], 0);
  const auto mlp = troika("profile --seconds=0 --model.hidden_layers=3" + kProfiledRun);
  ASSERT_EQ(mlp.exit_code, 0) << mlp.err;
  for (const auto& block : nlohmann::json::parse(read_file(folder_ / "profile.json"))["blocks"]) {
    EXPECT_FALSE(block.contains("context")) << block["name"];
  }
}

TEST_F(ProfileCommand, WritesPairsOfLayers) {
  const auto outcome = troika("profile --seconds=0 --model.hidden_layers=3" + kProfiledRun);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto blocks = nlohmann::json::parse(read_file(folder_ / "profile.json"))["blocks"];
  ASSERT_EQ(blocks.size(), 4) << "columns, their rows, columns and the head's rows";
  std::vector<int> forward, backward;
  for (const auto& block : blocks) {
    const auto& cut = block["tensor"];
    forward.push_back(cut["forward_sums"]);
    backward.push_back(cut["backward_sums"]);
    EXPECT_EQ(cut["token_time_share"], 0) << block["name"];
  }
  EXPECT_THAT(forward, testing::ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(backward, testing::ElementsAre(0, 0, 1, 0)) << "data need no gradients";
  EXPECT_EQ(blocks[0]["tensor"]["cuts_output"], true);
  EXPECT_EQ(blocks[0]["tensor"]["parameter_share"], 1);
  EXPECT_EQ(blocks[1]["tensor"]["cuts_output"], false);
}

// A residual block of 16 channels: the first convolution and norm, and the second convolution.
TEST_F(ProfileCommand, WritesWhatATensorAxisCutsOfConvolutions) {
  const auto outcome = troika("profile --seconds=0" + kProfiledRun + " --model.name=resnet20");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto blocks = nlohmann::json::parse(read_file(folder_ / "profile.json"))["blocks"];
  EXPECT_FALSE(blocks[0].contains("tensor")) << "the stem";
  const auto& cut = blocks[1]["tensor"];
  EXPECT_EQ(cut["units"], 16);
  EXPECT_NEAR(cut["parameter_share"].get<double>(), 1 - 32.0 / (2 * 16 * 16 * 9 + 64), 1e-9);
  EXPECT_EQ(cut["forward_sums"], 1);
  EXPECT_EQ(cut["backward_sums"], 1);
  EXPECT_EQ(cut["cuts_output"], false);
  EXPECT_GT(cut["time_share"], 0.5);
  EXPECT_GT(cut["saved_share"], 0.3);
}

TEST_F(ProfileCommand, ScalesToAPublishedDevice) {
  const auto here = troika("profile --seconds=0" + kProfiledRun);
  EXPECT_EQ(here.exit_code, 0) << here.err;
  const auto like =
      troika("profile --seconds=0 --like=A100 --output=a100.json --micro-batch=4 --block-by-block" +
             kProfiledRun);
  EXPECT_EQ(like.exit_code, 0) << like.err;
  const auto profile = nlohmann::json::parse(read_file(folder_ / "a100.json"));
  EXPECT_EQ(profile["device"], "A100");
  EXPECT_EQ(profile["device_flops"], 19.5e12);
  EXPECT_EQ(profile["micro_batch"], 4);
  const auto unknown = troika("profile --seconds=0 --like=A10O" + kProfiledRun);
  EXPECT_NE(unknown.exit_code, 0);
  EXPECT_THAT(unknown.err, HasSubstr("no published rates of this device; got A10O"));
  EXPECT_NE(troika("profile --micro-batch=0" + kProfiledRun).exit_code, 0);
}

TEST_F(ProfileCommand, PlansAndRunsWhatItFound) {
  const std::string automatic = " --plan auto --profile-seconds=0 --trainer.devices=2";
  const auto plan = troika("plan" + automatic + kProfiledRun);
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("# cost model troika, 16 samples a step, 2 devices\n"),
                              HasSubstr("# savers     without a cut it fits with 32"),
                              ContainsRegex("# run it with --data.global_batch_size=[0-9]+\n")));
  write_file_atomically(folder_ / "plan.toml", plan.out);
  EXPECT_EQ(troika("plan --plan plan.toml").exit_code, 0);
  const auto train = troika("train" + automatic + kProfiledRun);
  EXPECT_EQ(train.exit_code, 0) << train.err;
  EXPECT_THAT(train.err, AllOf(ContainsRegex("plan auto\n  savers +without a cut it fits: "),
                               ContainsRegex("\n  plan .*micro-batches of"),
                               HasSubstr("plan auto: predicted and measured\n"),
                               ContainsRegex("  step +[0-9.]+ ms +[0-9.]+ ms +[-+][0-9.]+ %"),
                               ContainsRegex("  memory, rank 1 +[0-9.]+ .iB")));
  write_file_atomically(folder_ / "run.toml", "");
  // Both precisions are one. The word after them is the file.
  const auto too_small = troika(
      "train --plan auto --profile-seconds=0 --precisions 32,32-true run.toml --memory-bytes=1000" +
      kProfiledRun);
  EXPECT_NE(too_small.exit_code, 0);
  EXPECT_THAT(too_small.err, AllOf(HasSubstr("no plan for this model fits into memory"),
                                   HasSubstr("expected at most 1000 B, the memory of a rank")));
  for (const std::string option : {"--precisions=32", "--memory-bytes=1e9", "--block-by-block"}) {
    const auto alone = troika("train " + option + kProfiledRun);
    EXPECT_NE(alone.exit_code, 0);
    EXPECT_THAT(alone.err, HasSubstr(" without --plan auto; got "));
  }
  const auto refused = troika("plan --plan auto --ranks 4" + kProfiledRun);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("arguments beside --plan auto; got --ranks or --nodes"));
}

}  // namespace
}  // namespace troika
