// `troika memory`, and the memory that `troika train` reports.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"

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
    least = std::min<int64_t>(least, row["resident_bytes"]);
    most = std::max<int64_t>(most, row["resident_bytes"]);
    configured += row["configured"].get<bool>();
    int64_t sum = 0;
    for (const auto& part : row["step"]) sum += part.get<int64_t>();
    EXPECT_NEAR(sum, std::min<int64_t>(sum, row["peak_bytes"]), 8) << row;
  }
  EXPECT_EQ(configured, 2) << "once for each number of ranks";
  const int64_t libraries = all["process_bytes"];
  EXPECT_LT(least - libraries, (most - libraries) * 4 / 5);
  // Halfway between, some fit.
  const int64_t budget = (least + most) / 2;
  const auto outcome = troika("memory --json --ranks=1,4 --trainer.strategy=zero2 --budget=" +
                              std::to_string(budget) + "B" + kModel);
  int fit = 0;
  const auto rows = nlohmann::json::parse(outcome.out)["predictions"];
  for (const auto& row : rows) {
    fit += row["fits"].get<bool>();
    const int64_t resident = row["resident_bytes"];
    if (std::abs(resident - budget) > (most - least) / 4) {
      EXPECT_EQ(row["fits"].get<bool>(), resident < budget) << row;
    }
  }
  EXPECT_GT(fit, 0);
  EXPECT_LT(fit, static_cast<int>(rows.size()));
}

// The peer holds the bytes that a rank may send ahead over tcp, however large the model is.
TEST_F(Memory, CountsTheMailboxesOfTheBackEnd) {
  const auto predictions = [&](const std::string& backend) {
    const auto text = troika("memory --json --ranks=1,2,8 --comm.backend=" + backend + kModel).out;
    std::map<int, nlohmann::json> configured;
    const auto all = nlohmann::json::parse(text);
    for (const auto& row : all["predictions"]) {
      if (row["configured"]) configured[row["ranks"].get<int>()] = row;
    }
    return configured;
  };
  constexpr int64_t kMiB = int64_t{1} << 20;
  auto tcp = predictions("tcp"), gloo = predictions("gloo"), automatic = predictions("auto");
  EXPECT_EQ(tcp[1]["mailbox_bytes"], 0);
  EXPECT_EQ(tcp[2]["mailbox_bytes"], 2 * kMiB);
  EXPECT_EQ(tcp[8]["mailbox_bytes"], 14 * kMiB);
  EXPECT_EQ(gloo[8]["mailbox_bytes"], 0);
  EXPECT_EQ(automatic[8]["mailbox_bytes"], predictions("shm")[8]["mailbox_bytes"]);
  EXPECT_GT(automatic[8]["mailbox_bytes"], 10 * kMiB);
  EXPECT_LT(automatic[8]["mailbox_bytes"], 11 * kMiB);
  // Rows of one run of the program count the same libraries.
  const auto between = [](std::map<int, nlohmann::json>& rows) {
    return rows[8]["resident_bytes"].get<int64_t>() - rows[2]["resident_bytes"].get<int64_t>();
  };
  EXPECT_EQ(between(tcp) - between(gloo), 12 * kMiB);
  const auto table = troika("memory --ranks=8 --comm.backend=tcp" + kModel).out;
  EXPECT_THAT(table, HasSubstr("\n  mailboxes of the back end, at most: 14.0 MiB\n"));
}

TEST_F(Memory, ComesAsATableOfAllChoices) {
  const auto outcome = troika("memory --all --budget=6GiB" + kModel);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("> 32 +none +ddp [^\n]* fits\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("\n  bf16-mixed +full +zero2 "));
  for (const auto& line : split(outcome.out, '\n')) EXPECT_LE(line.size(), 110u) << line;
}

TEST_F(Memory, AdvisesTheFastestThatFits) {
  const auto large = troika("memory" + kModel);
  ASSERT_EQ(large.exit_code, 0) << large.err;
  EXPECT_THAT(large.out,
              ContainsRegex("what is configured fits into [0-9.]+ [MGT]iB, what is left of"));
  EXPECT_LT(std::count(large.out.begin(), large.out.end(), '\n'), 12) << large.out;
  const std::string wider =
      " --model.name=mlp --model.hidden_width=1024 --optim.name=adamw --ranks=4";
  const auto all = nlohmann::json::parse(troika("memory --json" + wider).out);
  int64_t budget = 0;
  for (const auto& row : all["predictions"]) {
    if (!row["configured"]) continue;
    budget = row["resident_bytes"].get<int64_t>() - row["peak_bytes"].get<int64_t>() / 10;
  }
  const auto small = troika(fmt::format("memory --budget={}B{}", budget, wider));
  EXPECT_THAT(small.out, HasSubstr("--trainer.precision=32 --trainer.recompute="));
  EXPECT_EQ(small.exit_code, 0) << "another choice fits";
  const auto least = troika("memory --budget=1MiB" + kModel);
  EXPECT_THAT(least.out, HasSubstr("does not fit into 1.0 MiB: no precision, recomputation, "));
  EXPECT_EQ(least.exit_code, 2);
}

TEST_F(Memory, SeveralNumbersOfRanksAreComparedWithThisMachine) {
  const auto outcome = troika("memory --ranks=1,4 --model.name=mlp --data.batch_size=5000");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, ContainsRegex("fits into [0-9.]+ [MGT]iB, what is left of"));
  EXPECT_THAT(
      outcome.out,
      ContainsRegex("fits into [0-9.]+ [MGT]iB, a share for each of 4 ranks of what is left "
                    "of [^\n]* \\(--budget says what ranks elsewhere have\\)"));
  EXPECT_THAT(outcome.err, HasSubstr("troika train would refuse this on 4 ranks: [train] "
                                     "data.batch_size is more than there is to train on; got "
                                     "5000, expected <= 2500"));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("on 1 rank")));
}

// Without the check the kernel ends the process, and nobody says why. This strategy's memory is not
// predicted, so the tensor itself is refused.
TEST_F(Memory, ATensorThatNoMemoryIsLeftForIsRefused) {
  const auto outcome = troika(
      "train --model.name=mlp --model.hidden_width=200000000 --data.train_samples=64 "
      "--trainer.strategy=diloco");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      ContainsRegex("no memory for a tensor of [0-9.]+ [GT]iB; got [0-9.]+ [GMK]iB left of"));
  EXPECT_THAT(outcome.err, HasSubstr("trainer.memory_check=off"));
}

// `part` is what takes more than there is, whatever is chosen.
void expect_refused(const testing_support::Outcome& outcome, const std::string& unit, int ranks,
                    const std::string& part) {
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.err,
              ContainsRegex(fmt::format(
                  "the run does not fit into memory; got [0-9.]+ {} of tensors on each rank, "
                  "predicted, expected at most [0-9.]+ [GM]iB: what is left of .*, for {} rank",
                  unit, ranks)));
  const std::string refused = "the run does not fit into memory";
  EXPECT_EQ(outcome.err.find(refused), outcome.err.rfind(refused)) << "told once";
  EXPECT_THAT(outcome.err,
              ContainsRegex("no precision, recomputation, strategy, batch or number of machines "
                            "makes it fit: [^\n]* " +
                            part + " takes [0-9.]+ [GT]iB"));
}

TEST_F(Memory, ARunThatDoesNotFitIsRefusedBeforeItStarts) {
  expect_refused(troika("train --model.name=mlp --model.hidden_width=2000000 --data.batch_size=32 "
                        "--data.train_samples=64 --trainer.devices=2"),
                 "TiB", 2, "the start, for which each rank makes the whole model,");
}

TEST_F(Memory, ABatchThatTheDataDoNotFillIsRefusedBeforeItsMemoryIsPredicted) {
  const auto outcome = troika(
      "train --model.name=mlp --model.hidden_width=2000 --data.batch_size=1000000000 "
      "--data.train_samples=64 --trainer.devices=2");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("data.batch_size is more than there is to train on; got 1000000000"));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("memory")));
}

// A hundred times this machine's memory, in a process that stays small.
TEST_F(Memory, AModelLargerThanTheMachineIsPredictedAndRefused) {
  write_file_atomically(folder_ / "text", std::string(100'000, 'x'));
  const std::string large =
      " --model.name=gpt --model.layers=96 --model.heads=96 --model.width=12288 --data.name=text "
      "--data.files=text --data.context=2048 --optim.name=adamw --data.batch_size=1";
  const auto outcome = troika("memory --json" + large);
  ASSERT_EQ(outcome.exit_code, 2) << outcome.err;
  int configured = 0;
  const auto prediction = nlohmann::json::parse(outcome.out);
  for (const auto& row : prediction["predictions"]) {
    if (!row["configured"]) continue;
    ++configured;
    // Parameters, their gradients and two moments: 12 width^2 + 13 width for each layer.
    const double parameters = 96.0 * (12.0 * 12288 + 13) * 12288 + (256.0 + 2048 + 2) * 12288;
    EXPECT_NEAR(row["step"]["parameters"].get<double>(), 4 * parameters, 1e-6 * parameters);
    EXPECT_NEAR(row["step"]["optimizer"].get<double>(), 8 * parameters, 1e-3 * parameters);
    EXPECT_GT(row["peak_bytes"].get<double>(), 16 * parameters);
    EXPECT_FALSE(row["fits"]);
  }
  EXPECT_EQ(configured, 1);
  expect_refused(troika("train" + large), "TiB", 1,
                 "a validation, for which each rank has all parameters,");
  rusage children = {};
  ASSERT_EQ(::getrusage(RUSAGE_CHILDREN, &children), 0);
  EXPECT_LT(children.ru_maxrss, 1 << 20) << "KiB, the most of all programs that this test has run";
}

// The whole of a process, by VmHWM of proc(5), which counts the shared buckets of the other rank,
// too: a machine has them once.
TEST_F(Memory, WhatFitsIsTrueOfWholeProcesses) {
  write_file_atomically(folder_ / "text", std::string(100'000, 'x'));
  for (const auto& [ranks, model] :
       {std::pair(1, "--model.name=mlp --model.hidden_width=1500"),
        {2, "--model.name=resnet18_cifar --data.batch_size=4"},
        {2,
         "--model.name=gpt --model.layers=4 --model.width=256 --model.heads=4 --data.name=text "
         "--data.files=text --data.batch_size=8"}}) {
    const int threads = 2 / ranks;
    const auto options = fmt::format(
        " --optim.name=adamw --trainer.devices={} --trainer.threads={} {}", ranks, threads, model);
    const auto prediction = troika("memory --json" + options);
    ASSERT_EQ(prediction.exit_code, 0) << prediction.err;
    double predicted = 0, shared = 0;
    const auto rows = nlohmann::json::parse(prediction.out);
    for (const auto& row : rows["predictions"]) {
      if (!row["configured"]) continue;
      predicted = row["resident_bytes"];
      shared = row["step"]["gradients"];
    }
    const auto outcome = troika(
        "train --run.name=here --run.overwrite=true --trainer.max_steps=2 "
        "--trainer.limit_val_batches=1 --data.train_samples=64 --data.validation_samples=16" +
        options);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto summary = nlohmann::json::parse(read_file(folder_ / "runs/here/summary.json"));
    ASSERT_EQ(summary["peak_resident_bytes"].size(), static_cast<size_t>(ranks));
    for (const auto& measured : summary["peak_resident_bytes"]) {
      fmt::print("{}, {} threads: predicted {:.1f} MiB, measured {:.1f} MiB\n", model, threads,
                 predicted / (1 << 20), measured.get<double>() / (1 << 20));
      EXPECT_LE(measured.get<double>(), 1.1 * predicted + shared);
      EXPECT_GE(measured.get<double>(), 0.8 * predicted);
    }
  }
}

TEST_F(Memory, WithoutAddressesNothingIsPredictedAndTheTensorItselfFails) {
  const auto outcome = run_program(
      "cd " + folder_.path().string() + " && ulimit -v 4000000 && exec " + TROIKA_PROGRAM +
      " train --model.name=mlp --model.hidden_width=40000 --data.train_samples=32");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("memory is not predicted: [base] no addresses for"));
}

TEST_F(Memory, APipelinesRanksTakeWhatIsPredicted) {
  const auto options = kModel +
                       " --trainer.devices=2 --trainer.strategy=1f1b --pipeline.micro_batches=4 "
                       "--trainer.memory_format=contiguous";
  const auto prediction = nlohmann::json::parse(troika("memory --json" + options).out);
  nlohmann::json predicted;
  for (const auto& row : prediction["predictions"]) {
    if (row["configured"]) predicted = row["pipeline_peak_bytes"];
  }
  ASSERT_EQ(predicted.size(), 2u);
  EXPECT_THAT(troika("memory" + options).out, ContainsRegex("\n  1 +[0-9.]+ [KM]iB"));
  const auto outcome = troika(
      "train --trainer.max_epochs=1 --data.train_samples=128 "
      "--data.validation_samples=8 --run.name=here" +
      options);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, ContainsRegex("\n  bubble +[0-9.]+ %, [0-9.]+ % of the passes' time"));
  const auto summary = nlohmann::json::parse(read_file(folder_ / "runs/here/summary.json"));
  const auto predicted_by_run = summary["predicted_tensor_bytes"];
  ASSERT_EQ(predicted_by_run.size(), 2u);
  const auto bytes = [](const nlohmann::json& list, size_t rank) {
    return list[rank].get<double>();
  };
  for (size_t rank = 0; rank < 2; ++rank) {
    // A trial pass measures a few hundred bytes more or less.
    EXPECT_NEAR(bytes(predicted_by_run, rank), bytes(predicted, rank),
                0.001 * bytes(predicted, rank));
    EXPECT_GE(bytes(predicted, rank), 0.97 * bytes(summary["peak_tensor_bytes"], rank)) << rank;
  }
  // The start of the second rank needs more than its steps, in which the summary's peak is.
  EXPECT_LE(bytes(predicted, 0), 1.05 * bytes(summary["peak_tensor_bytes"], 0));
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
  EXPECT_THAT(outcome.err, ContainsRegex("peak memory +[0-9.]+ MiB \\(predicted [0-9.]+ MiB\\)"));
  const auto summary = nlohmann::json::parse(read_file(folder_ / "runs/here/summary.json"));
  const auto predicted = summary["predicted_tensor_bytes"].at(0).get<double>();
  ASSERT_EQ(summary["peak_tensor_bytes"].size(), 2u);
  for (const auto& measured : summary["peak_tensor_bytes"]) {
    EXPECT_LE(predicted, 1.10 * measured.get<double>());
    EXPECT_GE(predicted, 0.97 * measured.get<double>());
  }
}

}  // namespace
}  // namespace troika
