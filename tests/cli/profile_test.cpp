// `troika profile`, and plans that `troika plan` and `troika train` find by it.
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
