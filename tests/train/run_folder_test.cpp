// The folders that Trainer::fit() chooses.
#include "troika/train/run/run_folder.h"

#include <gmock/gmock.h>

#include "tests/train/error_words.h"
#include "tests/train/waves.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

class RunFolderOfTrainer : public testing::Test {
 protected:
  RunFolderOfTrainer() {
    options_.run.folder = folder_.path().string();
    options_.trainer.enable_progress_bar = false;
    options_.trainer.max_epochs = 1;
    options_.data.global_batch_size = 12;
    options_.data.workers = 0;
  }
  // Returns the trainer's folder on each rank after this number of fits.
  std::vector<std::string> fit(int ranks, int times = 1) {
    std::vector<std::string> folders(static_cast<size_t>(ranks));
    comm::local::run(ranks, [&](comm::Group group) {
      const auto task = make_waves_task(4, 0);
      Trainer trainer(options_, group);
      for (int i = 0; i < times; ++i) trainer.fit(*task, Waves(), Waves());
      folders[static_cast<size_t>(group.rank())] = trainer.folder().filename();
    });
    return folders;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(RunFolderOfTrainer, AllRanksTakeTheSameNewOne) {
  EXPECT_THAT(fit(4), testing::Each("run"));
  const auto config = read_file(folder_ / "run/config.toml");
  EXPECT_THAT(fit(4), testing::Each("run-2"));
  EXPECT_EQ(read_file(folder_ / "run/config.toml"), config);
  // A removed folder name is not used again while there are later ones, except for the first.
  EXPECT_THAT(fit(1), testing::Each("run-3"));
  std::filesystem::remove_all(folder_ / "run-2");
  EXPECT_THAT(fit(1), testing::Each("run-4"));
  std::filesystem::remove_all(folder_ / "run");
  EXPECT_THAT(fit(1), testing::Each("run"));
}

TEST_F(RunFolderOfTrainer, ARunThatFailedWithoutResultsLeavesItsName) {
  options_.data.global_batch_size = 5000;
  EXPECT_THAT(error_of([&] { fit(4); }),
              HasSubstr("data.global_batch_size is more than there is to train on"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/summary.json"));
  options_.data.global_batch_size = 12;
  EXPECT_THAT(fit(4), testing::Each("run"));
}

TEST_F(RunFolderOfTrainer, EachFitThatBeginsAnewIsARunOfItsOwn) {
  EXPECT_THAT(fit(4, 3), testing::Each("run-3"));
  options_.trainer.ckpt_path = "last";
  EXPECT_THAT(fit(4, 2), testing::Each("run"));
}

TEST_F(RunFolderOfTrainer, OneThatIsLockedIsNotShared) {
  auto first = options_;
  auto claimed = std::make_optional(RunFolder::claim(first, false));
  EXPECT_EQ(first.run.name, "run");
  auto second = options_;
  const auto other = RunFolder::claim(second, false);
  EXPECT_EQ(second.run.name, "run-2");
  for (const bool overwrite : {false, true}) {
    auto same = options_;
    same.run.overwrite = overwrite;
    same.trainer.ckpt_path = overwrite ? "" : "last";
    EXPECT_THAT(error_of([&] { RunFolder::claim(same, false); }),
                HasSubstr("[train] run folder " + run_folder(options_).string() +
                          " is in use; got the lock of process "));
  }
  claimed.reset();
  auto third = options_;
  RunFolder::claim(third, false);
  EXPECT_EQ(third.run.name, "run");
}

TEST_F(RunFolderOfTrainer, NamesThatLeadElsewhereAreRefused) {
  for (const char* name : {"", "../x", "/x", "a/..", "."}) {
    options_.run.name = name;
    EXPECT_EQ(error_of([&] { Trainer(options_, comm::local::alone()).folder(); }),
              "[config] run.name; got \"" + options_.run.name +
                  "\", expected a relative path without . or .. in it");
    EXPECT_THAT(error_of([&] { run_folder(options_); }),
                HasSubstr("[train] run.name does not name a folder in run.folder"));
  }
}

}  // namespace
}  // namespace troika::train
