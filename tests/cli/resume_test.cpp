// `troika train` that is stopped, killed and resumed, with real processes and signals.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::HasSubstr;
using testing_support::run_program;

// 16 steps an epoch.
const std::string kSmall =
    " --model.name=mlp --model.hidden_width=16 --model.dropout=0.3 --data.train_samples=192 "
    "--data.validation_samples=12 --data.global_batch_size=12 --data.augment=true "
    "--trainer.log_every_n_steps=4 --trainer.enable_progress_bar=false --optim.name=adamw";

// Runs COMMAND as a child, reads its standard error until a line holds WORD, sends SIGNAL, and ends
// as the child does.
constexpr const char* kSignalled = R"(#!/bin/sh
signal=$1; word=$2; shift 2
mkfifo err; "$@" 2> err > out & child=$!
exec 3< err; rm err
while read -r line <&3; do case $line in *"$word"*) break;; esac; done
kill -s "$signal" $child
cat <&3 > rest
wait $child
)";

class ResumeRun : public testing::Test {
 protected:
  ResumeRun() {
    write_file_atomically(folder_ / "signalled", kSignalled);
    write_file_atomically(folder_ / "scontrol", "#!/bin/sh\necho \"$@\" >> calls\n");
    for (const char* script : {"signalled", "scontrol"}) {
      std::filesystem::permissions(folder_ / script, std::filesystem::perms::owner_all);
    }
  }

  testing_support::Outcome shell(const std::string& command) {
    return run_program("cd " + folder_.path().string() + " && PATH=.:$PATH && " + command);
  }
  testing_support::Outcome train(const std::string& arguments) {
    return shell(TROIKA_PROGRAM " train" + kSmall + arguments);
  }
  std::filesystem::path last(const std::string& run) const {
    return folder_ / "runs" / run / "checkpoints/last";
  }
  nlohmann::json summary(const std::string& run = "run") const {
    return nlohmann::json::parse(read_file(folder_ / "runs" / run / "summary.json"));
  }
  // The bytes of all tensors, without the options in the file's metadata.
  static std::string tensors(const std::filesystem::path& file) {
    const std::string text = read_file(file);
    uint64_t header = 0;
    std::memcpy(&header, text.data(), sizeof header);
    return text.substr(sizeof header + header);
  }

  // By name, without what was measured and the folders of checkpoints.
  static std::map<std::string, std::string> named_tensors(const std::filesystem::path& file) {
    const std::string text = read_file(file), bytes = tensors(file);
    const auto header =
        text.substr(sizeof(uint64_t), text.size() - bytes.size() - sizeof(uint64_t));
    const auto entries = nlohmann::json::parse(header);
    std::map<std::string, std::string> result;
    for (const auto& [name, entry] : entries.items()) {
      if (name == "loops.seconds" || name == "loops.train_seconds" || name == "link_bandwidths")
        continue;
      if (name == "callback.model_checkpoint.others" || name == "run_id") continue;
      const auto offsets = entry["data_offsets"].get<std::vector<size_t>>();
      result[name] = bytes.substr(offsets[0], offsets[1] - offsets[0]);
    }
    return result;
  }

  const TemporaryFolder folder_;
};

TEST_F(ResumeRun, NewProcessesGoOnToTheBit) {
  const std::string two = " --trainer.devices=2 --trainer.max_epochs=2";
  ASSERT_EQ(train(two + " --run.name=whole").exit_code, 0);
  ASSERT_EQ(train(two + " --checkpoint.every_n_epochs=0 --checkpoint.every_n_train_steps=21 "
                        "--checkpoint.save_last=false")
                .exit_code,
            0);
  EXPECT_THAT(std::filesystem::read_symlink(last("run")).string(), "epoch=1-step=21");
  const auto resumed = train(two + " --trainer.ckpt_path=last");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resumes from"));
  EXPECT_EQ(tensors(last("run") / "model.safetensors"),
            tensors(last("whole") / "model.safetensors"));
  const auto found = named_tensors(last("run") / "rank-1.safetensors");
  EXPECT_TRUE(found == named_tensors(last("whole") / "rank-1.safetensors"));
  EXPECT_TRUE(found.contains("random.cpu") && found.contains("log.training"));
}

TEST_F(ResumeRun, NothingLeftToTrainIsARunThatIsDone) {
  ASSERT_EQ(train(" --trainer.max_epochs=1").exit_code, 0);
  const auto again = train(" --trainer.max_epochs=1 --trainer.ckpt_path=last");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("run finished: 16 steps"));
}

TEST_F(ResumeRun, OptionsThatDifferFromTheCheckpointsAreNamed) {
  const std::string eight = " --data.global_batch_size=0 --data.batch_size=8 --optim.lr=0.02";
  ASSERT_EQ(train(eight + " --trainer.max_epochs=1 --trainer.devices=4").exit_code, 0);
  const std::string goes_on = " --trainer.max_epochs=2 --trainer.ckpt_path=last";
  const auto kept =
      train(goes_on + " --data.global_batch_size=32 --optim.lr=0.02 --trainer.devices=2");
  ASSERT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_THAT(kept.err, HasSubstr("resumes from"));
  EXPECT_THAT(kept.err, testing::Not(HasSubstr("in the checkpoint")));
  const auto changed = train(goes_on + eight +
                             " --optim.lr=0.01 --optim.weight_decay=0.25 --trainer.devices=2 "
                             "--trainer.gradient_clip_val=1 --trainer.max_epochs=3");
  ASSERT_EQ(changed.exit_code, 0) << changed.err;
  for (const char* warning :
       {"warning: a batch is 16 samples on 2 ranks, and was 32 on 2 in the checkpoint "
        "(data.global_batch_size=32 keeps it)",
        "warning: optim.lr is 0.01, and was 0.02 in the checkpoint (optim.lr=0.02 keeps it)",
        "warning: optim.weight_decay is 0.25, and was ",
        "warning: trainer.gradient_clip_val is 1.0, and was 0.0 in the checkpoint"}) {
    EXPECT_THAT(changed.err, HasSubstr(warning));
  }
}

TEST_F(ResumeRun, TheTermSignalSavesAndStops) {
  const auto stopped =
      shell("./signalled TERM 'epoch 1/' " TROIKA_PROGRAM " launch -n 2 " TROIKA_PROGRAM " train" +
            kSmall + " --trainer.max_epochs=100000");
  EXPECT_EQ(stopped.exit_code, 6) << read_file(folder_ / "rest");
  EXPECT_EQ(stopped.orphans, 0);
  EXPECT_EQ(summary()["status"], "stopped");
  const auto step = summary()["steps"].get<int64_t>();
  const auto resumed =
      train(fmt::format(" --trainer.ckpt_path=last --trainer.max_epochs=100000 "
                        "--trainer.max_steps={}",
                        step + 3));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(summary()["steps"], step + 3);
}

TEST_F(ResumeRun, CtrlCSavesAndSaysHowToGoOn) {
  for (const char* processes : {"1", "2"}) {
    SCOPED_TRACE(processes);
    const auto stopped =
        shell(std::string("./signalled INT 'epoch 1/' " TROIKA_PROGRAM " train") + kSmall +
              " --trainer.max_epochs=100000 --trainer.devices=" + processes +
              " --run.name=by-hand-" + processes);
    EXPECT_EQ(stopped.exit_code, 6) << read_file(folder_ / "rest");
    EXPECT_EQ(stopped.orphans, 0);
    EXPECT_THAT(read_file(folder_ / "rest"), HasSubstr("Ctrl-C again ends at once"));
    const auto said = read_file(folder_ / "rest");
    EXPECT_THAT(said, HasSubstr(" stopped: "));
    const std::string how = "\n  to resume            troika ";
    const auto at = said.find(how);
    ASSERT_NE(at, std::string::npos) << said;
    const auto command = said.substr(at + how.size(), said.find('\n', at + 1) - at - how.size());
    const auto resumed = shell(
        fmt::format("{} {} --trainer.max_steps={}", TROIKA_PROGRAM, command,
                    summary("by-hand-" + std::string(processes))["steps"].get<int64_t>() + 1));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_THAT(resumed.err, HasSubstr("resumes from"));
  }
}

// Predicting the memory of this many blocks takes seconds; the line is printed before.
TEST_F(ResumeRun, CtrlCBeforeTrainingEndsAtOnce) {
  write_file_atomically(folder_ / "text", std::string(100'000, 'x'));
  for (const char* processes : {"1", "2"}) {
    SCOPED_TRACE(processes);
    const auto stopped =
        shell(std::string("./signalled INT 'back end' " TROIKA_PROGRAM
                          " train --data.name=text --data.files=text --data.context=32 "
                          "--data.train_samples=0 --model.name=gpt --model.layers=96 --run.name=") +
              "early-" + processes + " --trainer.devices=" + processes);
    EXPECT_EQ(stopped.exit_code, 130) << read_file(folder_ / "rest");
    EXPECT_EQ(stopped.orphans, 0);
    EXPECT_THAT(read_file(folder_ / "rest"),
                HasSubstr("\nCtrl-C before training: there is nothing to save\n"));
    EXPECT_THAT(read_file(folder_ / "rest"), testing::Not(HasSubstr("saving")));
  }
}

TEST_F(ResumeRun, TheUserSignalSavesAndRequeuesOnce) {
  const std::string job = "SLURM_JOB_ID=77 SLURM_JOB_NAME=batch ";
  const auto stopped = shell(
      job + "./signalled USR1 'epoch 1/' " TROIKA_PROGRAM " launch -n 2 " TROIKA_PROGRAM " train" +
      kSmall + " --trainer.max_epochs=100000");
  EXPECT_EQ(stopped.exit_code, 5) << read_file(folder_ / "rest");
  EXPECT_EQ(read_file(folder_ / "calls"), "requeue 77\n");
  const auto again =
      shell(job + "SLURM_RESTART_COUNT=1 " TROIKA_PROGRAM " launch -n 2 " TROIKA_PROGRAM " train" +
            kSmall + " --trainer.max_epochs=1");
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_THAT(again.err, HasSubstr("resumes from"));
}

// Nearly all the time goes into checkpoints, so kills fall into the middle of them.
TEST_F(ResumeRun, AKillLeavesALoadableCheckpoint) {
  const std::string run = std::string(TROIKA_PROGRAM) + " train" + kSmall +
                          " --trainer.max_epochs=100000 --checkpoint.every_n_train_steps=1 "
                          "--trainer.ckpt_path=last";
  for (int epoch = 1; epoch <= 4; ++epoch) {
    EXPECT_EQ(shell(fmt::format("./signalled KILL 'epoch {}/' {}", epoch, run)).exit_code, 137);
  }
  const auto resumed = shell(run + " --trainer.max_steps=70");
  EXPECT_THAT(resumed.err, HasSubstr("resumes from"));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  for (const auto& entry : std::filesystem::directory_iterator(last("run").parent_path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
}

}  // namespace
}  // namespace troika
