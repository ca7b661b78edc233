// `troika slurm`: the script that it writes, and what it submits.
#include <gmock/gmock.h>

#include <utility>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::HasSubstr;
using testing_support::run_program;

// Runs in a temporary folder, in which a fake sbatch keeps its input.
class Slurm : public testing::Test {
 protected:
  Slurm() {
    make_folder(folder_ / "bin");
    write_file_atomically(folder_ / "bin/sbatch",
                          "#!/bin/sh\necho \"$@\" > called\ncat \"$2\" > sent\necho 4711\n");
    write_file_atomically(folder_ / "bin/prog", "#!/bin/sh\n");
    for (const char* program : {"bin/sbatch", "bin/prog"}) {
      std::filesystem::permissions(folder_ / program, std::filesystem::perms::owner_all);
    }
  }
  testing_support::Outcome slurm(const std::string& arguments) {
    return run_program("cd " + folder_.path().string() + " && PATH=$PWD/bin:$PATH exec " +
                       TROIKA_PROGRAM " slurm " + arguments);
  }
  bool exists(const std::string& name) { return std::filesystem::exists(folder_ / name); }

  TemporaryFolder folder_;
};

TEST_F(Slurm, AllOptionsReachTheScript) {
  const auto outcome = slurm(
      "make --print --site=jean-zay -J run -N 2 -g 4 -p gpu_p13 -C v100-32g -A abc@v100 "
      "-q qos_gpu-t4 -t 50:00:00 -a 0-3%2 --tasks-per-node 2 -c 7 --output o-%j "
      "--signal-lead 30 --no-requeue --exclusive -d afterok:12 --reservation ours "
      "--sbatch '--mail-type=END --mail-user=me' --sbatch --nice=5 -m gcc -m cuda -e A=1 -e B=2 -- "
      "prog -m --print -- 'a b'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, R"(#!/bin/bash
#SBATCH --job-name=run
#SBATCH --account=abc@v100
#SBATCH --constraint=v100-32g
#SBATCH --qos=qos_gpu-t4
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=7
#SBATCH --hint=nomultithread
#SBATCH --time=50:00:00
#SBATCH --exclusive
#SBATCH --reservation=ours
#SBATCH --dependency=afterok:12
#SBATCH --array=0-3%2
#SBATCH --output=o-%j
#SBATCH --open-mode=append
#SBATCH --signal=USR1@30
#SBATCH --no-requeue
#SBATCH --mail-type=END --mail-user=me
#SBATCH --nice=5

module purge
module load gcc || exit 2
module load cuda || exit 2
export OMP_NUM_THREADS=7
TROIKA_RUN_SECRET=$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')
export TROIKA_RUN_SECRET
export TROIKA_REQUEUE=0
export A=1
export B=2
exec srun --kill-on-bad-exit=0 --cpus-per-task=7 prog -m --print -- 'a b'
)");
  EXPECT_FALSE(exists("run.sbatch"));
}

TEST_F(Slurm, MakeWritesTheScriptAndSaysWhere) {
  EXPECT_EQ(slurm("make -c 1 --mem 2G -- prog").out, "troika.sbatch\n");
  EXPECT_THAT(read_file(folder_ / "troika.sbatch"), HasSubstr("#SBATCH --mem=2G\n"));
  EXPECT_EQ(slurm("make -c 1 -o a/b -- prog").out, "a/b\n");
  EXPECT_TRUE(exists("a/b"));
  EXPECT_FALSE(exists("called"));
}

TEST_F(Slurm, SubmitSendsTheScriptAndSaysTheId) {
  const auto outcome = slurm("submit -J run -c 1 -- prog");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "4711\n");
  EXPECT_EQ(read_file(folder_ / "called"), "--parsable run.sbatch\n");
  EXPECT_EQ(read_file(folder_ / "sent"), slurm("make -J run -c 1 --print -- prog").out);
}

TEST_F(Slurm, DryRunSendsNothing) {
  const auto outcome = slurm("submit --dry-run -c 1 -- prog");
  EXPECT_EQ(outcome.out, slurm("make --print -c 1 -- prog").out);
  EXPECT_FALSE(exists("called"));
  EXPECT_FALSE(exists("troika.sbatch"));
}

TEST_F(Slurm, ATableOfOnesOwnIsGivenByItsPath) {
  write_file_atomically(folder_ / "ours.toml",
                        "[partition.big]\ncores = 12\nselect = [\"--partition=b1,b2\"]\n");
  EXPECT_THAT(slurm("make --print --site ours.toml -p big --tasks-per-node 3 -- prog").out,
              testing::AllOf(HasSubstr("--partition=b1,b2\n"), HasSubstr("--cpus-per-task=4\n")));
}

TEST_F(Slurm, ProgramAndConfigurationAreCheckedBeforeTheJobIsSent) {
  write_file_atomically(folder_ / "run.toml", "[trainer]\nmax_epoch = 3\n");
  const std::string troika = TROIKA_PROGRAM;
  const std::pair<std::string, std::string> rows[] = {
      {"pog",
       "error: [slurm] program to run; got pog, expected a program in PATH or the path of one"},
      {"./bin", "error: [slurm] program to run; got ./bin, expected"},
      {troika + " train run.toml",
       "error: [slurm] the job would fail at once; got [config] unknown key trainer.max_epoch "
       "(run.toml:2) (did you mean trainer.max_epochs?), expected words and a configuration that "},
      {troika + " test --trainer.precision=17", "the job would fail at once; got [config]"},
      {troika + " trian run.toml", "(did you mean train?)"},
      {troika + " trian run.toml",
       "error: [slurm] the job would fail at once; got [troika] unknown command; got trian, "
       "expected one of"},
      {troika + " bench collectivs", "the job would fail at once; got [troika] unknown command"},
      {troika + " bench collectives --bakcend=shm", "--bakcend=shm"},
      {troika + " train nowhere.toml",
       "the job would fail at once; got [config] the configuration does not exist; got "
       "nowhere.toml"},
  };
  const char* hows[] = {"submit", "make", "submit --dry-run", "make --print"};
  for (size_t i = 0; i < std::size(rows); ++i) {
    const auto outcome = slurm(hows[i % std::size(hows)] + (" -c 1 -- " + rows[i].first));
    EXPECT_EQ(outcome.exit_code, 2) << rows[i].first;
    EXPECT_THAT(outcome.err, HasSubstr(rows[i].second));
  }
  EXPECT_FALSE(exists("called") || exists("troika.sbatch"));
  const auto from_module = slurm("submit -c 1 -m ours -- pog");
  EXPECT_EQ(from_module.exit_code, 0) << from_module.err;
  EXPECT_THAT(from_module.err, HasSubstr("pog is not in PATH here: it must come with the modules"));
  EXPECT_EQ(slurm("submit -J run -c 1 -- " + troika + " train --trainer.max_epochs=3").out,
            "4711\n");
}

TEST_F(Slurm, TheJobHasTheRanksThatTheConfigurationAsksFor) {
  write_file_atomically(folder_ / "run.toml", "[trainer]\ndevices = 4\n");
  const std::string troika = TROIKA_PROGRAM;
  const std::pair<std::string, std::string> rows[] = {
      {"train run.toml",
       "error: [slurm] trainer.devices and the job disagree; got trainer.devices = 4, expected 2, "
       "the tasks that the job has on each node (--tasks-per-node 4 asks for 4; -1 takes what the "
       "job has)"},
      {"train --trainer.num_nodes=2",
       "error: [slurm] trainer.num_nodes and the job disagree; got trainer.num_nodes = 2, expected "
       "3, the nodes of the job (-N 2 asks for 2; -1 takes what the job has)"},
      {"test --trainer.devices 1", "got trainer.devices = 1, expected 2"},
  };
  const std::string job = " -c 1 -N 3 --tasks-per-node 2 -- " + troika + " ";
  const char* how = "submit";
  for (const auto& [command, message] : rows) {
    const auto outcome = slurm(std::exchange(how, "make") + job + command);
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
  EXPECT_FALSE(exists("called") || exists("troika.sbatch"));
  for (const char* fits : {"train run.toml --trainer.devices=2 --trainer.num_nodes=3",
                           "train run.toml --trainer.devices -1", "bench collectives",
                           "train run.toml --trainer.strategy=dp"}) {
    const auto outcome = slurm("submit --force" + job + fits);
    EXPECT_EQ(outcome.out, "4711\n") << fits << outcome.err;
  }
}

TEST_F(Slurm, AScriptThatWasChangedIsNotOverwritten) {
  const std::string make = "make -c 1 -- prog";
  ASSERT_EQ(slurm(make).exit_code, 0);
  EXPECT_EQ(slurm(make).out, "troika.sbatch\n");  // the same bytes
  for (const char* how : {"make", "submit"}) {
    const auto other = slurm(how + std::string(" -c 2 -- prog"));
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(
        other.err,
        HasSubstr("error: [slurm] file of the script; got troika.sbatch, which is there and "
                  "says something else, expected a new file (-o or -J names another; "
                  "--force replaces it)"));
  }
  EXPECT_THAT(read_file(folder_ / "troika.sbatch"), HasSubstr("--cpus-per-task=1\n"));
  EXPECT_FALSE(exists("called"));
  EXPECT_EQ(slurm("make --force -c 2 -- prog").exit_code, 0);
  EXPECT_THAT(read_file(folder_ / "troika.sbatch"), HasSubstr("--cpus-per-task=2\n"));
}

TEST_F(Slurm, ATimeThatTheSiteGivesIsSaid) {
  const auto outcome = slurm("submit --site jean-zay -C a100 -g 8 -- prog");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("no --time: gpu_p5 ends the job after 00:10:00"));
  EXPECT_THAT(slurm("submit --site jean-zay -C a100 -g 8 -t 2:00:00 -- prog").err,
              testing::Not(HasSubstr("--time")));
}

TEST_F(Slurm, MistakesAreTold) {
  const std::pair<const char*, const char*> rows[] = {
      {"make -c 1", "error: [slurm] program to run; got none, expected a program and its"},
      {"make -c 1 prog",
       "error: [slurm] unexpected argument; got prog (`troika slurm make --help` shows"},
      {"make --site nowhere -- prog", "error: [slurm] site; got nowhere, expected a table in /"},
      {"make --site nowhere.toml -- prog", "nowhere.toml"},
      {"make --site jean-zay -p gpu_p5 -g 9 -- prog", "error: [slurm] GPUs per node; got 9"},
      {"submit --site jean-zay -C h1000 -g 4 -- prog",
       "error: [slurm] constraint of jean-zay; got h1000, expected one of v100-16g, v100-32g, "
       "a100, h100 (did you mean h100?)"},
      {"make --site jean-zay -C h100 -g 4 -N 9 -q qos_gpu_h100-dev -t 1:00:00 -- prog",
       "error: [slurm] GPUs of the job; got 36, expected at most 32, the limit of QoS "
       "qos_gpu_h100-dev (--qos=qos_gpu_h100-t3 allows that)"},
      {"make -c 1 --output logs/%j -- prog", "folder of the job's output; got logs"},
      {"submit -c 1 --output logs/%j -- prog",
       "error: [slurm] folder of the job's output; got logs, expected a folder that is there"},
      {"", "error: [slurm] no command; expected one of make, submit\n"},
  };
  for (const auto& [arguments, message] : rows) {
    SCOPED_TRACE(arguments);
    const auto outcome = slurm(arguments);
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace troika
