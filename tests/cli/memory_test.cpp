// `troika memory`, and what `troika train` says of the memory it took.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing_support::run_program;

const std::string kModel =
    " --model.name=mlp --model.hidden_width=256 --optim.name=adamw --data.batch_size=8";

class Memory : public testing::Test {
 protected:
  testing_support::Outcome troika(const std::string& arguments) {
    return run_program("cd " + folder_.path().string() + " && exec " + TROIKA_PROGRAM + " " +
                       arguments);
  }
  const TemporaryFolder folder_;
};

TEST_F(Memory, MarksWhatFitsIntoTheBudget) {
  const auto all = nlohmann::json::parse(
      troika("memory --json --ranks=1,4 --trainer.strategy=zero2" + kModel).out);
  int64_t least = INT64_MAX;
  int64_t most = 0;
  int configured = 0;
  for (const auto& row : all["predictions"]) {
    least = std::min<int64_t>(least, row["peak_bytes"]);
    most = std::max<int64_t>(most, row["peak_bytes"]);
    configured += row["configured"].get<bool>();
    int64_t sum = 0;
    for (const auto& part : row["step"]) sum += part.get<int64_t>();
    EXPECT_NEAR(sum, std::min<int64_t>(sum, row["peak_bytes"]), 8) << row;
  }
  EXPECT_EQ(configured, 2) << "once for each number of ranks";
  EXPECT_LT(least, most / 2);
  // Halfway between, some fit.
  const int64_t budget = all["process_bytes"].get<int64_t>() + (least + most) / 2;
  const auto outcome = troika("memory --json --ranks=1,4 --trainer.strategy=zero2 --budget=" +
                              std::to_string(budget) + "B" + kModel);
  int fit = 0;
  const auto rows = nlohmann::json::parse(outcome.out)["predictions"];
  for (const auto& row : rows) {
    fit += row["fits"].get<bool>();
    if (row["peak_bytes"] == least || row["peak_bytes"] == most) {
      EXPECT_EQ(row["fits"].get<bool>(), row["peak_bytes"] == least) << row;
    }
  }
  EXPECT_GT(fit, 0);
  EXPECT_LT(fit, static_cast<int>(rows.size()));
}

TEST_F(Memory, ComesAsATableOfAllChoices) {
  const auto outcome = troika("memory --all --budget=6GiB" + kModel);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("> 32 +none +ddp [^\n]* fits\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("\n  bf16-mixed +full +zero2 "));
}

TEST_F(Memory, AdvisesTheFastestThatFits) {
  const auto large = troika("memory" + kModel);
  ASSERT_EQ(large.exit_code, 0) << large.err;
  EXPECT_THAT(large.out,
              ContainsRegex("what is configured fits into [0-9.]+ [MGT]iB \\(what is left of"));
  EXPECT_LT(std::count(large.out.begin(), large.out.end(), '\n'), 10) << large.out;
  const std::string wider =
      " --model.name=mlp --model.hidden_width=1024 --optim.name=adamw --ranks=4";
  const auto all = nlohmann::json::parse(troika("memory --json" + wider).out);
  auto budget = all["process_bytes"].get<int64_t>();
  for (const auto& row : all["predictions"]) {
    if (row["configured"]) budget += row["peak_bytes"].get<int64_t>() * 9 / 10;
  }
  const auto small = troika(fmt::format("memory --budget={}B{}", budget, wider));
  EXPECT_THAT(small.out, HasSubstr("--trainer.precision=32 --trainer.recompute="));
  EXPECT_THAT(troika("memory --budget=1MiB" + kModel).out, HasSubstr("nothing fits into 1.0 MiB"));
}

// Without the check the kernel ends the process, and nobody says why.
TEST_F(Memory, ATensorThatNoMemoryIsLeftForIsRefused) {
  const std::string large =
      " --model.name=mlp --model.hidden_width=2000000 --data.train_samples=64";
  for (const std::string command : {"memory", "train"}) {
    const auto outcome = troika(command + large);
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_THAT(
        outcome.err,
        ContainsRegex("no memory for a tensor of [0-9.]+ [GT]iB; got [0-9.]+ [GMK]iB left of"));
    EXPECT_THAT(outcome.err, HasSubstr("trainer.memory_check=off"));
  }
}

TEST_F(Memory, ARunThatDoesNotFitIsRefusedBeforeItStarts) {
  const auto outcome = troika(
      "train --model.name=mlp --model.hidden_width=2000 --data.batch_size=1000000000 "
      "--data.train_samples=64 --trainer.devices=2");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      ContainsRegex(
          "the run does not fit into memory; got [0-9.]+ TiB of tensors on each rank, "
          "predicted, expected at most [0-9.]+ [GM]iB: what is left of .*, for 2 ranks here"));
  EXPECT_THAT(outcome.err, HasSubstr("nothing that `troika memory` knows fits"));
}

TEST_F(Memory, RefusesWhatItCannotPredict) {
  const auto outcome = troika("memory --trainer.strategy=diloco" + kModel);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("diloco"));
  EXPECT_EQ(troika("memory --budget=much").exit_code, 2);
}

TEST_F(Memory, TrainingTakesWhatIsPredicted) {
  const auto outcome = troika(
      "train --trainer.devices=2 --trainer.max_epochs=1 --trainer.strategy=zero2 "
      "--data.train_samples=64 "
      "--data.validation_samples=8 --run.name=here" +
      kModel);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("peak memory +[0-9.]+ MiB \\(predicted [0-9.]+ MiB\\)"));
  const auto summary = nlohmann::json::parse(read_file(folder_ / "runs/here/summary.json"));
  const auto predicted = summary["predicted_tensor_bytes"].get<double>();
  ASSERT_EQ(summary["peak_tensor_bytes"].size(), 2u);
  for (const auto& measured : summary["peak_tensor_bytes"]) {
    EXPECT_LE(predicted, 1.10 * measured.get<double>());
    EXPECT_GE(predicted, 0.97 * measured.get<double>());
  }
}

}  // namespace
}  // namespace troika
