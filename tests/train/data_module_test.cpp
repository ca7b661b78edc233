// Data modules: which functions are called on which ranks and in which order, and what happens if
// they fail.
#include "troika/train/task/data_module.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>

#include "tests/train/error_words.h"
#include "tests/train/waves.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::ElementsAre;

// The records of the modules of all ranks.
struct Notes {
  void add(const std::string& note) {
    const std::lock_guard lock(mutex);
    list.push_back(note);
  }
  std::mutex mutex;
  std::vector<std::string> list;
};

class WavesModule : public DataModule {
 public:
  WavesModule(Notes& notes, int rank) : notes_(notes), rank_(std::to_string(rank)) {}
  void prepare_data() override {
    if (fails == "prepare_data") throw std::runtime_error("no such file");
    notes_.add("prepare " + rank_);
  }
  void setup(RunMode mode) override {
    notes_.add(std::string("setup ") + run_mode_name(mode));
    if (fails == "setup") throw std::runtime_error("cannot read");
  }
  void teardown(RunMode mode) override {
    notes_.add(std::string("teardown ") + run_mode_name(mode));
    if (fails == "setup") throw std::runtime_error("nothing to tear down");
  }
  const data::Dataset& train_dataset() override { return use("train"); }
  const data::Dataset& val_dataset() override { return use("val"); }
  const data::Dataset& predict_dataset() override { return use("predict"); }
  std::string fails;

 private:
  const data::Dataset& use(const std::string& name) {
    notes_.add(name);
    return waves_;
  }

  Notes& notes_;
  const std::string rank_;
  const Waves waves_;
};

class DataModules : public testing::Test {
 protected:
  DataModules() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.max_steps = 1;
    options_.data.global_batch_size = 12;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
  Notes notes_;
  const std::shared_ptr<Task> task_ = make_waves_task(4, 0);
};

TEST_F(DataModules, AreSetUpForEachStageAndTornDown) {
  Trainer trainer(options_, comm::local::alone());
  WavesModule data(notes_, 0);
  EXPECT_EQ(trainer.fit(*task_, data).steps, 1);
  EXPECT_EQ(trainer.validate(*task_, data).size(), 2u);
  EXPECT_EQ(trainer.predict(*task_, data).size(0), 26);
  EXPECT_EQ(error_of([&] { trainer.test(*task_, data); }),
            "[train] the data module has no such data; got no test_dataset(), expected a data "
            "module that overrides it");
  EXPECT_THAT(notes_.list,
              testing::UnorderedElementsAre(
                  "prepare 0", "setup fit", "train", "val", "teardown fit", "prepare 0",
                  "setup validate", "val", "teardown validate", "prepare 0", "setup predict",
                  "predict", "teardown predict", "prepare 0", "setup test", "teardown test"));
  const auto& list = notes_.list;
  const auto before = [&](const std::string& one, const std::string& other) {
    return std::find(list.begin(), list.end(), one) < std::find(list.begin(), list.end(), other);
  };
  EXPECT_TRUE(before("prepare 0", "setup fit"));
  EXPECT_TRUE(before("setup fit", "train"));
  EXPECT_TRUE(before("train", "teardown fit"));
  EXPECT_TRUE(before("setup predict", "predict"));
  EXPECT_TRUE(before("predict", "teardown predict"));
}

TEST_F(DataModules, ArePreparedOnceANodeBeforeAnyRankSetsUp) {
  comm::local::run_ranks(comm::local::make(4, {0, 0, 1, 1}), [&](const comm::Group& group) {
    const auto task = make_waves_task(4, 0);
    WavesModule data(notes_, group.rank());
    Trainer(options_, group).predict(*task, data);
  });
  const auto& list = notes_.list;
  ASSERT_GE(list.size(), 2u);
  EXPECT_THAT(std::vector(list.begin(), list.begin() + 2),
              testing::UnorderedElementsAre("prepare 0", "prepare 2"));
  EXPECT_EQ(std::count(list.begin(), list.end(), "setup predict"), 4);
  EXPECT_EQ(std::count(list.begin(), list.end(), "teardown predict"), 4);
}

TEST_F(DataModules, TheCauseOutlivesATearDownThatFails) {
  Trainer trainer(options_, comm::local::alone());
  WavesModule data(notes_, 0);
  data.fails = "setup";
  try {
    trainer.predict(*task_, data);
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "cannot read");
  }
  EXPECT_THAT(notes_.list, ElementsAre("prepare 0", "setup predict", "teardown predict"));
}

TEST_F(DataModules, NoSummaryOfAnEarlierRunSurvivesAFailureToPrepare) {
  write_file_atomically(folder_ / "run/summary.json", "{}");
  WavesModule data(notes_, 0);
  data.fails = "prepare_data";
  EXPECT_THROW(Trainer(options_, comm::local::alone()).fit(*task_, data), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/summary.json"));
}

}  // namespace
}  // namespace troika::train
