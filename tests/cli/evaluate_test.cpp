// `troika validate`, `test` and `predict`, run as a user runs them.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"

namespace troika {
namespace {

using testing::HasSubstr;
using testing_support::run_program;

const std::string kTinyRun =
    " --model.name=mlp --model.hidden_width=16 --data.train_samples=96 "
    "--data.validation_samples=37 --data.global_batch_size=12 --trainer.precision=64 "
    "--trainer.max_epochs=2 --optim.lr=0.01 --data.augment=false --run.name=tiny";

class Evaluate : public testing::Test {
 protected:
  Evaluate() { train_ = troika("train" + kTinyRun); }
  testing_support::Outcome troika(const std::string& arguments) {
    return run_program("cd " + folder_.path().string() + " && exec " + TROIKA_PROGRAM + " " +
                       arguments);
  }
  // Returns the numbers that `troika ARGUMENTS` prints, by name.
  std::map<std::string, double> metrics(const std::string& arguments) {
    const auto outcome = troika(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.orphans, 0);
    std::map<std::string, double> result;
    for (const auto& line : split(trim(outcome.out), '\n')) {
      const auto words = split(line, ' ');
      const auto value = words.size() == 2 ? parse_double(words[1]) : std::nullopt;
      if (value) result[words[0]] = *value;
    }
    return result;
  }
  // Returns the [37, classes] numbers of a file of predictions.
  std::vector<double> predictions(const std::string& name) const {
    const auto bytes = read_file(folder_ / name);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto json = nlohmann::json::parse(bytes.substr(sizeof header, header));
    EXPECT_EQ(json["predictions"]["dtype"], "F64");
    EXPECT_EQ(json["predictions"]["shape"][0], 37);
    std::vector<double> result((bytes.size() - sizeof header - header) / sizeof(double));
    std::memcpy(result.data(), bytes.data() + sizeof header + header,
                result.size() * sizeof(double));
    return result;
  }

  const TemporaryFolder folder_;
  testing_support::Outcome train_;
};

TEST_F(Evaluate, TheLastCheckpointIsJudgedAlikeOnAnyNumberOfProcesses) {
  ASSERT_EQ(train_.exit_code, 0) << train_.err;
  const auto json = nlohmann::json::parse(read_file(folder_ / "runs/tiny/summary.json"));
  const auto configuration = read_file(folder_ / "runs/tiny/config.toml");
  for (const char* devices : {"1", "2", "3"}) {
    const auto tested =
        metrics("test runs/tiny/config.toml --trainer.devices=" + std::string(devices));
    ASSERT_EQ(tested.size(), 2u);
    EXPECT_NEAR(tested.at("test/loss"), json["validation_loss"].get<double>(), 1e-12);
    EXPECT_EQ(tested.at("test/accuracy"), json["validation_accuracy"].get<double>());
  }
  EXPECT_NEAR(metrics("validate runs/tiny/config.toml").at("validation/loss"),
              json["validation_loss"].get<double>(), 1e-12);
  EXPECT_EQ(read_file(folder_ / "runs/tiny/config.toml"), configuration);
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / "runs/tiny/summary.json")), json);
  EXPECT_THAT(read_file(folder_ / "runs/tiny/test-logs/rank-2.log"), HasSubstr("rank 2 of 3"));
}

TEST_F(Evaluate, PredictionsAreWrittenInTheOrderOfTheData) {
  for (const char* devices : {"1", "3"}) {
    const auto outcome =
        troika("predict runs/tiny/config.toml --trainer.devices=" + std::string(devices) +
               " --output " + devices + ".safetensors");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("37 predictions: "));
  }
  const auto alone = predictions("1.safetensors"), together = predictions("3.safetensors");
  ASSERT_EQ(alone.size(), together.size());
  ASSERT_GT(alone.size(), 37u);
  for (size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(together[i], alone[i], 1e-12) << i;
}

TEST_F(Evaluate, ACheckpointByAnyHandleBringsItsOptions) {
  ASSERT_EQ(train_.exit_code, 0) << train_.err;
  std::filesystem::create_symlink("tiny", folder_ / "runs/run");  // that of `last`
  const auto loss = metrics("test runs/tiny/config.toml").at("test/loss");
  const auto last = std::filesystem::canonical(folder_ / "runs/tiny/checkpoints/last");
  const auto file = (last / "model.safetensors").string();
  for (const auto& handle : {std::string("runs/tiny"), std::string("last"), file}) {
    EXPECT_EQ(metrics("test " + handle).at("test/loss"), loss) << handle;
  }
  for (const auto& handle : {std::string("runs/tiny/last"), file}) {
    EXPECT_THAT(troika("report " + handle).out, testing::EndsWith("tiny/report.html\n"));
  }
  EXPECT_NEAR(metrics("validate runs/tiny/checkpoints --trainer.devices 2").at("validation/loss"),
              loss, 1e-12);
  const auto predicted = troika("predict runs/tiny/ --output p.safetensors");
  EXPECT_THAT(predicted.out, HasSubstr("37 predictions: ")) << predicted.err;
  EXPECT_THAT(
      troika("test nowhere/last").err,
      HasSubstr("error: [checkpoint] there is no checkpoint nowhere/last; got No such file"));
  EXPECT_THAT(troika("test runs").err, HasSubstr("[checkpoint] there is no checkpoint runs; got a "
                                                 "folder without one"));
  EXPECT_THAT(
      troika("train runs/tiny").err,
      HasSubstr(
          "error: [config] CONFIG is a folder; got runs/tiny, expected a file in "
          "TOML (`troika train runs/tiny/config.toml --trainer.ckpt_path=last` resumes the run)"));
}

TEST_F(Evaluate, FlightRecordsAreFoundByTheirRun) {
  ASSERT_EQ(train_.exit_code, 0) << train_.err;
  for (const char* handle : {"runs/tiny/", "runs/tiny/checkpoints"}) {
    const auto none = troika("doctor --flight-record " + std::string(handle));
    EXPECT_EQ(none.exit_code, 2);
    EXPECT_THAT(none.err, HasSubstr("error: [doctor] no flight records of run "));
    EXPECT_THAT(none.err, testing::Not(HasSubstr("json.exception")));
  }
  make_folder(folder_ / "runs/flight-records/tiny");
  write_file_atomically(folder_ / "runs/flight-records/tiny/world-rank0.json",
                        R"({"group": "world", "backend": "gloo", "cause": "", "host": "",
                            "rank": 0, "size": 1, "now": 1, "statuses": [], "calls": []})");
  for (const char* handle : {"runs/tiny", "runs/tiny/last", "runs/flight-records/tiny"}) {
    EXPECT_THAT(troika("doctor --flight-record " + std::string(handle)).out,
                testing::StartsWith("Group world (1 rank, gloo) shows no failure.\n"))
        << handle;
  }
}

TEST_F(Evaluate, WhatCannotBeDoneIsRefused) {
  const auto other = troika("test runs/tiny/config.toml --run.name=other");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("[train] cannot test the last checkpoint; got none in "
                                   "runs/other/checkpoints"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs/other"));
  EXPECT_THAT(troika("predict runs/tiny/config.toml").err, HasSubstr("--output is missing"));
  const auto nothing = troika(
      "predict runs/tiny/config.toml --output x.safetensors --trainer.limit_predict_batches=0");
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("there is nothing to write to x.safetensors"));
  const auto model = troika("test runs/tiny/config.toml --model.hidden_width=17");
  EXPECT_EQ(model.exit_code, 2);
  EXPECT_THAT(model.err, HasSubstr("do not fit the model"));
}

}  // namespace
}  // namespace troika
