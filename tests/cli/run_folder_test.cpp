// The choice of a run's folder: files of an earlier run stay, two runs never share a folder, and a
// run that is started again finds its own.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::HasSubstr;
using testing_support::Outcome;
using testing_support::run_program;

// 16 steps an epoch.
const std::string kSmallRun =
    " --model.name=mlp --model.hidden_width=16 --data.train_samples=192 --data.augment=false "
    "--data.validation_samples=12 --data.global_batch_size=12 --trainer.max_epochs=1 "
    "--trainer.enable_progress_bar=false";
const std::string kEndless = " --trainer.max_epochs=1000000 --checkpoint.every_n_train_steps=1";

class RunFolders : public testing::Test {
 protected:
  Outcome shell(const std::string& command) {
    return run_program("cd " + folder_.path().string() + " && " + command);
  }
  Outcome train(const std::string& arguments) {
    return shell(TROIKA_PROGRAM " train" + kSmallRun + arguments);
  }
  std::filesystem::path run(const std::string& name) const { return folder_ / "runs" / name; }
  nlohmann::json summary(const std::string& name) const {
    return nlohmann::json::parse(read_file(run(name) / "summary.json"));
  }
  bool exists(const std::string& name) const { return std::filesystem::exists(run(name)); }
  // Returns the contents of all files of a run, by path.
  std::map<std::string, std::string> content(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run(name))) {
      if (entry.is_regular_file()) files[entry.path()] = read_file(entry.path());
    }
    return files;
  }

  const TemporaryFolder folder_;
};

TEST_F(RunFolders, TheSameCommandTwiceKeepsBothRuns) {
  for (const char* processes : {"1", "4"}) {
    SCOPED_TRACE(processes);
    const auto name = std::string("on-") + processes;
    const auto arguments = " --run.name=" + name + " --trainer.devices=" + processes;
    ASSERT_EQ(train(arguments).exit_code, 0);
    const auto first = content(name);
    for (const char* number : {"-2", "-3"}) {
      const auto again = train(arguments);
      ASSERT_EQ(again.exit_code, 0) << again.err;
      EXPECT_THAT(again.err,
                  HasSubstr("run.name " + name + " is taken, this run is " + name + number));
      EXPECT_THAT(again.err, HasSubstr("metrics and logs     runs/" + name + number + "\n"));
      EXPECT_EQ(summary(name + number)["name"], name + number);
      EXPECT_TRUE(exists(name + number + "/logs/rank-0.log"));
    }
    EXPECT_EQ(content(name), first);
    EXPECT_FALSE(exists(name + "-4"));
  }
}

#ifdef TROIKA_WITH_MPI
TEST_F(RunFolders, RanksOfMpirunAgree) {
  const std::string command = TROIKA_MPIEXEC
                              " --allow-run-as-root --oversubscribe -n 4 " TROIKA_PROGRAM " train" +
                              kSmallRun;
  ASSERT_EQ(shell("exec " + command).exit_code, 0);
  const auto first = content("run");
  const auto again = shell("exec " + command);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(content("run"), first);
  for (const char* rank : {"0", "1", "2", "3"}) {
    EXPECT_TRUE(exists(std::string("run-2/logs/rank-") + rank + ".log"));
  }
  EXPECT_EQ(summary("run-2")["world_size"], 4);
}
#endif

TEST_F(RunFolders, ARunThatGoesOnKeepsItsFolder) {
  ASSERT_EQ(train("").exit_code, 0);
  ASSERT_EQ(train("").exit_code, 0);
  const auto later = train(" --trainer.ckpt_path=last --trainer.max_epochs=2");
  ASSERT_EQ(later.exit_code, 0) << later.err;
  EXPECT_THAT(later.err, HasSubstr("resumes run run; run-2 is later"));
  EXPECT_EQ(summary("run")["steps"], 32);
  EXPECT_EQ(summary("run-2")["steps"], 16);
  // Its own checkpoint by its path.
  const auto rewound = shell(TROIKA_PROGRAM
                             " train runs/run-2/config.toml --trainer.max_epochs=2 "
                             "--trainer.ckpt_path=runs/run-2/checkpoints/last");
  ASSERT_EQ(rewound.exit_code, 0) << rewound.err;
  EXPECT_EQ(summary("run-2")["steps"], 32);
  // A new run starts from a checkpoint of another run.
  const auto branched =
      train(" --trainer.ckpt_path=runs/run-2/checkpoints/last --trainer.max_epochs=3");
  ASSERT_EQ(branched.exit_code, 0) << branched.err;
  EXPECT_EQ(summary("run-3")["steps"], 48);
  EXPECT_EQ(summary("run-2")["steps"], 32);
}

TEST_F(RunFolders, OverwriteTakesTheSameFolder) {
  ASSERT_EQ(train("").exit_code, 0);
  ASSERT_EQ(train(" --run.overwrite=true --trainer.max_steps=3").exit_code, 0);
  EXPECT_EQ(summary("run")["steps"], 3);
  EXPECT_FALSE(exists("run-2"));
}

// A run that fails before it has results does not occupy the name.
TEST_F(RunFolders, ARunThatCouldNotBeginTakesNoName) {
  for (const char* devices : {"1", "2"}) {
    EXPECT_EQ(
        train(std::string(" --data.name=cifar10 --data.path=nowhere --trainer.devices=") + devices)
            .exit_code,
        2);
  }
  ASSERT_EQ(train("").exit_code, 0);
  EXPECT_EQ(summary("run")["steps"], 16);
  EXPECT_FALSE(exists("run-2"));
}

TEST_F(RunFolders, TwoAtOnceHaveTwoAndACrashFreesTheName) {
  for (const char* processes : {"1", "4"}) {
    SCOPED_TRACE(processes);
    const auto name = std::string("on-") + processes;
    const auto both = shell(fmt::format(
        "{{ {0} train{1}{2} --run.name={3} --trainer.devices={4} 2>&1 > first & child=$!; "
        "until [ -e runs/{3}/checkpoints/last ]; do :; done; "
        "{0} train{1} --run.name={3} > second 2>&1 || exit 1; "
        "{0} train{1} --run.name={3} --trainer.ckpt_path=last 2> refused; [ $? = 2 ] || exit 1; "
        "kill -KILL $child; wait $child; "
        "{0} train{1}{2} --run.name={3} --trainer.ckpt_path=last "
        "--trainer.max_steps=$(($(readlink runs/{3}/checkpoints/last | sed 's/.*=//; s/-v.*//') "
        "+ 20)); }}",
        TROIKA_PROGRAM, kSmallRun, kEndless, name, processes));
    ASSERT_EQ(both.exit_code, 0) << both.err << read_file(folder_ / "second");
    EXPECT_EQ(summary(name + "-2")["steps"], 16);
    EXPECT_THAT(read_file(folder_ / "refused"),
                testing::ContainsRegex("\\[train\\] run folder runs/" + name +
                                       " is in use; got the lock of process [0-9]+ on .*, "
                                       "expected a run that has ended"));
    EXPECT_THAT(both.err, HasSubstr("resumes from"));
  }
}

// Rank 0 of the first round is killed when there is a checkpoint. The folder `run` belongs to
// another run.
TEST_F(RunFolders, ARestartFindsTheFolderOfItsLaunch) {
  ASSERT_EQ(train("").exit_code, 0);
  const auto first = content("run");
  write_file_atomically(folder_ / "rank", R"(#!/bin/sh
train() { exec )" TROIKA_PROGRAM " train" + kSmallRun +
                                              kEndless +
                                              R"( --trainer.max_steps=$1; }
last=runs/run-2/checkpoints/last
if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then
  at=$(readlink $last); at=${at##*=}; train $((${at%-v*} + 2))
fi
[ $RANK = 0 ] || train 1000000000
train 1000000000 & child=$!
until [ -e $last ]; do :; done
kill -KILL $child
wait $child
)");
  const auto restarted = shell("exec " TROIKA_PROGRAM " launch -n 4 --max-restarts 1 sh rank");
  ASSERT_EQ(restarted.exit_code, 0) << restarted.err;
  EXPECT_THAT(restarted.err, HasSubstr("resumes from"));
  EXPECT_EQ(content("run"), first);
  EXPECT_EQ(summary("run-2")["world_size"], 4);
  EXPECT_FALSE(exists("run-3"));
}

TEST_F(RunFolders, ARequeuedJobFindsItsFolder) {
  ASSERT_EQ(train("").exit_code, 0);
  const auto first = content("run");
  make_folder(folder_ / "bin");
  write_file_atomically(folder_ / "bin/scontrol", "#!/bin/sh\n");
  std::filesystem::permissions(folder_ / "bin/scontrol", std::filesystem::perms::owner_all);
  const std::string job = "export SLURM_JOB_ID=77 SLURM_JOB_NAME=batch; PATH=$PWD/bin:$PATH; ";
  for (const char* processes : {"1", "4"}) {
    SCOPED_TRACE(processes);
    const auto taken = processes[0] == '1' ? "run-2" : "run-3";
    const auto stopped = shell(fmt::format(
        "{}{} train{}{} --trainer.devices={} & child=$!; until [ -e runs/{}/checkpoints/last ]; "
        "do :; done; kill -USR1 $child; wait $child",
        job, TROIKA_PROGRAM, kSmallRun, kEndless, processes, taken));
    ASSERT_EQ(stopped.exit_code, 5) << stopped.err;
    const auto steps = summary(taken)["steps"].get<int64_t>();
    const auto again = shell(fmt::format(
        "{}export SLURM_RESTART_COUNT=1; {} train{}{} --trainer.devices={} --trainer.max_steps={}",
        job, TROIKA_PROGRAM, kSmallRun, kEndless, processes, steps + 5));
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(again.err, HasSubstr("resumes from"));
    EXPECT_EQ(summary(taken)["steps"], steps + 5);
    // Other jobs do not get this folder.
    EXPECT_EQ(content("run"), first);
  }
  EXPECT_FALSE(exists("run-4"));
}

TEST_F(RunFolders, NamesStayInTheFolderOfRuns) {
  for (const std::string name : {"../x", "", "/tmp/x", "a/../../x", "a/"}) {
    SCOPED_TRACE(name);
    const auto outcome =
        train(" '--run.name=" + name + "'" + (name == "../x" ? " --trainer.devices=4" : ""));
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("run.name"));
    EXPECT_THAT(outcome.err, HasSubstr("expected a relative path without . or .. in it"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
  EXPECT_EQ(train(" --run.name=group/one").exit_code, 0);
  EXPECT_EQ(train(" --run.name=group/one").exit_code, 0);
  EXPECT_TRUE(exists("group/one-2/summary.json"));
}

}  // namespace
}  // namespace troika
