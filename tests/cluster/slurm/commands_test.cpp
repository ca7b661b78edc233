// The arguments of Slurm's commands, and the meaning of their output.
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/slurm/commands.h"

namespace troika::cluster::slurm {
namespace {

// Puts fakes of the commands first in PATH.
class SlurmCommands : public testing::Test {
 protected:
  SlurmCommands() : path_(std::getenv("PATH")) {
    ::setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
  }
  ~SlurmCommands() override { ::setenv("PATH", path_.c_str(), 1); }

  // Makes a fake command that records its arguments and then runs `body`.
  void fake(const std::string& name, const std::string& body) {
    const auto file = folder_ / name;
    write_file_atomically(
        file, "#!/bin/sh\necho " + name + " \"$@\" >> " + calls().string() + "\n" + body + "\n");
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  std::filesystem::path calls() const { return folder_ / "calls"; }

  TemporaryFolder folder_;
  std::string path_;
};

Variables only(std::map<std::string, std::string> set) {
  return [set = std::move(set)](const std::string& name) {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST_F(SlurmCommands, SubmitGivesTheJobsId) {
  fake("sbatch", "echo 'sbatch: a remark' >&2; echo 4711");
  EXPECT_EQ(submit("/some/run.sbatch"), "4711");
  EXPECT_EQ(read_file(calls()), "sbatch --parsable /some/run.sbatch\n");
  fake("sbatch", "echo '4712;north'");
  EXPECT_EQ(submit("x"), "4712");
}

TEST_F(SlurmCommands, SubmitSaysWhySlurmRefuses) {
  fake("sbatch", "echo 'sbatch: error: invalid account' >&2; exit 1");
  EXPECT_ERROR(submit("x"), ErrorKind::failure,
               "[slurm] sbatch failed; got sbatch: error: invalid account");
  fake("sbatch", "kill -9 $$");
  EXPECT_ERROR(submit("x"), ErrorKind::failure,
               "[slurm] sbatch failed; got killed by SIGKILL (137)");
  fake("sbatch", "echo Submitted");
  EXPECT_ERROR(submit("x"), ErrorKind::failure,
               "[slurm] answer of sbatch; got Submitted, expected a job id");
  // More than a pipe holds.
  fake("sbatch", "head -c 200000 /dev/zero | tr '\\0' x >&2; exit 1");
  EXPECT_ERROR(submit("x"), ErrorKind::failure,
               "[slurm] sbatch failed; got " + std::string(200000, 'x'));
}

TEST_F(SlurmCommands, NobodyWaitsForEverForAnAnswer) {
  fake("sbatch", "while :; do sleep 1000; done");
  EXPECT_ERROR(submit("x", Deadline::after(Milliseconds(50))), ErrorKind::timeout,
               "[slurm] no answer from sbatch in time (is Slurm's controller up? sinfo shows it)");
}

TEST_F(SlurmCommands, WithoutSlurmThatIsSaid) {
  ::setenv("PATH", folder_.path().c_str(), 1);
  EXPECT_ERROR(submit("x"), ErrorKind::usage,
               "[cluster] cannot execute \"sbatch\"; got no such file or directory, expected a "
               "program in PATH or the path of one");
}

TEST_F(SlurmCommands, RequeueNamesTheJobOrTheElementOfTheArray) {
  fake("scontrol", "");
  EXPECT_EQ(requeue(only({{"SLURM_JOB_ID", "12"}})), "12");
  EXPECT_EQ(
      requeue(only(
          {{"SLURM_JOB_ID", "15"}, {"SLURM_ARRAY_JOB_ID", "12"}, {"SLURM_ARRAY_TASK_ID", "3"}})),
      "12_3");
  EXPECT_EQ(read_file(calls()), "scontrol requeue 12\nscontrol requeue 12_3\n");
  fake("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1");
  EXPECT_ERROR(requeue(only({{"SLURM_JOB_ID", "12"}})), ErrorKind::failure,
               "[slurm] scontrol failed; got Requested operation is presently disabled");
  EXPECT_ERROR(requeue(only({})), ErrorKind::usage,
               "[slurm] cannot requeue; got no SLURM_JOB_ID, expected a Slurm job");
}

TEST_F(SlurmCommands, RequeueOutlivesTheEndOfTheJobThatItBegins) {
  fake("scontrol", "kill -TERM $$");
  EXPECT_EQ(requeue(only({{"SLURM_JOB_ID", "12"}})), "12");
}

TEST(SlurmRequeue, IsForBatchJobsThatMay) {
  EXPECT_FALSE(may_requeue(only({})));
  EXPECT_TRUE(may_requeue(only({{"SLURM_JOB_ID", "1"}})));
  EXPECT_TRUE(may_requeue(only({{"SLURM_JOB_ID", "1"}, {"TROIKA_REQUEUE", "1"}})));
  EXPECT_FALSE(may_requeue(only({{"SLURM_JOB_ID", "1"}, {"TROIKA_REQUEUE", "0"}})));
  EXPECT_FALSE(may_requeue(only({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NAME", "bash"}})));
  EXPECT_FALSE(may_requeue(only({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NAME", "interactive"}})));
}

}  // namespace
}  // namespace troika::cluster::slurm
