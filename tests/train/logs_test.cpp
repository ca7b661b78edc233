// metrics.jsonl, metrics.prom, and the option that chooses loggers; CSV and TensorBoard are in
// run_files_test.cpp.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <ctime>
#include <nlohmann/json.hpp>

#include "tests/support/errors.h"
#include "troika/base/config.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"
#include "troika/observe/loggers/jsonl.h"
#include "troika/observe/loggers/logger.h"
#include "troika/observe/loggers/prometheus.h"
#include "troika/train/options/options.h"

namespace troika::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(JsonlLogger, WritesAnObjectALine) {
  const TemporaryFolder folder;
  const auto path = folder / "run/metrics.jsonl";
  const double before = static_cast<double>(std::time(nullptr));
  observe::JsonlLogger logger(path);
  logger.log(7, {{"train/loss", 0.1}, {"a \"b\"\n\xff", 1e300}});
  logger.log(8, {{"nan", NAN}, {"inf", INFINITY}, {"-inf", -INFINITY}});
  logger.flush();
  const auto lines = split(read_file(path), '\n');
  ASSERT_EQ(lines.size(), 3u) << "two, and nothing after the last";
  const auto first = nlohmann::json::parse(lines[0]), second = nlohmann::json::parse(lines[1]);
  EXPECT_THAT(lines[0], testing::StartsWith("{\"step\":7,\"time\":"));
  EXPECT_EQ(first["train/loss"].get<double>(), 0.1);
  EXPECT_EQ(first["a \"b\"\n\xef\xbf\xbd"].get<double>(), 1e300);
  EXPECT_GE(first["time"].get<double>(), before);
  EXPECT_LE(first["time"].get<double>(), before + 3600);
  EXPECT_EQ(second["nan"], "NaN");
  EXPECT_EQ(second["inf"], "Infinity");
  EXPECT_EQ(second["-inf"], "-Infinity");
  EXPECT_ERROR(logger.log(9, {{"time", 1}}), ErrorKind::usage,
               "[observe] a metric cannot be a key of " + path.string() +
                   "; got name `time`, expected a name other than `step` and `time`");
  EXPECT_EQ(split(read_file(path), '\n').size(), 3u);
}

TEST(JsonlLogger, KilledRunKeepsItsLinesAndTheNextStartsAnew) {
  const TemporaryFolder folder;
  const auto path = folder / "m.jsonl";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto* logger = new observe::JsonlLogger(path);
    logger->log(1, {{"a", 1}});
    logger->log(2, {{"a", 2}});
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(split(read_file(path), '\n').size(), 3u);
  const observe::JsonlLogger next(path);
  EXPECT_EQ(read_file(path), "");
}

TEST(PrometheusLogger, HoldsTheLatestValues) {
  const TemporaryFolder folder;
  const auto path = folder / "run/metrics.prom";
  observe::PrometheusLogger logger(path, "a \"b\"\\c\nd");
  logger.log(1, {{"train/loss", 0.1}, {"validation/accuracy", NAN}});
  logger.log(2, {{"train/loss", INFINITY}, {"grad:norm\\2", -INFINITY}});
  const std::string labels = R"({run="a \"b\"\\c\nd"} )";
  EXPECT_EQ(read_file(path),
            "# HELP troika_grad_norm_2 Latest value of grad:norm\\\\2.\n"
            "# TYPE troika_grad_norm_2 gauge\n"
            "troika_grad_norm_2" +
                labels +
                "-Inf\n"
                "# HELP troika_step Latest value of step.\n"
                "# TYPE troika_step gauge\n"
                "troika_step" +
                labels +
                "2\n"
                "# HELP troika_train_loss Latest value of train/loss.\n"
                "# TYPE troika_train_loss gauge\n"
                "troika_train_loss" +
                labels +
                "+Inf\n"
                "# HELP troika_validation_accuracy Latest value of validation/accuracy.\n"
                "# TYPE troika_validation_accuracy gauge\n"
                "troika_validation_accuracy" +
                labels + "NaN\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "run"),
                          std::filesystem::directory_iterator()),
            1)
      << "nothing else that a collector could read";
}

// A reader that has the file open while it is replaced keeps the whole old file, as with a rename.
TEST(PrometheusLogger, ReplacesTheFileByARename) {
  const TemporaryFolder folder;
  const auto path = folder / "m.prom";
  observe::PrometheusLogger logger(path, "r");
  logger.log(1, {{"a", 1}});
  const std::string first = read_file(path);
  std::filesystem::create_hard_link(path, folder / "seen");
  logger.log(2, {{"a", 2}});
  EXPECT_EQ(read_file(folder / "seen"), first);
  EXPECT_THAT(read_file(path), HasSubstr("troika_a{run=\"r\"} 2\n"));
}

TEST(PrometheusLogger, RefusesNamesItCouldNotTellApart) {
  const TemporaryFolder folder;
  const auto path = folder / "m.prom";
  observe::PrometheusLogger logger(path, "r");
  logger.log(1, {{"train/loss", 1}});
  EXPECT_ERROR(logger.log(2, {{"train.loss", 1}}), ErrorKind::usage,
               "[observe] two metrics have the name troika_train_loss in " + path.string() +
                   "; got `train/loss` and `train.loss`, expected names that differ in letters, "
                   "digits or underscores");
}

TEST(Loggers, AreThoseTheOptionNames) {
  TrainOptions options;
  auto table = make_table(options);
  EXPECT_THAT(options.trainer.loggers, ElementsAre("csv", "tensorboard"));
  table.set("trainer.loggers", "jsonl,prometheus,csv,tensorboard");
  const TemporaryFolder folder;
  const auto loggers = observe::open_loggers(options.trainer.loggers, folder.path(), "r");
  ASSERT_EQ(loggers.size(), 4u);
  for (const auto& logger : loggers) logger->log(1, {{"a", 1}});
  for (const char* file : {"metrics.csv", "metrics.jsonl", "metrics.prom"}) {
    EXPECT_THAT(read_file(folder / file), HasSubstr("1")) << file;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                          std::filesystem::directory_iterator()),
            4);
  table.set("trainer.loggers", "");
  EXPECT_TRUE(observe::open_loggers(options.trainer.loggers, folder.path(), "r").empty());
}

TEST(Loggers, KeepRowsOfUpToTheStepARunGoesOnFrom) {
  const TemporaryFolder folder;
  const std::vector<std::string> names{"csv", "jsonl"};
  for (const auto& logger : observe::open_loggers(names, folder.path(), "r")) {
    logger->log(1, {{"a", 1}});
    logger->log(2, {{"b", 2}});
    logger->log(3, {{"a", 3}});
  }
  for (const auto& logger : observe::open_loggers(names, folder.path(), "r",
                                                  observe::LogPosition{.step = 2, .rows = 1})) {
    logger->log(3, {{"a", 4}});
  }
  EXPECT_EQ(read_file(folder / "metrics.csv"), "step,a,b\n1,1,\n2,,2\n3,4,\n");
  const auto lines = split(read_file(folder / "metrics.jsonl"), '\n');
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["step"], 2);
  EXPECT_EQ(nlohmann::json::parse(lines[2])["a"], 4);
}

// A line of jsonl for each call of log(), of which a checkpoint counts those at its step.
TEST(Loggers, KeepRowsOfTheStepOnlyFromBeforeTheCheckpoint) {
  const TemporaryFolder folder;
  const std::vector<std::string> names{"csv", "jsonl"};
  const auto log_all = [&](std::optional<observe::LogPosition> resumed, bool begins) {
    for (const auto& logger : observe::open_loggers(names, folder.path(), "r", resumed)) {
      if (begins) logger->log(2, {{"a", 1}});
      logger->log(2, {{"b", 2}});
    }
  };
  log_all({}, true);
  log_all(observe::LogPosition{.step = 2, .rows = 1}, false);
  EXPECT_EQ(read_file(folder / "metrics.csv"), "step,a,b\n2,1,2\n");
  EXPECT_EQ(split(read_file(folder / "metrics.jsonl"), '\n').size(), 3u);
  log_all(observe::LogPosition{.step = 2, .rows = 0}, true);
  EXPECT_EQ(read_file(folder / "metrics.csv"), "step,a,b\n2,1,2\n");
  EXPECT_EQ(split(read_file(folder / "metrics.jsonl"), '\n').size(), 3u);
}

TEST(Loggers, KeepDamagedLinesAndNameThem) {
  const TemporaryFolder folder;
  const auto csv = folder / "metrics.csv", jsonl = folder / "metrics.jsonl";
  write_file_atomically(csv, "step,a\n1,0.5\n2,0.x\n3\n4,8\n5,16\n5,");
  write_file_atomically(jsonl,
                        "{\"step\":1,\"a\":0.5}\n{\"step\":2,\"a\":\n[]\n{\"step\":\"x\"}\n"
                        "{\"step\":4,\"a\":8}\n{\"step\":5,\"a\":16}\n{\"st");
  testing::internal::CaptureStderr();
  const auto loggers = observe::open_loggers({"csv", "jsonl"}, folder.path(), "r",
                                             observe::LogPosition{.step = 4, .rows = 1});
  const auto warnings = testing::internal::GetCapturedStderr();
  for (const int line : {3, 4}) {
    EXPECT_THAT(warnings, HasSubstr("line " + std::to_string(line) + " of " + csv.string() +
                                    " is damaged; it stays as it is"));
  }
  for (const int line : {2, 3, 4}) {
    EXPECT_THAT(warnings, HasSubstr("line " + std::to_string(line) + " of " + jsonl.string() +
                                    " is damaged; it stays as it is"));
  }
  EXPECT_EQ(split(warnings, '\n').size(), 6u) << warnings;
  EXPECT_EQ(read_file(csv), "step,a\n1,0.5\n2,0.x\n3\n4,8\n");
  EXPECT_EQ(read_file(jsonl),
            "{\"step\":1,\"a\":0.5}\n{\"step\":2,\"a\":\n[]\n{\"step\":\"x\"}\n"
            "{\"step\":4,\"a\":8}\n");
  for (const auto& logger : loggers) logger->log(5, {{"a", 1}});
  EXPECT_EQ(read_file(csv), "step,a\n1,0.5\n2,0.x\n3\n4,8\n5,1\n");
}

TEST(Loggers, PutATableWithoutColumnNamesAside) {
  const TemporaryFolder folder;
  const auto csv = folder / "metrics.csv";
  for (const std::string content : {"", "1,0.5\n2,0.25\n"}) {
    write_file_atomically(csv, content);
    testing::internal::CaptureStderr();
    const auto loggers =
        observe::open_loggers({"csv"}, folder.path(), "r", observe::LogPosition{.step = 4});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("line 1 of " + csv.string() + " is damaged; the file stays as " +
                          csv.string() + ".damaged"));
    EXPECT_EQ(read_file(csv), "step\n");
    EXPECT_EQ(read_file(csv.string() + ".damaged"), content);
  }
}

// A limit on the sizes of files kills the process in the middle of what it writes.
TEST(Loggers, AKillDuringAResumeLeavesTheFilesAsTheyWere) {
  const TemporaryFolder folder;
  for (const std::string name : {"csv", "jsonl"}) {
    SCOPED_TRACE(name);
    const auto file = folder / ("metrics." + name);
    for (const auto& logger : observe::open_loggers({name}, folder.path(), "r")) {
      for (int64_t step = 1; step <= 100; ++step) logger->log(step, {{"a", 0.5}});
    }
    const auto before = read_file(file);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const rlimit half{before.size() / 2, before.size() / 2};
      ::setrlimit(RLIMIT_FSIZE, &half);
      observe::open_loggers({name}, folder.path(), "r",
                            observe::LogPosition{.step = 100, .rows = 1});
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    EXPECT_EQ(WTERMSIG(status), SIGXFSZ);
    EXPECT_EQ(read_file(file), before);
  }
}

TEST(Loggers, UnknownOnesAreRefusedWithTheNearest) {
  TrainOptions options;
  auto table = make_table(options);
  const std::string expected =
      ", expected a list of csv, tensorboard, jsonl, prometheus, each at most once";
  EXPECT_ERROR(table.set("trainer.loggers", "csv,prometeus"), ErrorKind::usage,
               "[config] trainer.loggers; got [\"csv\", \"prometeus\"]" + expected +
                   " (did you mean prometheus?)");
  EXPECT_ERROR(table.parse("[trainer]\nloggers = [\"csv\", \"csv\"]", "x.toml"), ErrorKind::usage,
               "[config] trainer.loggers (x.toml:2); got [\"csv\", \"csv\"]" + expected);
}

}  // namespace
}  // namespace troika::train
