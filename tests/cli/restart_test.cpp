// `troika launch --max-restarts`: training resumes from its latest checkpoint when a rank has died.
#include <gmock/gmock.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::HasSubstr;

// Trains to `steps`; without, rank 1 of the first round is killed after the first checkpoint, and
// the second round trains some steps more than the checkpoint it resumes from.
constexpr const char* kRestartedRank = R"(#!/bin/sh
name=$1 steps=$2 last=runs/$1/checkpoints/last
if [ -z "$steps" ]; then
  steps=1000000000
  if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then
    at=$(readlink $last); at=${at##*=}; steps=$((${at%-v*} + 11))
  fi
fi
train() {
  exec $PROGRAM train --run.name=$name --trainer.max_steps=$steps --trainer.max_epochs=1000000 \
    --checkpoint.every_n_train_steps=7 --checkpoint.every_n_epochs=0 --optim.schedule=constant \
    --model.name=mlp --model.hidden_width=16 --model.dropout=0.3 --data.train_samples=192 \
    --data.validation_samples=12 --data.global_batch_size=12 --data.augment=true \
    --trainer.enable_progress_bar=false --optim.name=adamw
}
[ -z "$2" ] && [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] || train
train & child=$!
until [ -e $last ]; do :; done
kill -KILL $child
wait $child
)";

// The bytes of all tensors, without the options in the file's metadata.
std::string tensors(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  uint64_t header = 0;
  std::memcpy(&header, text.data(), sizeof header);
  return text.substr(sizeof header + header);
}

TEST(Restart, EndsWithTheWeightsOfARunThatNeverStopped) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "rank", kRestartedRank);
  const auto launch = [&](const std::string& arguments) {
    return testing_support::run_program(
        "cd " + folder.path().string() +
        " && PROGRAM=" + TROIKA_PROGRAM " exec " TROIKA_PROGRAM " launch " + arguments);
  };
  const auto restarted = launch("-n 2 --max-restarts 1 sh rank restarted");
  ASSERT_EQ(restarted.exit_code, 0) << restarted.err;
  EXPECT_EQ(restarted.orphans, 0);
  EXPECT_THAT(restarted.err, HasSubstr("[cluster] rank 1 failed first: exit code 137\n"));
  EXPECT_THAT(restarted.err, HasSubstr("[cluster] restart 1 of 1\n"));
  EXPECT_THAT(restarted.err, HasSubstr("resumes from"));
  const auto summary = nlohmann::json::parse(read_file(folder / "runs/restarted/summary.json"));
  const auto whole = launch("-n 2 sh rank whole " + summary["steps"].dump());
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(tensors(folder / "runs/restarted/checkpoints/last.safetensors"),
            tensors(folder / "runs/whole/checkpoints/last.safetensors"));
}

}  // namespace
}  // namespace troika
