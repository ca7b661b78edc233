// `troika train`: what it writes, prints and returns.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"

namespace troika {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::run_program;

const std::string kTiny =
    " --model.name=mlp --model.hidden_width=16 --data.train_samples=192 "
    "--data.validation_samples=37 --data.global_batch_size=12 --trainer.max_epochs=2 "
    "--trainer.log_every_n_steps=4 --optim.lr=0.01 --data.augment=false --run.name=tiny "
    "--run.overwrite=true";

class Train : public testing::Test {
 protected:
  testing_support::Outcome troika(const std::string& arguments) {
    return run_program("cd " + folder_.path().string() + " && exec " + TROIKA_PROGRAM + " " +
                       arguments);
  }
  std::filesystem::path run_folder() const { return folder_ / "runs/tiny"; }
  nlohmann::json summary() const {
    return nlohmann::json::parse(read_file(run_folder() / "summary.json"));
  }
  const TemporaryFolder folder_;
};

// With the default of five seconds, the ranks would save.
TEST_F(Train, WaitsAsLongAsItIsTold) {
  const auto outcome = run_program(
      "cd " + folder_.path().string() + " && { " + TROIKA_PROGRAM +
      " train --trainer.devices=2 --shutdown-timeout=0" + kTiny +
      " --trainer.max_epochs=1000000 --checkpoint.every_n_train_steps=1 & child=$!; "
      "until [ -e runs/tiny/checkpoints/last ]; do :; done; kill -TERM $child; wait $child; }");
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_EQ(outcome.orphans, 0);
}

// Two processes compute each layer together. One process goes on with their checkpoint, and export
// writes its whole weights.
TEST_F(Train, CutsLayersOverProcesses) {
  const auto program = "cd " + folder_.path().string() + " && exec " + TROIKA_PROGRAM;
  const auto outcome = run_program(program + " launch -n 2 " + TROIKA_PROGRAM +
                                   " train --trainer.strategy=tp" + kTiny);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("tp, 2 ranks on 1 node"));
  EXPECT_EQ(summary()["samples"], 384);
  const double loss = summary()["validation_loss"];
  const auto exported = troika("export runs/tiny whole.safetensors");
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  const auto more =
      troika("train" + kTiny + " --trainer.max_epochs=3 --trainer.ckpt_path=runs/tiny");
  EXPECT_EQ(more.exit_code, 0) << more.err;
  EXPECT_EQ(summary()["steps"], 48);
  EXPECT_LT(std::abs(summary()["validation_loss"].get<double>() - loss), 1);
}

// Two processes compute the tokens of each sample together. One process goes on with their
// checkpoint.
TEST_F(Train, CutsSamplesOverProcesses) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "the quick brown fox jumps over the lazy dog\n";
  write_file_atomically(folder_ / "text", text);
  const std::string options =
      " --model.name=gpt --model.layers=1 --model.heads=2 --model.width=16 --data.name=text "
      "--data.files=text --data.context=16 --data.global_batch_size=4 --run.name=tiny "
      "--run.overwrite=true";
  const auto program = "cd " + folder_.path().string() + " && exec " + TROIKA_PROGRAM;
  const auto outcome = run_program(program + " launch -n 2 " + TROIKA_PROGRAM + " train" + options +
                                   " --trainer.strategy=cp --trainer.max_steps=6");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("cp, 2 ranks on 1 node"));
  EXPECT_EQ(summary()["samples"], 24);
  const auto more =
      troika("train" + options + " --trainer.max_steps=9 --trainer.ckpt_path=runs/tiny");
  EXPECT_EQ(more.exit_code, 0) << more.err;
  EXPECT_EQ(summary()["steps"], 9);
  const auto refused = run_program(program + " launch -n 2 " + TROIKA_PROGRAM + " train" + options +
                                   " --trainer.strategy=cp --data.context=18");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("got 18 tokens, 2 ranks, expected a multiple of 4 tokens"));
}

TEST_F(Train, WritesAllItPromises) {
  const auto outcome = troika("train --trainer.devices=2" + kTiny);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.orphans, 0);
  EXPECT_THAT(outcome.err, HasSubstr("tiny finished: 32 steps on 2 processes"));
  const auto json = summary();
  EXPECT_EQ(json["status"], "finished");
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["steps"], 32);
  EXPECT_EQ(json["samples"], 384);
  for (const char* key : {"train_loss", "validation_loss", "validation_accuracy",
                          "samples_per_second", "median_step_milliseconds"}) {
    EXPECT_GE(json[key].get<double>(), 0) << key;
  }
  EXPECT_EQ(json["peak_resident_bytes"].size(), 2u);
  EXPECT_FALSE(json["torch_version"].get<std::string>().empty());
  EXPECT_THAT(read_file(run_folder() / "logs/rank-0.log"), HasSubstr("\n  model      mlp, "));
  EXPECT_TRUE(std::filesystem::exists(run_folder() / "logs/rank-1.log"));
  EXPECT_TRUE(std::filesystem::exists(run_folder() / "checkpoints/last.safetensors"));
  EXPECT_THAT(read_file(run_folder() / "metrics.csv"), HasSubstr("\n32,"));
  int event_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(run_folder())) {
    event_files += entry.path().filename().string().starts_with("events.out.tfevents.");
  }
  EXPECT_EQ(event_files, 1);
  // The resolved configuration gives the same run.
  const auto again = troika("train runs/tiny/config.toml --print-config");
  EXPECT_EQ(again.out, read_file(run_folder() / "config.toml"));
}

TEST_F(Train, TheNumberOfRanksDoesNotChangeTheCourse) {
  ASSERT_EQ(troika("train --trainer.precision=64" + kTiny).exit_code, 0);
  const auto alone = summary();
  for (const char* ranks : {"2", "3"}) {
    ASSERT_EQ(troika(std::string("train --trainer.precision=64 --trainer.devices=") + ranks + kTiny)
                  .exit_code,
              0);
    const auto together = summary();
    for (const char* key : {"train_loss", "validation_loss"}) {
      EXPECT_NEAR(together[key].get<double>(), alone[key].get<double>(), 1e-10) << key << ranks;
    }
    EXPECT_EQ(together["validation_accuracy"], alone["validation_accuracy"]);
  }
}

TEST_F(Train, RunsUnderOtherLaunchers) {
  const auto launched = troika("launch -n 2 --log-dir logs " TROIKA_PROGRAM " train" + kTiny);
  EXPECT_EQ(launched.exit_code, 0) << launched.err;
  EXPECT_EQ(summary()["world_size"], 2);
  EXPECT_TRUE(std::filesystem::exists(run_folder() / "logs/rank-1.log"));
#ifdef TROIKA_WITH_MPI
  std::filesystem::remove_all(run_folder());
  const auto under_mpi =
      run_program("cd " + folder_.path().string() +
                  " && exec " TROIKA_MPIEXEC
                  " --allow-run-as-root --oversubscribe -n 2 " TROIKA_PROGRAM " train" +
                  kTiny);
  EXPECT_EQ(under_mpi.exit_code, 0) << under_mpi.err;
  EXPECT_EQ(summary()["world_size"], 2);
  EXPECT_THAT(read_file(run_folder() / "logs/rank-1.log"),
              HasSubstr("rank 1 of 2 (local 1 of 2 on node 0 of 1), found by Open MPI variables, "
                        "back end shm"));
#endif
}

TEST_F(Train, StopsAfterMaxSteps) {
  ASSERT_EQ(troika("train --trainer.max_steps=5" + kTiny).exit_code, 0);
  EXPECT_EQ(summary()["steps"], 5);
  EXPECT_EQ(summary()["epochs"], 0);
}

// The rows of metrics.csv with a value in the column: the cells of its column `epoch`.
std::vector<std::string> epochs_with(const std::string& csv, const std::string& column) {
  auto lines = split(csv, '\n');
  lines.pop_back();
  const auto header = split(lines.at(0), ',');
  const auto index = [&](const std::string& name) {
    return static_cast<size_t>(std::find(header.begin(), header.end(), name) - header.begin());
  };
  std::vector<std::string> epochs;
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto cells = split(lines[i], ',');
    if (!cells.at(index(column)).empty()) epochs.push_back(cells.at(index("epoch")));
  }
  return epochs;
}

TEST_F(Train, ValidatesEveryNthEpochAndAfterTheLast) {
  const std::string arguments = "train" + kTiny + " --trainer.max_epochs=5";
  ASSERT_EQ(troika(arguments + " --trainer.check_val_every_n_epoch=2").exit_code, 0);
  EXPECT_THAT(epochs_with(read_file(run_folder() / "metrics.csv"), "validation/accuracy"),
              ElementsAre("1", "3", "4"));
  ASSERT_EQ(troika(arguments + " --trainer.check_val_every_n_epoch=9").exit_code, 0);
  EXPECT_THAT(epochs_with(read_file(run_folder() / "metrics.csv"), "validation/accuracy"),
              ElementsAre("4"));
}

TEST_F(Train, RanksGetTheResolvedConfigurationOfAFileThatCanBeReadOnce) {
  write_file_atomically(folder_ / "once.toml", "[trainer]\ndevices = 2\nmax_steps = 9\n");
  const auto outcome = run_program("cd " + folder_.path().string() +
                                   " && cat once.toml | " TROIKA_PROGRAM " train /dev/stdin" +
                                   kTiny + " --trainer.max_steps=3");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.orphans, 0);
  EXPECT_EQ(summary()["world_size"], 2);
  EXPECT_EQ(summary()["steps"], 3);
}

TEST_F(Train, NoSummaryOfAnEarlierRunSurvivesAFailure) {
  ASSERT_EQ(troika("train" + kTiny).exit_code, 0);
  EXPECT_EQ(summary()["status"], "finished");
  EXPECT_EQ(troika("train" + kTiny + " --data.name=cifar10 --data.path=nowhere").exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(run_folder() / "summary.json"));
  EXPECT_EQ(troika("train" + kTiny + " --data.global_batch_size=500").exit_code, 2);
  EXPECT_EQ(summary()["status"], "failed");
}

TEST_F(Train, AMonitorThatNobodyLogsIsRefusedBeforeTraining) {
  for (const auto& [monitor, devices] :
       {std::pair("early_stopping", "1"), std::pair("checkpoint", "4")}) {
    SCOPED_TRACE(monitor);
    const auto outcome = troika("train" + kTiny + " --trainer.devices=" + devices + " --" +
                                monitor + ".monitor=val_loss");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("cannot monitor val_loss; got no such metric"));
    EXPECT_THAT(outcome.err, HasSubstr("validation/accuracy, validation/loss"));
    EXPECT_THAT(outcome.err, HasSubstr("did you mean validation/loss?"));
    EXPECT_EQ(summary()["steps"], 0);
  }
  EXPECT_EQ(troika("train" + kTiny + " --early_stopping.monitor=validation/accuracy").exit_code, 0);
  EXPECT_EQ(troika("train" + kTiny + " --checkpoint.monitor=train/epoch_loss").exit_code, 0);
  EXPECT_EQ(
      troika("train" + kTiny + " --early_stopping.monitor=val_loss --early_stopping.strict=false")
          .exit_code,
      0);
}

TEST_F(Train, ATextModelTrainsAndSpeaks) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the quick brown fox; ";
  write_file_atomically(folder_ / "fox.txt", text);
  const auto trained = troika(
      "train --model.name=gpt --model.layers=1 --model.heads=2 --model.width=32 --data.name=text "
      "--data.files=fox.txt --data.context=16 --data.batch_size=16 --trainer.max_epochs=6 "
      "--optim.name=adamw --optim.lr=0.01 --run.name=tiny");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto spoken = troika(
      "sample runs/tiny/checkpoints/last.safetensors --prompt 'the quick' --length 12 "
      "--temperature 0");
  EXPECT_EQ(spoken.out, "the quick brown fox; \n");
}

TEST_F(Train, DoctorSaysWhatIsThere) {
  const auto outcome = troika("doctor --json");
  ASSERT_EQ(outcome.exit_code, 0);
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["back_ends"].size(), 5u);
  EXPECT_GT(json["blas"]["gflops"].get<double>(), 0);
  EXPECT_EQ(json["launcher"]["name"], "none");
  EXPECT_THAT(troika("doctor").out, HasSubstr("back end local   available\n"));
}

TEST_F(Train, DoctorTellsWhatWasTimed) {
  const std::string program =
      "XDG_CACHE_HOME=" + folder_.path().string() + " exec " TROIKA_PROGRAM " doctor --tuning";
  const std::string file = folder_ / "troika/tuning.json";
  EXPECT_EQ(run_program(program).out, file + ": nothing was timed yet\n");
  make_folder(folder_ / "troika");
  write_file_atomically(file,
                        R"([{"what": "attention of 6 heads", "cpu": "Z80", "libtorch": "2.0.0",
      "threads": 1, "choice": "eager", "seconds": {"eager": 0.0123, "sdpa": 0.5}}])");
  EXPECT_EQ(run_program(program).out,
            file +
                ": what was timed, and the fastest of it\n"
                "attention of 6 heads: eager (eager 12.3 ms, sdpa 500 ms); LibTorch 2.0.0, "
                "1 thread, Z80\n");
  const auto json = nlohmann::json::parse(run_program(program + " --json").out);
  EXPECT_EQ(json["file"], file);
  EXPECT_EQ(json["entries"][0]["choice"], "eager");
}

// libblas3, the reference BLAS, is a dependency of Debian's LibTorch.
TEST_F(Train, DoctorWarnsOfTheReferenceBlas) {
  const std::string folder = "/usr/lib/x86_64-linux-gnu/blas";
  ASSERT_TRUE(std::filesystem::exists(folder + "/libblas.so.3"));
  const auto outcome = run_program("LD_LIBRARY_PATH=" + folder + " exec " TROIKA_PROGRAM " doctor");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\nBLAS             reference, "));
  EXPECT_THAT(outcome.out,
              HasSubstr("\nWARNING: LibTorch uses the reference BLAS, which is many times "
                        "slower than OpenBLAS: apt-get install libopenblas0-openmp\n"));
}

}  // namespace
}  // namespace troika
