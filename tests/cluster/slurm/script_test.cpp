// The script, byte for byte, and its effect in bash.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/cluster/slurm/slurm_jobs.h"
#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/slurm/script.h"

namespace troika::cluster::slurm {
namespace {

using testing_support::run_program;

TEST(SlurmScript, OnJeanZay) {
  auto job = job_on("gpu_p13", 4, 2);
  job.name = "resnet";
  job.account = "abc@v100";
  job.constraint = "v100-32g";
  job.time = "20:00:00";
  job.modules = {"gcc/12.2.0"};
  job.environment = {"GLOO_SOCKET_IFNAME=ib0", "GREETING=two words"};
  job.command = {"troika", "train", "run.toml", "--run.name=it's $HOME"};
  EXPECT_EQ(make_script(job, jean_zay()), R"(#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --account=abc@v100
#SBATCH --constraint=v100-32g
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=10
#SBATCH --hint=nomultithread
#SBATCH --time=20:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=USR1@90
#SBATCH --requeue

module purge
module load gcc/12.2.0 || exit 2
export OMP_NUM_THREADS=10
TROIKA_RUN_SECRET=$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')
export TROIKA_RUN_SECRET
export GLOO_SOCKET_IFNAME=ib0
export GREETING='two words'
exec srun --kill-on-bad-exit=0 --cpus-per-task=10 troika train run.toml '--run.name=it'\''s $HOME'
)");
}

TEST(SlurmScript, OfAnArrayThatMayNotStartAgain) {
  auto job = job_on("gpu_p6", 1);
  job.array = "0-9%2";
  job.qos = "qos_gpu_h100-dev";
  job.requeue = false;
  job.signal_lead = 0;
  EXPECT_EQ(make_script(job, jean_zay()), R"(#!/bin/bash
#SBATCH --job-name=troika
#SBATCH --constraint=h100
#SBATCH --qos=qos_gpu_h100-dev
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=24
#SBATCH --hint=nomultithread
#SBATCH --array=0-9%2
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --no-requeue

module purge
module load arch/h100 || exit 2
export OMP_NUM_THREADS=24
TROIKA_RUN_SECRET=$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')
export TROIKA_RUN_SECRET
export TROIKA_REQUEUE=0
exec srun --kill-on-bad-exit=0 --cpus-per-task=24 troika train run.toml
)");
}

TEST(SlurmScript, OnlyTheConstraintSaysWhere) {
  auto job = job_on("", 8);
  job.constraint = "a100";
  const auto script = make_script(job, jean_zay());
  EXPECT_THAT(script, testing::HasSubstr("#SBATCH --constraint=a100\n#SBATCH --nodes=1\n"));
  EXPECT_THAT(script, testing::HasSubstr("\nmodule purge\nmodule load arch/a100 || exit 2\n"));
}

// sbatch passes the modules of the login shell to the job.
TEST(SlurmScript, DropsModulesOfTheLoginShellWhereTheSiteWantsThat) {
  EXPECT_THAT(make_script(job_on("gpu_p13", 4), jean_zay()),
              testing::HasSubstr("\n\nmodule purge\nexport OMP"));
}

TEST(SlurmScript, OnNodesWithoutGpusAndASiteWithoutATable) {
  auto job = job_on("short", 0);
  job.tasks_per_node = 2;
  job.cpus_per_task = 3;
  job.memory = "10G";
  job.output = "logs/%j.txt";
  EXPECT_EQ(make_script(job, {}), R"(#!/bin/bash
#SBATCH --job-name=troika
#SBATCH --partition=short
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=3
#SBATCH --mem=10G
#SBATCH --output=logs/%j.txt
#SBATCH --open-mode=append
#SBATCH --signal=USR1@90
#SBATCH --requeue

export OMP_NUM_THREADS=3
TROIKA_RUN_SECRET=$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')
export TROIKA_RUN_SECRET
exec srun --kill-on-bad-exit=0 --cpus-per-task=3 troika train run.toml
)");
}

// A program that writes its arguments, each ended by a NUL, and one variable.
void make_fake(const std::filesystem::path& file, const std::string& body) {
  write_file_atomically(file, "#!/bin/sh\n" + body + "\n");
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
}

TEST(SlurmScript, BashGivesSrunTheWordsAsTheyWere) {
  const TemporaryFolder folder;
  make_fake(folder / "srun", "printf '%s\\0' \"$@\" > " + (folder / "words").string() +
                                 "; printf %s \"$ODD\" > " + (folder / "odd").string() +
                                 "; printf %s \"$TROIKA_RUN_SECRET\" > " +
                                 (folder / "secret").string() + "; exit 6");
  const std::string odd = "'\"\\ $HOME `id` $(id)\n*?[a]{b,c}~#!;|&<>\t\xc3\xa9";
  auto job = job_on("p", 0);
  job.cpus_per_task = 1;
  job.environment = {"ODD=" + odd};
  job.command = {"a program", "", "two words", odd, "~", "--x=1", "#", "''"};
  write_file_atomically(folder / "script", make_script(job, {}));
  const auto outcome =
      run_program("PATH=" + folder.path().string() + ":$PATH bash " + (folder / "script").string());
  EXPECT_EQ(outcome.exit_code, 6) << outcome.err;
  EXPECT_EQ(outcome.out + outcome.err, "");
  std::string expected;
  for (const auto& word : {std::string("--kill-on-bad-exit=0"), std::string("--cpus-per-task=1")}) {
    expected += word + '\0';
  }
  for (const auto& word : job.command) expected += word + '\0';
  EXPECT_EQ(read_file(folder / "words"), expected);
  EXPECT_EQ(read_file(folder / "odd"), odd);
  EXPECT_THAT(read_file(folder / "secret"), testing::MatchesRegex("[0-9a-f]{64}"));
}

TEST(SlurmScript, WithoutItsModulesAJobDoesNotStart) {
  const TemporaryFolder folder;
  make_fake(folder / "srun", "echo started");
  make_fake(folder / "module", "echo module \"$@\"; [ \"$2\" != missing ]");
  auto job = job_on("p", 0);
  job.cpus_per_task = 1;
  job.modules = {"there", "missing", "later"};
  write_file_atomically(folder / "script", make_script(job, {}));
  const auto outcome =
      run_program("PATH=" + folder.path().string() + ":$PATH bash " + (folder / "script").string());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "module purge\nmodule load there\nmodule load missing\n");
}

}  // namespace
}  // namespace troika::cluster::slurm
