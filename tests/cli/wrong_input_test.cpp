// The table of wrong inputs: each ends within 30 seconds, not with success, with the exact message,
// and leaves no process behind.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing_support::Outcome;
using testing_support::run_program;

class WrongInput : public testing::Test {
 protected:
  // Runs `troika ARGUMENTS` in the temporary folder, with further variables in front.
  Outcome troika(const std::string& arguments, const std::string& variables = "") {
    return run_program("cd " + folder_.path().string() + " && " + variables + " exec " +
                       TROIKA_PROGRAM + " " + arguments);
  }

  void write(const std::string& name, const std::string& content) {
    write_file_atomically(folder_ / name, content);
  }

  static void expect_failure(const Outcome& outcome, int exit_code, const std::string& message) {
    EXPECT_EQ(outcome.exit_code, exit_code);
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(outcome.orphans, 0);
  }

  const TemporaryFolder folder_;
};

TEST_F(WrongInput, UnknownKey) {
  write("bad.toml", "[trainer]\ndevcies = 2\n");
  expect_failure(
      troika("train bad.toml"), 2,
      "error: [config] unknown key trainer.devcies (bad.toml:2) (did you mean trainer.devices?)\n");
}

TEST_F(WrongInput, UnknownKeyOnTheCommandLine) {
  expect_failure(troika("train --optim.rl=0.1"), 2,
                 "error: [config] unknown key optim.rl (did you mean optim.lr?)\n");
}

TEST_F(WrongInput, WrongType) {
  write("bad.toml", "[trainer]\ndevices = \"two\"\n");
  expect_failure(troika("train bad.toml"), 2,
                 "error: [config] trainer.devices (bad.toml:2); got 'two', expected an integer\n");
}

TEST_F(WrongInput, NamesOfOtherProgramsAreAnsweredWithOnesOwn) {
  const std::pair<const char*, const char*> rows[] = {
      {"--optim.name=AdamW", "did you mean adamw?"},
      {"--trainer.precision=fp16", "did you mean 16-mixed?"},
      {"--trainer.precision=FP32", "did you mean 32?"},
      {"--model.name=ResNet50", "did you mean resnet50?"},
      {"--learning-rate=0.1", "did you mean --optim.lr?"},
      {"--batch_size 8", "did you mean --data.batch_size?"},
      {"--max-epochs=3", "did you mean --trainer.max_epochs?"},
  };
  for (const auto& [argument, hint] : rows) {
    expect_failure(troika(std::string("train ") + argument), 2, hint);
  }
}

TEST_F(WrongInput, MistypedOptionsOfTheProgramAreAnsweredWithTheNearest) {
  const std::array<const char*, 3> rows[] = {
      {"train", "--confg run.toml", "--config"},
      {"train", "--print-confg", "--print-config"},
      {"train", "--shutdown-timout=3", "--shutdown-timeout"},
      {"train", "--lr=0.1", "--optim.lr"},
      {"memory", "--budgt=3", "--budget"},
      {"report", "--hlep", "--help"},
      {"launch", "--nproc 2 true", "--nproc-per-node"},
      {"doctor", "--jsno", "--json"},
  };
  for (const auto& [command, words, meant] : rows) {
    const std::string word(words, 0, std::string(words).find(' '));
    const auto outcome = troika(std::string(command) + " " + words);
    expect_failure(outcome, 2, std::string("error: [") + command + "] unknown option; got " + word);
    EXPECT_THAT(outcome.err, HasSubstr(std::string("(did you mean ") + meant + "? `troika " +
                                       command + " --help` shows what it takes)\n"));
  }
  expect_failure(troika("--versoin"), 2,
                 "error: [troika] unknown option; got --versoin (did you mean --version? `troika "
                 "--help` shows what it takes)\n");
}

TEST_F(WrongInput, TheFileMayBeAnOptionToo) {
  write("run.toml", "[optim]\nlr = 0.25\n");
  EXPECT_THAT(troika("train --config run.toml --print-config").out, HasSubstr("\nlr = 0.25 "));
  EXPECT_THAT(troika("train --config=run.toml --print-config").out, HasSubstr("\nlr = 0.25 "));
}

TEST_F(WrongInput, FastDevRunIsAFlagToo) {
  EXPECT_THAT(troika("train --trainer.fast_dev_run=true --print-config").out,
              HasSubstr("\nfast_dev_run = 1 "));
  write("run.toml", "[trainer]\nfast_dev_run = true\n");
  EXPECT_THAT(troika("train run.toml --print-config").out, HasSubstr("\nfast_dev_run = 1 "));
  EXPECT_THAT(troika("train run.toml --trainer.fast_dev_run=false --print-config").out,
              HasSubstr("\nfast_dev_run = 0 "));
  expect_failure(troika("train --trainer.max_steps=true"), 2,
                 "error: [config] trainer.max_steps; got \"true\", expected an integer\n");
}

// Errors that CLI11 finds have the form of all errors.
TEST_F(WrongInput, EveryErrorOfTheCommandLineHasOneForm) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "[troika] no command; expected one of train, validate, "},
      {"slurm", "[slurm] no command; expected one of make, submit\n"},
      {"slurm make --nods=2 -- true",
       "[slurm] unknown option; got --nods=2 (did you mean --nodes? "},
      {"memory --budget=3q", "[memory] --budget: "},
      {"report", "[report] RUN is missing (`troika report --help` shows what it takes)\n"},
      {"predict", "[predict] --output is missing (`troika predict --help` shows what it takes)\n"},
      {"launch -n", "[launch] --nproc-per-node; got nothing after it, expected an integer ("},
      {"launch -n x true", "[launch] --nproc-per-node; got x, expected an integer ("},
      {"train --shutdown-timeout=x", "[train] --shutdown-timeout; got x, expected a number ("},
      {"memory --ranks=0", "[memory] --ranks; got 0, expected from 1 to 1000000 ("},
      {"completion fish",
       "[completion] SHELL; got fish, expected one of bash, zsh (bash or zsh)\n"},
      {"doctor more", "[doctor] unexpected argument; got more (`troika doctor --help` shows "},
      {"launch --rdzv-id=7 true",
       "[launch] --rdzv-id requires --rdzv-endpoint (`troika launch --help` shows "},
      {"launch --node-rank=1 --rdzv-endpoint=a:1 true",
       "[launch] --rdzv-endpoint excludes --node-rank (`troika launch --help` shows "},
  };
  for (const auto& [arguments, message] : rows) {
    expect_failure(troika(arguments), 2, std::string("error: ") + message);
  }
}

TEST_F(WrongInput, UnknownCommand) {
  const auto outcome = troika("trian run.toml");
  expect_failure(outcome, 2, "error: [troika] unknown command; got trian, expected one of train, ");
  EXPECT_THAT(outcome.err, HasSubstr("(did you mean train?)\n"));
  expect_failure(troika("slurm sumbit"), 2,
                 "error: [troika] unknown command; got sumbit, expected one of ");
  expect_failure(troika("bench colectives"), 2, "(did you mean collectives?)\n");
}

TEST_F(WrongInput, AValueMayFollowItsOptionAsAWord) {
  const auto outcome = troika("train --optim.lr 0.5 --data.batch_size 8 --print-config");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("\nlr = 0.5 "));
  EXPECT_THAT(outcome.out, HasSubstr("\nbatch_size = 8 "));
  write("run.toml", "[optim]\nlr = 0.25\n");
  EXPECT_THAT(troika("train --data.batch_size 8 run.toml --print-config").out,
              HasSubstr("\nlr = 0.25 "));
  expect_failure(troika("train --trainer.max_epochs many run.toml"), 2,
                 "error: [config] trainer.max_epochs; got \"many\", expected an integer\n");
}

TEST_F(WrongInput, VersionIsAnOptionToo) {
  const auto outcome = troika("--version");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, troika("version").out);
}

TEST_F(WrongInput, StandaloneIsOneMachine) {
  expect_failure(troika("launch --standalone --nnodes 2 --nproc_per_node 2 true"), 2,
                 "error: [launch] --standalone is for one machine; got --nnodes 2");
  EXPECT_EQ(troika("launch --standalone --nproc_per_node 2 true").exit_code, 0);
}

TEST_F(WrongInput, WhereRankZeroIsAssumedToBeIsSaid) {
  const auto outcome = troika("train --comm.join_timeout_seconds=0.1", "RANK=1 WORLD_SIZE=2");
  expect_failure(outcome, 4,
                 "MASTER_ADDR is not set: rank 0 is assumed to be on this machine, at 127.0.0.1");
}

TEST_F(WrongInput, ArgumentWithoutItsValue) {
  const std::string expected = ", expected --section.name=value\n";
  expect_failure(troika("train --optim.lr=0.1 --trainer.max_epochs"), 2,
                 "error: [config] argument; got --trainer.max_epochs" + expected);
  expect_failure(troika("train a.toml b.toml"), 2,
                 "error: [config] argument; got b.toml" + expected);
}

TEST_F(WrongInput, NumbersOutOfRange) {
  const std::pair<const char*, const char*> rows[] = {
      {"trainer.max_epochs=1000000001", "1000000001, expected an integer from -1 to 1000000000"},
      {"trainer.max_epochs=-2", "-2, expected an integer from -1 to 1000000000"},
      {"trainer.num_nodes=0", "0, expected an integer >= 1, or -1 for any number"},
      {"trainer.max_steps=0", "0, expected an integer >= 1, or -1 for no limit"},
      {"trainer.max_steps=-2", "-2, expected an integer >= 1, or -1 for no limit"},
      {"data.batch_size=1000000001", "1000000001, expected an integer from 1 to 1000000000"},
      {"data.global_batch_size=1000000001", "1000000001, expected an integer from 0 to 1000000000"},
      {"optim.beta1=1", "1.0, expected a number >= 0 and < 1"},
      {"optim.beta2=1", "1.0, expected a number >= 0 and < 1"},
      {"comm.timeout_seconds=0", "0.0, expected a number > 0 and <= 604800"},
      {"comm.timeout_seconds=1e300", "1e+300, expected a number > 0 and <= 604800"},
      {"comm.join_timeout_seconds=604801", "604801.0, expected a number > 0 and <= 604800"},
      {"comm.bucket_megabytes=inf", "inf, expected a number > 0 and <= 1000000"},
      {"comm.first_bucket_megabytes=1000001", "1000001.0, expected a number > 0 and <= 1000000"},
  };
  for (const auto& [argument, message] : rows) {
    const std::string text = argument;
    expect_failure(troika("train --" + text), 2,
                   "error: [config] " + text.substr(0, text.find('=')) + "; got " + message + "\n");
  }
  expect_failure(troika("train --trainer.devices=4294967297"), 2,
                 "error: [cluster] number of processes; got 2147483647, expected at most 4096 on "
                 "one machine\n");
}

TEST_F(WrongInput, NamesThatNothingHas) {
  expect_failure(
      troika("train --trainer.accelerator=cdua"), 2,
      "error: [config] trainer.accelerator; got \"cdua\", expected one of auto, cpu, gpu, "
      "cuda (did you mean cpu?)\n");
  expect_failure(troika("train --trainer.profiler=simpel"), 2,
                 "error: [config] trainer.profiler; got \"simpel\", expected simple, or "
                 "nothing\n");
  expect_failure(troika("train --trainer.seed_everything=-1"), 2,
                 "error: [config] run.seed; got -1, expected an integer >= 0\n");
}

TEST_F(WrongInput, MissingFile) {
  write("one.toml", "");
  write("run.toml", "");
  expect_failure(troika("train none.toml"), 2,
                 "error: [config] the configuration does not exist; got none.toml, expected a file "
                 "in TOML (did you mean one.toml?)\n");
}

TEST_F(WrongInput, MissingData) {
  expect_failure(troika("train --data.name=cifar10 --data.path=nowhere"), 2,
                 "error: [data] no data_batch_1.bin to data_batch_5.bin in nowhere (unpack ");
}

TEST_F(WrongInput, TruncatedData) {
  write("data_batch_1.bin", std::string(3073 * 2 + 100, '\1'));
  write("test_batch.bin", std::string(3073, '\1'));
  expect_failure(
      troika("train --data.name=cifar10 --data.path=."), 2,
      "error: [data] ./data_batch_1.bin is short or no CIFAR file; got 6246 bytes, expected a "
      "multiple of 3073");
}

TEST_F(WrongInput, BatchSmallerThanRanks) {
  expect_failure(
      troika("train --trainer.devices=3 --data.global_batch_size=2 --data.train_samples=100 "
             "--data.validation_samples=10"),
      2,
      ": [train] data.global_batch_size does not divide among 3 ranks; got 2, expected a "
      "multiple of 3 (data.batch_size is the samples of each rank, and always divides)\n");
}

TEST_F(WrongInput, NoDevices) {
  expect_failure(troika("train --trainer.devices=0"), 2,
                 "error: [config] trainer.devices; got 0, expected an integer >= 1, or -1 for as "
                 "many as the launcher started\n");
}

TEST_F(WrongInput, ShutdownTimeout) {
  expect_failure(troika("train --shutdown-timeout=-1 --trainer.devices=2"), 2,
                 "error: [launch] shutdown timeout; got -1, expected a number of seconds from 0 to "
                 "604800\n");
  expect_failure(troika("train --shutdown-timeout=60"), 2,
                 "error: [train] --shutdown-timeout without processes to wait for; got "
                 "trainer.devices = -1 and launcher none, expected trainer.devices > 1 and no "
                 "launcher (troika launch and Slurm have their own)\n");
}

TEST_F(WrongInput, ModelAndDataThatDoNotGoTogether) {
  const std::pair<const char*, const char*> rows[] = {
      {"model.name=gpt", "gpt for images, expected a model of images"},
      {"model.name=unet", "unet for images, expected a model of images"},
      {"data.name=shape_masks", "resnet20 for images with masks, expected unet"},
      {"data.name=captions", "resnet20 for videos with captions, expected s2vt"},
  };
  for (const auto& [argument, message] : rows) {
    expect_failure(troika("train --" + std::string(argument)), 2,
                   std::string("error: [train] model.name and data.name do not go together; got ") +
                       message + "\n");
  }
}

TEST_F(WrongInput, DevicesAndLauncherDisagree) {
  expect_failure(troika("launch -n 2 " TROIKA_PROGRAM " train --trainer.devices=3"), 2,
                 "[train] trainer.devices and the launcher disagree; got devices = 3, expected 2, "
                 "the processes of the group on this machine (leave trainer.devices at -1 "
                 "under a launcher)\n");
}

TEST_F(WrongInput, PortTaken) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  expect_failure(troika("launch -n 2 --master-port " + port + " " + TROIKA_PROGRAM + " train"), 2,
                 "error: [cluster] cannot listen on port " + port +
                     "; got address already in use, expected a free port");
  ::close(listener);
}

TEST_F(WrongInput, ARankThatThrows) {
  const auto outcome = troika("launch -n 3 " TROIKA_FAILING_RANK " throw");
  expect_failure(outcome, 1,
                 "[cluster] rank 1 failed first: exit code 1\n"
                 "  message: the disk is on fire\n");
}

TEST_F(WrongInput, ARankThatIsKilled) {
  const auto outcome = troika("launch -n 3 " TROIKA_FAILING_RANK " kill");
  expect_failure(outcome, 137, "[cluster] rank 1 failed first: killed by SIGKILL (137)\n");
}

TEST_F(WrongInput, WorldSizeWithoutRank) {
  expect_failure(troika("train", "WORLD_SIZE=2"), 2,
                 "error: [cluster] incomplete launch environment; got WORLD_SIZE without RANK, "
                 "expected both (start with troika launch, torchrun, srun or mpirun, or unset "
                 "WORLD_SIZE to run alone)\n");
}

#ifdef TROIKA_WITH_MPI
TEST_F(WrongInput, ARankThatFailsUnderMpirun) {
  const std::string mpirun =
      "exec " TROIKA_MPIEXEC " --allow-run-as-root --oversubscribe -n 3 " TROIKA_FAILING_RANK;
  // mpirun returns the exit code of the rank that ends first.
  const auto thrown = run_program(mpirun + " throw");
  EXPECT_GT(thrown.exit_code, 0);
  EXPECT_THAT(thrown.err, HasSubstr("error: the disk is on fire\n"));
  EXPECT_THAT(thrown.err, HasSubstr("rank 1 is gone: its program failed"));
  EXPECT_EQ(thrown.orphans, 0);
  const auto killed = run_program(mpirun + " kill");
  EXPECT_GT(killed.exit_code, 0);
  // The message depends on which of the two is seen first.
  EXPECT_THAT(killed.err, AnyOf(HasSubstr("rank 1 is gone: its process has ended"),
                                HasSubstr("rank 1 is gone: its connection closed")));
  EXPECT_EQ(killed.orphans, 0);
}

TEST_F(WrongInput, MpiWorldOfOneUnderMpirun) {
  expect_failure(
      troika("train --comm.backend=mpi",
             "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 "
             "OMPI_COMM_WORLD_LOCAL_SIZE=2"),
      2,
      "error: [cluster] the launcher and MPI disagree on the number of ranks; got 1 from MPI, "
      "expected 2 (rank 0 of 2 (local 0 of 2 on node 0 of 1), found by Open MPI variables)");
}

TEST_F(WrongInput, MpiWorldOfOneUnderSlurm) {
  expect_failure(
      troika("train --comm.backend=mpi",
             "SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_JOB_ID=77 SLURM_STEP_ID=0 "
             "SLURM_NNODES=1 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2 "
             "SLURM_JOB_NODELIST=localhost"),
      2,
      "error: [cluster] the launcher and MPI disagree on the number of ranks; got 1 from MPI, "
      "expected 2 (rank 0 of 2 (local 0 of 2 on node 0 of 1), found by Slurm variables)");
}
#endif

TEST_F(WrongInput, BackEndThatDoesNotExist) {
  expect_failure(troika("train --comm.backend=glo"), 2,
                 "error: [config] comm.backend; got \"glo\", expected one of auto, shm, tcp, gloo, "
                 "mpi (did you "
                 "mean gloo?)\n");
}

TEST_F(WrongInput, NoSubcommand) {
  EXPECT_EQ(troika("").exit_code, 2);
  EXPECT_EQ(troika("trian").exit_code, 2);
  EXPECT_EQ(troika("launch").exit_code, 2);
}

}  // namespace
}  // namespace troika
